// A part of the picture that is marked, a box or strokes of a brush, to see what the model says if it is hidden or blurred,
// or of it alone.

import { amend } from "./address.js";
import { Problem, post } from "./api.js";
import { around, drawn, moved, simplified, strokesOf, textOf } from "./brush.js";
import { cover, dim } from "./cover.js";
import { announce, arrow, byId, isTouched } from "./dom.js";
import { onDrag, spanned } from "./drag.js";
import { LatestRequest } from "./latest.js";
import { seen } from "./maps.js";
import { clearProblems, showProblem } from "./problems.js";
import { identity, kind, sceneOf } from "./scene.js";
import { overlay } from "./stage.js";
import { change, explained, explanation, onChange, state } from "./state.js";
import { allMove, moves, reading } from "./words.js";
import { isPanned } from "./zoom.js";

const WAIT = 150; // milliseconds without another change before the model is asked
const SAME = 0.5; // overlap from which two boxes are of one thing
const MOST = 1000; // predictions, of the service
const WIDE = 28; // pixels of the screen: the brush, also of an enlarged picture; its cursor is as wide
const LONGEST = 3000; // characters of a mark: servers refuse long addresses
const FAR = 0.2; // difference of probabilities from which two ways of covering a part say different things
const PARTS = {
  hide: "Without your marked part",
  blur: "With your marked part blurred",
  fill: "With your marked part filled with its surroundings",
  keep: "With only your marked part",
};

let shown = null; // the mark that is drawn
let asked = null; // the picture, the model and the mark that are asked about
let uncovered = { subject: null, predictions: null }; // of the whole picture

const request = new LatestRequest(byId("marking-said"));
let unfit = null; // a mark that is too large to be filled
let answering = null; // until the model has answered about the marked part

/** What happens to a mark, and its box or strokes. */
function parsed(text) {
  const [how, edges, painted] = (text ?? "").split(":");
  if (!(how in PARTS)) return null;
  const strokes = edges === "brush" ? strokesOf(painted ?? "") : null;
  const box = (edges ?? "").split(",").map(Number);
  return strokes || (box.length === 4 && box.every(Number.isInteger)) ? { how, box, strokes } : null;
}

const chosen = () => document.querySelector("[name=how]:checked").value;
const shaped = ({ box, strokes }) => (strokes ? `brush:${textOf(strokes)}` : String(box));
const mark = (part, how = chosen()) => change({ mark: `${how}:${shaped(part)}` });
const clear = () => change({ mark: null });
const isPressed = (id) => byId(id).getAttribute("aria-pressed") === "true";
const isPainting = () => isPressed("painting-on");
const isOn = () => isPressed("marking-on") || isPainting();

export function prepareMarking() {
  const marker = byId("marker");
  const endDrag = onDrag({
    starts: (event) => {
      if (!isOn() && (isPanned() || event.pointerType === "touch")) return null; // it moves the picture or the page
      if (isPainting()) return painting();
      if (event.target === marker) return moving(fitting());
      return isOn() || !kind()?.isDragged ? boxed : null; // of a detector, a box is asked about instead
    },
    drag: (part) => outline(part, isPainting()),
    drop,
    cancel: () => outline(marked()),
    takesClicks: isPainting,
  });
  byId("marking-on").addEventListener("click", (event) => {
    turn(isPressed("marking-on") ? null : "marking-on");
    if (isOn() && !state.mark && event.detail === 0) mark({ box: middle() }); // the keyboard moves what a pointer would draw
    if (isOn() && state.mark) marker.focus();
  });
  byId("painting-on").addEventListener("click", () => turn(isPainting() ? null : "painting-on"));
  byId("marking-undo").addEventListener("click", undo);
  for (const control of document.querySelectorAll("[name=how]")) {
    control.addEventListener("change", () => (state.mark ? mark(parsed(state.mark)) : say()));
  }
  marker.addEventListener("keydown", steer);
  document.addEventListener("keydown", (event) => {
    const isOurs = event.key === "Escape" && state.show === "explain" && !document.querySelector("dialog");
    if (!isOurs) return;
    if (endDrag()) event.stopImmediatePropagation();
    else if (byId("figure").getAttribute("aria-busy") === "true") return; // it cancels the request
    else if (!byId("fires").hidden) byId("fires-close").click();
    else if (state.mark) leave();
    else turn(null);
  });
  onChange((patch) => {
    if ("picture" in patch) turn(null);
    if (["mark", "picture", "answer", "scene"].some((name) => name in patch)) follow();
  });
}

