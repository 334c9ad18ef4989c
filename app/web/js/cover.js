// The picture with a part of it hidden or blurred, drawn in the browser.

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
 * Covers a part of a picture: `strokes`, or `box` in pixels of an upload of this height and width. `how` is hide or blur, or
 * keep, which hides the rest; what is hidden takes the picture's mean colour. Returns the cover, transparent elsewhere, and
 * the covered picture, both as canvases.
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
