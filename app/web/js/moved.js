// The bar of a prediction, and how far it moves when something is changed.

import { make } from "./dom.js";
import { change, isStill, rise } from "./words.js";

function bar(name, prediction) {
  const element = make("span", { class: `fill ${name}` });
  element.style.width = `${(prediction?.probability ?? prediction?.area ?? 0) * 100}%`;
  return element;
}

/** A value has no bar: nobody knows between what ends it lies. */
const track = (prediction, ...bars) => (prediction.unit === undefined ? make("span", { class: "track", "aria-hidden": "true" }, ...bars) : null);

export const stillTrack = (prediction) => track(prediction, bar("", prediction));

/** Its bars before and after. */
export const movedTrack = (before, after) => track(before ?? after, bar("before", before), bar("after", after));

/** By how much it moves, in percentage points or in units of a value; empty if it reads the same. */
function movedBy(before, after) {
  return isStill(before, after) ? "" : ` ${change(rise(before, after), after.unit === undefined)}`.trimEnd();
}

/** The same as an element. */
export function movedText(before, after) {
  return make("span", { class: "moved", title: after.unit === undefined ? "in percentage points" : "", textContent: movedBy(before, after) });
}
