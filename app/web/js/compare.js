// Methods or layers side by side: their maps, their durations, and the agreement of each pair.

import { Card } from "./card.js";
import { announce, byId, make } from "./dom.js";
import { PATIENCE } from "./explain.js";
import { chooseLayers, layersOf } from "./layers.js";
import { rankCorrelation, valueAt } from "./maps.js";
import { modelName } from "./models.js";
import { problemBox, showProblem } from "./problems.js";
import { methodNamed, question } from "./question.js";
import { methodGroups } from "./settings.js";
import { change, methodName, onChange, redraws, state } from "./state.js";

const MOST = 6;
const USUAL = ["gradcam", "layercam", "saliency"];

/** Cards by their requests; cards whose request stays the same are kept. */
let cards = new Map();
let filling = null; // the mode and model whose defaults are being determined
let listed = null; // the contents of the chips
let waiting = null;

export function prepareCompare() {
  for (const by of ["method", "layer"]) {
    byId(`by-${by}`).addEventListener("change", () => change({ by, compare: [] }));
  }
  const add = byId("compare-add");
  add.addEventListener("change", () => {
    if (add.value) change({ compare: [...state.compare, add.value] });
  });
  byId("compare-layers").addEventListener("click", () => choose().catch(showProblem));
  byId("compare-cancel").addEventListener("click", cancel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && runs() && !document.querySelector("dialog")) cancel();
  });
  onChange((patch) => {
    if (redraws(patch)) for (const card of cards.values()) card.overlay.draw();
    // A hidden view needs no answers, and later requests would wait for them. They are requested again on return.
    if (state.show !== "compare") for (const card of cards.values()) card.stop();
    if ("show" in patch) for (const [key, card] of cards) if (card.isToBeAsked) cards.delete(key);
    if (state.show === "compare" && state.picture) show();
  });
}

async function choose() {
  const model = await modelName();
  const chosen = await chooseLayers({ model, title: "Layers to compare", chosen: state.compare, most: MOST });
  if (chosen?.length) change({ compare: chosen });
}

/** The method whose layers are compared: the chosen one, if it uses layers; the recommended one may need the last. */
const layered = () => ("layer" in (methodNamed(state.method)?.options ?? {}) ? state.method : "gradcam");

async function standard() {
  if (state.by === "method") return [...new Set([methodName(), ...USUAL])].slice(0, 4);
  const layers = (await layersOf(await modelName())).filter((layer) => layer.cam);
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
    if (filling !== sought || state.compare.length) return;
    if (!compare.length) throw new Error("This model has no layer with a grid of features to compare.");
    change({ compare });
  } catch (error) {
    if (filling === sought) byId("cards").replaceChildren(problemBox(error));
  } finally {
    if (filling === sought) filling = null;
  }
}

function show() {
  for (const by of ["method", "layer"]) byId(`by-${by}`).checked = state.by === by;
  const names = state.compare.slice(0, MOST);
  showControls(names);
  const kept = new Map();
  for (const name of names) {
    const asked = state.by === "layer" ? { method: layered(), layer: [name] } : { method: name };
    if (asked.method !== methodName()) asked.options = {};
    const fields = question(asked);
    const key = JSON.stringify([state.picture.url, fields]);
    kept.set(key, cards.get(key) ?? makeCard(name, fields, asked));
  }
  for (const [key, card] of cards) if (!kept.has(key)) card.stop();
  cards = kept;
  const elements = [...cards.values()].map((card) => card.element);
  const place = byId("cards");
  // Elements that stay in place keep the focus.
  const same = elements.length === place.children.length && elements.every((element, at) => element === place.children[at]);
  if (!same) place.replaceChildren(...elements);
  showState();
  if (!names.length) fill();
}

function showControls(names) {
  const byMethod = state.by === "method";
  const shown = JSON.stringify([state.by, layered(), names]);
  if (shown === listed) return;
  listed = shown;
  const add = byId("compare-add");
  add.hidden = !byMethod;
  add.disabled = names.length >= MOST;
  add.replaceChildren(new Option(add.disabled ? `at most ${MOST}` : "Add a method…", ""), ...methodGroups(names));
  byId("compare-layers").hidden = byMethod;
  byId("compare-note").textContent = byMethod ? "" : `Maps of ${layered()}.`;
  byId("chips").replaceChildren(
    ...names.map((name) => {
      const remove = make("button", {
        "aria-label": `Remove ${name}`,
        textContent: "✕",
        disabled: names.length === 1,
        on: { click: () => drop(names, name) },
      });
      return make("li", {}, name, remove);
    }),
  );
}

function drop(names, name) {
  change({ compare: names.filter((other) => other !== name) });
  const left = [...byId("chips").querySelectorAll("button:enabled")];
  (left[Math.min(names.indexOf(name), left.length - 1)] ?? byId(state.by === "method" ? "compare-add" : "compare-layers")).focus();
}

function makeCard(name, fields, asked) {
  const card = new Card(name, fields, { open: () => change({ ...asked, show: "explain" }), tell: showState });
  const { overlay } = card;
  overlay.element.addEventListener("pointermove", (event) => overlay.isReadable && readAll(overlay.pixel(event)));
  overlay.element.addEventListener("pointerleave", () => readAll(null));
  return card;
}

const runs = () => [...cards.values()].some((card) => card.isRunning);

/** Updates the agreement and the button that cancels. */
function showState() {
  showAgreement();
  clearTimeout(waiting);
  const button = byId("compare-cancel");
  if (!runs()) button.hidden = true;
  else if (button.hidden) waiting = setTimeout(() => (button.hidden = !runs()), PATIENCE);
}

function cancel() {
  const cancelled = [...cards.values()].filter((card) => card.cancel());
  announce("Cancelled.");
  if (document.activeElement === byId("compare-cancel")) cancelled[0]?.focus();
  showState();
}

/** Shows the value of every map at one pixel. */
function readAll(pixel) {
  for (const { heatmap, value } of cards.values()) {
    value.textContent = pixel && heatmap ? valueAt(heatmap, ...pixel).toFixed(3) : "";
  }
  byId("compare-pixel").textContent = pixel ? `x ${pixel[0]}, y ${pixel[1]}` : "";
}

const known = new Map();

function agreement(first, second) {
  const key = `${first.key}${second.key}`;
  if (!known.has(key)) known.set(key, rankCorrelation(first.card.heatmap.map, second.card.heatmap.map));
  return known.get(key);
}

function showAgreement() {
  const done = [...cards].filter(([, card]) => card.heatmap).map(([key, card]) => ({ key, card }));
  byId("agreement").hidden = done.length < 2;
  if (done.length < 2) return;
  const head = make("tr", {}, make("td"), ...done.map(({ card }) => make("th", { scope: "col", textContent: card.name })));
  const rows = done.map((first) =>
    make("tr", {}, make("th", { scope: "row", textContent: first.card.name }), ...done.map((second) => cell(first, second))),
  );
  byId("agreement-table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function cell(first, second) {
  if (first === second) return make("td", { class: "same", textContent: "–" });
  const value = agreement(...[first, second].sort((left, right) => (left.key < right.key ? -1 : 1)));
  const element = make("td", { textContent: value === null ? "n/a" : value.toFixed(2).replace(/^-(?=.*[1-9])/, "−").replace("-", "") });
  element.style.setProperty("--strength", `${Math.round(Math.max(0, value ?? 0) * 45)}%`);
  return element;
}
