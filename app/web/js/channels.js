// Feature maps of a layer, ranked by their estimated effect on the class; they can be switched off.

import { post } from "./api.js";
import { coloured, coloursOf } from "./colours.js";
import { copy, curl } from "./copy.js";
import { byId, make } from "./dom.js";
import { chooseLayers, layersOf } from "./layers.js";
import { modelName } from "./models.js";
import { movedBy, movedTrack } from "./moved.js";
import { readNpz } from "./npz.js";
import { problemBox, showProblem } from "./problems.js";
import { methodNamed, question } from "./question.js";
import { change, explanation, methodName, state, subject } from "./state.js";
import { reading, signed } from "./words.js";

const STEP = 24; // tiles at a time
const SIDE = 128; // side of a tile, in pixels
const WAIT = 250; // milliseconds without a click before the model is asked

let captured = null; // {key, layer, channels: [{channel, effect, map}], size}
let count = STEP;
let capturing = null;
let intervening = null;
let answered = null; // the question behind the displayed effect

export function prepareChannels() {
  byId("inside-layer").addEventListener("click", () => choose().catch(showProblem));
  byId("off-strongest").addEventListener("click", () => {
    change({ off: captured.channels.filter((entry) => entry.effect > 0).slice(0, 10).map((entry) => entry.channel) });
  });
  byId("off-none").addEventListener("click", () => change({ off: [] }));
  byId("more-maps").addEventListener("click", () => {
    count += STEP;
    fill();
  });
  byId("copy-intervene").addEventListener("click", (event) =>
    copy(curl("/hooks/intervene", [...intervention(), ["format", "png"]], "panel.png"), event.currentTarget),
  );
}

async function choose() {
  const chosen = await chooseLayers({ model: await modelName(), title: "Feature maps of", chosen: state.inside ? [state.inside] : [], most: 1 });
  if (chosen?.length && chosen[0] !== captured?.layer) change({ inside: chosen[0], off: [] });
}

async function standard() {
  const layer = (await layersOf(await modelName())).find((candidate) => candidate.default);
  if (!layer) throw new Error("This model has no default layer; choose one.");
  return layer.path;
}

export async function showChannels() {
  let layer;
  try {
    layer = state.inside ?? (await standard());
  } catch (error) {
    refuse(error);
    return;
  }
  const fields = [...subject(), ["layer", layer], ["kind", "output"], ["kind", "grad_output"], ["format", "npz"]];
  const key = JSON.stringify([state.picture.url, fields]);
  if (captured?.key !== key) await capture(key, layer, fields);
  else if (captured.box !== box()) fill();
  else mark();
  intervene();
}

async function capture(key, layer, fields) {
  if (capturing?.key === key) return;
  capturing?.stop.abort();
  const mine = { key, stop: new AbortController() };
  capturing = mine;
  byId("inside-layer-name").textContent = layer;
  byId("maps").setAttribute("aria-busy", "true");
  try {
    const answer = await post("/hooks/capture", state.picture.file, fields, { signal: mine.stop.signal });
    const arrays = readNpz(await answer.arrayBuffer());
    const found = ranked(arrays[`${layer}/output/0`], arrays[`${layer}/grad_output/0`]);
    if (capturing !== mine) return;
    captured = { key, layer, ...found };
    count = STEP;
    fill();
  } catch (error) {
    if (capturing === mine) refuse(error);
  } finally {
    if (capturing === mine) {
      capturing = null;
      byId("maps").removeAttribute("aria-busy");
    }
  }
}

/** Shows why there are no maps, and disables their controls. */
function refuse(error) {
  captured = null;
  intervening?.abort();
  answered = null;
  byId("effect").hidden = true;
  byId("maps").replaceChildren(problemBox(error));
  byId("maps-count").textContent = "";
  byId("more-maps").hidden = true;
  byId("off-strongest").disabled = true;
  byId("off-none").disabled = true;
}

/** Channels of an array by their effect on the class, the largest first: the sum of output times gradient. */
function ranked(output, gradient) {
  const [, first, second, last] = output?.shape ?? [];
  if (output?.shape.length !== 4) throw new Error("This layer has no grid of features; choose another one.");
  const inside = first === second && last !== second; // channels come last, as in a Swin transformer
  const [size, height, width] = inside ? [last, first, second] : [first, second, last];
  const cells = height * width;
  const at = (channel, cell) => (inside ? cell * size + channel : channel * cells + cell);
  const channels = Array.from({ length: size }, (_, channel) => {
    const map = Float32Array.from({ length: cells }, (_, cell) => output.values[at(channel, cell)]);
    let effect = 0;
    if (gradient) map.forEach((value, cell) => (effect += value * gradient.values[at(channel, cell)]));
    return { channel, effect, map };
  });
  channels.sort((left, right) => Math.abs(right.effect) - Math.abs(left.effect));
  return { channels, size: [height, width] };
}

/** The part of the picture that the model sees; unknown before the first answer. */
const box = () => String(explanation()?.heatmap.box ?? "");

function fill() {
  const { channels } = captured;
  captured.box = box();
  const shown = channels.filter((entry, place) => place < count || state.off.includes(entry.channel));
  byId("maps-count").textContent = `${Math.min(shown.length, channels.length)} of ${channels.length} feature maps, the largest effect first`;
  byId("maps").replaceChildren(...shown.map(tile));
  byId("more-maps").hidden = count >= channels.length;
  byId("off-strongest").disabled = false;
  byId("effect").hidden = false;
  mark();
}

