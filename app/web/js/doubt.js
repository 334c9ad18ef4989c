// What to say modestly: an answer of a model that is unsure, and a heatmap that shows nothing.

import { kind } from "./scene.js";
import { explained, explanation, state } from "./state.js";
import { isUnsure, likelihood, only } from "./words.js";

/** Whether a map has the same value everywhere. */
const isBlank = ({ diagnostics, proof, heatmap }) =>
  proof?.grade === "blank" || diagnostics.some(({ code }) => code === "blank-map") || heatmap.min === heatmap.max;

/** The method that drew a map: Grad-CAM stands in where there are no votes. */
export const drawnBy = ({ name }, { diagnostics }) => (diagnostics.some(({ code }) => code === "votes-unavailable") ? "gradcam" : name);

/** The best class of a classifier, or the explained box of a detector, with less than half of the probability; null if there is none, or if no class may be right. */
export function unsure() {
  const { model, predictions: [best] } = state.answer;
  if (model.head === "detection") return !isHidden() && isUnsure(explained().probability) ? explained() : null;
  return !kind() && model.head !== "sigmoid" && isUnsure(best.probability) ? best : null;
}

/** Whether the explained box is one that the detector does not show. */
const isHidden = () => explanation().diagnostics.some(({ code }) => code === "box-not-shown");

/** What a model says that finds none of its classes, where they do not exclude each other; empty if it finds one. */
function rejection() {
  const { model, predictions: [best, ...others] } = state.answer;
  if (kind() || model.head !== "sigmoid" || !isUnsure(best.probability)) return "";
  const share = only(best.probability);
  if (!others.length) return `The model does not find ${best.label}: its probability is ${share}.`;
  return `The model finds none of its classes: it gives the most probable one, ${best.label}, ${share}.`;
}

/** What a model says that is sure of another class than the explained one; empty if it is of this one. */
function verdict() {
  const { model, predictions: [best] } = state.answer;
  if (kind() || model.head !== "softmax" || isUnsure(best.probability) || explained().index === best.index) return "";
  return `The model says ${best.label}: ${likelihood(best.probability)}.`;
}

/** Sentences about why the answer is to be read with care; empty if there is no reason. */
export function doubts() {
  const guess = unsure();
  const what = state.answer.model.head === "detection" ? "this box" : `its best class, ${guess?.label},`;
  return [
    guess ? `The model is unsure: it gives ${what} ${only(guess.probability)}.` : "",
    isHidden() ? "The detector does not show this box." : "",
    rejection(),
    verdict(),
    isBlank(explanation()) ? "The heatmap is blank." : "",
  ]
    .filter(Boolean)
    .join(" ");
}
