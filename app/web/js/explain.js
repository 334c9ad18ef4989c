// Requests an explanation whenever the question changes, shows its progress, and can cancel it.

import { amend } from "./address.js";
import { Problem, explain } from "./api.js";
import { announce, byId } from "./dom.js";
import { doubts } from "./doubt.js";
import { clearProblems, showProblem } from "./problems.js";
import { HEATMAP, methodNamed, question } from "./question.js";
import { gradeOf } from "./proof.js";
import { change, explanation, methodName, onChange, state } from "./state.js";
import { restore, showPreview } from "./stage.js";
import { progress, reading } from "./words.js";

const ASKS = ["picture", "model", "method", "options", "target", "against", "layer", "colormap", "scale"];

export const PATIENCE = 300; // milliseconds before progress is shown; most answers take less

let pending = null;
let waiting = null;

export function prepareExplain() {
  onChange((patch) => {
    if (state.picture && ASKS.some((name) => name in patch)) run();
  });
  byId("cancel").addEventListener("click", cancel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pending && !document.querySelector("dialog")) cancel();
  });
}

function cancel() {
  pending?.abort();
  pending = null;
  busy(false);
  restore();
  change({ failure: new Problem({ detail: "Cancelled." }) });
  announce("Cancelled.");
}

async function run() {
  pending?.abort();
  const mine = new AbortController();
  pending = mine;
  clearProblems();
  restore();
  busy(true);
  const onProgress = (event) => {
    if (pending !== mine) return;
    showProgress(event);
    if (event.preview) showPreview(event.preview);
  };
  try {
    const fields = question();
    const answer = await explain(state.picture.file, [...fields, ...HEATMAP], { signal: mine.signal, onProgress });
    if (pending !== mine) return;
    const asked = fields.some(([name]) => name === "method") ? fields : [["method", answer.method.name], ...fields];
    change({ answer, asked, map: 0 });
    const { target, proof } = explanation();
    announce(`${target.label}, ${reading(target)}, explained by ${answer.method.name}. ${doubts()} ${proof ? `${gradeOf(proof)}: ${proof.sentence}` : ""}`);
  } catch (error) {
    if (pending !== mine || error.name === "AbortError") return;
    restore();
    if (error.errors?.some((fault) => fault.field === "method") && !methodNamed(methodName())) explainByDefault(error);
    else {
      change({ failure: error });
      showProblem(error, run);
    }
  } finally {
    if (pending === mine) {
      pending = null;
      busy(false);
    }
  }
}

/** A link may name an unknown method: the default one replaces it, and the error is shown. */
function explainByDefault({ message }) {
  amend({ method: null, options: {} });
  showProblem(new Problem({ detail: message, errors: [{ field: "method", message: `${message} This is the default one.` }] }));
}

function busy(is) {
  byId("figure").setAttribute("aria-busy", String(is));
  byId("progress-bar").removeAttribute("value");
  byId("progress-text").textContent = "Working…";
  clearTimeout(waiting);
  if (is) waiting = setTimeout(showWork, PATIENCE);
  else byId("progress").hidden = true;
}

function showWork() {
  byId("progress").hidden = false;
  announce("Working…");
}

function showProgress(event) {
  const { done, total } = event;
  if (!total) return; // it is queued
  Object.assign(byId("progress-bar"), { max: total, value: done });
  byId("progress-text").textContent = progress(event);
}