function tile({ channel, effect, map }) {
  const control = make("input", { type: "checkbox", value: channel, "aria-label": `Channel ${channel}, effect ${signed(effect)}` });
  control.addEventListener("change", () => {
    change({ off: control.checked ? state.off.filter((number) => number !== channel) : [...state.off, channel] });
  });
  const canvas = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
  draw(canvas, map).catch(() => {}); // the picture has changed meanwhile
  const text = make("span", {}, make("span", { textContent: `ch ${channel}` }), make("span", { class: "effect", textContent: signed(effect) }));
  return make("li", {}, make("label", { class: "tile" }, canvas, text, control));
}

/** Draws a feature map over the part of the picture that the model saw. */
async function draw(canvas, map) {
  const low = map.reduce((least, value) => Math.min(least, value), 0);
  const high = map.reduce((most, value) => Math.max(most, value), 0);
  const largest = Math.max(high, -low) || 1;
  const colours = await coloursOf(low < -0.25 * largest ? "icefire" : "inferno");
  const level = low < -0.25 * largest ? (value) => (value / largest + 1) / 2 : (value) => Math.max(0, value / largest);
  const small = coloured(map, captured.size, colours, level);
  const context = canvas.getContext("2d");
  const heatmap = explanation()?.heatmap;
  if (heatmap) {
    const picture = new Image();
    picture.src = state.picture.url;
    await picture.decode();
    const [full, wide] = heatmap.shape;
    const [left, top, right, bottom] = heatmap.box;
    const [across, down] = [picture.naturalWidth / wide, picture.naturalHeight / full];
    context.drawImage(picture, left * across, top * down, (right - left) * across, (bottom - top) * down, 0, 0, SIDE, SIDE);
    context.globalAlpha = 0.65;
  }
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, SIDE, SIDE);
}

/** Shows which channels are switched off. */
function mark() {
  const listed = new Set();
  for (const box of byId("maps").querySelectorAll("input")) {
    const channel = Number(box.value);
    listed.add(channel);
    box.checked = !state.off.includes(channel);
    box.closest(".tile").classList.toggle("off", !box.checked);
  }
  if (state.off.some((channel) => !listed.has(channel) && captured?.channels.some((entry) => entry.channel === channel))) fill();
  byId("off-none").disabled = !state.off.length;
}

/** The chosen method, or Grad-CAM in place of methods of many passes, which would take too long. */
function quick() {
  const { forwards, backwards } = methodNamed(methodName())?.cost ?? {};
  return [forwards, backwards].every((passes) => /^\d$/.test(passes)) ? methodName() : "gradcam";
}

function intervention() {
  const method = quick();
  const fields = question({ method, against: null, ...(method !== methodName() && { options: {}, layer: [] }) });
  return [...fields, ["edits", JSON.stringify([{ layer: captured.layer, op: "zero", channels: state.off }])]];
}

function intervene() {
  if (!captured) return;
  const off = state.off.length;
  byId("effect-title").textContent = off
    ? `Without ${off === 1 ? `channel ${state.off[0]}` : `${off} channels`} of ${captured.layer}`
    : "With all channels";
  byId("effect-hint").hidden = off > 0;
  byId("copy-intervene").hidden = !off;
  const key = off ? JSON.stringify([state.picture.url, intervention()]) : JSON.stringify([state.picture.url, state.answer?.predictions]);
  if (key === answered) return;
  answered = key;
  intervening?.abort();
  intervening = new AbortController();
  const { signal } = intervening;
  if (!off) {
    byId("effect").removeAttribute("aria-busy");
    byId("effect-panel").hidden = true;
    showEffect(state.answer?.predictions ?? [], null, null);
    return;
  }
  byId("effect").setAttribute("aria-busy", "true");
  setTimeout(() => signal.aborted || ask(signal), WAIT);
}

async function ask(signal) {
  try {
    const response = await post("/hooks/intervene", state.picture.file, intervention(), { signal });
    const { target, before, after, difference, panel, method } = await response.json();
    if (signal.aborted) return;
    showEffect(before.predictions, after.predictions, { target, after, difference });
    byId("effect-panel").hidden = false;
    Object.assign(byId("effect-image"), { src: panel, alt: `Heatmaps of ${method.name} before and after, and their difference` });
  } catch (error) {
    if (error.name === "AbortError") return;
    answered = null;
    byId("effect-list").replaceChildren(make("li", {}, problemBox(error)));
  } finally {
    if (!signal.aborted) byId("effect").removeAttribute("aria-busy");
  }
}

function showEffect(before, after, moved) {
  byId("effect-summary").textContent = moved
    ? `${moved.target.label}: ${reading(moved.target)} before, ${reading(moved.after.target)} now; ${moved.target.logit === undefined ? "value" : "logit"} ${signed(moved.difference.score)}.`
    : "";
  const now = new Map((after ?? before).map((prediction) => [prediction.index, prediction]));
  const then = new Map(before.map((prediction) => [prediction.index, prediction]));
  const rows = [...new Map([...then, ...now]).values()].map((prediction) => effectRow(prediction.label, then.get(prediction.index), now.get(prediction.index)));
  byId("effect-list").replaceChildren(...rows);
}

function effectRow(label, before, after) {
  const moved = before && after ? movedBy(before, after) : "";
  return make(
    "li",
    {},
    make("span", { class: "label", textContent: label }),
    make("span", { class: "share" }, after ? reading(after) : "lower", make("span", { class: "moved", textContent: moved })),
    movedTrack(before, after),
  );
}
