// The state of the page. `change` updates it and calls the listeners.

export const DEFAULTS = Object.freeze({
  show: "explain", // the view: explain, compare, likeness or inside
  example: null, // name of the example picture, if it is one
  picture: null, // see picture.js
  model: null, // by default the service's
  method: null, // by default the one that the service recommends for the model
  options: {}, // options of the method as text; only those that differ from their defaults
  target: null, // by default the most probable class
  against: null,
  layer: [],
  colormap: null, // by default the one that fits the map
  scale: null, // by default the one that fits the method
  proof_fill: null, // by default a blur
  alpha: 0.5,
  look: "clear", // how the map is drawn, see looks.js
  strongest: 25, // percent of the map that a contour or a mask shows
  answer: null, // the server's last answer
  asked: null, // the question of that answer, as fields; the current one may differ until it is answered
  failure: null, // why the last question has no answer, an error
  map: 0, // which of the explanations of that answer is shown: of a class of a detector there is one for each box
  by: "method", // whether methods or layers are compared
  compare: [], // names of the compared methods or layers
  models: [], // names of the compared models; by default the model alone
  classes: [], // compared classes; by default the target alone
  mark: null, // the marked part of the picture, see marking.js
  altered: null, // what the model predicts before and after that part is hidden, see marking.js
  scene: null, // what the model predicts at each place of the picture, see scene.js
  reference: null, // name of the example picture that it is compared with, if that is one
  second: null, // the picture that it is compared with, see picture.js
  inside: null, // layer whose feature maps are shown
  off: [], // its channels that are switched off
});

export const state = structuredClone(DEFAULTS);

const listeners = [];

/** Calls `listener(patch)` after each change. */
export function onChange(listener) {
  listeners.push(listener);
}

export function change(patch) {
  Object.assign(state, patch);
  for (const listener of listeners) listener(patch);
}

/** Whether maps are drawn anew after a change, without another request. */
export const redraws = (patch) => ["alpha", "look", "strongest"].some((name) => name in patch);

/** The chosen model and class, as fields; of a value what raises it, so that contributions are to the value itself. */
export function subject() {
  const fields = [];
  if (state.model) fields.push(["model", state.model]);
  const { direction, index } = explained() ?? {};
  const target = direction === "down" ? `output:${index}` : state.target;
  if (target !== null) fields.push(["target", String(target)]);
  return fields;
}

const recommended = new Map();

/** Stores the method that the page starts with for a model; null for the service's default one. */
export function learnMethod(model, method) {
  if (!layerless.has(model)) recommended.set(model, method); // the service does not know the layers yet
}

/** The method that the page starts with for a model; undefined if it is not known. */
export const recommendedFor = (model) => recommended.get(model);

const layerless = new Set();

/** Stores that no layer of a model has a grid of features, which methods of layers need. */
export function learnLayerless(model) {
  layerless.add(model);
  recommended.set(model, "saliency");
}

export const isLayerless = () => layerless.has(state.model);

/** The method: the chosen one, the recommended one, or else that of the last answer. */
export function methodName() {
  return state.method ?? recommendedFor(state.model) ?? new Map(state.asked).get("method") ?? "gradcam";
}

/** A target of a link or a text field: indices are numbers. */
export const asTarget = (text) => (/^\d+$/.test(text) ? Number(text) : text);

/** The target that the answer explains; null for the default one. */
export const askedTarget = () => asTarget(new Map(state.asked).get("target") ?? null);

/** The explanation that is shown, of an answer. */
export const explanation = (answer = state.answer) => answer?.explanations[state.map] ?? null;

/** The explained class, value, region or box. */
export const explained = () => explanation()?.target ?? null;
