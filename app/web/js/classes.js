// The predictions: a click on a class explains it; a second class can be contrasted with it.

import { catalogue, modelPath } from "./api.js";
import { byId, make } from "./dom.js";
import { change, explained, onChange, state } from "./state.js";
import { reading } from "./words.js";

let labelled = null; // the model whose labels are suggested

export function prepareClasses() {
  onChange((patch) => "answer" in patch && show());
  const input = byId("target");
  const ask = () => {
    const text = input.value.trim();
    if (text) change({ target: /^\d+$/.test(text) ? Number(text) : text, against: null });
  };
  input.addEventListener("change", ask);
  byId("target-form").addEventListener("submit", (event) => event.preventDefault());
  byId("contrast-clear").addEventListener("click", () => change({ against: null }));
}

function show() {
  const { answer } = state;
  byId("found").hidden = !answer;
  if (!answer) return;
  const [{ target, against }] = answer.explanations;
  const listed = answer.predictions.map((prediction) => prediction.index);
  const added = [target, against].filter((prediction) => prediction && !listed.includes(prediction.index));
  const focused = document.activeElement?.dataset?.focus;
  byId("predictions").replaceChildren(...[...answer.predictions, ...added].map((prediction) => row(prediction, target, against)));
  if (focused) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  document.title = `${target.label}: SeeWhy`;
  byId("answer-label").textContent = target.label;
  byId("answer-probability").textContent = reading(target);
  byId("contrast").hidden = !against;
  if (against) byId("contrast-text").textContent = `Evidence for ${target.label} rather than ${against.label}.`;
  byId("diagnostics").replaceChildren(
    ...answer.explanations[0].diagnostics.map(({ message }) => make("li", { textContent: message })),
  );
  if (!added.length) byId("target").value = "";
  offerLabels(answer.model.name);
}

function row(prediction, target, against) {
  const chosen = prediction.index === target.index;
  const contrasted = prediction.index === against?.index;
  const next = chosen && target.direction === "up" ? "down" : "up"; // a second click asks what makes a value smaller
  const explain = make(
    "button",
    {
      type: "button",
      class: "class",
      "aria-pressed": String(chosen),
      title: isValue(prediction) ? `Explain what makes it ${next === "down" ? "smaller" : "larger"}` : "",
      on: { click: (event) => (event.shiftKey ? contrast(prediction) : change({ target: named(prediction, next), against: null })) },
    },
    make("span", { class: "label", textContent: prediction.label }),
    make("span", { class: "share", textContent: reading(prediction) + (chosen && target.direction === "down" ? " ↓" : "") }),
    make("span", { class: "track", "aria-hidden": "true" }, make("span", { class: "fill" })),
  );
  explain.dataset.focus = `class-${prediction.index}`;
  explain.querySelector(".fill").style.width = `${(prediction.probability ?? prediction.area ?? 0) * 100}%`;
  const rather = make("button", {
    type: "button",
    class: "rather",
    textContent: "vs",
    title: `Why ${target.label} rather than ${prediction.label}?`,
    "aria-label": `Contrast with ${prediction.label}`,
    "aria-pressed": String(contrasted),
    disabled: chosen,
    on: { click: () => contrast(prediction) },
  });
  rather.dataset.focus = `contrast-${prediction.index}`;
  return make("li", {}, explain, rather);
}

function contrast(prediction) {
  const target = explained();
  if (prediction.index === target.index) return;
  const same = state.answer.explanations[0].against?.index === prediction.index;
  change({ target: named(target, target.direction), against: same ? null : named(prediction, "up") });
}

function isValue(prediction) {
  return prediction.value !== undefined;
}

/** How a request names a class, or what makes a value larger or smaller. */
function named(prediction, direction) {
  return isValue(prediction) ? `output:${prediction.index}:${direction}` : prediction.index;
}

async function offerLabels(model) {
  if (labelled === model) return;
  labelled = model;
  try {
    const { labels } = await catalogue(modelPath(model));
    if (labelled === model) byId("labels").replaceChildren(...labels.map((label) => new Option(label)));
  } catch {
    labelled = null; // the next answer requests them again
  }
}
