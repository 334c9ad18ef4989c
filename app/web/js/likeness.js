// How alike the picture and a second one are to the model: the score, both maps, and the pairs of patches that make it.

import { post } from "./api.js";
import { coloured, coloursOf } from "./colours.js";
import { copy, curlOfTwo } from "./copy.js";
import { announce, byId, make, pointAt } from "./dom.js";
import { allPictures, current, onPictures } from "./gallery.js";
import { LatestRequest } from "./latest.js";
import { Patches } from "./patches.js";
import { exampleFile, listExamples, readPicture, turnUpright } from "./picture.js";
import { clearProblems, problemBox, showProblem } from "./problems.js";
import { warningsOf } from "./proof.js";
import { change, onChange, redraws, state } from "./state.js";
import { number } from "./words.js";

const MOST = 100; // pairs, of the service
const LISTED = 5;
const OFFERED = 60; // of the other pictures of the strip
const SHOWN = 3; // patches that are outlined beside the chosen one

let pairs = []; // {cells: [first, second], boxes, contribution}, the strongest first
let whole = null; // the similarity, if it is one that contributions add up to
let shown = null; // the question that is answered
let turn = 0;
let offered = []; // pictures of the strip

const request = new LatestRequest(byId("likeness"));
const sides = ["The picture", "The second picture"].map((title, side) => new Patches(title, (cell) => read(side, cell)));

export function prepareLikeness() {
  byId("alike").append(...sides.map((side) => side.element));
  listExamples(byId("references"), openExample);
  onPictures(offer);
  const input = byId("reference");
  input.addEventListener("change", () => {
    const [file] = input.files;
    if (file) open(file);
    input.value = ""; // so that the same file can be chosen again
  });
  const place = byId("reference-drop");
  place.addEventListener("drop", (event) => {
    const [file] = event.dataTransfer.files;
    if (!file) return;
    event.stopPropagation(); // elsewhere it would replace the picture
    event.preventDefault();
    document.body.classList.remove("dragging");
    open(file);
  });
  byId("copy-similar").addEventListener("click", (event) => copy(curlOfTwo("/similar", drawing(), "alike.png"), event.currentTarget));
  onChange((patch) => {
    if (redraws(patch)) for (const side of sides) side.overlay.draw();
    if ("reference" in patch && !("second" in patch)) follow();
    if (state.show === "likeness" && state.picture && state.second) compare();
    byId("likeness").hidden = !state.second;
    byId("unlinked").hidden = Boolean(state.example && state.reference);
  });
  if (state.reference) follow();
}

/** The chosen model, as a field. */
const modelField = () => (state.model ? [["model", state.model]] : []);

/** The fields with which the service draws what the view shows. */
function drawing() {
  const fields = modelField();
  if (state.colormap) fields.push(["colormap", state.colormap]);
  if (state.alpha !== 0.5) fields.push(["alpha", String(state.alpha)]);
  return fields;
}

/** Opens the example that a link or a step back names. */
function follow() {
  if (state.reference) openExample(state.reference);
  else change({ second: null });
}

const openExample = (name) => open(exampleFile(name), name);

/** Offers the newest of the other pictures of the strip, in its order. */
function offer() {
  const isOther = (picture) => picture !== current() && !picture.example && picture.plain && !picture.failure?.isOfPicture;
  const others = allPictures().filter(isOther).slice(-OFFERED);
  if (String(others.map(({ plain }) => plain)) === String(offered.map(({ plain }) => plain))) return; // a new list would lose the focus
  offered = others;
  const entry = ({ source, path, plain }) => {
    const image = make("img", { src: plain, alt: path, width: 120, height: 80 });
    return make("li", {}, make("button", { title: path, on: { click: () => open(source) } }, image));
  };
  byId("others").replaceChildren(...others.map(entry));
}

async function open(source, reference = null) {
  turn += 1;
  const mine = turn;
  clearProblems();
  try {
    const second = await readPicture(await source);
    if (mine === turn) change({ second, reference });
  } catch (error) {
    if (mine !== turn) return;
    for (const fault of error.errors ?? []) if (fault.field === "image") fault.field = "reference";
    showProblem(error);
  }
}

