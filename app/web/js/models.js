// The dialog to choose a model: available ones first, the others with the reason why they are not.

import { catalogue, modelPath, post } from "./api.js";
import { ask, search } from "./dialog.js";
import { byId, make, prose } from "./dom.js";
import { problemBox, showProblem } from "./problems.js";
import { learn } from "./question.js";
import { change, onChange, state } from "./state.js";
import { plain } from "./words.js";

const SHOWN = 60; // maximum number of rows

const TASKS = { segmentation: "segmenter", detection: "detector" };

let standard = null;

/** The name of the model: the chosen one, or the service's default. */
export async function modelName() {
  if (state.model) return state.model;
  if (state.answer) return state.answer.model.name;
  // The list of models does not mark the default one and may not even include it: the service knows more names.
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
  byId("model-name").textContent = state.model ?? state.answer?.model.name ?? "default";
}

/** Asks for a model. The dialog opens at once; the list comes when it is known. */
async function choose() {
  const list = make("ul", { class: "choices", "aria-busy": "true" });
  const count = make("p", { class: "help", role: "status", textContent: "Listing the models…" });
  const more = make("p", { class: "help" });
  const content = { models: [], current: null, chosen: null };
  const fill = (text) => {
    const matches = content.models.filter((model) => `${model.name} ${model.source} ${model.licence} ${TASKS[model.head] ?? ""}`.toLowerCase().includes(text));
    list.replaceChildren(...matches.slice(0, SHOWN).map((model) => row(model, model.name === content.chosen, () => (content.chosen = model.name))));
    more.textContent = matches.length > SHOWN ? `${matches.length - SHOWN} more; type to narrow them down.` : "";
    if (!matches.length && content.models.length) more.textContent = "No model matches.";
  };
  const find = search("Find a model", fill);
  const wanted = ask("Model", make("div", { class: "body" }, count, find, list, more), { accept: "Use this model", result: () => content.chosen });
  const listed = listing().then((known) => {
    Object.assign(content, known, { chosen: known.current });
    list.removeAttribute("aria-busy");
    count.textContent = `${known.models.filter((model) => model.weights.available).length} of ${known.models.length} models can run here now.`;
    fill(find.value.trim().toLowerCase());
  });
  listed.catch((error) => count.replaceChildren(problemBox(error)));
  const name = await wanted;
  if (name && name !== content.current) await use(name, content.current);
}

/** All models, those that can run now first and of them those that are loaded, and the name of the current one. */
async function listing() {
  const [{ models }, current] = await Promise.all([catalogue("/models"), modelName().catch(() => null)]);
  const rank = (model) => 4 * (model.name === current) + 2 * model.weights.available + model.loaded;
  return { models: [...models].sort((left, right) => rank(right) - rank(left)), current };
}

async function use(wanted, current) {
  await learn(wanted);
  const named = state.target !== null || state.against !== null;
  const fresh = named && !(current && (await answerAlike(current, wanted))) ? { target: null, against: null } : {};
  if (!state.method) fresh.options = {}; // the model may have another default method
  change({ ...fresh, model: wanted, layer: [], inside: null, off: [], compare: state.by === "layer" ? [] : state.compare });
}

/** Whether two models have the same head and classes, as after training on the same data set. */
async function answerAlike(current, wanted) {
  const [first, second] = await Promise.all([current, wanted].map((name) => catalogue(modelPath(name)).catch(() => null)));
  return first !== null && second !== null && first.head === second.head && String(first.labels) === String(second.labels);
}

function row(model, checked, choose) {
  const { available, reason } = model.weights;
  // Embedded models come as packages; if one is not installed, "embedded" would be confusing.
  const source = model.source === "embedded" && !available ? "a package" : model.source;
  const radio = make("input", { type: "radio", name: "model", value: model.name, checked, disabled: !available });
  radio.addEventListener("change", choose);
  const size = model.input_size.join(" × ");
  const said = `${source} · ${model.licence} · ${size} · ${model.classes} classes${model.head in TASKS ? ` · ${TASKS[model.head]}` : ""}`;
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
        available ? null : make("small", { class: "reason" }, ...prose(plain(reason))),
      ),
    ),
  );
}
