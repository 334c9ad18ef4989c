// The choice of a model: those with available weights first, the others with the reason why they cannot be chosen.

import { catalogue, modelPath, post } from "./api.js";
import { ask, search } from "./dialog.js";
import { byId, make, prose } from "./dom.js";
import { showProblem } from "./problems.js";
import { change, onChange, state } from "./state.js";

const SHOWN = 60; // most rows at a time

let standard = null;

/** The name of the model that answers: the one that was asked for, or the service's default. */
export async function modelName() {
  if (state.model) return state.model;
  if (state.answer) return state.answer.model.name;
  // The list of models does not tell the default one, which it may not even have: the service knows names of more.
  standard ??= (await (await post("/predict", state.picture.file, [["top", "1"]])).json()).model.name;
  return standard;
}

export function prepareModels() {
  byId("model").addEventListener("click", () => choose().catch(showProblem));
  onChange((patch) => {
    if ("model" in patch || "answer" in patch) show();
  });
  show();
}

function show() {
  byId("model-name").textContent = state.model ?? state.answer?.model.name ?? "the default one";
}

async function choose() {
  const { models } = await catalogue("/models");
  const current = await modelName().catch(() => null); // which the choice does not need
  const ordered = [...models].sort((one, other) => other.weights.available - one.weights.available);
  const list = make("ul", { class: "choices" });
  const more = make("p", { class: "help" });
  let chosen = current;
  const fill = (text) => {
    const found = ordered.filter((one) => `${one.name} ${one.source} ${one.licence}`.toLowerCase().includes(text));
    list.replaceChildren(...found.slice(0, SHOWN).map((one) => row(one, one.name === chosen, () => (chosen = one.name))));
    more.textContent = found.length > SHOWN ? `${found.length - SHOWN} more; type to narrow them down.` : "";
    if (!found.length) more.textContent = "No model has such a name.";
  };
  fill("");
  const available = models.filter((one) => one.weights.available).length;
  const content = make(
    "div",
    { class: "body" },
    make("p", { class: "help", textContent: `${available} of ${models.length} models have their weights available.` }),
    search("Find a model", fill),
    list,
    more,
  );
  const wanted = await ask("Model", content, { accept: "Use this model", result: () => chosen });
  if (!wanted || wanted === current) return;
  const named = state.target !== null || state.against !== null;
  const classes = named && !(current && (await haveSameClasses(current, wanted))) ? { target: null, against: null } : {};
  change({ ...classes, model: wanted, layer: [], inside: null, off: [], compare: state.by === "layer" ? [] : state.compare });
}

/** Whether classes keep their meaning between two models, as they do where both learnt from one data set. */
async function haveSameClasses(one, other) {
  const [first, second] = await Promise.all([one, other].map((name) => catalogue(modelPath(name)).catch(() => null)));
  return first !== null && second !== null && String(first.labels) === String(second.labels);
}

function row(model, checked, choose) {
  const { available, reason } = model.weights;
  // What is embedded comes as a package; where that is not installed the word would be a riddle.
  const source = model.source === "embedded" && !available ? "a package" : model.source;
  const radio = make("input", { type: "radio", name: "model", value: model.name, checked, disabled: !available });
  radio.addEventListener("change", choose);
  const size = model.input_size.join(" × ");
  const said = `${source} · ${model.licence} · ${size} · ${model.classes} classes`;
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
        make("small", { textContent: said }),
        available ? null : make("small", { class: "reason" }, ...prose(reason)),
      ),
    ),
  );
}
