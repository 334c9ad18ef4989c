// The grid: maps of one picture by models, methods or layers, and classes, with one pointer over all of them.

import { showAgreement } from "./agreement.js";
import { AT_ONCE } from "./api.js";
import { Card } from "./card.js";
import { choicesOf, columnsOf, labelled, MOST, namesOf, prepareChoices, showChoices, usualModels } from "./choices.js";
import { announce, byId, pointAt } from "./dom.js";
import { PATIENCE } from "./explain.js";
import { layersOf } from "./layers.js";
import { pixelBeside } from "./overlay.js";
import { problemBox } from "./problems.js";
import { learn, methodNamed, modelName, question } from "./question.js";
import { askedTarget, change, explained, isLayerless, methodName, onChange, redraws, state } from "./state.js";

const USUAL = ["gradcam", "layercam", "saliency"];
const WITHOUT_LAYERS = ["saliency", "input-x-gradient", "occlusion"];

/** Cards by their requests; cards whose request stays the same are kept. */
let cards = new Map();
let filling = null; // the mode and model whose defaults are being determined
let waiting = null;
let point = null; // the pixel that the keyboard reads

export function prepareCompare() {
  prepareChoices();
  byId("compare-cancel").addEventListener("click", cancel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.show === "compare" && isUnderway() && !document.querySelector("dialog")) cancel();
  });
  const reader = byId("compare-pixel");
  reader.addEventListener("focus", () => readAll((point ??= middle())));
  reader.addEventListener("blur", () => readAll((point = null)));
  reader.addEventListener("keydown", (event) => {
    const pixel = point && pixelBeside(point, event, shape());
    if (pixel) readAll((point = pixel));
  });
  readAll(null);
  onChange((patch) => {
    if (redraws(patch)) for (const card of cards.values()) card.overlay.draw();
    // A hidden view needs no answers, and later requests would wait for them. They are requested on return.
    if (state.show !== "compare") for (const card of cards.values()) card.stop();
    if ("show" in patch) for (const [key, card] of cards) if (card.phase === "failed") cards.delete(key);
    if (state.show === "compare" && state.picture) show();
  });
}

/** The method whose layers are compared: the chosen one, if it uses layers; the recommended one may need the last. */
const layered = () => ("layer" in (methodNamed(state.method)?.options ?? {}) ? state.method : "gradcam");

const usualMethods = () => [...new Set([methodName(), ...(isLayerless() ? WITHOUT_LAYERS : USUAL)])].slice(0, 4);

async function standard() {
  if (state.by === "method") return usualMethods();
  const layers = (await layersOf(modelName())).filter((layer) => layer.cam);
  // The end of each stage: the last of the least nested layers of each resolution.
  const ends = new Map();
  const depth = ({ path }) => path.split(".").length;
  for (const layer of layers) {
    const size = String(layer.output_shape?.slice(-2));
    if (!ends.has(size) || depth(layer) <= depth(ends.get(size))) ends.set(size, layer);
  }
  const paths = layers.filter((layer) => [...ends.values()].includes(layer) || layer.default).map((layer) => layer.path);
  return paths.slice(-4);
}

/** Chooses what to compare if nothing is chosen yet. */
async function fill() {
  const sought = `${state.by} ${state.model}`;
  if (filling === sought) return;
  filling = sought;
  try {
    const compare = await standard();
    const usual = state.by === "method" ? await usualModels().catch(() => []) : []; // without them, the current one is shown
    if (filling !== sought || state.compare.length) return;
    if (!compare.length) throw new Error("This model has no layer with a grid of features to compare.");
    const models = state.models.length ? state.models : usual.slice(0, MOST / 4);
    const most = state.by === "method" ? Math.floor(MOST / 2 / (models.length || 1)) : MOST; // there is room for a second class
    change({ compare: compare.slice(0, Math.max(1, most)), models });
  } catch (error) {
    if (filling === sought) byId("cards").replaceChildren(problemBox(error));
  } finally {
    if (filling === sought) filling = null;
  }
}

/** The question of a cell, as the page asks it when the cell is opened. */
function questionOf({ model, target, name }) {
  const isMain = model === modelName();
  const method = state.by === "layer" ? layered() : name;
  const usual = isMain ? { target: state.target, against: state.against } : { target: elsewhere(state.target), against: elsewhere(state.against) };
  return {
    model: isMain ? state.model : model,
    method,
    layer: state.by === "layer" ? [name] : isMain ? state.layer : [],
    options: method === methodName() ? state.options : {},
    ...(target === null ? usual : { target, against: null }),
  };
}