function drop(part) {
  clearProblems();
  if (shaped(part).length <= LONGEST) mark(part);
  else {
    outline(marked());
    showProblem(new Problem({ detail: "This part is too intricate for a link: undo a stroke, or mark a box." }));
  }
}

const boxed = (start, stop) => ({ box: spanned(start, stop) });

/** How a part moves with the pointer, inside the picture. */
const moving = (part) => ([x, y], [u, v]) => shifted(part, [u - x, v - y]);

function shifted({ box: [left, top, right, bottom], strokes }, [across, down]) {
  const { shape } = explanation().heatmap;
  const within = (by, low, high, size) => Math.min(size - high, Math.max(-low, by));
  const by = [within(across, left, right, shape[1]), within(down, top, bottom, shape[0])];
  return { box: [left + by[0], top + by[1], right + by[0], bottom + by[1]], strokes: strokes && moved(strokes, by, shape) };
}

/** How a stroke follows the pointer, beside those that are painted. */
function painting() {
  const { shape } = explanation().heatmap;
  const before = marked()?.strokes ?? [];
  const { offsetWidth, offsetHeight } = byId("stage");
  const stroke = { width: WIDE / Math.max(offsetWidth, offsetHeight), points: [] };
  const add = ([x, y]) => stroke.points.push([(x + 0.5) / shape[1], (y + 0.5) / shape[0]]);
  return (start, pixel) => {
    add(pixel);
    const strokes = [...before, simplified(stroke, shape)];
    return { strokes, box: around(strokes, shape) };
  };
}

function stretched([left, top, right, bottom], [across, down]) {
  const [height, width] = explanation().heatmap.shape;
  const within = (edge, low, size) => Math.min(size, Math.max(low + 1, edge));
  return [left, top, within(right + across, left, width), within(bottom + down, top, height)];
}

/** The box that the keyboard starts with: the middle of what the model sees. */
function middle() {
  const { heatmap } = explanation();
  const [left, top, right, bottom] = seen(heatmap, heatmap.shape[1], heatmap.shape[0]);
  const [across, down] = [Math.floor((right - left) / 4), Math.floor((bottom - top) / 4)];
  return [left + across, top + down, right - across, bottom - down];
}

function steer(event) {
  const steps = arrow(event);
  if (["Delete", "Backspace"].includes(event.key)) leave();
  if (!steps || !explanation()) return;
  event.preventDefault();
  const step = Math.max(1, Math.round(explanation().heatmap.shape[1] / 40));
  const by = steps.map((side) => side * step);
  const part = fitting();
  if (!event.shiftKey) mark(shifted(part, by));
  else if (!part.strokes) mark({ box: stretched(part.box, by) });
}

/** Takes the last stroke back, or the box. */
function undo() {
  const strokes = parsed(state.mark).strokes?.slice(0, -1) ?? [];
  if (strokes.length) mark({ strokes });
  else leave();
}

/** Removes the mark; the focus stays near. */
function leave() {
  const isInside = byId("marking").contains(document.activeElement) || document.activeElement === byId("marker");
  clear();
  if (isInside) byId("marking-on").focus();
}

/** Turns on one of the buttons, or neither. */
function turn(on) {
  for (const id of ["marking-on", "painting-on"]) byId(id).setAttribute("aria-pressed", String(id === on));
  byId("stage").classList.toggle("marking", isOn());
  byId("stage").classList.toggle("painting", isPainting());
  say();
}

/** The mark, if it fits the picture and the model. */
function fitting() {
  const current = parsed(state.mark);
  if (!current || overlay.isSheet) return null;
  const { shape } = explanation().heatmap;
  if (current.strokes) return { ...current, box: around(current.strokes, shape) };
  const [height, width] = shape;
  const [left, top, right, bottom] = current.box.map((edge, place) => Math.min(edge, place % 2 ? height : width));
  return right > left && bottom > top && left >= 0 && top >= 0 ? { ...current, box: [left, top, right, bottom] } : null;
}

/** The marked part: its box, left, top, right, bottom in pixels of the upload, and its strokes, if any; null without one. */
export const marked = () => (state.answer && state.mark ? fitting() : null);

/** Waits until nothing is asked about the marked part. */
export async function markAnswered() {
  let awaited = null;
  while (awaited !== answering) {
    awaited = answering;
    await awaited;
  }
}

function follow() {
  const { answer, picture } = state;
  if (!answer) {
    show(null);
    return;
  }
  const current = fitting();
  if (state.mark && !current) {
    if (!overlay.isSheet) showProblem(new Problem({ detail: "The part that this link marks is incomplete or outside the picture; mark another." }));
    amend({ mark: null });
    return;
  }
  show(current);
  if (kind() && !state.scene) return; // it is asked about once the places are known
  const subject = JSON.stringify([picture.url, answer.model.name]);
  const key = current && `${subject}${state.mark}`;
  if (key === asked) {
    say();
    return;
  }
  stop();
  if (state.altered && !(current && state.altered.subject === subject)) change({ altered: null });
  asked = current ? key : null;
  say();
  if (!current) return;
  answering = request.run((signal) => ask(current, subject, signal), refuse);
}

