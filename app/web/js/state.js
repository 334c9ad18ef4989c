// What the page shows, in one place. Whoever changes it says so, and whoever shows it is told.

export const DEFAULTS = Object.freeze({
  show: "explain", // the view: explain, compare or inside
  example: null, // name of the example picture, where it is one
  picture: null, // see picture.js
  model: null, // by default the service's
  method: "gradcam",
  options: {}, // of the method, as text; only those that differ from their defaults
  target: null, // by default the most probable class
  against: null,
  layer: [],
  colormap: null, // by default the one that fits the map
  scale: null, // by default the one that fits the method
  alpha: 0.5,
  answer: null, // of the server, to the last question that it answered
  asked: null, // that question, as fields; what is chosen since may differ, while it works or when it could not
  by: "method", // what is compared: method or layer
  compare: [], // names of these
  inside: null, // layer whose feature maps are shown
  off: [], // channels of it that are switched off
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

/** The class that is explained: the one that was asked for, or what the answer took. */
export function explained() {
  return state.answer?.explanations[0].target ?? null;
}
