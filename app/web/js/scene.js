// What a segmenter or a detector predicts at each place of the picture, and what can be asked about a place. Classifiers
// have no scene.

import { post } from "./api.js";
import { clearProblems, showProblem } from "./problems.js";
import { Boxes } from "./boxes.js";
import { Regions } from "./regions.js";
import { askedTarget, change, explanation, onChange, state } from "./state.js";
import { number, percent, reading } from "./words.js";

/**
 * By the head of the model: the parts of a target with their names, and what is said in place of a reading that is not
 * about them; of models with places, the route that tells them, and how its answer is read.
 */
const KINDS = {
  value: {
    listed: "Values",
    about: "Explain what",
    parts: [["", "raises it"], ["down", "lowers it"]],
  },
  segmentation: {
    path: "/segment",
    read: Regions.read,
    first: "largest region",
    about: "Average over",
    parts: [["", "the region"], ["border", "its border", "at its border"], ["picture", "the whole picture", "over the whole picture"]],
    help: "Click the picture to explain the region there.",
    key: "Enter explains the region there",
    scope: describeRegion,
  },
  detection: {
    path: "/detect",
    read: Boxes.read,
    listed: "Boxes",
    first: "most confident box",
    about: "Explain the box’s",
    parts: [
      ["", "score"],
      ["x1", "left edge"],
      ["y1", "top edge"],
      ["x2", "right edge"],
      ["y2", "bottom edge"],
      ["box", "size"],
      ["objectness", "objectness"],
      ["mask", "mask"],
    ],
    help: "Click a box in the picture to explain it.",
    key: "Enter explains the box there",
    scope: describeBox,
    isDragged: true, // a rectangle over the picture asks why there is no box
  },
};

function describeRegion({ outside }, place, part) {
  const [, x, y] = place.match(/^pixel:(\d+),(\d+)$/) ?? [];
  const said = x === undefined ? [] : [`Explains the connected region at x ${x}, y ${y}.`];
  if (outside !== undefined && part !== "picture") said.push(`${percent(outside)} of the map lies outside ${part === "border" ? "the border" : "it"}.`);
  return said.join(" ");
}

function describeBox({ target }, place, part) {
  const said = place.startsWith("region:") ? ["Explains the nearest candidate for a box in the dashed rectangle."] : [];
  const [, name] = kind().parts.find(([key]) => key === part);
  if (part) said.push(`${name.replace(/^./, (letter) => letter.toUpperCase())}: ${number(target.value)}.`);
  return said.join(" ");
}

let asking = null; // {picture, model} whose scene is requested

/** What can be asked of the model of the answer beside its classes; undefined for classifiers. */
export const asks = (head = state.answer?.model.head) => KINDS[head];

/** The same of a model that predicts places; undefined for others. */
export const kind = () => (asks()?.path ? asks() : undefined);

/** What the model says of a target, as it was asked for: the area of a region is not that of its border. */
export function readingOf(target, asked = askedTarget(), head = undefined) {
  const { part } = split(asked, head);
  return asks(head)?.parts.find(([name]) => name === part)[2] ?? reading(target);
}

/** What is explained, for a sentence. */
export const subjectOf = ({ label, direction }) => (direction === "down" ? `what lowers ${label}` : label);

export function prepareScene() {
  onChange((patch) => {
    if ("picture" in patch || "model" in patch) {
      asking = null; // an answer about the former ones comes too late
      if (state.scene) change({ scene: null });
    }
    if (patch.answer && kind() && !state.scene) show();
  });
}

async function show() {
  const again = () => {
    clearProblems();
    show();
  };
  await load().catch((error) => showProblem(error, again));
}

async function load() {
  const { picture, answer } = state;
  const model = answer.model.name;
  if (asking?.picture === picture && asking.model === model) return;
  const mine = { picture, model };
  asking = mine;
  try {
    const scene = await sceneOf(picture.file, explanation(answer).heatmap.shape);
    if (asking === mine) change({ scene });
  } finally {
    if (asking === mine) asking = null;
  }
}

/** What the model predicts at each place of a picture of this height and width. */
export async function sceneOf(file, shape, signal) {
  const { path, read } = kind();
  const response = await post(path, file, [["model", state.answer.model.name]], { accept: "application/json", signal });
  return read(await response.json(), shape);
}

/** What tells a prediction from the others: a class, or one of the boxes, which may be of one class. */
export const identity = ({ number, index }) => (number === undefined ? index : `box:${number}`);

/** A target's place and part, such as `pixel:3,4` and `border`. */
export function split(target, head = undefined) {
  const text = String(target ?? "");
  const isClass = /^label:[^:]*$/.test(text); // which may be called like a part
  const part = asks(head)?.parts.find(([name]) => name && !isClass && text.endsWith(`:${name}`))?.[0] ?? "";
  return { place: part ? text.slice(0, -part.length - 1) : text, part };
}

/** A target about a place and a part of it. */
export const joined = (place, part) => (part ? `${place}:${part}` : place);

/** Explains a place, and of it the part that is chosen. */
export function explainPlace(place) {
  change({ target: joined(place, split(state.target).part), against: null });
}
