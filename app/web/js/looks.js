// How a map is drawn over its picture, besides the overlay of the service: with low values clear, or its strongest part.

import { cells } from "./colours.js";
import { make } from "./dom.js";
import { resized } from "./maps.js";
import { state } from "./state.js";

const MOST = 480; // cells along the longer side: contours of more would look the same
const DIM = [0, 0, 0, 205]; // outside the mask
const VEIL = [128, 128, 128, 140]; // outside an outline: dark pictures become lighter there, and light ones darker
const COARSE = 28; // cells along the longer side, over which the strength of fine maps is averaged
const OPAQUE = 0.1; // share of the picture over which fine maps are drawn opaque
const SPARSE = 0.05; // share of the picture over which other maps have at least half of the strength that is opaque

const grids = new WeakMap();

/** The values of a map, row after row, fine enough to be drawn, and the height and width of their grid. */
function grid(heatmap) {
  if (grids.has(heatmap)) return grids.get(heatmap);
  const { map, box: [left, top, right, bottom] } = heatmap;
  const scale = MOST / Math.max(right - left, bottom - top);
  const size = [[bottom - top, map.length], [right - left, map[0].length]].map(([side, cells]) => Math.max(cells, Math.round(side * scale)));
  const fine = { values: resized(map, ...size), size };
  grids.set(heatmap, fine);
  return fine;
}

/** The least of the highest values, a share of them. */
function threshold(values, share) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * (1 - share)))];
}

/** Whether a value is one of the highest, a share of them; where most are the lowest, none of these is. */
function among(values, share) {
  const least = threshold(values, share);
  const isEven = values.every((value) => value >= least);
  return (value) => (isEven ? value > least : value >= least);
}

const highest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

function mask({ values, size }, share, around) {
  const isIn = among(values, share);
  return cells(size, (cell) => (isIn(values[cell]) ? null : around));
}

function contour({ values, size }, share) {
  const [height, width] = size;
  const isOne = among(values, share);
  const isIn = (row, column) => row >= 0 && column >= 0 && row < height && column < width && isOne(values[row * width + column]);
  // A white line inside the part and a black one outside, so that it shows on any picture.
  const isNear = (row, column, reach, wanted) => {
    for (const [down, across] of [[-1, 0], [1, 0], [0, -1], [0, 1]]) {
      for (let step = 1; step <= reach; step += 1) if (isIn(row + step * down, column + step * across) === wanted) return true;
    }
    return false;
  };
  return cells(size, (cell) => {
    const [row, column] = [Math.floor(cell / width), cell % width];
    if (isIn(row, column)) return isNear(row, column, 2, false) ? [255, 255, 255, 255] : null;
    return isNear(row, column, 2, true) ? [0, 0, 0, 255] : null;
  });
}

/**
 * The strength of the values by which they are clear or not, and its peak. Fine maps are made of thin lines and dots, which
 * are lost on a clear picture: the mean strength around them counts, so that they stand on their own dark ground.
 */
function strength(fine, peak, isFine) {
  const { values, size } = fine;
  if (!isFine) {
    const sizes = values.map(Math.abs);
    fine.most ??= 2 * threshold(sizes, SPARSE); // beside one narrow peak, the rest would hardly show
    return { values: sizes, size, peak: Math.min(peak, fine.most || peak) };
  }
  const step = Math.ceil(Math.max(...size) / COARSE);
  const coarse = size.map((side) => Math.ceil(side / step));
  const [sums, counts] = [0, 0].map(() => new Float64Array(coarse[0] * coarse[1]));
  values.forEach((value, cell) => {
    const [row, column] = [Math.floor(cell / size[1]), cell % size[1]];
    const place = Math.floor(row / step) * coarse[1] + Math.floor(column / step);
    sums[place] += Math.abs(value);
    counts[place] += 1;
  });
  const means = sums.map((sum, place) => sum / counts[place]);
  return { values: means, size: coarse, peak: threshold(means, OPAQUE) || highest(means) || 1 };
}

/** The drawing with the opacity of each pixel by its value; that of the highest is opaque. The power keeps the dark colours
 * of low values from darkening the picture. */
function clear(image, [left, top, width, height], { values, size, peak }) {
  const opacity = cells(size, (cell) => [0, 0, 0, 255 * Math.min(1, values[cell] / peak) ** 1.5]);
  const drawing = make("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = drawing.getContext("2d");
  context.drawImage(opacity, left, top, width, height);
  context.globalCompositeOperation = "source-in";
  context.drawImage(image, 0, 0);
  return drawing;
}

/** The distance of each cell of a grid from the nearest one that is in a part. */
function distances(size, isIn) {
  const [height, width] = size;
  const away = Float64Array.from({ length: height * width }, (_, cell) => (isIn(cell) ? 0 : height + width));
  // Distances spread from cell to neighbour, once from the first cell to the last and once back.
  const spread = (cell, sign) => {
    for (const [down, across] of [[0, -1], [-1, -1], [-1, 0], [-1, 1]]) {
      const column = (cell % width) + sign * across;
      const near = cell + sign * (down * width + across);
      if (column >= 0 && column < width && near in away) away[cell] = Math.min(away[cell], away[near] + Math.hypot(down, across));
    }
  };
  for (let cell = 0; cell < away.length; cell += 1) spread(cell, 1);
  for (let cell = away.length - 1; cell >= 0; cell -= 1) spread(cell, -1);
  return away;
}

/** The ranks of a map's values: among equal values, a proof marks those near larger values and far from smaller ones. */
function ranks({ values, size }, share) {
  const least = threshold(values, share);
  if (values.filter((value) => value >= least).length <= values.length * share + 1) return { values, size };
  const [above, below] = [(cell) => values[cell] > least, (cell) => values[cell] < least].map((isIn) => distances(size, isIn));
  return { values: above.map((distance, cell) => Math.sign(values[cell] - least) * MOST ** 2 + below[cell] - distance), size };
}

/** Outlines the part that a proof marks, a share of a map, and veils the rest, on a part of a canvas, left, top, width and height. */
export function drawOutline(context, heatmap, share, place) {
  const part = ranks(grid(heatmap), share);
  context.globalAlpha = 1;
  for (const drawing of [mask(part, share, VEIL), contour(part, share)]) context.drawImage(drawing, ...place);
}

/** Draws a map's image onto a part of a canvas, left, top, width and height, in the chosen way. */
export function drawLook(context, image, heatmap, drawn, place, isFine) {
  if (state.look === "mask") context.drawImage(mask(grid(heatmap), state.strongest / 100, DIM), ...place);
  else if (state.look === "contour") context.drawImage(contour(grid(heatmap), state.strongest / 100), ...place);
  else if (state.look === "clear") {
    const ends = drawn ?? { low: heatmap.min, high: heatmap.max };
    const peak = Math.max(ends.high, -ends.low) || 1;
    context.globalAlpha = 1 - (1 - state.alpha) ** 2.74; // 0.85 at one half
    context.drawImage(clear(image, place, strength(grid(heatmap), peak, isFine)), 0, 0);
  } else {
    context.globalAlpha = state.alpha;
    context.drawImage(image, 0, 0);
  }
}
