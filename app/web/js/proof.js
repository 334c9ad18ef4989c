// How far a heatmap can be relied on: a badge, and a sentence about it.

import { make } from "./dom.js";
import { plain } from "./words.js";

const UNGRADED = "not graded";
const INCONCLUSIVE = "inconclusive"; // not supported, because hiding any part changes little

const SIGNS = { supported: "✓", "partly supported": "◐", spread: "∴", "not supported": "✗", blank: "∅" };

const WARNINGS = {
  "evidence-at-border": "Much of the map lies at the border of what the model sees.",
  "same-for-every-class": "This method draws nearly the same map for every class.",
  "ignores-the-model": "This method draws nearly the same map for a model that has learnt nothing.",
  "fill-hides-little": "Hiding changes too little for a test. Either this fill leaves visible what the model relies on (try the other fill; a blur keeps large areas of one colour), or each part is enough on its own, or the model gives this answer even to an empty picture or to the hiding itself.",
};

/** The grades from the best to the worst. */
export const GRADES = [...Object.keys(SIGNS), INCONCLUSIVE, UNGRADED];

const hidesLittle = ({ warnings }) => warnings.includes("fill-hides-little");

/** The grade, for people; a proof without one has too few scores to compare the map with. */
export function gradeOf(proof) {
  if (proof.grade === "not supported" && hidesLittle(proof)) return INCONCLUSIVE;
  return proof.grade ?? UNGRADED;
}

/** Whether there is a proof that its test could not decide. */
export const isInconclusive = (proof) => Boolean(proof) && gradeOf(proof) === INCONCLUSIVE;

/** Whether a map has not been graded, though there is a proof. */
export const isUngraded = (proof) => Boolean(proof) && gradeOf(proof) === UNGRADED;

const sign = (proof) => make("span", { textContent: SIGNS[gradeOf(proof)] ?? "?", "aria-hidden": "true" });

export function badge(proof) {
  const grade = gradeOf(proof);
  const element = make("span", { class: "grade", title: sentenceOf(proof) }, sign(proof), ` ${grade}`);
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
export const isUnsupported = (proof) => Boolean(proof) && ["not supported", "blank"].includes(gradeOf(proof));

/** Whether another method may do better: the map is not borne out, though there is something to explain. */
const isWorthAnother = ({ grade, warnings }) => ["not supported", "spread"].includes(grade) && !warnings.includes("improbable-target");

/** Whether a map has no grade only because there are too few scores to compare it with. */
const lacksScores = ({ grade, sentence }) => !grade && /fewer than \d+ scores/.test(sentence);

/** The verdict of a proof, for people. */
export const sentenceOf = (proof) => plain(proof.sentence);

/**
 * Shows a proof in a paragraph, or hides it where there is none; `outline(share)` outlines the marked part on the map, null
 * none. `next` has what is offered where it may do better: `compare()` other methods, or `refill(fill)`, another way of hiding.
 */
export function showProof(paragraph, proof, outline = null, next = null) {
  paragraph.hidden = !proof;
  if (!proof) return paragraph.replaceChildren();
  const guide = make("a", { href: "/guide#proof", target: "_blank", textContent: "About proofs" });
  const words = sentenceOf(proof).split(/(marked (?:half|third|quarter|fifth|tenth|\d+%))/);
  const said = words.map((text, place) => (place % 2 && outline ? pointer(text, proof.faithfulness.area, outline) : text));
  const step = (textContent, click) => [make("button", { class: "link", textContent, on: { click } }), " · "];
  const more = [];
  if (next && proof.faithfulness?.fill === "mean") more.push(...step("Hide by blurring", () => next.refill("blur")));
  else if (next && (hidesLittle(proof) || (isUnsupported(proof) && isWorthAnother(proof)))) more.push(...step("Hide with the mean colour", () => next.refill("mean")));
  if (next && lacksScores(proof)) {
    const calibrate = make("a", { href: "/guide#custom-models", target: "_blank", textContent: "Get a grade from 34 pictures with seewhy calibrate" });
    more.push(calibrate, " · ");
  }
  if (next && isWorthAnother(proof)) more.push(...step("Compare other methods", next.compare));
  paragraph.replaceChildren(make("a", { href: "/guide#heatmap", target: "_blank" }, badge(proof)), " ", ...said, " ", ...more, guide);
}

/** Words for the part of the picture that the map marks, which is outlined while they are pointed at. */
function pointer(textContent, area, outline) {
  const [show, hide] = [() => outline(area), () => outline(null)];
  const title = "Outlines the part of the picture where the map is highest, even if less of it is bright";
  return make("button", { class: "link", textContent, title, on: { pointerenter: show, pointerleave: hide, focus: show, blur: hide, click: show } });
}

/** What speaks against the map beside its diagnostics, in sentences. */
export const warningsOf = (proof) => (proof?.warnings ?? []).map((code) => WARNINGS[code]).filter(Boolean);
