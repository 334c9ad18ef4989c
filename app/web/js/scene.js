// What a segmenter or a detector predicts at each place of the picture, and what can be asked about a place. Classifiers
// have no scene.

import { post } from "./api.js";
import { clearProblems, showProblem } from "./problems.js";
import { Boxes } from "./boxes.js";
import { Regions } from "./regions.js";
import { change, explanation, onChange, state } from "./state.js";
import { number, percent } from "./words.js";

/** By the head of the model: the route that tells, how its answer is read, and the parts of a target with their names. */
const KINDS = {
  segmentation: {
    path: "/segment",
    read: Regions.read,
    about: "Average over",
    parts: [["", "the region"], ["border", "its border"], ["picture", "the whole picture"]],
    help: "Click the picture to explain the region there.",
    key: "Enter explains the region there",
    scope: describeRegion,
  },
  detection: {
    path: "/detect",
    read: Boxes.read,
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
  const said = x === undefined ? [] : [`The connected region at x ${x}, y ${y}.`];
  if (outside !== undefined) said.push(`${percent(outside)} of the map lies outside ${part === "border" ? "the border" : "it"}.`);
  return said.join(" ");
}

function describeBox({ target }, place, part) {
  const said = place.startsWith("region:") ? ["The nearest candidate for a box in the dashed rectangle."] : [];
  const [, name] = kind().parts.find(([key]) => key === part);
  if (part) said.push(`${name.replace(/^./, (letter) => letter.toUpperCase())}: ${number(target.value)}.`);
  return said.join(" ");
}

let asking = null; // {picture, model} whose scene is requested

/** What is special about the model of the answer; undefined for models without places. */
export const kind = () => KINDS[state.answer?.model.head];

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
export function split(target) {
  const text = String(target ?? "");
  const isClass = /^label:[^:]*$/.test(text); // which may be called like a part
  const part = kind()?.parts.find(([name]) => name && !isClass && text.endsWith(`:${name}`))?.[0] ?? "";
  return { place: part ? text.slice(0, -part.length - 1) : text, part };
}

/** A target about a place and a part of it. */
export const joined = (place, part) => (part ? `${place}:${part}` : place);

/** Explains a place, and of it the part that is chosen. */
export function explainPlace(place) {
  change({ target: joined(place, split(state.target).part), against: null });
}
