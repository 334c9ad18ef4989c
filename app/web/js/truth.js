// The class that a picture has according to the name of a folder around it.

import { catalogue, modelPath } from "./api.js";

const plain = (name) => name.toLowerCase().replace(/[\s_-]+/g, " ").trim();

/** Whether two labels are the same but for case, spaces and underscores. */
export const isSame = (left, right) => plain(left) === plain(right);

const tables = new Map();

/** The labels of a model by their plain names. */
async function table(model) {
  if (!tables.has(model)) {
    const { labels = [] } = await catalogue(modelPath(model));
    tables.set(model, new Map(labels.map((label) => [plain(label), label])));
  }
  return tables.get(model);
}

/** The label that the innermost of a file's folders is named like; null if none is. */
export async function truthOf(path, model) {
  const folders = path.split("/").slice(0, -1).reverse();
  if (!folders.length) return null;
  const labels = await table(model).catch(() => new Map());
  return folders.map((name) => labels.get(plain(name))).find(Boolean) ?? null;
}