function stop() {
  request.stop();
  [asked, unfit] = [null, null];
}

async function ask(current, subject, signal) {
  const { picture } = state;
  const { heatmap } = explanation();
  const { shape } = heatmap;
  const covered = await cover(picture, shape, current);
  if (signal.aborted) return;
  if (!covered) {
    unfit = state.mark;
    byId("covered").replaceChildren();
    change({ altered: null });
    say();
    return;
  }
  const { layer, whole } = covered;
  dim(layer, seen(heatmap, layer.width, layer.height));
  byId("covered").replaceChildren(layer);
  await new Promise((done) => setTimeout(done, WAIT));
  if (signal.aborted) return;
  const file = await fileOf(whole);
  const altered = await (kind() ? placesIn(file, whole, shape, signal) : classesIn(file, picture, subject, signal));
  if (signal.aborted) return;
  change({ altered: { subject, how: current.how, ...altered } });
  say();
  if (!kind() && ["hide", "blur"].includes(current.how)) await control(current, subject, shape, signal);
  if (signal.aborted) return;
  announce(byId("marking-said").textContent);
}

const fileOf = async (sheet) => new File([await new Promise((done) => sheet.toBlob(done))], "marked.png", { type: "image/png" });

/** Asks what the model says with the part filled with its surroundings: a hidden part may itself look like something. */
async function control(current, subject, shape, signal) {
  const filled = await cover(state.picture, shape, { ...current, how: "fill" });
  if (!filled || signal.aborted) return;
  const answer = await classesIn(await fileOf(filled.whole), state.picture, subject, signal).catch(() => null); // as if not asked
  if (!answer || signal.aborted) return;
  change({ altered: { ...state.altered, filled: answer.after } });
  say();
}

function refuse(error) {
  stop();
  change({ altered: null });
  say();
  showProblem(error, () => {
    clearProblems();
    follow();
  });
}

/** The classes of the whole picture and of the covered one. */
async function classesIn(file, picture, subject, signal) {
  const fields = [["model", state.answer.model.name], ["top", String(MOST)]];
  const predict = async (source) => {
    const { predictions } = await (await post("/predict", source, fields, { signal })).json();
    return new Map(predictions.map((prediction) => [prediction.index, prediction]));
  };
  if (uncovered.subject !== subject) uncovered = { subject, predictions: await predict(picture.file) };
  return { before: uncovered.predictions, after: await predict(file) };
}

/** The boxes or regions of the whole picture, and what they become in the covered one, whose pixels may be fewer. */
async function placesIn(file, whole, [height, width], signal) {
  const scene = await sceneOf(file, [height, width], signal);
  const scale = width / whole.width;
  for (const row of scene.rows) if (row.box) row.box = row.box.map((edge) => edge * scale);
  const left = new Set(scene.rows);
  const follow = (row) => {
    const alike = [...left].filter((other) => (row.box ? other.label === row.label && overlap(row.box, other.box) > SAME : other.index === row.index));
    const [best] = alike.sort((one, other) => (row.box ? overlap(row.box, other.box) - overlap(row.box, one.box) : 0));
    left.delete(best);
    return best ?? { ...row, isGone: true, ...(row.box ? { probability: 0 } : { area: 0 }) };
  };
  const { rows } = state.scene;
  const byIdentity = (predictions) => new Map(rows.map((row, place) => [identity(row), predictions[place]]));
  return { before: byIdentity(rows), after: byIdentity(rows.map(follow)), scene };
}

/** The area that two boxes share, relative to all that they cover. */
function overlap([left, top, right, bottom], [first, upper, last, lower]) {
  const shared = Math.max(0, Math.min(right, last) - Math.max(left, first)) * Math.max(0, Math.min(bottom, lower) - Math.max(top, upper));
  return shared / ((right - left) * (bottom - top) + (last - first) * (lower - upper) - shared);
}

/** Shows a mark on the picture and in its controls. */
function show(current) {
  const marker = byId("marker");
  const text = current ? `${current.how}:${shaped(current)}` : null;
  byId("marking-undo").disabled = !current;
  outline(current);
  if (!current) byId("covered").replaceChildren();
  if (text === shown) return;
  shown = text;
  if (!current) return;
  document.querySelector(`[name=how][value=${current.how}]`).checked = true;
  const [left, top, right, bottom] = current.box;
  marker.setAttribute("aria-valuetext", `x ${left} to ${right}, y ${top} to ${bottom}`);
  marker.setAttribute("aria-valuenow", left);
}

