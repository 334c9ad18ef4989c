// Requests an explanation whenever the question changes, shows its progress, and can cancel it.

import { amend, forgetPicture } from "./address.js";
import { Problem, explain } from "./api.js";
import { affordable, costInWords, costOf } from "./cost.js";
import { announce, byId, scrollTo } from "./dom.js";
import { doubts, drawnBy } from "./doubt.js";
import { clearProblems, showProblem } from "./problems.js";
import { HEATMAP, isLoaded, learn, limit, methodNamed, question } from "./question.js";
import { gradeOf, sentenceOf } from "./proof.js";
import { asks, readingOf, subjectOf } from "./scene.js";
import { DEFAULTS, change, explanation, isLayerless, learnLayerless, methodName, onChange, state } from "./state.js";
import { restore, showPreview } from "./stage.js";
import { count, progress } from "./words.js";

const ASKS = ["picture", "model", "method", "options", "target", "against", "layer", "colormap", "scale", "proof_fill"];

export const PATIENCE = 300; // milliseconds before progress is shown; most answers take less

let pending = null;
let waiting = null;
let shown = null; // the question whose answer is shown, or was before another picture was chosen
let shownAnswer = null; // that answer, and what belongs to it
let isReturning = false;
const leftOut = []; // what a link asks and the service refuses, as errors

export function prepareExplain() {
  onChange((patch) => {
    if (state.picture && !isReturning && ASKS.some((name) => name in patch)) run();
  });
  byId("cancel").addEventListener("click", cancel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pending && !document.querySelector("dialog")) cancel();
  });
}

const current = () => Object.fromEntries(ASKS.map((name) => [name, state[name]]));
const differing = (from, to) => ASKS.filter((name) => JSON.stringify(from[name]) !== JSON.stringify(to[name]));

function stop() {
  pending?.abort();
  pending = null;
  busy(false);
  restore();
}

function cancel() {
  stop();
  change({ failure: new Problem({ detail: "Cancelled." }) });
  if (state.answer) goBack();
  else showProblem(new Problem({ detail: "Cancelled: nothing has been explained yet." }), run);
  announce("Cancelled.");
}

/** Returns to the question whose answer is shown, and to its picture, without a request. */
function goBack() {
  const names = differing(current(), shown);
  if (!names.length) return;
  const patch = Object.fromEntries(names.map((name) => [name, shown[name]]));
  if ("model" in patch) learn(shown.model).catch(() => null);
  isReturning = true;
  amend({ ...patch, ...shownAnswer });
  isReturning = false;
}

async function run() {
  pending?.abort();
  const mine = new AbortController();
  pending = mine;
  clearProblems();
  restore();
  busy(true);
  const onProgress = (event) => {
    if (pending !== mine) return;
    showProgress(event);
    if (event.preview) showPreview(event.preview);
  };
  const wanted = current();
  try {
    const fields = question();
    const answer = await explain(state.picture.file, [...fields, ...HEATMAP], { signal: mine.signal, onProgress });
    if (pending !== mine) return;
    const asked = fields.some(([name]) => name === "method") ? fields : [["method", answer.method.name], ...fields];
    shown = wanted;
    shownAnswer = { answer, asked, example: state.example };
    change({ answer, asked, map: 0 });
    reveal();
    if (leftOut.length) showProblem(new Problem({ detail: "", errors: toldLeftOut() }));
    const { target, proof } = explanation();
    announce(`${subjectOf(target)}, ${readingOf(target)}, explained by ${drawnBy(answer.method, explanation())}. ${doubts()} ${proof ? `${gradeOf(proof)}: ${sentenceOf(proof)}` : ""}`);
  } catch (error) {
    if (pending !== mine || error.name === "AbortError") return;
    restore();
    const isAbout = (name) => error.errors?.some(({ field }) => field === name);
    if (isAbout("layer") && !state.method && !state.layer.length && !isLayerless()) {
      learnLayerless(state.model);
      amend({ method: null }); // the network has no layer for the recommended one
    } else if (!shown && !error.isTooMuch && error.errors?.some(isOfLink)) {
      await leaveOut(error);
    } else {
      change({ failure: error });
      refuse(error, wanted);
    }
  } finally {
    if (pending === mine) {
      pending = null;
      busy(false);
    }
  }
}

/** On a narrow screen, a class or a method is chosen below the picture: scrolls to it, unless options are being tried. */
function reveal() {
  const stage = byId("stage");
  const isTrying = document.activeElement?.closest("details");
  if (state.show !== "explain" || !matchMedia("(max-width: 60rem)").matches || isTrying) return;
  if (stage.getBoundingClientRect().bottom < stage.offsetHeight / 2) scrollTo(stage, "start");
}

