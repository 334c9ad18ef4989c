// A part of the picture that is marked, to see what the model says if it is hidden or blurred, or of it alone.

import { amend } from "./address.js";
import { post } from "./api.js";
import { cover } from "./cover.js";
import { announce, arrow, byId, isTouched } from "./dom.js";
import { onDrag, spanned } from "./drag.js";
import { LatestRequest } from "./latest.js";
import { seen } from "./maps.js";
import { clearProblems, showProblem } from "./problems.js";
import { identity, kind, sceneOf } from "./scene.js";
import { overlay } from "./stage.js";
import { change, explained, explanation, onChange, state } from "./state.js";
import { moves, reading } from "./words.js";
import { isPanned } from "./zoom.js";

const WAIT = 150; // milliseconds without another change before the model is asked
const SAME = 0.5; // overlap from which two boxes are of one thing
const MOST = 1000; // predictions, of the service
const PARTS = { hide: "Without the marked part", blur: "With the marked part blurred", keep: "From the marked part alone" };

let shown = null; // the mark that is drawn
let asked = null; // the picture, the model and the mark that are asked about
let uncovered = { subject: null, predictions: null }; // of the whole picture

const request = new LatestRequest(byId("marking-said"));

/** A mark's kind and box. */
function parsed(text) {
  const [how, edges] = (text ?? "").split(":");
  const box = (edges ?? "").split(",").map(Number);
  return how in PARTS && box.length === 4 && box.every(Number.isInteger) ? { how, box } : null;
}

const chosen = () => document.querySelector("[name=how]:checked").value;
const mark = (box, how = chosen()) => change({ mark: `${how}:${box}` });
const clear = () => change({ mark: null });
const isOn = () => byId("marking-on").getAttribute("aria-pressed") === "true";

export function prepareMarking() {
  const marker = byId("marker");
  const endDrag = onDrag({
    starts: (event) => {
      if (!isOn() && (isPanned() || event.pointerType === "touch")) return null; // it moves the picture or the page
      if (event.target === marker) return moving(parsed(state.mark).box);
      return isOn() || !kind()?.isDragged ? spanned : null; // of a detector, a box is asked about instead
    },
    drag: outline,
    drop: (box) => mark(box),
    cancel: () => outline(parsed(state.mark)?.box),
  });
  byId("marking-on").addEventListener("click", (event) => {
    turn(!isOn());
    if (isOn() && !state.mark && event.detail === 0) mark(middle()); // the keyboard moves what a pointer would draw
    if (isOn() && state.mark) marker.focus();
  });
  byId("marking-undo").addEventListener("click", leave);
  for (const control of document.querySelectorAll("[name=how]")) {
    control.addEventListener("change", () => state.mark && mark(parsed(state.mark).box));
  }
  marker.addEventListener("keydown", steer);
  document.addEventListener("keydown", (event) => {
    const isOurs = event.key === "Escape" && state.show === "explain" && !document.querySelector("dialog");
    if (!isOurs) return;
    if (endDrag()) event.stopImmediatePropagation();
    else if (byId("figure").getAttribute("aria-busy") === "true") return; // it cancels the request
    else if (state.mark) leave();
    else turn(false);
  });
  onChange((patch) => {
    if ("picture" in patch) turn(false);
    if (["mark", "picture", "answer", "scene"].some((name) => name in patch)) follow();
  });
}

/** How a box moves with the pointer, inside the picture. */
const moving = (box) => ([x, y], [u, v]) => shifted(box, [u - x, v - y]);

function shifted([left, top, right, bottom], [across, down]) {
  const [height, width] = explanation().heatmap.shape;
  const within = (by, low, high, size) => Math.min(size - high, Math.max(-low, by));
  const [x, y] = [within(across, left, right, width), within(down, top, bottom, height)];
  return [left + x, top + y, right + x, bottom + y];
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
  const { box } = parsed(state.mark);
  mark(event.shiftKey ? stretched(box, by) : shifted(box, by));
}

/** Removes the mark; the focus stays near. */
function leave() {
  const isInside = byId("marking").contains(document.activeElement) || document.activeElement === byId("marker");
  clear();
  if (isInside) byId("marking-on").focus();
}

function turn(on) {
  byId("marking-on").setAttribute("aria-pressed", String(on));
  byId("stage").classList.toggle("marking", on);
  say();
}

