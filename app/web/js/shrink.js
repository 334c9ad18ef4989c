// Pictures made smaller.

import { make } from "./dom.js";

const MOST_BYTES = 24 * 2 ** 20; // of a file; the service usually accepts a body of 32 MiB
const MOST_PIXELS = 48e6; // the service usually accepts 64 million
const SIDE = 2048; // of a shrunk picture, as of those that the service draws

/** A canvas and its context. */
export function canvas(width, height) {
  const element = make("canvas", { width: Math.max(1, Math.round(width)), height: Math.max(1, Math.round(height)) });
  const context = element.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  return [element, context];
}

/** The picture with its longer side of at most `side` pixels. */
export function shrunk(image, side) {
  const scale = Math.min(1, side / Math.max(image.width, image.height));
  const [element, context] = canvas(image.width * scale, image.height * scale);
  context.fillStyle = "#fff"; // as the service draws transparent pixels
  context.fillRect(0, 0, element.width, element.height);
  context.drawImage(image, 0, 0, element.width, element.height);
  return element;
}

/** A file as the service accepts it: one that is too large is drawn smaller; the name stays, for copied commands. */
export async function acceptable(file, image) {
  const { naturalWidth: width, naturalHeight: height } = image;
  if (file.size <= MOST_BYTES && width * height <= MOST_PIXELS) return file;
  const blob = await new Promise((done) => shrunk(image, SIDE).toBlob(done, "image/jpeg", 0.95));
  return blob ? new File([blob], file.name, { type: blob.type }) : file;
}
