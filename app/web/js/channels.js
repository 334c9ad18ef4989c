// Feature maps of a layer, ranked by their estimated effect on the class; they can be opened and switched off.

import { amend } from "./address.js";
import { activationsOf, currentLayer } from "./activations.js";
import { Problem } from "./api.js";
import { openChannel } from "./channel.js";
import { copy, curl } from "./copy.js";
import { breakable, byId, make } from "./dom.js";
import { drawnBy } from "./doubt.js";
import { drawSeen } from "./featuremap.js";
import { intervene, measure, named, sentence, without } from "./intervention.js";
import { LatestRequest } from "./latest.js";
import { chooseLayers } from "./layers.js";
import { modelName } from "./question.js";
import { movedText, movedTrack } from "./moved.js";
import { problemBox, showProblem } from "./problems.js";
import { change, explained, explanation, state } from "./state.js";
import { count, reading, signed } from "./words.js";

const STEP = 24; // tiles at a time
const STRONGEST = 10; // channels that are switched off together
const SIDE = 128; // side of a tile, in pixels
const WAIT = 250; // milliseconds without a click before the model is asked

let captured = null; // what is shown, see activations.js, and the part of the picture that it is drawn over
let listed = STEP;
let answered = null; // the question behind the displayed effect

const capturing = new LatestRequest(byId("maps"));
const intervening = new LatestRequest(byId("effect"));

export function prepareChannels() {
  byId("inside-layer").addEventListener("click", () => choose().catch(showProblem));
  byId("off-strongest").addEventListener("click", () => {
    change({ off: strongest().map((entry) => entry.channel) });
  });
  byId("off-none").addEventListener("click", () => change({ off: [] }));
  byId("more-maps").addEventListener("click", () => {
    listed += STEP;
    fill();
  });
  new ResizeObserver(([entry]) => keepMaps(entry.borderBoxSize[0].blockSize)).observe(byId("effect"));
  byId("copy-intervene").addEventListener("click", (event) =>
    copy(curl("/hooks/intervene", [...without(captured.layer, state.off), ["format", "png"]], "panel.png"), event.currentTarget),
  );
}

let above = null; // height of the effect, which stands above the maps

/** Keeps the map that was just switched off where it is, while the effect above it grows or shrinks. */
function keepMaps(height) {
  if (above !== null && byId("maps").contains(document.activeElement)) window.scrollBy({ top: height - above, behavior: "instant" });
  above = height;
}

async function choose() {
  const chosen = await chooseLayers({ model: modelName(), title: "Choose a layer", chosen: state.inside ? [state.inside] : [], most: 1 });
  if (chosen?.length && chosen[0] !== captured?.layer) change({ inside: chosen[0], off: [] });
}

export const showChannels = () => capturing.run(show, refuse);

async function show(signal) {
  const layer = await currentLayer();
  if (signal.aborted) return;
  byId("inside-layer-name").textContent = layer;
  const target = explained();
  const against = explanation()?.against;
  const rather = against ? `, not to its lead over ${against.label}` : "";
  byId("inside-about").textContent = target ? `the ${measure(target)} of ${target.label}${rather}` : "what is explained";
  const activations = await activationsOf(layer);
  if (signal.aborted) return;
  if (captured?.key !== activations.key) {
    captured = activations;
    listed = STEP;
    fill();
  } else mark();
  if (captured.box !== box()) draw();
  effect();
}

/** Shows why there are no maps, and disables their controls; in place of a layer of a link the default one is shown. */
function refuse(error) {
  if (state.inside && error.errors?.some(({ field }) => field.startsWith("layer"))) {
    showProblem(new Problem({ detail: `${error.message} The default one is shown.` }));
    amend({ inside: null, off: [] });
    return;
  }
  captured = null;
  intervening.stop();
  answered = null;
  byId("effect").hidden = true;
  byId("effect-summary").textContent = "";
  byId("maps").replaceChildren(problemBox(error));
  byId("maps-count").textContent = "";
  byId("more-maps").hidden = true;
  byId("off-strongest").disabled = true;
  byId("off-none").disabled = true;
}

/** The part of the picture that the model sees; unknown before the first answer. */
const box = () => String(explanation()?.heatmap.box ?? "");

const strongest = () => captured.channels.filter((entry) => entry.effect > 0).slice(0, STRONGEST);