function compare() {
  const { picture, second, model } = state;
  const key = JSON.stringify([picture.url, second.url, model, state.colormap]);
  if (key === shown) return;
  shown = key;
  sides[0].showPicture(picture);
  sides[1].showPicture(second);
  pairs = [];
  refuse(null);
  tell("…");
  const fields = [...modelField(), ["top", String(MOST)], ["format", "json"], ["proof", "true"], ["reference", second.file]];
  const ask = async (signal) => {
    const answer = await (await post("/similar", picture.file, fields, { signal })).json();
    await show(answer, [picture, second], signal);
  };
  request.run(ask, (error) => {
    shown = null;
    tell("");
    refuse(error);
  });
}

/** Shows why there is no answer, in place of what would be empty, and offers another model if this one has none. */
function refuse(error) {
  byId("likeness").classList.toggle("failed", Boolean(error));
  byId("likeness-fault").hidden = !error;
  byId("likeness-fault").firstElementChild.replaceChildren(...(error ? [problemBox(error)] : []));
  byId("likeness-model").hidden = !error?.errors?.some(({ field }) => field === "model");
}

async function show(answer, pictures, signal) {
  const heatmaps = [answer.image, answer.reference];
  const colours = await coloursOf(state.colormap ?? (answer.image.signed ? "icefire" : "inferno"));
  const largest = Math.max(...heatmaps.flatMap(({ min, max }) => [max, -min])) || 1;
  const level = answer.image.signed ? (value) => (value / largest + 1) / 2 : (value) => value / largest;
  const within = (value) => Math.min(1, Math.max(0, level(value)));
  const colour = ({ map }) => coloured(map.flat(), [map.length, map[0].length], colours, within);
  for (const [side, heatmap] of heatmaps.entries()) {
    if (await turnUpright(pictures[side], heatmap.shape)) sides[side].showPicture(pictures[side]);
    if (signal.aborted) return;
    await sides[side].showMap(heatmap, colour);
    sides[side].overlay.describe(`Map of its similarity to ${side ? "the picture" : "the second picture"}`);
  }
  if (signal.aborted) return;
  whole = answer.exact && answer.score > 0 ? answer.score : null;
  byId("pairs-title").textContent = `Strongest pairs of patches${whole ? ", with their shares of the similarity" : ""}`;
  pairs = answer.pairs.map(({ image, reference, contribution }) => {
    const boxes = [image, reference];
    return { boxes, contribution, cells: boxes.map((box, side) => sides[side].cellOf(box)) };
  });
  const notes = [...answer.diagnostics.map(({ message }) => message), ...heatmaps.flatMap(({ proof }) => warningsOf(proof))];
  tell(answer.score.toFixed(3), [...new Set(notes)].map((textContent) => make("li", { textContent })));
  byId("pairs").replaceChildren(...pairs.slice(0, LISTED).map(pairButton));
  read(0, null);
  announce(`Similarity ${answer.score.toFixed(3)}.`);
}

function tell(score, notes = []) {
  byId("likeness-score").textContent = score;
  byId("likeness-notes").replaceChildren(...notes);
  byId("pairs").replaceChildren();
  byId("likeness-reading").textContent = "";
}

/** A contribution, as a share of the similarity if it is one. */
const share = (contribution) => (whole ? `${number((100 * contribution) / whole)}%` : number(contribution));

function pairButton(pair) {
  const mark = () => {
    for (const [side, box] of pair.boxes.entries()) sides[side].mark([box]);
  };
  const clear = () => read(0, null);
  const on = { pointerenter: mark, pointerleave: clear, focus: mark, blur: clear, click: mark };
  return make("li", {}, make("button", { class: "quiet", textContent: share(pair.contribution), on }));
}

/** Outlines a cell of one side and those that pair most with it on the other; returns what there is to say. */
function read(side, cell) {
  const isChosen = cell !== null && pairs.length > 0;
  const paired = isChosen ? pairs.filter((pair) => pair.cells[side] === cell).slice(0, SHOWN) : [];
  sides[side].mark(isChosen ? [sides[side].boxOf(cell)] : []);
  sides[1 - side].mark(paired.map((pair) => pair.boxes[1 - side]));
  const said = isChosen ? sentence(sides[side].values[cell], paired) : `${pointAt()} a patch to see its matches.`;
  byId("likeness-reading").textContent = said;
  return said;
}

function sentence(value, paired) {
  const adds = `This patch contributes ${share(value)}${whole ? " of the similarity" : ""}`;
  if (!paired.length) return `${adds}; it is in none of the ${pairs.length} strongest pairs.`;
  const amounts = paired.map((pair) => share(pair.contribution)).join(", ");
  return `${adds}, mostly with the outlined patch${paired.length > 1 ? "es" : ""} of the other picture: ${amounts}.`;
}
