// The predictions: a click on a class, value, region or box explains it; a second class can be contrasted with it.

import { catalogue, modelPath } from "./api.js";
import { breakable, byId, make, scrollTo } from "./dom.js";
import { doubts, drawnBy, unsure } from "./doubt.js";
import { movedText, movedTrack, stillTrack } from "./moved.js";
import { current, isOutdated, onPictures } from "./gallery.js";
import { point } from "./places.js";
import { showProof, warningsOf } from "./proof.js";
import { methodNamed } from "./question.js";
import { asks, explainPlace, identity, joined, kind, readingOf, split } from "./scene.js";
import { outline } from "./stage.js";
import { asTarget, askedTarget, change, explained, explanation, isLayerless, methodName, onChange, recommendedFor, state } from "./state.js";
import { likelihood, plain, reading } from "./words.js";

const narrow = matchMedia("(max-width: 60rem)"); // the style sheet uses the same query

const FAST = ["lrp", "legrad", "gradcam", "attnlrp", "saliency"];

const LONG = 16; // letters of a name that a line of the headline has room for

let truth = null; // the class that the link below the classes contrasts with
let labelled = null; // the model whose labels are suggested

export function prepareClasses() {
  onChange((patch) => ["answer", "scene", "altered"].some((name) => name in patch) && show());
  onPictures((picture) => picture === current() && state.answer && suggest());
  narrow.addEventListener("change", arrange);
  arrange();
  const input = byId("target");
  const ask = () => {
    const text = input.value.trim();
    if (text && !kind()?.isDragged) change({ target: asTarget(text), against: null });
  };
  input.addEventListener("change", ask);
  onChange((patch) => {
    if ("picture" in patch) input.value = ""; // a class that was refused for the one before
  });
  byId("target-form").addEventListener("submit", (event) => event.preventDefault());
  byId("part").addEventListener("change", (event) => {
    const target = explained();
    const place = isValue(target) ? "" : split(askedTarget()).place;
    change({ target: asTarget(joined(place || String(placeOf(target)), event.target.value)) });
  });
  byId("boxes").addEventListener("change", ({ target: { value } }) => change({ answer: state.answer, map: Number(value) }));
  byId("whole-list").addEventListener("click", () => scrollTo(byId("predictions")));
  byId("contrast-clear").addEventListener("click", () => change({ against: null }));
  byId("truth-contrast").addEventListener("click", () => change({ target: askedTarget() ?? named(explained()), against: truth }));
}

/** Puts the headline near the picture where the classes come later, and the proof below it; the keyboard follows. */
function arrange() {
  if (narrow.matches) {
    byId("marking").after(byId("answer"));
    byId("diagnostics").before(byId("proof"));
  } else {
    byId("found").prepend(byId("answer"));
    byId("marking").before(byId("proof"));
  }
}

function show() {
  const { answer } = state;
  byId("found").classList.toggle("outdated", !answer);
  if (!answer) return;
  byId("found").hidden = false;
  const { target, against, diagnostics, proof } = explanation();
  const predictions = state.scene?.rows ?? answer.predictions;
  const listed = predictions.map(identity);
  const added = [target, isBox(target) ? null : against, risen()].filter((prediction) => prediction && !listed.includes(identity(prediction)));
  // Those that are added replace the last ones, so that the list stays as long.
  const others = state.scene ? [] : predictions.filter((prediction) => ![target, against].some((one) => one && identity(one) === identity(prediction)));
  const displaced = others.slice(Math.max(0, others.length - added.length));
  point(null);
  const focused = document.activeElement?.dataset?.focus;
  const rows = [...predictions.filter((prediction) => !displaced.includes(prediction)), ...added];
  byId("predictions").replaceChildren(...rows.map((prediction) => row(prediction, target, against)));
  if (focused) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  document.title = `${target.label}: SeeWhy`;
  showDoubts(target);
  byId("answer-label").replaceChildren(...breakable(target.label));
  byId("answer-title").classList.toggle("long", target.label.length > LONG);
  byId("answer-probability").textContent = readingOf(target);
  byId("whole").hidden = !state.altered;
  byId("contrast").hidden = !against;
  if (against) byId("contrast-text").textContent = contrasted(target, against);
  suggest();
  showPart(explanation());
  showBoxes(answer.explanations);
  showProof(byId("proof"), proof, answer.explanations.some(({ regions }) => regions.length) ? null : outline, { compare: compareOthers, refill });
  const notes = [...diagnostics.map(({ message }) => plain(message)), ...warningsOf(proof)];
  byId("diagnostics").replaceChildren(...notes.map((textContent) => make("li", { textContent })));
  if (!added.length) byId("target").value = "";
  offerLabels(answer.model.name);
}

/** Hides parts of the picture in another way, for this proof and later ones. */
function refill(fill) {
  change({ proof_fill: fill === "blur" ? null : fill });
  byId("proof").focus(); // the button is gone
}

/** Compares the method with some that suit the model and differ: the recommended one, and others that are fast. */
function compareOthers() {
  const drawn = drawnBy(state.answer.method, explanation());
  const differs = (name) => name === methodName() || name !== drawn;
  const suits = ({ unsuitable, needs }) => !unsuitable && !(isLayerless() && needs.includes("layer"));
  const names = [...new Set([methodName(), recommendedFor(state.model), ...FAST])];
  const compare = names.filter((name) => differs(name) && methodNamed(name) && suits(methodNamed(name))).slice(0, 4);
  change({ show: "compare", by: "method", models: [], compare, classes: [] });
  byId("tab-compare").focus(); // the button is gone
}

