// The picture: chosen, dropped, pasted, or one of the examples.

import { Problem, get, post } from "./api.js";
import { make } from "./dom.js";
import { clearProblems, showProblem } from "./problems.js";
import { acceptable } from "./shrink.js";
import { change, state } from "./state.js";

const EXAMPLES = [
  ["cat", "A tabby cat"],
  ["coffee", "A cup of coffee on a table"],
  ["astronaut", "An astronaut beside a model of a space shuttle"],
  ["rocket", "A rocket at its launch"],
];

/** The address of an example's file, or of another one that begins so. */
export const examplePath = (name, rest = ".png") => `/static/examples/${encodeURIComponent(name)}${rest}`;

let turn = 0;

/**
 * Shows a file, or a promise of one, as the upright picture; `example` is the name of an example. Throws if it cannot be
 * read, unless another one was to be shown meanwhile.
 */
export async function show(source, example = null) {
  turn += 1;
  const mine = turn;
  clearProblems();
  try {
    const picture = await readPicture(await source);
    if (mine !== turn) {
      URL.revokeObjectURL(picture.url);
      return;
    }
    // Classes, channels and marks of a link are about the first picture.
    const fresh = state.picture ? { target: null, against: null, classes: [], off: [], mark: null } : {};
    change({ ...fresh, answer: null, example, picture });
  } catch (error) {
    if (mine === turn) throw error;
  }
}

/** Shows a file like `show`, or the problem with it. */
export async function open(source, example = null) {
  const again = () => (example ? openExample(example) : open(source));
  await show(source, example).catch((error) => showProblem(error, again));
}

/** Reads a file; returns it with the address and the size of the upright picture. `source` is the file on the disk. */
export async function readPicture(source) {
  const picture = await read(source);
  return { source, ...picture };
}

async function read(chosen) {
  const bytes = await chosen.arrayBuffer().catch(() => {
    const detail = "This file can no longer be read.";
    throw new Problem({ detail, errors: [{ field: "image", message: detail }] });
  });
  // Later requests use the chosen content, even if the file on the disk changes.
  const file = new File([bytes], chosen.name, { type: chosen.type });
  if (looksOtherwise(bytes)) return { file, ...(await fromServer(file)) };
  const url = URL.createObjectURL(file);
  const image = new Image();
  image.src = url;
  try {
    await image.decode();
    const accepted = await acceptable(file, image);
    return { file: accepted, url, width: image.naturalWidth, height: image.naturalHeight, isShrunk: accepted !== file };
  } catch {
    URL.revokeObjectURL(url);
    return { file, ...(await fromServer(file)) };
  }
}

/** Whether browsers show a file differently from the service: animations, and WebP with an orientation. */
function looksOtherwise(bytes) {
  const start = new TextDecoder("latin1").decode(bytes.slice(0, 4096));
  if (start.startsWith("GIF8")) return true;
  if (start.startsWith("PNG", 1)) return start.includes("acTL");
  const flags = start.startsWith("WEBPVP8X", 8) ? new Uint8Array(bytes)[20] : 0;
  return (flags & 0b1010) !== 0; // EXIF, animation
}

/** Returns the service's upright picture, for files that browsers show differently or, like TIFF, not at all. */
async function fromServer(file) {
  const fields = [["method", "saliency"], ["view", "side-by-side"], ["alpha", "0"], ["format", "png"]];
  const pair = await createImageBitmap(await (await post("/explain", file, fields)).blob());
  const canvas = make("canvas", { width: pair.width / 2, height: pair.height });
  canvas.getContext("2d").drawImage(pair, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done));
  return { url: URL.createObjectURL(blob), width: canvas.width, height: canvas.height };
}

/** Browsers ignore the orientation in some formats: if the sides do not match, the service's picture is taken. */
export async function turnUpright(picture, [height, width]) {
  const isTurned = width !== height && width > height !== picture.width > picture.height;
  if (!isTurned) return false;
  const { url } = picture;
  Object.assign(picture, await fromServer(picture.file));
  URL.revokeObjectURL(url);
  return true;
}

/** Fills a list with buttons that call `open(name)`. */
export function listExamples(list, open) {
  list.replaceChildren(
    ...EXAMPLES.map(([name, alt]) => {
      const image = make("img", { src: examplePath(name, "-small.jpg"), alt, width: 120, height: 80 });
      return make("li", {}, make("button", { title: alt, on: { click: () => open(name) } }, image));
    }),
  );
}

export const openExample = (name) => open(exampleFile(name), name);

export async function exampleFile(name) {
  const response = await get(examplePath(name)).catch((error) => {
    throw error.status === 404 ? new Problem({ detail: `There is no example ${name}.`, status: 404 }) : error;
  });
  return new File([await response.blob()], `${name}.png`, { type: "image/png" });
}
