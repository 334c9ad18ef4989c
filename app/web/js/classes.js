// The predictions: a click on a class explains it; a second class can be contrasted with it.

import { catalogue, modelPath } from "./api.js";
import { byId, make } from "./dom.js";
import { change, explained, onChange, state } from "./state.js";
import { percent } from "./words.js";

let labelled = null; // the model whose labels are suggested

export function prepareClasses() {
  onChange((patch) => "answer" in patch && show());
  const other = byId("target");
  const ask = () => {
    const wanted = other.value.trim();
    if (wanted) change({ target: /^\d+$/.test(wanted) ? Number(wanted) : wanted, against: null });
  };
  other.addEventListener("change", ask);
  byId("target-form").addEventListener("submit", (event) => event.preventDefault());
  byId("contrast-clear").addEventListener("click", () => change({ against: null }));
}

function show() {
  const { answer } = state;
  byId("found").hidden = !answer;
  if (!answer) return;
  const [{ target, against }] = answer.explanations;
  const listed = answer.predictions.map((one) => one.index);
  const added = [target, against].filter((one) => one && !listed.includes(one.index));
  const focused = document.activeElement?.dataset?.focus;
  byId("predictions").replaceChildren(...[...answer.predictions, ...added].map((one) => row(one, target, against)));
  if (focused) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  document.title = `${target.label}: SeeWhy`;
  byId("answer-label").textContent = target.label;
  byId("answer-probability").textContent = percent(target.probability);
  byId("contrast").hidden = !against;
  if (against) byId("contrast-text").textContent = `Evidence for ${target.label} rather than ${against.label}.`;
  byId("diagnostics").replaceChildren(
    ...answer.explanations[0].diagnostics.map(({ message }) => make("li", { textContent: message })),
  );
  if (!added.length) byId("target").value = "";
  offerLabels(answer.model.name);
}

function row(one, target, against) {
  const chosen = one.index === target.index;
  const contrasted = one.index === against?.index;
  const explain = make(
    "button",
    {
      type: "button",
      class: "class",
      "aria-pressed": String(chosen),
      on: { click: (event) => (event.shiftKey ? contrast(one) : change({ target: one.index, against: null })) },
    },
    make("span", { class: "label", textContent: one.label }),
    make("span", { class: "share", textContent: percent(one.probability) }),
    make("span", { class: "track", "aria-hidden": "true" }, make("span", { class: "fill" })),
  );
  explain.dataset.focus = `class-${one.index}`;
  explain.querySelector(".fill").style.width = `${one.probability * 100}%`;
  const rather = make("button", {
    type: "button",
    class: "rather",
    textContent: "vs",
    title: `Why ${target.label} rather than ${one.label}?`,
    "aria-label": `Contrast with ${one.label}`,
    "aria-pressed": String(contrasted),
    disabled: chosen,
    on: { click: () => contrast(one) },
  });
  rather.dataset.focus = `contrast-${one.index}`;
  return make("li", {}, explain, rather);
}

function contrast(one) {
  const target = explained();
  if (one.index === target.index) return;
  const same = state.answer.explanations[0].against?.index === one.index;
  change({ target: target.index, against: same ? null : one.index });
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
