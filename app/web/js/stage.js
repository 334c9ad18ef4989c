// The stage: the picture with its heatmap, its opacity and wipe, the value under the pointer, and the colour bar.

import { coloursOf, gradient } from "./colours.js";
import { byId, pointAt } from "./dom.js";
import { drawnBy } from "./doubt.js";
import { isSeen, seen, valueAt } from "./maps.js";
import { Overlay, pixelBeside } from "./overlay.js";
import { turnUpright } from "./picture.js";
import { isFine } from "./question.js";
import { change, explained, explanation, onChange, redraws, state } from "./state.js";
import { readingOf, subjectOf } from "./scene.js";
import { number, percent } from "./words.js";

export const overlay = new Overlay(byId("stage"));

let wiped = 0;
let point = null; // the pixel that the arrow keys have chosen
let scale = null; // of the colour bar

export function prepareStage() {
  overlay.element.addEventListener("pointermove", readPointer);
  overlay.element.addEventListener("pointerdown", readPointer);
  // A finger leaves with every tap: what it read stays.
  overlay.element.addEventListener("pointerleave", ({ pointerType }) => pointerType !== "touch" && overlay.isReadable && read(point, true));
  byId("reader").addEventListener("keydown", readKeys);
  byId("reader").addEventListener("focus", () => overlay.isReadable && read(pixelRead(), true));
  byId("reader").addEventListener("blur", () => read(point, true));
  const alpha = byId("alpha");
  alpha.addEventListener("input", () => change({ alpha: Number(alpha.value) }));
  byId("look").addEventListener("change", ({ target: { value } }) => change({ look: value }));
  byId("strongest").addEventListener("input", ({ target: { value } }) => change({ strongest: Number(value) }));
  prepareWipe(byId("wipe"));
  onChange(show);
  show({ alpha: state.alpha });
}

function show(patch) {
  if ("picture" in patch && state.picture) {
    overlay.showPicture(state.picture, "The picture");
    dress();
    byId("shrunk").hidden = !state.picture.isShrunk;
    point = null;
    wipe(0);
    byId("figure").hidden = false;
  }
  if ("answer" in patch) showAnswer();
  if (redraws(patch)) {
    const look = byId("look");
    look.value = state.look;
    byId("alpha").value = state.alpha;
    byId("alpha-value").textContent = `${Math.round(state.alpha * 100)}%`;
    byId("strongest").value = state.strongest;
    byId("strongest-value").textContent = `${state.strongest}%`;
    const isPart = ["contour", "mask"].includes(state.look);
    byId("alpha-field").hidden = isPart;
    byId("strongest-field").hidden = !isPart;
    overlay.draw();
  }
}

async function showAnswer() {
  const { answer, picture } = state;
  byId("figure").classList.toggle("answered", Boolean(answer));
  read(point, true);
  showBar(answer);
  if (!answer) return;
  const current = explanation();
  const isTurned = await turnUpright(picture, current.heatmap.shape);
  if (state.answer !== answer) return;
  if (isTurned) overlay.showPicture(picture);
  await overlay.showMap(current, isFine(state.answer.method.name));
  if (state.answer !== answer || explanation() !== current) return;
  dress();
  const [height, width] = current.heatmap.shape;
  showUnseen(seen(current.heatmap, width, height), width, height);
  overlay.describe(`Heatmap of ${drawnBy(answer.method, current)} for ${subjectOf(explained())}, ${readingOf(explained())}`);
}

/** Says how much of the picture the model sees, if not all of it: plainly, if that is less than half. */
function showUnseen([left, top, right, bottom], width, height) {
  const share = ((right - left) * (bottom - top)) / (width * height);
  const isMiddle = Math.abs(left + right - width) <= 2 && Math.abs(top + bottom - height) <= 2;
  byId("unseen").hidden = share > 0.999;
  byId("unseen").classList.toggle("help", share >= 0.5);
  byId("unseen").textContent = `The model sees only ${isMiddle ? "the middle " : ""}${percent(share)} of this picture, not the darkened part.`;
}

