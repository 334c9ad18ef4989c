// The picture with a part of it hidden, blurred or filled in, drawn in the browser.

import { paint } from "./brush.js";
import { decoded } from "./overlay.js";
import { canvas, shrunk } from "./shrink.js";

const MOST = 1600; // pixels of the longer side: far more than models see
const BLURRED = 16; // cells along the longer side, of which a blurred part is made
const SAMPLED = 32; // cells of the mean colour

function meanColour(image) {
  const small = shrunk(image, SAMPLED);
  const { data } = small.getContext("2d").getImageData(0, 0, small.width, small.height);
  const mean = (channel) => data.reduce((sum, value, place) => sum + (place % 4 === channel ? value : 0), 0) / (data.length / 4);
  return `rgb(${[0, 1, 2].map((channel) => Math.round(mean(channel))).join(" ")})`;
}

/**
 * The surroundings of a box mirrored into it, so that no patch of one colour is left, as a canvas of its size; null if they
 * do not reach. Each pixel mirrors the one beyond the nearest edge behind which the picture goes on.
 */
function filledIn(whole, [left, top, right, bottom]) {
  const { width, height } = whole;
  const { data } = whole.getContext("2d").getImageData(0, 0, width, height);
  const [sheet, context] = canvas(right - left, bottom - top);
  const patch = context.createImageData(right - left, bottom - top);
  const [from, to] = [new Uint32Array(data.buffer), new Uint32Array(patch.data.buffer)];
  for (let y = top, place = 0; y < bottom; y += 1) {
    for (let x = left; x < right; x += 1, place += 1) {
      let [nearest, source] = [Infinity, -1];
      const offer = (depth, column, row) => {
        if (depth >= nearest || column < 0 || column >= width || row < 0 || row >= height) return;
        [nearest, source] = [depth, row * width + column];
      };
      offer(x - left, 2 * left - 1 - x, y);
      offer(right - 1 - x, 2 * right - 1 - x, y);
      offer(y - top, x, 2 * top - 1 - y);
      offer(bottom - 1 - y, x, 2 * bottom - 1 - y);
      if (source < 0) return null;
      to[place] = from[source];
    }
  }
  context.putImageData(patch, 0, 0);
  return sheet;
}

/**
 * Covers a part of a picture: `strokes`, or `box` in pixels of an upload of this height and width. `how` is hide, blur, fill,
 * or keep, which hides the rest; what is hidden takes the picture's mean colour. Returns the cover, transparent elsewhere,
 * and the covered picture, both as canvases; null if the part is too large to be filled in.
 */
export async function cover(picture, [height, width], { how, box, strokes }) {
  const whole = shrunk(await decoded(picture.url), MOST);
  const [layer, context] = canvas(whole.width, whole.height);
  const [left, top, right, bottom] = box.map((edge, place) =>
    Math.round(edge * (place % 2 ? whole.height / height : whole.width / width)),
  );
  if (strokes) paint(context, strokes, [whole.height, whole.width]);
  else context.fillRect(left, top, right - left, bottom - top);
  context.globalCompositeOperation = how === "keep" ? "source-out" : "source-in";
  context.fillStyle = meanColour(whole);
  context.fillRect(0, 0, whole.width, whole.height);
  context.globalCompositeOperation = "source-atop";
  const filled = how === "fill" ? filledIn(whole, [left, top, right, bottom]) : null;
  if (how === "fill" && !filled) return null;
  if (filled) context.drawImage(filled, left, top);
  if (how === "blur") context.drawImage(shrunk(whole, BLURRED), 0, 0, whole.width, whole.height);
  whole.getContext("2d").drawImage(layer, 0, 0);
  return { layer, whole };
}

/** Dims a cover outside of the part that the model sees: left, top, right, bottom in its pixels. */
export function dim(layer, [left, top, right, bottom]) {
  const context = layer.getContext("2d");
  context.globalCompositeOperation = "destination-out";
  context.fillStyle = "rgb(0 0 0 / .75)";
  context.beginPath();
  context.rect(0, 0, layer.width, layer.height);
  context.rect(left, top, right - left, bottom - top);
  context.fill("evenodd");
}
