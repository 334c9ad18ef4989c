// A feature map drawn over the picture, and the places where it is strongest.

import { coloured, coloursOf } from "./colours.js";
import { decoded } from "./overlay.js";
import { explanation, state } from "./state.js";

const PLACES = 3;

/** The part of the picture that the model sees, in pixels of an upload of `shape`; null before the first answer. */
const seenPart = () => explanation()?.heatmap ?? null;

/** The map's colours, one pixel for each cell, as a canvas. */
async function cellsOf(map, size) {
  const low = map.reduce((least, value) => Math.min(least, value), 0);
  const high = map.reduce((most, value) => Math.max(most, value), 0);
  const largest = Math.max(high, -low) || 1;
  const isSigned = low < -0.25 * largest;
  const colours = await coloursOf(isSigned ? "icefire" : "inferno");
  return coloured(map, size, colours, isSigned ? (value) => (value / largest + 1) / 2 : (value) => Math.max(0, value / largest));
}

/** Draws a feature map over the part of the picture that the model saw, on a whole canvas, which takes its proportions. */
export async function drawSeen(canvas, map, size) {
  const small = await cellsOf(map, size);
  const heatmap = seenPart();
  const picture = heatmap && (await decoded(state.picture.url));
  const [left, top, right, bottom] = heatmap?.box ?? [0, 0, size[1], size[0]];
  const scale = Math.max(canvas.width, canvas.height) / Math.max(right - left, bottom - top);
  const [width, height] = [right - left, bottom - top].map((side) => Math.max(1, Math.round(side * scale)));
  Object.assign(canvas, { width, height }); // which also clears it
  const context = canvas.getContext("2d");
  if (heatmap) {
    const [full, wide] = heatmap.shape;
    const [across, down] = [picture.naturalWidth / wide, picture.naturalHeight / full];
    context.drawImage(picture, left * across, top * down, (right - left) * across, (bottom - top) * down, 0, 0, width, height);
    context.globalAlpha = 0.65;
  }
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, width, height);
}

/** Draws a picture with a feature map over it, on a canvas of its proportions, and outlines places. */
export async function drawWhole(canvas, map, size, places, { url = state.picture.url, seen = seenPart() } = {}) {
  const [small, picture] = [await cellsOf(map, size), await decoded(url)];
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const { shape, box } = seen;
  const scale = width / shape[1];
  const [left, top, right, bottom] = box.map((edge) => edge * scale);
  context.imageSmoothingQuality = "high";
  context.globalAlpha = 1;
  context.drawImage(picture, 0, 0, width, height);
  context.fillStyle = "rgb(64 64 64 / .7)"; // what the model did not see
  const unseen = new Path2D();
  unseen.rect(0, 0, width, height);
  unseen.rect(left, top, right - left, bottom - top);
  context.fill(unseen, "evenodd");
  context.globalAlpha = 0.6;
  context.drawImage(small, left, top, right - left, bottom - top);
  context.globalAlpha = 1;
  context.font = "600 16px sans-serif";
  places.forEach(({ box: edges }, place) => {
    const [x, y, end, low] = edges.map((edge) => edge * scale);
    for (const [colour, line] of [["#000", 5], ["#fff", 2.5]]) {
      Object.assign(context, { strokeStyle: colour, lineWidth: line });
      context.strokeRect(x, y, end - x, low - y);
    }
    if (places.length === 1) return;
    const [across, down] = [Math.max(0, x - 21), Math.max(0, y - 23)]; // beside the place, which it does not hide
    context.fillStyle = "#000";
    context.fillRect(across, down, 20, 22);
    context.fillStyle = "#fff";
    context.fillText(String(place + 1), across + 5, down + 17);
  });
}

/** The box of a cell in pixels of the upload. */
export function boxOf(cell, [rows, columns], { box } = seenPart()) {
  const [left, top, right, bottom] = box;
  const [across, down] = [(right - left) / columns, (bottom - top) / rows];
  const [column, row] = [cell % columns, Math.floor(cell / columns)];
  return [left + column * across, top + row * down, left + (column + 1) * across, top + (row + 1) * down];
}

/** The strongest places of a map, which do not touch each other: {value, box}. */
export function strongest(map, size, seen = seenPart()) {
  const columns = size[1];
  const far = (one, other) => Math.max(Math.abs((one % columns) - (other % columns)), Math.abs(Math.floor(one / columns) - Math.floor(other / columns))) > 1;
  const order = Array.from(map.keys()).sort((left, right) => Math.abs(map[right]) - Math.abs(map[left]));
  const chosen = [];
  for (const cell of order) {
    if (chosen.length === PLACES || !map[cell]) break;
    if (chosen.every((other) => far(cell, other))) chosen.push(cell);
  }
  return chosen.map((cell) => ({ value: map[cell], box: boxOf(cell, size, seen) }));
}