/** Says what else can be asked about the classes: of a wrong answer, why it is not the true class. */
function suggest() {
  truth = trueClass();
  const isContrast = Boolean(explanation().against);
  const isOnly = byId("predictions").children.length === 1 && !kind();
  byId("truth").hidden = isContrast || !truth;
  byId("choosing").hidden = isContrast || isOnly || Boolean(truth);
  if (!truth) return;
  byId("truth-label").textContent = truth;
  byId("truth-contrast").textContent = `Why ${explained().label} rather than ${truth}?`;
}

/** The class of the picture by its folder or name, if the model says one that excludes it, and it is not explained; else null. */
function trueClass() {
  const picture = current();
  if (kind() || state.answer.model.head !== "softmax" || !picture?.result?.isWrong || isOutdated(picture)) return null;
  return explained().label === picture.result.truth ? null : picture.result.truth;
}

function contrasted({ label, direction }, against) {
  if (!direction) return `Evidence for ${label} rather than ${against.label}.`;
  return `What ${direction === "up" ? "raises" : "lowers"} the lead of ${label} over ${against.label}.`;
}

/** A headline is modest if the model is unsure or the map shows nothing, and a sentence says so. */
function showDoubts(target) {
  const sentences = doubts();
  byId("answer-title").classList.toggle("modest", Boolean(sentences));
  byId("answer-guess").hidden = unsure()?.index !== target.index;
  byId("doubt").hidden = !sentences || Boolean(state.altered);
  byId("doubt").textContent = sentences;
}

/** Shows which part of which place is explained. */
function showPart(current) {
  const { parts = [], about = "", scope = () => "" } = asks() ?? {};
  const { place, part } = isValue(current.target) ? { part: directed(current.target) } : split(askedTarget());
  byId("part-field").hidden = !parts.length;
  byId("part-name").textContent = about;
  byId("part").replaceChildren(...parts.map(([name, text]) => new Option(text, name)));
  byId("part").value = part;
  byId("scope").textContent = scope(current, place, part);
}

/** Lists the boxes that are explained together, those of a class; the map of one is shown. */
function showBoxes(explanations) {
  byId("boxes-field").hidden = explanations.length < 2;
  const options = explanations.length < 2 ? [] : explanations.map(({ target: { number, probability } }, map) => new Option(`box ${number}, ${likelihood(probability)}`, map));
  byId("boxes").replaceChildren(...options);
  byId("boxes").value = state.map;
}

function row(prediction, target, against) {
  const same = classOf(prediction) === classOf(target);
  const chosen = identity(prediction) === identity(target) && !split(askedTarget()).place.startsWith("pixel:");
  const isContrast = against && classOf(prediction) === classOf(against);
  const show = () => state.scene && point(state.scene.row(prediction));
  const hide = () => point(null);
  const explain = make(
    "button",
    {
      class: "class",
      "aria-pressed": String(chosen),
      on: {
        click: (event) => (event.shiftKey ? contrast(prediction) : explainPlace(placeOf(prediction))),
        pointerenter: show, pointerleave: hide, focus: show, blur: hide,
      },
    },
    make("span", { class: "label" }, ...breakable(prediction.label)),
    ...shares(prediction),
  );
  explain.dataset.focus = `class-${identity(prediction)}`;
  const rather = make("button", {
    class: "rather",
    textContent: "vs",
    title: same ? "" : isValue(target) ? `Explain the lead of ${target.label} over ${prediction.label}` : `Why ${target.label} rather than ${prediction.label}?`,
    "aria-label": `Contrast with ${prediction.label}`,
    "aria-pressed": String(Boolean(isContrast)),
    disabled: same,
    on: { click: () => contrast(prediction) },
  });
  rather.dataset.focus = `contrast-${identity(prediction)}`;
  return make("li", {}, explain, rather);
}

/** The text and the bar of a prediction, and with a marked part how they move. */
function shares(prediction) {
  const after = state.altered?.after.get(identity(prediction));
  const text = make("span", { class: "share" }, reading(after ?? prediction));
  if (after) text.append(movedText(prediction, after));
  return [text, after ? movedTrack(prediction, after) : stillTrack(prediction)];
}

/** The prediction, for the whole picture, of what is the best class with a marked part. */
function risen() {
  const { before, after } = state.altered ?? {};
  return after && !kind() && before.get([...after.keys()][0]);
}

function contrast(prediction) {
  const target = explained();
  if (classOf(prediction) === classOf(target)) return;
  const { against } = explanation();
  const same = against && classOf(against) === classOf(prediction);
  const other = isBox(prediction) ? prediction.label : placeOf(prediction);
  change({ target: askedTarget() ?? named(target), against: same ? null : other });
}

const isValue = (prediction) => prediction.unit !== undefined;
const isBox = (prediction) => prediction.number !== undefined;

/** What two predictions of one class have in common. */
const classOf = (prediction) => (isBox(prediction) ? prediction.label : prediction.index);

/** The part of a value that is explained: what lowers it. */
const directed = ({ direction }) => (direction === "down" ? "down" : "");

/** How a request names a class, a box or a value. */
function placeOf(prediction) {
  if (isValue(prediction)) return `output:${prediction.index}`;
  return prediction.number === null ? split(askedTarget()).place : identity(prediction);
}

/** The same with what is asked of a value. */
export const named = (prediction) => joined(placeOf(prediction), directed(prediction));

/** Suggests the labels of a model; they are not asked for where all are listed. */
async function offerLabels(model) {
  if (labelled === model) return;
  labelled = model;
  try {
    const { labels } = await catalogue(modelPath(model));
    if (labelled !== model) return;
    byId("labels").replaceChildren(...labels.map((label) => new Option(label)));
    const { classList } = byId("target-form");
    byId("target-form").hidden = !kind() && labels.length <= state.answer.predictions.length && !classList.contains("faulty");
  } catch {
    labelled = null; // the next answer requests them again
  }
}
