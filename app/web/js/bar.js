// The colour bar: the values of the colours.

import { coloursOf, gradient } from "./colours.js";
import { byId } from "./dom.js";
import { explanation } from "./state.js";
import { number } from "./words.js";

let scale = null;

export async function showBar(answer) {
  const current = explanation(answer);
  scale = current?.drawn ?? null;
  byId("bar").hidden = !scale;
  if (!scale) return;
  const { low, high, colormap } = scale;
  byId("bar-low").textContent = number(low);
  byId("bar-high").textContent = number(high);
  byId("bar-middle").textContent = low < 0 && high === -low ? "0" : number((low + high) / 2);
  const { min, max } = current.heatmap;
  byId("bar-range").textContent = `${answer.method.name} map ${number(min)} to ${number(max)}`;
  byId("bar").setAttribute("aria-label", `Colours from ${number(low)} to ${number(high)}, ${colormap}`);
  const colours = await coloursOf(colormap);
  byId("bar-colours").style.backgroundImage = gradient(colours);
}

/** Marks a value, in the method's own units, on the bar. */
export function markValue(value) {
  const mark = byId("bar-mark");
  mark.hidden = value === null || !scale;
  if (mark.hidden) return;
  const share = (value - scale.low) / (scale.high - scale.low);
  mark.style.left = `${Math.min(1, Math.max(0, share)) * 100}%`;
}
