// Files that are chosen, dropped or pasted: one picture, several, or folders of them.

import { byId } from "./dom.js";
import { Problem, catalogue, modelPath } from "./api.js";
import { add } from "./gallery.js";
import { listExamples, open, openExample } from "./picture.js";
import { showProblem } from "./problems.js";
import { modelName } from "./question.js";
import { state } from "./state.js";

// As `SUFFIXES` of batches: a file that cannot be read is told, rather than left out in silence.
const PICTURE = /\.(jpe?g|jfif|png|webp|avif|gif|bmp|tiff?|dcm|hei[cf]|jp2|jxl)$/i;

const withPath = (source) => ({ source, path: source.webkitRelativePath || source.name });

/** Opens one picture, or adds several; of folders, which hold other files too, those named like pictures. */
function take(files, isFolder = false) {
  const chosen = isFolder ? files.filter(({ path }) => PICTURE.test(path)) : files;
  if (isFolder) chosen.sort((left, right) => left.path.localeCompare(right.path, undefined, { numeric: true }));
  if (isFolder && !chosen.length) {
    const detail = "This folder has no pictures.";
    showProblem(new Problem({ detail, errors: [{ field: "image", message: detail }] }));
  } else if (chosen.length === 1) open(chosen[0].source);
  else if (chosen.length) add(chosen);
}

/** Files that are dropped, also those in folders. */
async function drop({ items, files }) {
  // Browsers forget what is dropped once the event is over: all entries are taken before the first is read.
  const entries = [...items].map((item) => item.webkitGetAsEntry?.());
  const folders = entries.filter((entry) => entry?.isDirectory);
  if (!folders.length) {
    take([...files].map(withPath));
    return;
  }
  const single = [...files].filter((file, place) => !entries[place]?.isDirectory).map(withPath);
  take([...single, ...(await Promise.all(folders.map(walk))).flat()], true);
}

/** The files in a folder and in its folders. */
async function walk(folder) {
  const reader = folder.createReader();
  const entries = [];
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail)); // browsers list at most a hundred at a time
    if (!some.length) break;
    entries.push(...some);
  }
  const read = async (entry) => ({ source: await new Promise((done, fail) => entry.file(done, fail)), path: entry.fullPath.slice(1) });
  return (await Promise.all(entries.map((entry) => (entry.isDirectory ? walk(entry) : read(entry))))).flat();
}

const PARTS = { hide: "a hidden part", blur: "a blurred part", fill: "a part filled in", keep: "only a part shown" };

/** Says what a link without its picture asks. */
export async function tellPending() {
  const { labels = [] } = await catalogue(modelPath(modelName())).catch(() => ({})); // the answer says what is wrong with the model
  const called = (target) => labels[target] ?? String(target ?? "").replace(/^label:/, "");
  const [target, against] = [state.target, state.against].map(called);
  const isClass = target && !target.includes(":"); // not a place of the picture
  const rather = against ? ` rather than ${against}` : "";
  const asked = [
    isClass && `class ${target}${rather}`,
    state.method && `method ${state.method}`,
    ...Object.entries(state.options).map(([name, value]) => `${name}: ${value}`),
    state.layer.length && `layer ${state.layer.join(", ")}`,
    state.model && `model ${state.model}`,
    PARTS[state.mark?.split(":")[0]],
  ].filter(Boolean);
  byId("pending").hidden = !asked.length;
  byId("pending").textContent = `Choose the picture to see its answer. Links do not include pictures. This one asks for: ${asked.join(", ")}.`;
}

/** Accepts pictures from now on, and those that were chosen before; returns whether there were any. */
export function prepareIntake() {
  const input = byId("image");
  const folder = byId("folder");
  const choose = (control) => {
    const files = [...control.files].map(withPath);
    control.value = ""; // so that the same file can be chosen again
    if (files.length) take(files, control === folder);
    return files.length > 0;
  };
  for (const control of [input, folder]) control.addEventListener("change", () => choose(control));
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
    drop(event.dataTransfer).catch(() => showProblem(new Problem({ detail: "The dropped folder cannot be read." })));
  });
  document.addEventListener("paste", (event) => take([...event.clipboardData.files].map(withPath)));
  listExamples(byId("examples"), openExample);
  return choose(input) || choose(folder);
}
