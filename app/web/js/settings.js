// The settings beside the picture: method, layer and drawing. Model and options have their own modules.

import { catalogue } from "./api.js";
import { coloursOf, gradient } from "./colours.js";
import { costInWords, costOf, nameWithCost } from "./cost.js";
import { byId, make } from "./dom.js";
import { drawnBy } from "./doubt.js";
import { chooseLayers } from "./layers.js";
import { keptOptions } from "./options.js";
import { showProblem } from "./problems.js";
import { allMethods, isLoaded, learn, limit, methodNamed, modelName, usualScale } from "./question.js";
import { change, explanation, methodName, onChange, state } from "./state.js";
import { plain } from "./words.js";

const FAMILIES = {
  cam: "Class activation maps",
  gradient: "Gradients",
  rule: "Other backward rules",
  transformer: "Transformers",
  perturbation: "Perturbations",
  concept: "Concepts",
  control: "Controls for comparison",
};
// Designed for colour-blind readers; all others are also safe for them.
const FIRST = ["cividis", "batlow", "viridis", "vik", "berlin"];
const timed = new Set(); // models that have answered

/** Methods by family, as groups of a select; at the end those that cannot explain the model, with the reason. */
export function methodGroups() {
  const suitable = allMethods().filter(({ unsuitable }) => !unsuitable);
  const families = [...new Set([...Object.keys(FAMILIES), ...suitable.map(({ family }) => family)])];
  const groups = families.map((family) => {
    const methods = suitable.filter((method) => method.family === family);
    return group(FAMILIES[family] ?? family, methods.map((method) => new Option(nameWithCost(method), method.name)));
  });
  const others = allMethods().filter(({ unsuitable }) => unsuitable);
  const refused = ({ name, unsuitable }) => make("option", { value: name, textContent: name, disabled: true, title: plain(unsuitable) });
  return [...groups, group("Not for this model", others.map(refused))].filter(Boolean);
}

const group = (label, options) => (options.length ? make("optgroup", { label }, ...options) : null);

export async function prepareSettings() {
  const method = byId("method");
  method.replaceChildren(...methodGroups());
  method.addEventListener("change", () => change({ method: method.value, options: keptOptions(method.value) }));
  byId("layer").addEventListener("click", () => choose().catch(showProblem));
  byId("scale").addEventListener("change", scale);
  for (const id of ["scale-low", "scale-high"]) byId(id).addEventListener("change", scale);
  const { colormaps } = await catalogue("/colormaps");
  const rank = (colormap) => (FIRST.includes(colormap.name) ? FIRST.indexOf(colormap.name) : FIRST.length);
  const ranked = (diverging) => {
    const maps = colormaps.filter((map) => map.diverging === diverging).sort((left, right) => rank(left) - rank(right));
    return maps.map(({ name }) => new Option(name, name));
  };
  const colormap = byId("colormap");
  colormap.replaceChildren(new Option("automatic", ""), group("Sequential", ranked(false)), group("Diverging, for signed maps", ranked(true)));
  colormap.addEventListener("change", () => change({ colormap: colormap.value || null }));
  onChange(show);
  show({ ...state });
}

async function choose() {
  const model = modelName();
  const most = methodNamed(methodName())?.options.layer?.maxItems ?? 16;
  const layer = await chooseLayers({ model, title: "Layers", chosen: state.layer, most, standard: true, used: usedLayers() });
  if (layer && String(layer) !== String(state.layer)) change({ layer });
}

function scale() {
  const [low, high] = [byId("scale-low"), byId("scale-high")];
  const wanted = byId("scale").value;
  byId("scale-ends").hidden = wanted !== "fixed";
  if (wanted !== "fixed") change({ scale: wanted === usualScale(methodName()) ? null : wanted });
  else {
    const { drawn } = explanation() ?? { drawn: { low: 0, high: 1 } };
    if (low.value === "") low.value = Number(drawn.low.toPrecision(3));
    if (high.value === "") high.value = Number(drawn.high.toPrecision(3));
    change({ scale: `${low.value},${high.value}` });
  }
}

