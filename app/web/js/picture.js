// The picture: chosen, dropped, pasted, or one of the examples.

import { post } from "./api.js";
import { byId, make } from "./dom.js";
import { clearProblems, showProblem } from "./problems.js";
import { change, state } from "./state.js";

const EXAMPLES = [
  ["cat", "A tabby cat"],
  ["coffee", "A cup of coffee on a table"],
  ["astronaut", "An astronaut beside a model of a space shuttle"],
  ["rocket", "A rocket at its launch"],
];

/** The address of an example's file. */
export const examplePath = (name) => `/static/examples/${encodeURIComponent(name)}.jpg`;

let turn = 0;

/** Shows a file as the picture, upright; `kept` are parts of the state that belong to it. */
async function open(file, kept = {}) {
  turn += 1;
  const mine = turn;
  clearProblems();
  try {
    const picture = await decoded(file);
    if (mine !== turn) return;
    const former = state.picture;
    change({ example: null, target: null, against: null, off: [], answer: null, ...kept, picture });
    if (former) URL.revokeObjectURL(former.url);
  } catch (error) {
    if (mine === turn) showProblem(error);
  }
}

async function decoded(file) {
  const url = URL.createObjectURL(file);
  const image = new Image();
  image.src = url;
  try {
    await image.decode();
    return { file, url, width: image.naturalWidth, height: image.naturalHeight };
  } catch {
    URL.revokeObjectURL(url);
    return { file, ...(await fromServer(file)) };
  }
}

/** Returns the upright picture as the service has it, for what the browser cannot show, such as TIFF. */
export async function fromServer(file) {
  const fields = [["view", "side-by-side"], ["alpha", "0"], ["format", "png"]];
  const pair = await createImageBitmap(await (await post("/explain", file, fields)).blob());
  const canvas = make("canvas", { width: pair.width / 2, height: pair.height });
  canvas.getContext("2d").drawImage(pair, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done));
  return { url: URL.createObjectURL(blob), width: canvas.width, height: canvas.height };
}

export async function openExample(name, kept = {}) {
  const response = await fetch(examplePath(name)).catch(() => null);
  if (!response?.ok) {
    showProblem({ message: `There is no example ${name}.`, errors: [] });
    return;
  }
  await open(new File([await response.blob()], `${name}.jpg`, { type: "image/jpeg" }), { ...kept, example: name });
}

export function preparePicture() {
  byId("image").addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) open(file);
    event.target.value = ""; // the same file may be chosen again
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const [file] = event.dataTransfer.files;
    if (file) open(file);
  });
  document.addEventListener("paste", (event) => {
    const [file] = event.clipboardData.files;
    if (file) open(file);
  });
  byId("examples").replaceChildren(
    ...EXAMPLES.map(([name, alt]) => {
      const image = make("img", { src: examplePath(name), alt, width: 120, height: 80 });
      return make("li", {}, make("button", { type: "button", title: alt, on: { click: () => openExample(name) } }, image));
    }),
  );
}
