// The dialog to choose a model: available ones first, the others with the reason why they are not.

import { catalogue, modelPath } from "./api.js";
import { ask, search } from "./dialog.js";
import { byId, make, prose } from "./dom.js";
import { problemBox, showProblem } from "./problems.js";
import { learn, modelName } from "./question.js";
import { change, onChange, state } from "./state.js";
import { count, plain } from "./words.js";

const SHOWN = 60; // maximum number of rows

const SOURCES = { embedded: "included", own: "added to this service" };

const TASKS = { segmentation: "segmenter", detection: "detector" };

export function prepareModels() {
  for (const id of ["model", "start-model", "likeness-model"]) byId(id).addEventListener("click", changeModel);
  onChange((patch) => {
    if ("model" in patch || "answer" in patch) show();
  });
  show();
}

function show() {
  for (const id of ["model-name", "start-model"]) byId(id).textContent = modelName();
}

const changeModel = () => chooseModel("Model").then((name) => name && name !== modelName() && use(name)).catch(showProblem);

/**
 * Asks for a model; returns its name, or null. The dialog opens at once; the list comes when it is known.
 * `suits(model, current)` tells which ones are listed, by default all.
 */
export async function chooseModel(title, suits = () => true) {
  const list = make("ul", { class: "choices", "aria-busy": "true" });
  const said = make("p", { class: "help", role: "status", textContent: "Listing the models…" });
  const more = make("p", { class: "help" });
  const own = make("p", { class: "help" }, "Is your model missing? ", make("a", { href: "/guide#custom-models", target: "_blank", textContent: "How to add a model" }));
  let models = [];
  let chosen = modelName();
  const fill = (text) => {
    const matches = models.filter((model) => `${model.name} ${model.source} ${model.licence} ${TASKS[model.head] ?? ""}`.toLowerCase().includes(text));
    list.replaceChildren(...matches.slice(0, SHOWN).map((model) => row(model, model.name === chosen, () => (chosen = model.name))));
    more.textContent = matches.length > SHOWN ? `${count(matches.length - SHOWN)} more; type to narrow the list.` : "";
    if (!matches.length && models.length) more.textContent = "No model matches.";
  };
  const find = search("Find a model", fill);
  const wanted = ask(title, make("div", { class: "body" }, said, find, list, more, own), { accept: "Use this model", result: () => chosen });
  const listed = listing().then((known) => {
    models = known.filter((model) => suits(model, known.find(({ name }) => name === modelName())));
    list.removeAttribute("aria-busy");
    const isPart = models.length < known.length;
    const kind = isPart ? `models with the same number of classes as ${modelName()}` : "models";
    said.textContent = isPart && models.length === 1
      ? `No other model has as many classes as ${modelName()}.`
      : `${count(models.filter((model) => model.weights.available).length)} of ${count(models.length)} ${kind} can run here now.`;
    fill(find.value.trim().toLowerCase());
  });
  listed.catch((error) => said.replaceChildren(problemBox(error)));
  return wanted;
}

/** All models: the current one, then those that can run now; of them first those added to this service, then those loaded. */
async function listing() {
  const { models } = await catalogue("/models");
  const rank = (model) => 8 * (model.name === modelName()) + 4 * model.weights.available + 2 * (model.source === "own") + model.loaded;
  return [...models].sort((left, right) => rank(right) - rank(left));
}

async function use(wanted) {
  const current = modelName();
  await learn(wanted);
  const [former, next] = await Promise.all([current, wanted].map((name) => catalogue(modelPath(name)).catch(() => null)));
  const isAlike = former !== null && former.head === next?.head && String(former.labels) === String(next.labels); // as after training on the same data set
  const fresh = isAlike ? {} : { target: null, against: null, classes: [] };
  if (!state.method) fresh.options = {}; // the model may have another default method
  const compared = state.models.includes(wanted) ? state.models : state.models.map((name) => (name === current ? wanted : name));
  fresh.models = isAlike ? compared : [];
  change({ ...fresh, model: wanted, layer: [], inside: null, off: [], compare: state.by === "layer" ? [] : state.compare });
}

function row(model, checked, choose) {
  const { available, reason } = model.weights;
  const radio = make("input", { type: "radio", name: "model", value: model.name, checked, disabled: !available });
  radio.addEventListener("change", choose);
  const said = [
    model.source === "embedded" && !available ? "not installed" : (SOURCES[model.source] ?? model.source),
    model.licence === "own" ? null : `licence ${model.licence}`,
    model.input_size && `${[...model.input_size].reverse().join(" × ")} pixels`,
    `${count(model.classes)} ${model.classes === 1 ? "class" : "classes"}`,
    TASKS[model.head],
  ];
  return make(
    "li",
    {},
    make(
      "label",
      { class: available ? "" : "absent" },
      radio,
      make(
        "span",
        {},
        make("strong", { textContent: model.name }),
        make("small", { textContent: said.filter(Boolean).join(" · ") }),
        available ? null : make("small", { class: "reason" }, ...prose(plain(reason))),
      ),
    ),
  );
}
