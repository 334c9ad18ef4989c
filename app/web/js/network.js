// The network as a tree of its modules, with its graph: a module leads to its feature maps, its part of the trace, and
// the modules that it reads or that read it.

import { currentLayer } from "./activations.js";
import { byId, make } from "./dom.js";
import { neighbours } from "./graph.js";
import { channelsLast, layersOf, shape, showTree } from "./layers.js";
import { modelName } from "./question.js";
import { change, state } from "./state.js";

let shown = null; // the model whose tree is shown

/** Shows a layer of the model; the channels of another one are all on. */
export function visit(path) {
  if (path !== state.inside) change({ inside: path, off: [] });
}

/** Shows the tree, and where in it the current layer is, if there is one. */
export async function showNetwork() {
  const model = modelName();
  const [layers, current] = [await layersOf(model), await currentLayer().catch(() => null)];
  if (shown !== model) {
    shown = model;
    const sizes = layers.map(mapSize).filter((size) => size);
    const most = [0, 1].map((side) => Math.max(...sizes.map((size) => size[side])));
    showTree(byId("network-tree"), layers, (layer, name) => line(layer, name, current, most));
  }
  for (const button of byId("network-tree").querySelectorAll("button")) {
    const isCurrent = button.value === current;
    if (isCurrent && !button.hasAttribute("aria-current")) reveal(button);
    if (isCurrent) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  byId("neighbours").replaceChildren(...(current ? around(layers, current) : []));
}

/** What a layer reads and what reads it, with a way to those that have feature maps. */
function around(layers, current) {
  const { reads, readBy } = neighbours(layers, current);
  return [...sentence("Its input comes from", reads, layers), ...sentence("Its output goes to", readBy, layers)];
}

function sentence(verb, rows, layers) {
  const words = rows.flatMap((path, place) => [place ? ", " : `${verb} `, name(path, layers)]);
  return rows.length ? [...words, ". "] : [];
}

function name(row, layers) {
  if (!row) return "the picture";
  const path = row.endsWith(".") ? row.slice(0, -1) : row;
  const text = path === row ? path : `the output of ${path}`;
  if (!layers.some((layer) => layer.cam && layer.path === path)) return text;
  return make("button", { class: "link", textContent: text, on: { click: () => visit(path) } });
}

/** How many channels a layer has, and how high its feature maps are; null if it has none. */
function mapSize({ output_shape: sides }) {
  if (sides?.length !== 4) return null;
  const [, first, second, last] = sides;
  return channelsLast(sides) ? [last, first] : [first, second];
}

/** A rectangle as high as the feature maps of a layer and as wide as it has channels, compared with those of the others. */
function sketch([channels, height], [mostChannels, mostHeight]) {
  const box = make("span", { class: "sketch", "aria-hidden": "true" }, make("span"));
  box.style.setProperty("--channels", Math.sqrt(channels / mostChannels));
  box.style.setProperty("--height", height / mostHeight);
  return box;
}

function line(layer, name, current, most) {
  const size = mapSize(layer);
  const about = [size && sketch(size, most), make("span", { class: "name", textContent: name })];
  if (layer.default) about.push(make("small", { class: "tag", textContent: "default" }));
  about.push(make("small", { class: "type", textContent: layer.type }), make("small", { textContent: shape(layer.output_shape) }));
  const kind = `layer${layer.default ? " default" : ""}`;
  if (!layer.cam) return make("span", { class: kind, title: `${layer.type}: ${layer.calls > 1 ? `it runs ${layer.calls} times` : "its output has no grid of features"}` }, ...about);
  const button = make("button", { class: kind, value: layer.path, title: layer.type, "aria-current": layer.path === current && "true" }, ...about);
  button.addEventListener("click", () => visit(layer.path));
  return button;
}

/** Opens the branches around a line, and scrolls the tree to it. */
function reveal(button) {
  for (let around = button.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
  const tree = byId("network-tree");
  const [line, frame] = [button.getBoundingClientRect(), tree.getBoundingClientRect()];
  if (line.top < frame.top || line.bottom > frame.bottom) tree.scrollTop += line.top - frame.top - frame.height / 3;
}