/** The part of the question that an error is about. */
const nameOf = ({ field }) => field.split(/[.[]/)[0];

/** Whether an error is about something that has a default. */
const isOfLink = (error) => nameOf(error) in state.options || (nameOf(error) !== "picture" && differing(current(), DEFAULTS).includes(nameOf(error)));

/** Asks again without what a link asks and the service refuses: what else is wrong with it is told, too. */
async function leaveOut({ errors }) {
  const patch = {};
  for (const fault of errors.filter(isOfLink)) {
    const name = nameOf(fault);
    const isOption = name in state.options;
    const lead = isOption ? `${name}=${state.options[name]}: ` : name === "method" ? `${state.method}: ` : "";
    leftOut.push({ field: isOption ? "" : name, message: `${lead}${fault.message}` });
    if (isOption) patch.options = Object.fromEntries(Object.entries(patch.options ?? state.options).filter(([option]) => option !== name));
    else patch[name] = DEFAULTS[name];
  }
  if ("target" in patch) patch.against = null;
  if ("method" in patch) patch.options = {}; // they are the method's
  if ("model" in patch) await learn(null);
  amend(patch);
}

/** What a link asks that was left out, as errors that say what the page shows instead. */
function toldLeftOut() {
  const instead = {
    "": "This option is left out.",
    against: "The contrast is left out.",
    target: asks() ? "The default one is used." : "The best class is explained.",
  };
  return leftOut.splice(0).map(({ field, message }) => ({ field, message: `${message} ${instead[field] ?? "The default one is used."}` }));
}

/**
 * Shows why there is no answer, and returns to the question whose answer is shown, or was before a picture that cannot be
 * read; what was typed can be corrected, unless it is only too much, which is said elsewhere. An option that was chosen with its method or model keeps these: it is theirs.
 */
function refuse(error, wanted) {
  const fields = (error.errors ?? []).map(({ field }) => field);
  const typed = fields.map((field) => document.querySelector(`[data-field="${CSS.escape(field)}"] :is([type=number], [type=text], #target)`)).filter(Boolean);
  const texts = typed.map((control) => control.value);
  const method = methodNamed(methodName());
  for (const fault of error.errors ?? []) if (fault.field === "method") fault.message = `${method.name}: ${fault.message}`; // the control goes back
  if (error.isOfPicture) forgetPicture(state.picture);
  const isTheirs = isOption(fields[0]) && !error.isTooMuch && differing(wanted, shown ?? wanted).some((name) => name !== "options");
  if (!isTheirs && (state.answer || (error.isOfPicture && shown))) goBack();
  else if (error.isOfPicture) amend({ picture: null, example: null }); // to the start
  if (!error.isTooMuch) typed.forEach((control, place) => (control.value = texts[place]));
  if (leftOut.length && fields.length && !error.isTooMuch) error.errors = [...toldLeftOut(), ...error.errors];
  if (error.isTooMuch) offerLess(error, fields[0], method, wanted);
  else showProblem(error, () => askAgain(wanted));
}

const isOption = (field) => byId("options-list").querySelector(`[data-field="${CSS.escape(field ?? "")}"]`) !== null;

function askAgain(wanted) {
  const names = differing(wanted, current());
  if (names.length) change(Object.fromEntries(names.map((name) => [name, wanted[name]])));
  else run();
}

/** Shows that a method takes too long, and offers as much of its option as fits. */
function offerLess({ message }, option, method, wanted) {
  const most = option in (method?.options ?? {}) ? affordable(method, option, limit()) : 0;
  const again = () => askAgain({ ...wanted, options: { ...wanted.options, [option]: String(most) } });
  const what = most === 1 ? option.replace(/s$/, "") : option;
  showProblem(new Problem({ detail: message }), most ? again : null, `Run with ${count(most)} ${what}`);
}

function busy(is) {
  byId("figure").setAttribute("aria-busy", String(is));
  byId("progress-bar").removeAttribute("value");
  byId("progress-text").textContent = `Sending the picture${isLoaded() ? "" : " and loading the model"}…`;
  clearTimeout(waiting);
  if (is) waiting = setTimeout(showWork, PATIENCE);
  else byId("progress").hidden = true;
}

function showWork() {
  byId("progress").hidden = false;
  announce(byId("progress-text").textContent);
}

/** What the page says until it knows how far the work of the service is: its cost, if that is known. */
function beginning() {
  const method = methodNamed(methodName());
  return (method && costInWords(costOf(method, state.options, state.layer))) || "Working…";
}

function showProgress(event) {
  const { done, total } = event;
  if (!total || !done) {
    byId("progress-text").textContent = beginning(); // it has arrived, and is queued
    return;
  }
  Object.assign(byId("progress-bar"), { max: total, value: done });
  byId("progress-text").textContent = progress(event);
}
