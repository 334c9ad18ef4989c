// Small copies of pictures.

import { decoded } from "./overlay.js";
import { acceptable, canvas, shrunk } from "./shrink.js";

const SIDE = 192; // pixels of the longer side

const addressOf = async (element) => URL.createObjectURL(await new Promise((done) => element.toBlob(done, "image/jpeg", 0.85)));

const small = (image) => addressOf(shrunk(image, SIDE));

/** The address of a small copy of the picture at an address. */
export const smallCopy = async (url) => small(await decoded(url));

/** The file as the service accepts it, and the address of a small copy; null for what the browser cannot show. */
export async function prepare(source) {
  const url = URL.createObjectURL(source);
  try {
    const image = await decoded(url);
    return { file: await acceptable(source, image), thumbnail: await small(image) };
  } catch {
    return { file: source, thumbnail: null };
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** The address of a small copy with the heatmap, whose grey covers what the model did not see. */
export async function withHeatmap(thumbnail, heatmap) {
  const [picture, map] = await Promise.all([decoded(thumbnail), decoded(heatmap)]);
  const [element, context] = canvas(picture.width, picture.height);
  context.drawImage(picture, 0, 0);
  context.globalAlpha = 0.5;
  context.drawImage(map, 0, 0, element.width, element.height);
  return addressOf(element);
}