/** A class for another model, which may number its classes otherwise: by its label. */
const elsewhere = (target) => (typeof target === "number" && askedTarget() === target ? explained().label : target);

function show() {
  const choices = choicesOf();
  const cells = choices.models.flatMap((model) => choices.classes.flatMap((target) => choices.compare.map((name) => ({ model, target, name }))));
  const kept = new Map();
  const names = namesOf();
  for (const cell of cells.slice(0, MOST)) {
    const asked = questionOf(cell);
    const fields = question({ ...asked, model: cell.model });
    const key = JSON.stringify([state.picture.url, fields]);
    const card = cards.get(key) ?? makeCard(fields, asked);
    card.name = nameOf({ ...cell, target: names.get(cell.target) ?? cell.target }, choices);
    kept.set(key, card);
  }
  for (const [key, card] of cards) if (!kept.has(key)) card.stop();
  cards = kept;
  arrange([...cards.values()].map((card) => card.element), columnsOf(choices));
  showChoices(choices, usualMethods(), state.by === "layer" ? `Maps by ${layered()}.` : "");
  showState();
  if (!choices.compare.length) fill();
}

/** What tells a cell from the others: its method or layer, and its class and its model if there are several. */
function nameOf({ model, target, name }, { models, classes }) {
  return [labelled(name), ...(classes.length > 1 ? [target] : []), ...(models.length > 1 ? [model] : [])].join(", ");
}

function arrange(elements, columns) {
  const place = byId("cards");
  place.style.setProperty("--columns", columns);
  place.classList.toggle("rows", elements.length > columns);
  // Elements that stay in place keep the focus.
  const isSame = elements.length === place.children.length && elements.every((element, at) => element === place.children[at]);
  if (!isSame) place.replaceChildren(...elements);
}

function makeCard(fields, asked) {
  const card = new Card(fields, { open: () => open(asked), tell: showState });
  const { element } = card.overlay;
  for (const event of ["pointermove", "pointerdown"]) element.addEventListener(event, (at) => shape() && readAll(card.overlay.pixel(at, shape())));
  element.addEventListener("pointerleave", () => readAll(point));
  return card;
}

/** Makes a cell the question of the page. */
async function open(asked) {
  const isOther = asked.model !== state.model;
  if (isOther) await learn(asked.model).catch(() => null); // its own question says what is wrong with it
  change({ ...asked, ...(isOther && { inside: null, off: [] }), show: "explain" });
}

const isUnderway = () => [...cards.values()].some((card) => card.isUnderway);

/** Starts what has its turn, and updates the agreement and the button that cancels. */
function showState() {
  const running = [...cards.values()].filter(({ phase }) => phase === "running").length;
  const next = [...cards.values()].filter(({ phase }) => phase === "waiting").slice(0, AT_ONCE - running);
  if (state.show === "compare") for (const card of next) card.run();
  showAgreement(cards);
  clearTimeout(waiting);
  const button = byId("compare-cancel");
  if (!isUnderway()) button.hidden = true;
  else if (button.hidden) waiting = setTimeout(() => (button.hidden = !isUnderway()), PATIENCE);
}

function cancel() {
  const cancelled = [...cards.values()].filter((card) => card.cancel());
  announce("Cancelled.");
  if (document.activeElement === byId("compare-cancel")) cancelled[0]?.focus();
  showState();
}

/** Height and width of the upload, which all maps cover; undefined before the first one. */
const shape = () => [...cards.values()].find(({ heatmap }) => heatmap)?.heatmap.shape;

function middle() {
  const [height, width] = shape() ?? [];
  return height ? [Math.floor(width / 2), Math.floor(height / 2)] : null;
}

/** Marks one pixel in all cells, and shows the value of each map there. */
function readAll(pixel) {
  const values = [...cards.values()].map((card) => [card.name, card.read(pixel, shape())]).filter(([, value]) => value);
  const reader = byId("compare-pixel");
  const place = pixel && `x ${pixel[0]}, y ${pixel[1]}`;
  reader.textContent = place ?? `${pointAt()} a map to read all of them.`;
  reader.setAttribute("aria-valuetext", place ? `${place}: ${values.map((pair) => pair.join(" ")).join("; ")}` : "no pixel");
  reader.setAttribute("aria-valuenow", place ? Math.round((100 * pixel[0]) / shape()[1]) : 0);
}