/** Shows the values of the colours. */
async function showBar(answer) {
  const current = explanation(answer);
  scale = current?.drawn ?? null;
  byId("bar").hidden = !scale;
  byId("meaning").hidden = !scale;
  if (!scale) return;
  const { low, high, colormap, meaning } = scale;
  byId("meaning").textContent = meaning;
  byId("bar-low").textContent = number(low);
  byId("bar-high").textContent = number(high);
  const { min, max } = current.heatmap;
  const exceeds = (value, end) => value > end && number(value) !== number(end);
  const highest = exceeds(max, high) ? `highest value ${number(max)}` : "";
  byId("bar-range").textContent = exceeds(low, min) ? `values from ${number(min)} to ${number(max)}` : highest;
  byId("bar").setAttribute("aria-label", `Colours from ${number(low)} to ${number(high)}, ${colormap}`);
  const colours = await coloursOf(colormap);
  byId("bar-colours").style.backgroundImage = gradient(colours);
}

/** Marks a value, in the method's own units, on the bar. */
function markValue(value) {
  const mark = byId("bar-mark");
  mark.hidden = value === null || !scale;
  if (mark.hidden) return;
  const share = (value - scale.low) / (scale.high - scale.low);
  mark.style.left = `${Math.min(1, Math.max(0, share)) * 100}%`;
}

/** Outlines the highest part of the map, a share of what the model sees; null for none. */
export const outline = (share) => overlay.outline(share);

/** Shows a preview of the heatmap. */
export async function showPreview(source) {
  await overlay.showPreview(source).catch(() => {}); // the next one may be whole
  dress();
}

/** Removes a preview. */
export function restore() {
  overlay.dropPreview();
  dress();
}

/** Shows only those elements beside the map that belong to it. */
function dress() {
  const { classList } = byId("figure");
  classList.toggle("refining", overlay.isPreview);
  classList.toggle("sheet", overlay.isSheet && !overlay.isPreview);
  if (!overlay.isReadable) read(null);
}

/** The pixel that the keyboard reads. */
export const pixelRead = () => point ?? middle();

function middle() {
  const [height, width] = explanation().heatmap.shape;
  return [Math.floor(width / 2), Math.floor(height / 2)];
}

function readPointer(event) {
  if (overlay.isReadable) read(overlay.pixel(event));
}

function readKeys(event) {
  if (!overlay.isReadable) return;
  const pixel = pixelBeside(pixelRead(), event, explanation().heatmap.shape);
  if (pixel) read((point = pixel), true);
}

/** Shows the value of a pixel; `aloud` also marks the pixel and sets the value for screen readers. */
function read(pixel, aloud = false) {
  const mark = byId("mark");
  mark.hidden = !pixel || !aloud;
  if (!pixel || !state.answer) {
    byId("reading").textContent = `${pointAt()} the picture to read a value.`;
    markValue(null);
    return;
  }
  const { heatmap } = explanation();
  const share = valueAt(heatmap, ...pixel);
  const value = isSeen(heatmap, ...pixel) ? share * Math.max(heatmap.max, -heatmap.min) : null; // in the unit of the bar
  const place = state.scene?.at(pixel);
  const said = `x ${pixel[0]}, y ${pixel[1]}: ${value === null ? "the model does not see this place" : number(value)}${place ? ` · ${place.label}` : ""}`;
  byId("reading").textContent = said;
  markValue(value);
  if (aloud) {
    byId("reader").setAttribute("aria-valuetext", said);
    byId("reader").setAttribute("aria-valuenow", share.toFixed(3));
    mark.style.left = `${((pixel[0] + 0.5) / heatmap.shape[1]) * 100}%`;
    mark.style.top = `${((pixel[1] + 0.5) / heatmap.shape[0]) * 100}%`;
  }
}

function wipe(share) {
  wiped = Math.min(1, Math.max(0, share));
  const handle = byId("wipe");
  handle.style.left = `${wiped * 100}%`;
  handle.style.setProperty("--wiped", wiped);
  handle.setAttribute("aria-valuenow", Math.round(wiped * 100));
  handle.setAttribute("aria-valuetext", `${Math.round(wiped * 100)}% of the picture without the heatmap`);
  overlay.wipe(wiped);
}

function prepareWipe(handle) {
  handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
  handle.addEventListener("pointermove", (event) => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const box = overlay.element.getBoundingClientRect();
    wipe((event.clientX - box.left) / box.width);
  });
  handle.addEventListener("keydown", (event) => {
    const to = {
      ArrowLeft: wiped - 0.05,
      ArrowDown: wiped - 0.05,
      ArrowRight: wiped + 0.05,
      ArrowUp: wiped + 0.05,
      Home: 0,
      End: 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    wipe(to);
  });
}
