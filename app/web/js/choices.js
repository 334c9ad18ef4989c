// What a grid is made of: models, methods or layers, and classes, chosen by check boxes.

import { catalogue, modelPath } from "./api.js";
import { named } from "./classes.js";
import { byId, make } from "./dom.js";
import { chooseLayers } from "./layers.js";
import { chooseModel } from "./models.js";
import { showProblem } from "./problems.js";
import { methodNamed, modelName } from "./question.js";
import { asks, kind, split, subjectOf } from "./scene.js";
import { methodGroups } from "./settings.js";
import { askedTarget, change, explained, state } from "./state.js";

/** Maps that a grid has at most. */
export const MOST = 24;

const ACROSS = 6; // columns in which maps can still be read
const NEAR = 5; // models that are offered without a search
const SUREST = 8; // boxes that are offered so

let near = []; // other models with the same classes that run here
let strange = []; // compared models with other classes
let labels = []; // of the classes of a classifier
let classEntries = []; // how a request names them, and their names for people, in the order of these
let learnt = null; // the compared models that these are about

/** The values of each kind; a class that is null is that of the page's question. */
export function choicesOf() {
  const isOne = state.by === "layer" || !state.models.length; // layers belong to one model
  return {
    models: isOne ? [modelName()] : state.models,
    compare: state.compare,
    classes: state.classes.length ? state.classes : [null],
  };
}

/** A method or layer that is compared, for people: a control says that it is one. */
export const labelled = (name) => (state.by === "method" && methodNamed(name)?.family === "control" ? `${name} (control)` : name);

/** The number of columns, so that what is compared stands close together: models above each other if they fit. */
export function columnsOf({ models, compare, classes }) {
  const across = compare.length * classes.length;
  if (models.length > 1 && across <= ACROSS) return across > 1 ? across : models.length;
  return Math.max(1, compare.length > 1 ? compare.length : classes.length);
}

/** What is compared at first: the current model and embedded ones with the same classes; empty if it has no company. */
export async function usualModels() {
  const embedded = (await similar(modelName())).filter(({ source }) => source === "embedded").map(({ name }) => name);
  const names = [...new Set([modelName(), ...embedded])];
  return names.length > 1 ? names : [];
}

/** Models that run here without a download and have the same classes as a model. */
async function similar(name) {
  const { models } = await catalogue("/models");
  const current = models.find((model) => model.name === name);
  const isNear = ({ weights, loaded, source }) => weights.available && (loaded || ["embedded", "own"].includes(source));
  const candidates = models.filter((model) => isNear(model) && mayShare(model, current)).slice(0, 2 * NEAR); // custom ones are asked
  const alike = await Promise.all(candidates.map((other) => sharesClasses(name, other.name)));
  return candidates.filter((_, place) => alike[place]);
}

/** Whether two models can have the same classes: those of one kind, and as many. */
const mayShare = (one, other) => one.head === other.head && one.classes === other.classes;

/** Whether two models have the same classes. Their labels are compared only if one is custom: the others share data sets. */
async function sharesClasses(...names) {
  const { models } = await catalogue("/models");
  const [one, other] = names.map((name) => models.find((model) => model.name === name));
  if (!one || !other || one === other) return true; // its map says that there is no such model
  if (!mayShare(one, other)) return false;
  if (one.source !== "own" && other.source !== "own") return true;
  const [labels, others] = await Promise.all(names.map(async (name) => (await catalogue(modelPath(name))).labels));
  return String(labels.toSorted()) === String(others.toSorted());
}

/** Whether each model explains its own best class as long as none is chosen. */
const isFree = () => choicesOf().models.length > 1 && state.target === null;

/** The values that are chosen, of one kind. */
function chosen(name) {
  return choicesOf()[name].flatMap((value) => value ?? (explained() && !isFree() ? [explainedEntry()[0]] : []));
}

export function prepareChoices() {
  for (const by of ["method", "layer"]) {
    byId(`by-${by}`).addEventListener("change", () => change({ by, compare: [] }));
  }
  for (const name of ["models", "compare", "classes"]) {
    byId(`chips-${name}`).addEventListener("change", ({ target: { value, checked } }) => {
      const others = chosen(name).filter((other) => other !== value);
      change({ [name]: checked ? [...others, value] : others });
    });
  }
  for (const [id, name] of [["compare-add", "compare"], ["class-add", "classes"]]) {
    byId(id).addEventListener("change", ({ target }) => {
      add(name, target.value);
      target.value = "";
    });
  }
  byId("compare-layers").addEventListener("click", () => pickLayers().catch(showProblem));
  byId("model-add").addEventListener("click", () => chooseModel("Add a model", mayShare).then((model) => model && add("models", model), showProblem));
}

const add = (name, value) => change({ [name]: [...new Set([...chosen(name), value])] });

async function pickLayers() {
  const most = Math.floor(MOST / choicesOf().classes.length);
  const layers = await chooseLayers({ model: modelName(), title: "Layers to compare", chosen: state.compare, most });
  if (layers?.length) change({ compare: layers });
}

