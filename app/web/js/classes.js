// The predictions: a click on a class, value, region or box explains it; a second class can be contrasted with it.

import { catalogue, modelPath } from "./api.js";
import { byId, make } from "./dom.js";
import { point } from "./places.js";
import { explainPlace, joined, kind, split } from "./scene.js";
import { asTarget, askedTarget, change, explained, onChange, state } from "./state.js";
import { percent, reading } from "./words.js";

let labelled = null; // the model whose labels are suggested

export function prepareClasses() {
  onChange((patch) => ("answer" in patch || "scene" in patch) && show());
  const input = byId("target");
  const ask = () => {
    const text = input.value.trim();
    if (text) change({ target: asTarget(text), against: null });
  };
  input.addEventListener("change", ask);
  byId("target-form").addEventListener("submit", (event) => event.preventDefault());
  byId("part").addEventListener("change", (event) => {
    const { place } = split(askedTarget());
    change({ target: asTarget(joined(place || String(explained().index), event.target.value)) });
  });
  byId("contrast-clear").addEventListener("click", () => change({ against: null }));
}

function show() {
  const { answer } = state;
  byId("found").hidden = !answer;
  if (!answer) return;
  const [{ target, against }] = answer.explanations;
  const predictions = state.scene?.rows ?? answer.predictions;
  const listed = predictions.map((prediction) => prediction.index);
  const added = [target, against].filter((prediction) => prediction && !listed.includes(prediction.index));
  point(null);
  const focused = document.activeElement?.dataset?.focus;
  byId("predictions").replaceChildren(...[...predictions, ...added].map((prediction) => row(prediction, target, against)));
  if (focused) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  document.title = `${target.label}: SeeWhy`;
  byId("answer-label").textContent = target.label;
  byId("answer-probability").textContent = reading(target);
  byId("contrast").hidden = !against;
  if (against) byId("contrast-text").textContent = `Evidence for ${target.label} rather than ${against.label}.`;
  showPart(answer.explanations[0]);
  byId("diagnostics").replaceChildren(
    ...answer.explanations[0].diagnostics.map(({ message }) => make("li", { textContent: message })),
  );
  if (!added.length) byId("target").value = "";
  offerLabels(answer.model.name);
}

/** Shows which part of which place is explained. */
function showPart({ outside }) {
  const { parts = [], about = "" } = kind() ?? {};
  const { place, part } = split(askedTarget());
  byId("part-field").hidden = !parts.length;
  byId("part-name").textContent = about;
  byId("part").replaceChildren(...parts.map(([name, text]) => new Option(text, name)));
  byId("part").value = part;
  const [, x, y] = place.match(/^pixel:(\d+),(\d+)$/) ?? [];
  const said = x === undefined ? [] : [`The connected region at x ${x}, y ${y}.`];
  if (outside !== undefined) said.push(`${percent(outside)} of the map lies outside ${part === "border" ? "the border" : "it"}.`);
  byId("scope").textContent = said.join(" ");
}

function row(prediction, target, against) {
  const same = prediction.index === target.index;
  const chosen = same && !split(askedTarget()).place.startsWith("pixel:");
  const contrasted = prediction.index === against?.index;
  const next = chosen && target.direction === "up" ? "down" : "up"; // a second click asks what makes a value smaller
  const show = () => state.scene && point(state.scene.row(prediction));
  const hide = () => point(null);
  const explain = make(
    "button",
    {
      type: "button",
      class: "class",
      "aria-pressed": String(chosen),
      title: isValue(prediction) ? `Explain what makes it ${next === "down" ? "smaller" : "larger"}` : "",
      on: {
        click: (event) => (event.shiftKey ? contrast(prediction) : explainPlace(named(prediction, next))),
        pointerenter: show, pointerleave: hide, focus: show, blur: hide,
      },
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
    disabled: same,
    on: { click: () => contrast(prediction) },
  });
  rather.dataset.focus = `contrast-${prediction.index}`;
  return make("li", {}, explain, rather);
}

function contrast(prediction) {
  const target = explained();
  if (prediction.index === target.index) return;
  const same = state.answer.explanations[0].against?.index === prediction.index;
  change({ target: askedTarget() ?? named(target, target.direction), against: same ? null : named(prediction, "up") });
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
