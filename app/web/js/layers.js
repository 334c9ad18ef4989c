// The dialog to choose layers from the tree of a model's modules, with their shapes.

import { catalogue, modelPath } from "./api.js";
import { ask, search } from "./dialog.js";
import { make } from "./dom.js";
import { drawGraph, outputRow } from "./graph.js";

export const layersOf = async (model) => (await catalogue(`${modelPath(model)}/layers`)).layers;

/** Whether the channels of a shape with four sides come last, as in a Swin transformer. */
export const channelsLast = ([, first, second, last]) => first === second && last !== second;

export const shape = (sides) => (sides ? sides.slice(1).join(" × ") : "?");

/**
 * Asks for layers of a model; returns their paths, or null.
 * `most` is how many may be chosen; `chosen` are selected at first; `standard` adds a button for the default. `used` are the
 * layers of an answer.
 */
export async function chooseLayers({ model, title, chosen, most, standard = false, used = [] }) {
  const layers = await layersOf(model);
  const start = chosen.length ? chosen : layers.filter((layer) => layer.default).map((layer) => layer.path);
  const picked = new Set(start);
  const note = make("p", { class: "help", role: "status" });
  const tell = () => {
    note.textContent = most === 1 ? "" : `${picked.size} of at most ${most} chosen.`;
  };
  const pick = (control, path) => {
    if (most === 1) picked.clear();
    if (!control.checked) picked.delete(path);
    else if (picked.size < most) picked.add(path);
    else control.checked = false;
    tell();
  };
  const entry = (layer, name) => choice(layer, name, most === 1 ? "radio" : "checkbox", picked, pick);
  const place = make("div", { class: "tree" });
  const fill = (text) => {
    if (!text) showTree(place, layers, entry);
    else {
      const matches = layers.filter((layer) => layer.path && `${layer.path} ${layer.type}`.toLowerCase().includes(text));
      place.replaceChildren(make("ul", {}, ...matches.map((layer) => make("li", {}, entry(layer, layer.path)))));
      if (!matches.length) place.replaceChildren(make("p", { class: "help", textContent: "No layer matches." }));
    }
  };
  fill("");
  tell();
  const finer = used.filter((path) => !picked.has(path));
  const also = finer.length ? ` The method itself adds ${finer.join(" and ")}.` : "";
  const help = `Shapes are channels × height × width. Layers without a grid of features cannot be used.${also}`;
  const content = make("div", { class: "body" }, make("p", { class: "help", textContent: help }), search("Find a layer", fill), place, note);
  return ask(title, content, {
    accept: most === 1 ? "Use this layer" : "Use these layers",
    result: () => {
      const isStart = standard && picked.size === start.length && start.every((path) => picked.has(path));
      return isStart ? chosen : layers.map((layer) => layer.path).filter((path) => picked.has(path));
    },
    extra: standard ? [["Back to the default", []]] : [],
  });
}

/**
 * Shows the tree of modules as nested lists, and the graph beside it; `entry(layer, name)` makes a row. Branches with a
 * chosen or default layer are open.
 */
export function showTree(place, layers, entry) {
  const list = branches(nested(layers), entry);
  list.prepend(make("li", {}, row("Picture", "")));
  place.replaceChildren(list);
  drawGraph(place, layers);
}

const row = (name, path) => make("span", { class: "layer", textContent: name, "data-path": path });

/** The tree of modules; a node is {name, path, layer or null, children by name}. */
function nested(layers) {
  const root = new Map();
  for (const layer of layers) {
    if (!layer.path) continue;
    let children = root;
    let node = null;
    for (const name of layer.path.split(".")) {
      node = children.get(name) ?? { name, path: node ? `${node.path}.${name}` : name, layer: null, children: new Map() };
      children.set(name, node);
      children = node.children;
    }
    node.layer = layer;
  }
  return root;
}

function branches(nodes, entry) {
  const items = [...nodes.values()].map(({ name, path, layer, children }) => {
    const line = layer ? entry(layer, name) : row(name, path);
    line.dataset.path = path;
    if (!children.size) return make("li", {}, line);
    const inner = branches(children, entry);
    if (layer?.parts.length) inner.append(make("li", {}, row(`Output of ${name}`, outputRow(path))));
    const holds = inner.querySelector("input:checked, .default, [aria-current]") !== null;
    const label = `Modules of ${path}`;
    return make("li", {}, line, make("details", { open: holds }, make("summary", { "aria-label": label, textContent: children.size }), inner));
  });
  return make("ul", {}, ...items);
}

function choice(layer, name, type, picked, pick) {
  const usable = layer.cam;
  const control = make("input", { type, name: "layer", value: layer.path, disabled: !usable, checked: picked.has(layer.path) });
  control.addEventListener("change", () => pick(control, layer.path));
  return make(
    "label",
    { class: `layer${usable ? "" : " absent"}${layer.default ? " default" : ""}` },
    control,
    make("span", { class: "name", textContent: name }),
    make("small", { textContent: `${layer.type} · ${shape(layer.output_shape)}` }),
    layer.default ? make("small", { class: "tag", textContent: "default" }) : null,
  );
}