/** Shows what is chosen, and what may be; `usual` are methods that are always offered, `note` is a sentence. */
export function showChoices(choices, usual, note) {
  const isByLayer = state.by === "layer";
  for (const by of ["method", "layer"]) byId(`by-${by}`).checked = state.by === by;
  byId("pick-models").hidden = byId("compare-add").hidden = isByLayer;
  byId("compare-layers").hidden = !isByLayer;
  learn(choices.models);
  offer("models", modelName(), [...choices.models, ...near].map((name) => [name, name]));
  offer("compare", isByLayer ? modelName() : "", [...choices.compare, ...(isByLayer ? [] : usual)].map((name) => [name, labelled(name)]));
  byId("classes-title").textContent = asks()?.listed ?? "Classes";
  const entries = predicted();
  const isOffered = ([name], place) => place < SUREST || state.classes.includes(name);
  offer("classes", `${modelName()} ${state.picture.url}`, [...entries.filter(isOffered), ...state.classes.map((name) => [name, name])]);
  offerMore(entries);
  // A list that is open would close.
  if (document.activeElement !== byId("compare-add")) byId("compare-add").replaceChildren(new Option("Add a method…", ""), ...methodGroups());
  const count = choices.models.length * choices.compare.length * choices.classes.length;
  for (const name of ["models", "compare", "classes"]) allow(name, (count / (choices[name].length || 1)) * (chosen(name).length + 1) <= MOST);
  byId("compare-note").textContent = [note, differing(), bound(count), isFree() && !state.classes.length && OWN, isPlain() && PLAIN].filter(Boolean).join(" ");
}

function bound(count) {
  if (count > MOST) return `Only the first ${MOST} of ${count} maps are shown; choose fewer.`;
  return count > 1 ? `${count} of at most ${MOST} maps.` : "";
}

/** Says which of the compared models have other classes. */
const differing = () => strange.length && `${strange.join(" and ")} ${strange.length > 1 ? "have" : "has"} different classes from ${modelName()}.`;

/** Whether classes are checked, which are not contrasted as the page's question is. */
const isPlain = () => state.by === "method" && state.against !== null && state.classes.length > 0;

const PLAIN = "Checked classes are explained without the contrast.";

const OWN = "Each model explains its own best class, until you check one.";

/** Adds check boxes for values that have none. Those about another subject go; others stay, so that the focus does. */
function offer(name, subject, entries) {
  const list = byId(`chips-${name}`);
  if (list.dataset.subject !== subject) list.replaceChildren();
  list.dataset.subject = subject;
  const known = new Map([...list.querySelectorAll("input")].map((box) => [box.value, box]));
  for (const [value, text] of entries) {
    if (!known.has(value)) {
      const box = make("input", { type: "checkbox", value });
      list.append(make("li", {}, make("label", {}, box, text)));
      known.set(value, box);
    } else if (value !== text) known.get(value).nextSibling.textContent = text; // a link named it before the answer did
  }
}

/** Checks what is chosen; one stays chosen unless there is a default, and none is added where there is no room. */
function allow(name, hasRoom) {
  const values = chosen(name);
  const least = name === "classes" && isFree() ? 0 : 1;
  for (const box of byId(`chips-${name}`).querySelectorAll("input")) {
    box.checked = values.includes(box.value);
    box.disabled = box.checked ? values.length === least : !hasRoom;
  }
  for (const control of byId(`pick-${name}`).querySelectorAll("select, button")) control.disabled = !hasRoom;
}

const isClassifier = () => Boolean(state.answer) && !kind() && explained().unit === undefined;

/** What is explained and the classes, values or boxes that the model predicts, each once. */
function predicted() {
  if (!state.answer) return [];
  return [...new Map([explainedEntry(), ...(state.scene?.rows ?? state.answer.predictions).map(entryOf)])];
}

/** The names of classes, values and boxes for people, by how a request names them. */
export const namesOf = () => new Map(predicted());

/** What is explained, as it was asked for: of a region or a box, it may be a part. */
function explainedEntry() {
  const [name, text] = entryOf(explained());
  const asked = askedTarget();
  if (!kind() || asked === null) return [name, text];
  const { place, part } = split(asked);
  const parts = [text, place.startsWith("pixel:") ? "one region" : "", part && asks().parts.find(([key]) => key === part)[1]];
  return [String(asked), parts.filter(Boolean).join(", ")];
}

/** How a request names a prediction, and its name for people. */
function entryOf(prediction) {
  const { label, index, number } = prediction;
  if (isClassifier()) return [isAmbiguous(label) ? String(index) : label, label];
  return [String(named(prediction)), Number.isInteger(number) ? `${label} ${number}` : subjectOf(prediction)];
}

/** Lists what has no check box: the other boxes of a detector, or all classes of a classifier. */
function offerMore(entries) {
  const select = byId("class-add");
  const isBoxed = (name) => byId("chips-classes").querySelector(`[value="${CSS.escape(name)}"]`);
  const rest = isClassifier() ? classEntries : entries.filter(([name]) => !isBoxed(name));
  select.hidden = rest.every(([name]) => isBoxed(name));
  const subject = String(rest);
  if (select.dataset.subject === subject) return; // a new list would close it
  select.dataset.subject = subject;
  const title = isClassifier() ? "Add a class…" : `${rest.length} more…`;
  select.replaceChildren(new Option(title, ""), ...rest.map(([name, text]) => new Option(text, name)));
}

const isAmbiguous = (label) => labels.indexOf(label) !== labels.lastIndexOf(label);

/** Learns which models have the same classes, and which classes these are. */
async function learn(models) {
  const model = modelName();
  const wanted = String([model, ...models]);
  if (learnt === wanted) return;
  learnt = wanted;
  near = strange = []; // they may be about another model
  try {
    const [about, alike] = await Promise.all([catalogue(modelPath(model)), similar(model)]);
    const shared = await Promise.all(models.map((name) => sharesClasses(model, name)));
    if (learnt !== wanted) return;
    near = alike.map(({ name }) => name).slice(0, NEAR);
    strange = models.filter((_, place) => !shared[place]);
    labels = about.labels;
    const entry = (label, index) => (isAmbiguous(label) ? [String(index), `${label} (${index})`] : [label, label]);
    classEntries = labels.map(entry).sort(([, left], [, right]) => left.localeCompare(right));
    change({}); // so that they are offered
  } catch {
    learnt = null; // without them, there is less to choose from
  }
}
