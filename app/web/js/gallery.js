// The pictures of this visit: those opened one after another, and those added together, which are explained a few at a time.

import { AT_ONCE, post } from "./api.js";
import { announce } from "./dom.js";
import { show } from "./picture.js";
import { showProblem } from "./problems.js";
import { isUnsupported } from "./proof.js";
import { question } from "./question.js";
import { onChange, state } from "./state.js";
import { prepare, smallCopy, withHeatmap } from "./thumbnails.js";
import { contradicts, truthOf } from "./truth.js";
import { isUnsure, reading } from "./words.js";

const MOST = 500; // pictures
const FEW = 3; // pictures, which are soon chosen again

let pictures = [];
let dropped = 0; // pictures that were too many
let untried = []; // pictures of a folder, of which the first that can be explained is opened
let opened = null; // the one that was
let preparing = Promise.resolve(); // one after another, because decoding takes memory
const listeners = [];

/** Calls `listener(picture)` after each change: of one picture, or with null of the list. */
export const onPictures = (listener) => listeners.push(listener);

const tell = (picture = null) => listeners.forEach((listener) => listener(picture));

export const allPictures = () => pictures;

/** The picture that is shown, if it is one of the list. */
export const current = () => pictures.find(({ source }) => source === state.picture?.source);

/** A sentence about pictures that were too many; empty if all could be kept. */
export const bound = () => (dropped ? `The page keeps ${MOST} pictures at a time; ${dropped} ${dropped === 1 ? "was" : "were"} left out.` : "");

const FREE = { target: null, against: null }; // each picture is explained for its own best class

/** What tells with which settings a picture was explained; colours and the fill of proofs do not matter. */
const subject = () => JSON.stringify(question({ ...FREE, proof_fill: null, colormap: null, scale: "image" }));

/** Whether the proof of a picture's heatmap hides with another fill than the chosen one. */
export const isOtherFill = ({ proof }) => Boolean(proof?.faithfulness) && proof.faithfulness.fill !== (state.proof_fill ?? "blur");

/** Whether a picture was explained with other settings than the chosen ones. */
export const isOutdated = ({ result }) => Boolean(result) && result.subject !== subject();

/** The subjects of explanations whose proofs the service grades. */
export const gradedSubjects = () => new Set(pictures.filter(({ result }) => result?.proof?.calibration).map(({ result }) => result.subject));

/** The other pictures that were explained with the chosen settings. */
export const alike = () => pictures.filter((picture) => picture !== current() && picture.result && !isOutdated(picture));

/** Whether another try may explain a picture whose explanation failed: now, or with other settings. */
export const mayPass = ({ failure }) => !failure.isOfPicture && failure.lastsFor !== subject();

export const isWaiting = ({ result, failure }) => !result && !failure;

export function prepareGallery() {
  onChange((patch) => {
    if ("picture" in patch && state.picture) arrive();
    if (["model", "method", "options", "layer", "proof_fill"].some((name) => name in patch)) restart();
    if (patch.answer) keepAnswer();
    if (patch.failure && current()) pass(current(), patch.failure);
  });
  // The browser asks before it leaves the page, which would lose them.
  addEventListener("beforeunload", (event) => {
    if (pictures.filter(({ example }) => !example).length > FEW) event.preventDefault();
  });
}

/** Adds files, as `{source, path}`, and opens the first that can be read. */
export async function add(files) {
  const added = files.slice(0, MOST).map(({ source, path }) => found(source, path) ?? enter(source, path));
  dropped += files.length - added.length;
  trim();
  tell();
  untried = [...added];
  await openFirst();
  next();
}

/** Opens the first picture of a folder that can be shown. */
async function openFirst() {
  while (untried.length) {
    opened = untried.shift();
    if (!pictures.includes(opened) || !(await opening(opened))) return;
  }
}

/** Opens a picture of the list; returns why it cannot be opened, or null. */
const opening = (picture) => show(picture.source, picture.example).then(() => null, (error) => fail(picture, error));

/** Opens a picture of the list, or shows why it cannot be opened. */
export async function openPicture(picture) {
  const error = await opening(picture);
  if (error) showProblem(error);
}

/** Explains pictures again, the one that is shown on the page. */
export function again(some) {
  for (const picture of some) Object.assign(picture, { result: null, failure: null });
  tell();
  if (some.includes(current())) openPicture(current());
  next();
}

/** Removes all pictures but the one that is shown. */
export function clear() {
  const shown = current();
  for (const picture of pictures) if (picture !== shown) leave(picture);
  pictures = shown ? [shown] : [];
  dropped = 0;
  tell();
}

/** The picture that was opened alone and now comes with its folder, whose name may tell the truth; else undefined. */
function found(source, path) {
  const isIt = (picture) => picture.path === source.name && path !== source.name && ["size", "lastModified"].every((name) => picture.source[name] === source[name]);
  const picture = pictures.find(isIt);
  if (picture) Object.assign(picture, { path, result: null, failure: null });
  return picture;
}

function enter(source, path, example = null) {
  const picture = { source, path, example, plain: null, thumbnail: null, result: null, failure: null, asking: null };
  picture.ready = preparing.then(() => makeReady(picture));
  preparing = picture.ready;
  pictures.push(picture);
  return picture;
}

