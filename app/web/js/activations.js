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
  const { channels, size } = unranked(readTensors(await answer.arrayBuffer())[`${layer}/output/0`], null, await tokensOf(layer));
  return { maps: channels.map(({ map }) => map), size };
}

async function capture(key, layer, fields, signal) {
  const answer = await post("/hooks/capture", state.picture.file, fields, { signal });
  const tensors = readTensors(await answer.arrayBuffer());
  return { key, layer, ...ranked(tensors[`${layer}/output/0`], tensors[`${layer}/grad_output/0`], await tokensOf(layer)) };
}

/** The grid of the tokens of a transformer's layer; null for other layers. */
const tokensOf = async (path) => (await layersOf(modelName())).find((layer) => layer.path === path)?.tokens ?? null;

/** Channels of a tensor by their effect on the class, the largest first. */
function ranked(output, gradient, tokens) {
  const { channels, size } = unranked(output, gradient, tokens);
  channels.sort((left, right) => Math.abs(right.effect) - Math.abs(left.effect));
  return { channels, size };
}

/** Channels of a tensor with their effect on the class: the sum of output times gradient. */
function unranked(output, gradient, tokens) {
  const { size, height, width, at } = layoutOf(output?.shape ?? [], tokens);
  const cells = height * width;
  const channels = Array.from({ length: size }, (_, channel) => {
    const map = Float32Array.from({ length: cells }, (_, cell) => output.values[at(channel, cell)]);
    let effect = 0;
    if (gradient) map.forEach((value, cell) => (effect += value * gradient.values[at(channel, cell)]));
    return { channel, effect, map };
  });
  return { channels, size: [height, width] };
}

/** How many channels a tensor of this shape has, the sides of its maps, and `at(channel, cell)`, where a value of them lies. */
function layoutOf(shape, tokens) {
  const [, first, second, last] = shape;
  if (shape.length === 3 && tokens) return { size: second, height: tokens.rows, width: tokens.columns, at: (channel, cell) => (tokens.before + cell) * second + channel };
  if (shape.length !== 4) throw new Error("This layer has no grid of features; choose another one.");
  if (channelsLast(shape)) return { size: last, height: first, width: second, at: (channel, cell) => cell * last + channel };
  return { size: first, height: second, width: last, at: (channel, cell) => channel * second * last + cell };
}
