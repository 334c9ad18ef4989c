// The class that a picture has according to the name of a folder around it, or its own name.

import { catalogue, modelPath } from "./api.js";
import { isUnsure } from "./words.js";

const plain = (name) => name.toLowerCase().replace(/[\s_-]+/g, " ").trim();

/** Whether two labels are the same but for case, spaces and underscores. */
const isSame = (left, right) => plain(left) === plain(right);

/**
 * Whether an answer contradicts the truth: another class is best, or, where classes do not exclude each other, the true one
 * has less than half of the probability. Null if that one is not listed, though all that are have half of it.
 */
export function contradicts(truth, label, { model, predictions }) {
  if (model.head !== "sigmoid") return !isSame(truth, label);
  const own = predictions.find((prediction) => isSame(truth, prediction.label)) ?? predictions.at(-1);
  return isUnsure(own.probability) || (isSame(truth, own.label) ? false : null);
}

const tables = new Map();

/** The labels of a model by themselves and by their plain names. */
async function table(model) {
  if (!tables.has(model)) {
    const { labels = [] } = await catalogue(modelPath(model));
    tables.set(model, new Map([...labels.map((label) => [plain(label), label]), ...labels.map((label) => [label, label])]));
  }
  return tables.get(model);
}

/** The parts of a file's name that may be a label, by number of words, the longest first, and without numbers at their end. */
function partsOf(name) {
  const stem = name.replace(/\.[^.]*$/, "");
  const words = stem.split(/[\s_.()-]+/).filter(Boolean);
  const parts = [[stem]];
  for (let length = words.length; length > 0; length -= 1) {
    parts.push(Array.from({ length: words.length - length + 1 }, (_, start) => words.slice(start, start + length).join(" ")));
  }
  return parts.map((some) => some.flatMap((part) => [part, part.replace(/(?<=[^\d\s])\d+$/, "")]));
}

/**
 * The label that the innermost of a file's folders is named like, or else the file or the longest part of its name; null if
 * there is none, or several in its name.
 */
export async function truthOf(path, model) {
  const [name, ...folders] = path.split("/").reverse();
  const labels = await table(model).catch(() => new Map());
  for (const parts of [...folders.map((folder) => [folder]), ...partsOf(name)]) {
    const found = new Set(parts.map((part) => labels.get(part) ?? labels.get(plain(part))).filter(Boolean));
    if (found.size) return found.size === 1 ? [...found][0] : null;
  }
  return null;
}