function fill() {
  const { channels } = captured;
  const shown = channels.filter((entry, place) => place < listed || state.off.includes(entry.channel));
  byId("maps-count").textContent = `${count(Math.min(shown.length, channels.length))} of ${count(channels.length)} feature maps, largest effect first`;
  byId("maps").replaceChildren(...shown.map(tile));
  byId("more-maps").hidden = listed >= channels.length;
  const many = strongest().length;
  byId("off-strongest").disabled = !many;
  byId("off-strongest").textContent = `Switch off the ${many > 1 ? many : "one"} with the largest positive effect`;
  byId("effect").hidden = false;
  draw();
  mark();
}

/**
 * Draws every map, over the part of the picture that the model sees. The tiles stay: one may just be clicked. They cannot be
 * enlarged before that part is known.
 */
function draw() {
  captured.box = box();
  for (const open of byId("maps").querySelectorAll(".tile button")) open.disabled = !captured.box;
  const maps = new Map(captured.channels.map(({ channel, map }) => [channel, map]));
  for (const canvas of byId("maps").querySelectorAll("canvas")) {
    drawSeen(canvas, maps.get(Number(canvas.dataset.channel)), captured.size).catch(() => {}); // the picture has changed meanwhile
  }
}

function tile({ channel, effect }) {
  const control = make("input", { type: "checkbox", value: channel });
  control.addEventListener("change", () => {
    change({ off: control.checked ? state.off.filter((number) => number !== channel) : [...state.off, channel] });
  });
  const canvas = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
  canvas.dataset.channel = channel;
  const caption = make("label", {}, control, make("span", { textContent: `ch ${channel}` }), make("span", { class: "effect", textContent: signed(effect) }));
  const open = make("button", { "aria-label": `Enlarge channel ${channel}` }, canvas);
  const { layer } = captured;
  open.addEventListener("click", () => openChannel(layer, channel).catch(showProblem));
  return make("li", { class: "tile" }, open, caption);
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

function effect() {
  const { layer } = captured;
  const { off } = state;
  byId("effect-title").textContent = off.length ? `Without ${named(layer, off)}` : "With all channels";
  const key = JSON.stringify([state.picture.url, off.length ? without(layer, off) : state.answer && [explanation().target, state.answer.predictions]]);
  if (key === answered) return;
  answered = key;
  if (!off.length) {
    intervening.stop();
    byId("effect-panel").hidden = true;
    showEffect("", state.answer ? listedWith(explanation().target, state.answer) : []);
    return;
  }
  byId("effect-summary").textContent = "Asking the model…";
  intervening.run((signal) => ask(layer, off, signal), (error) => {
    answered = null;
    showEffect("", []);
    byId("effect-panel").hidden = true;
    byId("effect-summary").replaceChildren(problemBox(error));
  });
}

async function ask(layer, off, signal) {
  await new Promise((done) => setTimeout(done, WAIT));
  if (signal.aborted) return;
  const document = await intervene(without(layer, off), signal);
  const { before, after, panel, method } = document;
  showEffect(sentence(layer, off, document), listedWith(before.target, before), listedWith(after.target, after));
  byId("effect-panel").hidden = false;
  const [height, width] = before.heatmap.shape;
  byId("effect-image").style.aspectRatio = `${3 * width} / ${0.99 * height}`; // without the captions that the service draws above
  byId("effect-note").textContent = after.diagnostics.filter(({ code }) => code === "votes-unavailable").map(({ message }) => message).join(" ");
  Object.assign(byId("effect-image"), { src: panel, alt: `Heatmaps of ${drawnBy(method, after)} before and after, and their difference` });
}

/** The predictions, with that of the explained class even if it is not among the best. */
function listedWith(target, { predictions }) {
  return predictions.some(({ index }) => index === target.index) ? predictions : [...predictions, target];
}

function showEffect(summary, before, after = before) {
  byId("effect-summary").textContent = summary;
  byId("effect-hint").hidden = state.off.length > 0;
  byId("copy-intervene").hidden = !state.off.length;
  const byClass = (predictions) => {
    const isFirst = ({ index }, place) => predictions.findIndex((other) => other.index === index) === place; // the surest box of a class
    return new Map(predictions.filter(isFirst).map((prediction) => [prediction.index, prediction]));
  };
  const [then, now] = [before, after].map(byClass);
  const rows = [...new Map([...then, ...now]).values()].map((prediction) => effectRow(prediction.label, then.get(prediction.index), now.get(prediction.index)));
  byId("effect-list").replaceChildren(...rows);
}

function effectRow(label, before, after) {
  return make(
    "li",
    {},
    make("span", { class: "label" }, ...breakable(label)),
    make("span", { class: "share" }, after ? reading(after) : "no longer listed", before && after ? movedText(before, after) : null),
    movedTrack(before, after),
  );
}
