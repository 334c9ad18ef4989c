// Why here: the channels of a layer that fire most at the place that was clicked or, on demand, in the marked part.

import { activationsOf, currentLayer } from "./activations.js";
import { painted } from "./brush.js";
import { openChannel } from "./channel.js";
import { announce, byId, make } from "./dom.js";
import { boxOf, drawSeen } from "./featuremap.js";
import { LatestRequest } from "./latest.js";
import { chooseLayers } from "./layers.js";
import { marked } from "./marking.js";
import { modelName } from "./question.js";
import { visit } from "./network.js";
import { showProblem } from "./problems.js";
import { kind } from "./scene.js";
import { overlay, pixelRead } from "./stage.js";
import { explanation, onChange, state } from "./state.js";
import { count, number } from "./words.js";

const LISTED = 5;
const SIDE = 72; // pixels of a tile

let spot = null; // the pixel that was clicked
let isOfMark = false; // whether the marked part is asked about

const request = new LatestRequest(byId("fires-list"));

export function prepareFires() {
  overlay.element.addEventListener("click", (event) => isOurs(event) && look(overlay.pixel(event)));
  byId("reader").addEventListener("keydown", (event) => event.key === "Enter" && isOurs(event) && look(pixelRead()));
  byId("fires-layer").addEventListener("click", () => choose().catch(showProblem));
  byId("fires-close").addEventListener("click", close);
  byId("fires-open").addEventListener("click", () => {
    isOfMark = true;
    show();
    byId("fires-close").focus(); // this button disappears
  });
  for (const id of ["marking-on", "painting-on"]) byId(id).addEventListener("click", () => look(null)); // these say what to do
  onChange((patch) => {
    if ("picture" in patch || patch.mark) spot = null;
    if ("picture" in patch || patch.mark === null) isOfMark = false;
    if (["picture", "answer", "mark", "inside"].some((name) => name in patch)) show();
  });
}

/** In pictures with regions or boxes, a click explains one of them. */
const isOurs = ({ target }) => overlay.isReadable && !kind() && !target.closest("#wipe");

function look(pixel) {
  [spot, isOfMark] = [pixel, false];
  show();
}

/** Shows what the marked part changes again; the focus stays near. */
function close() {
  const isFocused = byId("fires").contains(document.activeElement);
  look(null);
  if (isFocused) byId(byId("fires-open").hidden ? "marking-on" : "fires-open").focus();
}

async function choose() {
  const [path] = (await chooseLayers({ model: modelName(), title: "Layer", chosen: [await currentLayer()], most: 1 })) ?? [];
  if (path) visit(path);
}

/** The place in question: its box in pixels of the upload, and its strokes, if it is painted. */
function place() {
  if (!state.answer || overlay.isSheet) return null;
  if (spot) return { box: [spot[0], spot[1], spot[0] + 1, spot[1] + 1] };
  return isOfMark ? marked() : null;
}

function show() {
  const part = place();
  byId("fires").hidden = !part;
  byId("fires-open").hidden = Boolean(part) || !marked();
  byId("marking-said").hidden = Boolean(part && spot);
  ring();
  if (part) request.run((signal) => find(part, signal), tell);
  else request.stop();
}

async function find(part, signal) {
  const layer = await currentLayer();
  if (signal.aborted) return;
  byId("fires-layer").textContent = layer;
  byId("fires-where").textContent = spot ? `at x ${spot[0]}, y ${spot[1]}` : "in your marked part";
  const { channels, size } = await activationsOf(layer);
  if (!signal.aborted) list(layer, size, firing(channels, weightsIn(part, size)));
}

function ring() {
  const ring = byId("spot");
  ring.hidden = !spot || !state.answer;
  if (ring.hidden) return;
  const [height, width] = explanation().heatmap.shape;
  ring.style.left = `${((spot[0] + 0.5) / width) * 100}%`;
  ring.style.top = `${((spot[1] + 0.5) / height) * 100}%`;
}

/** The cells of a grid that a part covers, and how much of each. */
function weightsIn({ box: [left, top, right, bottom], strokes }, size) {
  const { shape, box: seen } = explanation().heatmap;
  const shares = strokes && painted(strokes, shape, seen, size);
  const weights = new Map();
  for (let cell = 0; cell < size[0] * size[1]; cell += 1) {
    const [first, upper, last, lower] = boxOf(cell, size);
    const across = Math.min(right, last) - Math.max(left, first);
    const down = Math.min(bottom, lower) - Math.max(top, upper);
    const weight = across > 0 && down > 0 ? (shares?.[cell] ?? across * down) : 0;
    if (weight) weights.set(cell, weight);
  }
  return weights;
}

/**
 * The channels whose mean in the cells is highest, as `rows` of {channel, map, value, average}, the highest value of the layer,
 * and how many channels reach it there; null without cells, as of a part that is not seen.
 */
function firing(channels, weights) {
  if (!weights.size) return null;
  const sum = [...weights.values()].reduce((total, weight) => total + weight, 0);
  const mean = (map) => [...weights].reduce((total, [cell, weight]) => total + map[cell] * weight, 0) / sum;
  const most = channels.reduce((largest, { map }) => map.reduce((most, cell) => Math.max(most, cell), largest), 0);
  const near = (value) => (value > most * (1 - 1e-6) ? most : value); // without the rounding of the mean
  const rows = channels.map(({ channel, map }) => ({ channel, map, value: near(mean(map)), average: averageOf(map) }));
  const order = (one, other) => other.value - one.value || one.average - other.average;
  const capped = rows.filter(({ value }) => value === most).length; // as by ReLU6
  return { rows: rows.filter(({ value }) => value > 0).sort(order).slice(0, LISTED), most, capped };
}

const averageOf = (map) => map.reduce((total, cell) => total + cell, 0) / map.length;

function list(layer, size, found) {
  if (!found?.rows.length) {
    tell({ message: found ? "No channel responds there." : "The model does not see this place." });
    return;
  }
  const { rows, most, capped } = found;
  byId("fires-most").hidden = capped < 2;
  byId("fires-most").textContent = `${count(capped)} channels reach ${number(most)}, the highest value in this layer; those with the lowest mean come first.`;
  const order = rows.map(({ channel }) => channel);
  byId("fires-list").replaceChildren(
    ...rows.map(({ channel, map, value, average }) => {
      const canvas = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
      drawSeen(canvas, map, size).catch(() => {}); // the picture has changed meanwhile
      const text = make("span", {}, make("strong", { textContent: `ch ${channel}` }), ` ${number(value)}`, make("small", { textContent: `mean ${number(average)}` }));
      const button = make("button", { on: { click: () => openChannel(layer, channel, order).catch(showProblem) } }, canvas, text);
      return make("li", {}, button);
    }),
  );
  if (spot) announce(`These channels of ${layer} respond most: ${order.join(", ")}.`); // of a mark, the page tells what changes without it
}

function tell({ message }) {
  byId("fires-most").hidden = true;
  byId("fires-list").replaceChildren(make("li", { class: "help", textContent: message }));
}