/** Outlines a part; while it is painted, its last stroke is shown, too. */
function outline(part, isPainted = false) {
  const marker = byId("marker");
  marker.hidden = !part || isPainted;
  for (const element of [marker, byId("covered")]) element.classList.toggle("painted", Boolean(part?.strokes));
  byId("stroke").toggleAttribute("hidden", !isPainted);
  if (!part) return;
  const { shape } = explanation().heatmap;
  if (isPainted) showStroke(drawn(part.strokes.at(-1), shape), shape);
  const [height, width] = shape;
  const [left, top, right, bottom] = part.box;
  const sides = { left: left / width, top: top / height, width: (right - left) / width, height: (bottom - top) / height };
  for (const [side, share] of Object.entries(sides)) marker.style[side] = `${share * 100}%`;
}

function showStroke({ line, width }, [height, wide]) {
  const path = byId("stroke").firstElementChild;
  byId("stroke").setAttribute("viewBox", `0 0 ${wide} ${height}`);
  path.setAttribute("d", line);
  path.setAttribute("stroke-width", width);
}

function say() {
  byId("marking-said").textContent = sentence();
}

/** What is said about the marked part. */
export function sentence() {
  const current = state.answer && fitting();
  const where = isTouched() ? "with a finger" : "on the picture";
  if (!current && isPainting()) return `Paint ${where}; each stroke adds to the part. With the keyboard, mark a box instead.`;
  if (!current) return isOn() ? `Draw a box ${where}.` : `Mark a part to see the prediction ${{ hide: "without it", blur: "with it blurred", fill: "with its surroundings in its place", keep: "for it alone" }[chosen()]}.${kind() ? "" : ` ${isTouched() ? "Touch" : "Click"} anywhere to see which channels respond there.`}`;
  if (unfit === state.mark) return "This part is too large to be filled with its surroundings; mark a smaller one.";
  if (!state.altered) return asked ? "Asking the model…" : "";
  const { how } = state.altered; // until the model has answered about another way
  const { target, against } = explanation();
  const { before, after, scene } = state.altered;
  if (scene) return `${PARTS[how]}, ${placesMoved(target, state.altered)}`;
  // Of more classes than the service lists, the last one is the most that the others can be.
  const now = ({ index }) => after.get(index) ?? [...after.values()].at(-1);
  const moved = allMove([target, against].filter(Boolean).map((prediction) => [prediction, now(prediction)]));
  const [best, first] = [before, after].map((predictions) => [...predictions.values()][0]);
  const isOther = best.index !== first.index && first.probability !== undefined && state.answer.model.head !== "sigmoid"; // several hold at once
  const most = isOther ? ` The best class is now ${first.label}, ${reading(first)}.` : "";
  return `${PARTS[how]}, ${moved}.${most}${isUnseen(current) ? " The model does not see this part." : ""}${doubt([target, first])}`;
}

/** What is said if a part that is filled in leaves one of these classes much less or more than the same part hidden. */
function doubt(predictions) {
  const { after } = state.altered;
  const differs = ({ index }) => Math.abs(state.altered.filled?.get(index)?.probability - after.get(index)?.probability) >= FAR;
  const target = predictions.find(differs);
  if (!target) return "";
  const filled = state.altered.filled.get(target.index);
  const visible = state.altered.how === "blur" ? "a blur may leave too much visible, and " : "";
  return ` With it filled from its surroundings instead, ${target.label} has ${reading(filled)}: ${visible}the model may react to the hiding itself.`;
}

/** What becomes of the explained box or region, and of the number of boxes. */
function placesMoved(target, { before, after, scene }) {
  const [from, to] = [before, after].map((predictions) => predictions.get(identity(target)));
  const said = [];
  if (from) said.push(to.isGone ? `${target.label} is no longer found.` : `${target.label} ${moves(from, to)}.`);
  const [found, earlier] = [scene.rows.length, before.size];
  if (kind().isDragged) said.push(`${found} ${found === 1 ? "box is" : "boxes are"} found${found === earlier ? ", as before" : ` instead of ${earlier}`}.`);
  return said.join(" ");
}

function isUnseen({ how, box: [left, top, right, bottom] }) {
  const { heatmap } = explanation();
  const [first, upper, last, lower] = seen(heatmap, heatmap.shape[1], heatmap.shape[0]);
  return how !== "keep" && (right <= first || left >= last || bottom <= upper || top >= lower);
}