function show(patch) {
  const isOther = ["model", "method", "answer"].some((name) => name in patch);
  if ("model" in patch) byId("method").replaceChildren(...methodGroups()); // costs are those of the model
  if (isOther || "options" in patch || "layer" in patch) showMethod();
  if (patch.answer && (isFirst(modelName()) || !isMeasured())) learnCosts();
  if (isOther || "layer" in patch) showLayer();
  if (isOther || "scale" in patch) showScale();
  if ("colormap" in patch) byId("colormap").value = state.colormap ?? "";
  if ("answer" in patch && state.answer) swatch(explanation().drawn.colormap);
}

function showScale() {
  const scale = state.scale ?? usualScale(methodName());
  const fixed = scale.includes(",");
  const control = byId("scale");
  control.value = fixed ? "fixed" : scale;
  byId("scale-ends").hidden = !fixed;
  if (fixed) [byId("scale-low").value, byId("scale-high").value] = scale.split(",");
  byId("scale-said").textContent = scale === "image" ? "" : (control.selectedOptions[0]?.textContent ?? "");
}

async function swatch(name) {
  byId("swatch").style.backgroundImage = gradient(await coloursOf(name));
}

/** Whether another method than the chosen one drew the map that is shown. */
function isReplaced() {
  const { answer } = state;
  return answer?.model.name === modelName() && answer.method.name === methodName() && drawnBy(answer.method, explanation()) !== methodName();
}

/** The passes of a method in its own words, such as “1 + channels forward passes”. */
function passesOf({ forwards, backwards }) {
  const each = (passes, name) => (passes === "0" ? null : `${passes} ${name} ${passes === "1" ? "pass" : "passes"}`);
  return [each(forwards, "forward"), each(backwards, "backward")].filter(Boolean).join(", ");
}

/** A citation of authors: only the first if there are more than two. */
function cited(authors) {
  const names = authors.split(", ");
  return names.length > 2 ? `${names[0]} et al.` : names.join(" and ");
}

function citation({ authors, year, title, url }) {
  const textContent = `${cited(authors)} ${year}`;
  return make("a", { href: url, target: "_blank", rel: "noreferrer", title, textContent });
}

/** Whether the service had loaded the model, and measured the method, when it told about the methods. */
function isMeasured() {
  const { partial, seconds_per_pass: pace } = methodNamed(methodName()) ?? {};
  return isLoaded() && (pace !== null || (partial && state.layer.length > 0)); // other layers are not measured
}

/** Whether this is the first answer of a model: until then, the service has timed it only on empty pictures. */
function isFirst(model) {
  const isNew = !timed.has(model);
  timed.add(model);
  return isNew;
}

/** Shows what methods cost on a model that is loaded, and by a method that is measured, by now. */
async function learnCosts() {
  const { model } = state;
  await learn(model, { anew: true }).catch(() => null); // they are shown without it
  if (model !== state.model) return;
  byId("method").replaceChildren(...methodGroups());
  showMethod();
}

function showMethod() {
  const method = methodNamed(methodName());
  byId("method").value = methodName();
  byId("method-about").hidden = !method;
  if (!method) return;
  byId("method-summary").textContent = isReplaced() ? "It cannot be applied here: Grad-CAM drew this map instead." : method.summary;
  const [first, ...others] = method.papers; // the guide cites all
  byId("method-paper").replaceChildren(...(first ? [citation(first), others.length ? ` and ${others.length} more` : "", " · "] : []));
  const cost = costOf(method, state.options, state.layer);
  const isTooLong = cost.isRefused || cost.seconds > limit() ? `: the limit here is ${Math.round(limit())} s` : "";
  byId("method-cost").textContent = `${costInWords(cost) || passesOf(method.cost)}${isTooLong}`;
  byId("method-guide").href = `/guide#${encodeURIComponent(method.name)}`;
  byId("method-same").hidden = method.discriminates;
}

/** The layers of the answer, among them those that the method adds; the chosen ones until there is an answer of them. */
function usedLayers() {
  const asked = (state.asked ?? []).filter(([name]) => name === "layer").map(([, path]) => path);
  return state.answer && String(asked) === String(state.layer) ? state.answer.layers : state.layer;
}

function showLayer() {
  const takes = "layer" in (methodNamed(methodName())?.options ?? { layer: null });
  byId("layer-field").classList.toggle("unused", !takes); // what is below stays in place
  byId("layer-name").textContent = usedLayers().join(", ") || "automatic";
  byId("layer-default").hidden = state.layer.length > 0;
}
