// How far a heatmap can be relied on: a badge, and a sentence about it.

import { make } from "./dom.js";
import { methodNamed } from "./question.js";
import { minus } from "./words.js";

const UNGRADED = "not graded";

const SIGNS = { supported: "✓", "partly supported": "◐", spread: "∴", "not supported": "✗", blank: "∅", control: "–" };

const WARNINGS = {
  "evidence-at-border": "Much of the map lies at the border of what the model sees.",
  "same-for-every-class": "This method draws nearly the same map for every class.",
  "ignores-the-model": "This method draws nearly the same map for a model that has learnt nothing.",
};

/** The proof of an explanation; a control gets no grade, because others are graded beside it. */
export function proofOf({ proof }, method) {
  if (!proof || methodNamed(method)?.family !== "control") return proof;
  return { grade: "control", sentence: "A control is what other heatmaps are compared with; it has no grade.", warnings: [] };
}

/** The grade, for people; a proof without one has too few scores to compare the map with. */
export const gradeOf = (proof) => proof.grade ?? UNGRADED;

const sign = (proof) => make("span", { textContent: SIGNS[proof.grade] ?? "?", "aria-hidden": "true" });

export function badge(proof) {
  const grade = gradeOf(proof);
  const element = make("span", { class: "grade", title: proof.sentence }, sign(proof), ` ${grade}`);
  element.dataset.grade = grade;
  return element;
}

/** A badge with the sign alone, where the grade is also told otherwise. */
export function signBadge(proof) {
  const element = make("span", { class: "grade" }, sign(proof));
  element.dataset.grade = gradeOf(proof);
  return element;
}

/** Whether nothing bears the map out. */
export const isUnsupported = (proof) => ["not supported", "blank"].includes(proof?.grade);

/** Shows a proof in a paragraph, or hides it where there is none. */
export function showProof(paragraph, proof) {
  paragraph.hidden = !proof;
  const guide = make("a", { href: "/guide#proof", target: "_blank", textContent: "About proofs" });
  paragraph.replaceChildren(...(proof ? [make("a", { href: "/guide#heatmap", target: "_blank" }, badge(proof)), ` ${minus(proof.sentence)} `, guide] : []));
}

/** What speaks against the map beside its diagnostics, in sentences. */
export const warningsOf = (proof) => (proof?.warnings ?? []).map((code) => WARNINGS[code]).filter(Boolean);