/** The mark, if it fits the picture and the model. */
function fitting() {
  const current = parsed(state.mark);
  if (!current || overlay.isSheet) return null;
  const [height, width] = explanation().heatmap.shape;
  const [left, top, right, bottom] = current.box.map((edge, place) => Math.min(edge, place % 2 ? height : width));
  return right > left && bottom > top && left >= 0 && top >= 0 ? { ...current, box: [left, top, right, bottom] } : null;
}

/** The marked part: left, top, right, bottom in pixels of the upload; null without one. */
export const marked = () => (state.answer && state.mark ? (fitting()?.box ?? null) : null);

function follow() {
  const { answer, picture } = state;
  if (!answer) {
    show(null);
    return;
  }
  const current = fitting();
  if (state.mark && !current) {
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
  say();
  if (!current) return;
  asked = key;
  request.run((signal) => ask(current, subject, signal), refuse);
}

function stop() {
  request.stop();
  asked = null;
}

async function ask(current, subject, signal) {
  const { picture } = state;
  const { shape } = explanation().heatmap;
  const { layer, whole } = await cover(picture, shape, current);
  if (signal.aborted) return;
  byId("covered").replaceChildren(layer);
  await new Promise((done) => setTimeout(done, WAIT));
  if (signal.aborted) return;
  const file = new File([await new Promise((done) => whole.toBlob(done))], "marked.png", { type: "image/png" });
  const altered = await (kind() ? placesIn(file, whole, shape, signal) : classesIn(file, picture, subject, signal));
  if (signal.aborted) return;
  change({ altered: { subject, ...altered } });
  say();
  announce(byId("marking-said").textContent);
}

function refuse(error) {
  stop();
  change({ altered: null });
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
  const text = current ? `${current.how}:${current.box}` : null;
  byId("marking-undo").disabled = !current;
  outline(current?.box);
  if (!current) byId("covered").replaceChildren();
  if (text === shown) return;
  shown = text;
  if (!current) return;
  document.querySelector(`[name=how][value=${current.how}]`).checked = true;
  const [left, top, right, bottom] = current.box;
  marker.setAttribute("aria-valuetext", `x ${left} to ${right}, y ${top} to ${bottom}`);
  marker.setAttribute("aria-valuenow", left);
}

function outline(box) {
  const marker = byId("marker");
  marker.hidden = !box;
  if (!box) return;
  const [height, width] = explanation().heatmap.shape;
  const [left, top, right, bottom] = box;
  const sides = { left: left / width, top: top / height, width: (right - left) / width, height: (bottom - top) / height };
  for (const [side, share] of Object.entries(sides)) marker.style[side] = `${share * 100}%`;
}

function say() {
  byId("marking-said").textContent = sentence();
}

function sentence() {
  const current = state.answer && fitting();
  if (!current) return isOn() ? `Draw a box ${isTouched() ? "with a finger" : "on the picture"}.` : `Mark a part to see the prediction without it.${kind() ? "" : " Click anywhere to see which channels respond there."}`;
  if (!state.altered) return "Asking the model…";
  const target = explained();
  const { before, after, scene } = state.altered;
  if (scene) return `${PARTS[current.how]}, ${placesMoved(target, state.altered)}`;
  // Of more classes than the service lists, the last one is the most that the others can be.
  const now = after.get(target.index) ?? [...after.values()].at(-1);
  const [best, first] = [before, after].map((predictions) => [...predictions.values()][0]);
  const isOther = best.index !== first.index && first.probability !== undefined;
  const most = isOther ? ` The best class is now ${first.label}, ${reading(first)}.` : "";
  return `${PARTS[current.how]}, ${target.label} ${moves(target, now)}.${most}${isUnseen(current) ? " The model does not see this part." : ""}`;
}

/** What becomes of the explained box or region, and of the number of boxes. */
function placesMoved(target, { before, after, scene }) {
  const [from, to] = [before, after].map((predictions) => predictions.get(identity(target)));
  const said = [];
  if (from) said.push(to.isGone ? `${target.label} is not found any more.` : `${target.label} ${moves(from, to)}.`);
  const [found, earlier] = [scene.rows.length, before.size];
  if (kind().isDragged) said.push(`${found} ${found === 1 ? "box is" : "boxes are"} found${found === earlier ? ", as before" : ` instead of ${earlier}`}.`);
  return said.join(" ");
}

function isUnseen({ how, box: [left, top, right, bottom] }) {
  const { heatmap } = explanation();
  const [first, upper, last, lower] = seen(heatmap, heatmap.shape[1], heatmap.shape[0]);
  return how !== "keep" && (right <= first || left >= last || bottom <= upper || top >= lower);
}
