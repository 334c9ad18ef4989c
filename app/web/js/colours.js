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

/** A canvas of cells, of which `colour(cell)` gives red, green, blue and opacity, or nothing for a clear one. */
export function cells([height, width], colour) {
  const canvas = make("canvas", { width, height });
  const pixels = new ImageData(width, height);
  for (let cell = 0; cell < width * height; cell += 1) {
    const pixel = colour(cell);
    if (pixel) pixels.data.set(pixel, cell * 4);
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Values in their colours, a cell each, as a canvas; `level(value)` is in [0, 1]. */
export const coloured = (values, size, colours, level) =>
  cells(size, (cell) => {
    const colour = Number.parseInt(colours[Math.round(level(values[cell]) * 255)].slice(1), 16);
    return [colour >> 16, (colour >> 8) & 255, colour & 255, 255];
  });
