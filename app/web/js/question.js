// The state as fields of a request, for requests, copied commands and links.

import { catalogue } from "./api.js";
import { learnMethod, recommendedFor, state } from "./state.js";

const methods = new Map();
let deadline = Infinity;
let standard = null; // the service's default model

/** Stores the methods of the catalogue with their costs for a model, and the one that the page starts with for it. */
export async function learn(model, { anew = false } = {}) {
  const answer = await catalogue(model ? `/methods?model=${encodeURIComponent(model)}` : "/methods", { anew });
  // A pass of a part takes no longer than one of the whole model, whatever has been measured of it.
  const whole = answer.methods.find(({ partial, cost, seconds_per_pass: pace }) => !partial && cost.backwards === "0" && pace)?.seconds_per_pass ?? null;
  for (const method of answer.methods) methods.set(method.name, { ...method, most_per_pass: method.cost.backwards === "0" ? whole : null });
  deadline = answer.deadline;
  if (!model) standard = answer.model;
  learnMethod(model, answer.recommended);
}

/** The name of the model: the chosen one, or the service's default. */
export const modelName = () => state.model ?? standard;

/** Seconds that a request may take. */
export const limit = () => deadline;

export const allMethods = () => [...methods.values()];
export const methodNamed = (name) => methods.get(name);

/** Whether the service had the model in memory when it told about the methods. */
export const isLoaded = () => allMethods().every(({ quantities }) => quantities !== null);

/** Whether a method's maps have a value for each pixel, as those of gradients: thin lines and dots. */
export const isFine = (name) => Boolean(methods.get(name)?.fine);

/** The default scale of a method's maps: in fine maps a few extreme pixels would make the others pale. */
export const usualScale = (name) => (isFine(name) ? "robust" : "image");

/** The state as pairs of names and values, without defaults. */
export function question(changed = {}) {
  const asked = { ...state, ...changed };
  asked.method ??= recommendedFor(asked.model);
  const method = methods.get(asked.method);
  const fields = [];
  if (asked.model) fields.push(["model", asked.model]);
  if (asked.method) fields.push(["method", asked.method]);
  if (asked.target !== null) fields.push(["target", String(asked.target)]);
  if (asked.against !== null) fields.push(["against", String(asked.against)]);
  if (!method || "layer" in method.options) for (const layer of asked.layer) fields.push(["layer", layer]);
  for (const [name, value] of Object.entries(asked.options)) fields.push([name, value]);
  if (asked.colormap) fields.push(["colormap", asked.colormap]);
  const scale = asked.scale ?? usualScale(asked.method);
  if (scale !== "image") fields.push(["scale", scale]);
  if (asked.proof_fill) fields.push(["proof_fill", asked.proof_fill]);
  return fields;
}

/** Fields that name the model too: where they are sent later, another one may be the default. */
export const withModel = (fields) => (fields.some(([name]) => name === "model") ? fields : [["model", modelName()], ...fields]);

/** The fields with which the service draws the same picture as the page. */
export function drawingQuestion() {
  const fields = [...state.asked];
  if (state.alpha !== 0.5) fields.push(["alpha", String(state.alpha)]);
  fields.push(["format", "png"]);
  return fields;
}

/** What the page needs to draw the answer itself: the heatmap alone, the values of its map, and its proof. */
export const HEATMAP = [["view", "heatmap"], ["values", "map"], ["proof", "true"]];
