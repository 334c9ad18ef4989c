// The graph of a network: which module reads the output of which, as lines beside the tree of its modules.

import { makeShape } from "./dom.js";

const SPINE = 28; // where the modules lie, in pixels from the left edge
const STEP = 7; // between two lines that pass modules by, if there is room
const TURN = 9; // radius of a line's turns

/** The row of what an open module makes of the outputs of modules in it; no path of a module ends with a dot. */
export const outputRow = (path) => `${path}.`;

/**
 * Which rows read which, as [from, to], each pair once. A row is the path of a module that is not open, with all modules
 * in it, or the output of an open one; the empty path stands for the picture.
 */
export function connections(layers, isOpen) {
  const parents = new Set(layers.flatMap(({ path }) => modulesAround(path)));
  const rowOf = (path) => modulesAround(path).find((around) => !isOpen(around)) ?? (isOpen(path) ? outputRow(path) : path);
  const pairs = new Map();
  for (const { path, inputs, parts } of layers) {
    if (!path) continue; // the model itself
    for (const source of parents.has(path) ? parts : [...inputs, ...parts]) {
      const [from, to] = [rowOf(source), rowOf(path)];
      if (from !== to) pairs.set(`${from}\n${to}`, [from, to]);
    }
  }
  return [...pairs.values()];
}

/** The rows that a module reads and those that read it, in a tree that is open around it only. */
export function neighbours(layers, path) {
  const around = modulesAround(path);
  const pairs = connections(layers, (other) => around.includes(other));
  return { reads: pairs.filter(([, to]) => to === path).map(([from]) => from), readBy: pairs.filter(([from]) => from === path).map(([, to]) => to) };
}

/** The paths of the modules that contain a module, the outermost first. */
function modulesAround(path) {
  const names = path.split(".");
  return names.slice(1).map((_, place) => names.slice(0, place + 1).join("."));
}

/** Draws the graph beside a tree of modules, whose rows have `data-path`; again whenever one opens or closes. */
export function drawGraph(tree, layers) {
  const list = tree.querySelector("ul");
  const rows = new Map([...tree.querySelectorAll("[data-path]")].map((row) => [row.dataset.path, row]));
  const isOpen = (path) => rows.get(path)?.nextElementSibling?.open ?? false;
  const drawing = makeShape("svg", { class: "graph", "aria-hidden": "true" });
  const lines = new Map(); // those from and to a row
  const draw = () => {
    const top = tree.getBoundingClientRect().top - tree.scrollTop;
    const shown = [...rows].filter(([path, row]) => row.checkVisibility() && !isOpen(path));
    if (!shown.length) return; // the tree is hidden
    const places = new Map(shown.map(([path], place) => [path, place]));
    const heights = shown.map(([, row]) => row.getBoundingClientRect()).map((box) => (box.top + box.bottom) / 2 - top);
    const pairs = connections(layers, isOpen).map((pair) => pair.map((path) => places.get(path)));
    const lanes = lanesOf(pairs.filter(passes));
    const step = Math.min(STEP, (SPINE - 3) / Math.max(...lanes.values()));
    lines.clear();
    drawing.setAttribute("height", heights.at(-1) + TURN);
    drawing.replaceChildren(
      ...pairs.map((pair) => {
        const aside = passes(pair) ? lanes.get(pair[0]) * step : 0;
        const drawn = makeShape("path", { d: line(...pair.map((place) => heights[place]), SPINE - aside) });
        for (const place of pair) lines.set(shown[place][0], [...(lines.get(shown[place][0]) ?? []), drawn]);
        return drawn;
      }),
      ...pairs.filter(passes).map(([, to]) => makeShape("path", { class: "tip", d: `M${SPINE - 2} ${heights[to]}l-5 -3v6z` })),
      ...heights.map((height) => makeShape("circle", { cx: SPINE, cy: height, r: 2.5 })),
    );
  };
  const highlight = ({ target }) => {
    const own = lines.get(target.closest("[data-path]")?.dataset.path) ?? [];
    for (const drawn of drawing.querySelectorAll("path:not(.tip)")) drawn.classList.toggle("on", own.includes(drawn));
  };
  tree.prepend(drawing);
  list.addEventListener("pointerover", highlight);
  list.addEventListener("focusin", highlight);
  new ResizeObserver(draw).observe(list);
}

const passes = ([from, to]) => to !== from + 1;

/** In which lane, counted from 1, the lines from each place run past others; short ones are next to the modules. */
function lanesOf(pairs) {
  const reach = new Map(); // the first and the last place of the lines from a place
  for (const [from, to] of pairs) {
    const [first, last] = reach.get(from) ?? [from, from];
    reach.set(from, [Math.min(first, to), Math.max(last, to)]);
  }
  const taken = [];
  const lanes = new Map();
  for (const [from, [first, last]] of [...reach].sort(([, left], [, right]) => left[1] - left[0] - (right[1] - right[0]))) {
    let lane = taken.findIndex((spans) => spans.every(([start, end]) => last <= start || end <= first));
    if (lane < 0) lane = taken.push([]) - 1;
    taken[lane].push([first, last]);
    lanes.set(from, lane + 1);
  }
  return lanes;
}

function line(start, end, side) {
  if (side === SPINE) return `M${SPINE} ${start}V${end}`;
  const turn = Math.min(TURN, Math.abs(end - start) / 2) * Math.sign(end - start);
  return `M${SPINE} ${start}Q${side} ${start} ${side} ${start + turn}V${end - turn}Q${side} ${end} ${SPINE} ${end}`;
}