/** Sets the file that is sent, and a small copy. */
async function makeReady(picture) {
  if (!pictures.includes(picture)) return;
  const { file, thumbnail } = await prepare(picture.source);
  picture.file = file;
  wear(picture, thumbnail);
}

/** Gives a picture its small copy. */
function wear(picture, thumbnail) {
  picture.plain ??= thumbnail;
  if (!picture.thumbnail && thumbnail) dress(picture, thumbnail);
}

/** Removes the oldest pictures if there are too many. */
function trim() {
  const many = Math.max(0, pictures.length - MOST);
  for (const picture of pictures.splice(0, many)) leave(picture);
  dropped += many;
}

function leave(picture) {
  stop(picture);
  for (const url of [picture.plain, picture.thumbnail]) if (url) URL.revokeObjectURL(url);
}

/** A picture is shown: the page explains it, so that it need not be explained here. */
function arrive() {
  const { source, file, url } = state.picture;
  if (!current()) {
    enter(source, source.webkitRelativePath || file.name, state.example);
    trim();
  }
  const shown = current();
  stop(shown);
  // A file that browsers cannot show has no small copy until the service has drawn it for the page.
  shown.ready = shown.ready.then(async () => shown.plain ?? wear(shown, await smallCopy(url).catch(() => null)));
  tell();
  next();
}

function stop(picture) {
  picture.asking?.abort();
  picture.asking = null;
}

/** Stops requests with other settings: their pictures wait again. */
function restart() {
  pictures.forEach(stop);
  tell();
  next();
}

/** Whether the page's own answer is the one that the strip would ask for. */
const isFree = () => !state.asked.some(([name]) => name in FREE);

/** The page's own answer about the picture that is shown. */
function keepAnswer() {
  if (isFree() && current()) finish(current(), state.answer, subject());
  next();
}

function next() {
  const shown = current();
  const isShownWaiting = shown && isWaiting(shown) && !state.answer;
  // The request about the picture that is shown counts too.
  let busy = pictures.filter(({ asking }) => asking).length + (isShownWaiting ? 1 : 0);
  for (const picture of pictures) {
    if (busy >= AT_ONCE) return;
    if (picture === shown && (pictures.length < 2 || !state.answer || isFree())) continue;
    if (picture.asking || !isWaiting(picture)) continue;
    ask(picture);
    busy += 1;
  }
}

async function ask(picture) {
  const mine = new AbortController();
  picture.asking = mine;
  const fields = [...question(FREE), ["view", "heatmap"], ["proof", "true"]];
  const about = subject();
  try {
    await picture.ready;
    if (mine.signal.aborted) return;
    const response = await patiently(() => post("/explain", picture.file, fields, { signal: mine.signal, accept: "application/json" }), mine.signal);
    const answer = await response.json();
    if (picture.asking === mine) await finish(picture, answer, about);
  } catch (error) {
    if (picture.asking === mine) fail(picture, error);
  } finally {
    if (picture.asking === mine) {
      picture.asking = null;
      next();
      if (!pictures.some(isWaiting)) announce(pictures.some(({ failure }) => failure) ? "All pictures have been tried; some failed." : "All pictures have been explained.");
    }
  }
}

const PATIENCE = 120; // seconds; a limit per day is not waited for

/** Sends a request, again after a while if the service allows no more at present. */
async function patiently(send, signal) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (!error.wait || error.wait > PATIENCE) throw error;
      announce(error.message);
      await new Promise((go) => { setTimeout(go, 1000 * error.wait); });
      signal.throwIfAborted();
    }
  }
}

/** Notes why the picture that is shown has no answer; opens another one if this one is damaged and nobody chose it. */
function pass(picture, error) {
  fail(picture, error);
  if (error.isOfPicture && picture === opened) openFirst();
}

function fail(picture, error) {
  picture.failure = { message: error.message, isOfPicture: error.isOfPicture, lastsFor: (error.mayPass ?? true) ? null : subject() };
  tell(picture);
  return error;
}

/** Keeps what an answer says about a picture, without its maps. */
async function finish(picture, answer, about) {
  const [explanation] = answer.explanations;
  const { target, proof, overlay, heatmap: { shape, box } } = explanation;
  const truth = await truthOf(picture.path, answer.model.name);
  const { label, probability } = target;
  const isWrong = truth !== null && contradicts(truth, label, answer);
  const isRejected = answer.model.head === "sigmoid" && isUnsure(probability); // the model is sure that it is not there
  Object.assign(picture, {
    failure: null,
    result: {
      subject: about,
      head: answer.model.head,
      label,
      seen: { shape, box },
      reading: reading(target),
      proof,
      truth: isWrong === null ? null : truth,
      isWrong,
      isUnsure: (!isRejected && isUnsure(probability)) || isUnsupported(proof),
    },
  });
  tell(picture);
  await picture.ready;
  if (picture.plain) dress(picture, await withHeatmap(picture.plain, overlay).catch(() => picture.plain));
}

function dress(picture, thumbnail) {
  if (!pictures.includes(picture)) return;
  if (picture.thumbnail !== picture.plain) URL.revokeObjectURL(picture.thumbnail);
  picture.thumbnail = thumbnail;
  tell(picture);
}
