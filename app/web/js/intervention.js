// What the model says without some channels of a layer.

import { post } from "./api.js";
import { methodNamed, question } from "./question.js";
import { asks } from "./scene.js";
import { explanation, methodName, state, subject } from "./state.js";
import { allMove, count } from "./words.js";

/** The chosen method, or Grad-CAM in place of methods of many passes, which would take too long. */
function quick() {
  const { forwards, backwards } = methodNamed(methodName())?.cost ?? {};
  return [forwards, backwards].every((passes) => /^\d$/.test(passes)) ? methodName() : "gradcam";
}

const zeroed = (layer, channels) => ["edits", JSON.stringify([{ layer, op: "zero", channels }])];

/** The fields of a request that zeroes channels of a layer, with heatmaps of the chosen method. */
export function without(layer, channels) {
  const method = quick();
  const fields = question({ method, against: null, proof_fill: null, ...(method !== methodName() && { options: {}, layer: [] }) });
  return [...fields, zeroed(layer, channels)];
}

/** The same about the classes alone: the service's default method takes least time. */
export const classesWithout = (layer, channels) => [...subject(), zeroed(layer, channels)];

export const intervene = async (fields, signal) => (await post("/hooks/intervene", state.picture.file, fields, { signal })).json();

/** How channels are named, such as “channel 37 of blocks.4”. */
export const named = (layer, channels) => `${channels.length === 1 ? `channel ${channels[0]}` : `${count(channels.length)} channels`} of ${layer}`;

/** What of a class or a value contributions are to. */
export const measure = ({ logit, attribute = "score" }) => (logit !== undefined && attribute === "score" ? "logit" : "value");

/** What happens to the class and to its logit or value, in sentences. */
export function sentence(layer, channels, { model, target, before, after, difference }) {
  const [first, next] = [before, after].map(({ predictions }) => predictions[0]);
  const isOther = first && next && first.index !== next.index && model.head !== "sigmoid"; // several hold at once
  const by = Math.abs(difference.score).toFixed(2);
  const moved = Number(by) ? `${difference.score < 0 ? "falls" : "rises"} by ${by}` : "hardly changes";
  const score = `The ${measure(target)} ${moved}.`;
  const against = explanation()?.against;
  const rivals = [before, after].map(({ predictions }) => predictions.find(({ index }) => index === against?.index));
  const readings = allMove([[before.target, after.target], ...(rivals.every(Boolean) ? [rivals] : [])]);
  const best = isOther ? ` The ${asks()?.first ?? "best class"} is now ${next.label}.` : "";
  return `Without ${named(layer, channels)}, ${readings}.${best} ${score}`;
}
