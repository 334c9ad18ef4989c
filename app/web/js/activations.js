// The feature maps of a layer for the current picture, with estimates of their effects on the class.

import { post } from "./api.js";
import { channelsLast, layersOf } from "./layers.js";
import { modelName } from "./question.js";
import { state, subject } from "./state.js";
import { readTensors } from "./tensors.js";

let kept = null; // {key, stop, answer}: the last capture

/** The layer whose feature maps are shown: the chosen one, or the model's default. */
export async function currentLayer() {
  if (state.inside) return state.inside;
  const layers = await layersOf(modelName());
  const layer = layers.find((candidate) => candidate.default);
  if (!layer && !layers.some(({ cam }) => cam)) throw new Error("No layer of this model has a grid of features, so there are no feature maps.");
  if (!layer) throw new Error("This model has no default layer; choose one.");
  return layer.path;
}

/**
 * The feature maps of a layer: {key, layer, channels: [{channel, effect, map}], size}, the largest effect first. A request
 * about another layer ends the one before, with an AbortError.
 */
export function activationsOf(layer) {
  const fields = [...subject(), ["layer", layer], ["kind", "output"], ["kind", "grad_output"], ["format", "safetensors"]];
  const key = JSON.stringify([state.picture.url, fields]);
  if (kept?.key !== key) {
    kept?.stop.abort();
    const stop = new AbortController();
    const mine = { key, stop, answer: capture(key, layer, fields, stop.signal) };
    kept = mine;
    mine.answer.catch(() => {
      if (kept === mine) kept = null;
    });
  }
  return kept.answer;
}

/** The feature maps of a layer for another picture, in the order of the channels: {maps, size}. */
export async function channelsOf(file, layer, signal) {
  const fields = [["model", modelName()], ["layer", layer], ["kind", "output"], ["format", "safetensors"]];
  const answer = await post("/hooks/capture", file, fields, { signal });
  const { channels, size } = unranked(readTensors(await answer.arrayBuffer())[`${layer}/output/0`]);
  return { maps: channels.map(({ map }) => map), size };
}

async function capture(key, layer, fields, signal) {
  const answer = await post("/hooks/capture", state.picture.file, fields, { signal });
  const tensors = readTensors(await answer.arrayBuffer());
  return { key, layer, ...ranked(tensors[`${layer}/output/0`], tensors[`${layer}/grad_output/0`]) };
}

/** Channels of a tensor by their effect on the class, the largest first. */
function ranked(output, gradient) {
  const { channels, size } = unranked(output, gradient);
  channels.sort((left, right) => Math.abs(right.effect) - Math.abs(left.effect));
  return { channels, size };
}

/** Channels of a tensor with their effect on the class: the sum of output times gradient. */
function unranked(output, gradient) {
  const [, first, second, last] = output?.shape ?? [];
  if (output?.shape.length !== 4) throw new Error("This layer has no grid of features; choose another one.");
  const inside = channelsLast(output.shape);
  const [size, height, width] = inside ? [last, first, second] : [first, second, last];
  const cells = height * width;
  const at = (channel, cell) => (inside ? cell * size + channel : channel * cells + cell);
  const channels = Array.from({ length: size }, (_, channel) => {
    const map = Float32Array.from({ length: cells }, (_, cell) => output.values[at(channel, cell)]);
    let effect = 0;
    if (gradient) map.forEach((value, cell) => (effect += value * gradient.values[at(channel, cell)]));
    return { channel, effect, map };
  });
  return { channels, size: [height, width] };
}
