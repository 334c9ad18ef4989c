// Colours of maps.

import { catalogue } from "./api.js";
import { make } from "./dom.js";

/** Returns the 256 colours of a colour map. */
export async function coloursOf(name) {
  const { colormaps } = await catalogue("/colormaps");
  return colormaps.find((map) => map.name === name).colors;
}

/** Colours as a CSS gradient from left to right. */
export const gradient = (colours) => `linear-gradient(to right, ${colours.filter((_, place) => place % 15 === 0).join(",")})`;

/** Cells in their colours, one pixel each, as a canvas; `level(value)` is in [0, 1]. */
export function coloured(values, [height, width], colours, level) {
  const canvas = make("canvas", { width, height });
  const pixels = new ImageData(width, height);
  values.forEach((value, cell) => {
    const colour = Number.parseInt(colours[Math.round(level(value) * 255)].slice(1), 16);
    pixels.data.set([colour >> 16, (colour >> 8) & 255, colour & 255, 255], cell * 4);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}
