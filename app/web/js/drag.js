// Rectangles that are dragged over the picture, as left, top, right, bottom in pixels of the upload.

import { overlay } from "./stage.js";
import { explanation } from "./state.js";

const LEAST = 4; // pixels of the screen: a shorter drag is a click

/** Whether a pointer is so far from its start, {x, y} on the screen, that it drags. */
export const isFar = ({ x, y }, event) => Math.hypot(event.clientX - x, event.clientY - y) >= LEAST;

/** The rectangle between two pixels, both included. */
export const spanned = ([x, y], [u, v]) => [Math.min(x, u), Math.min(y, v), Math.max(x, u) + 1, Math.max(y, v) + 1];

/**
 * Calls `drag(box)` while a rectangle is dragged, and `drop(box)` or `cancel()` at its end. `starts(event)` returns null, or
 * how a rectangle is made of the first pixel and the current one, such as `spanned`. Returns a function that ends a drag
 * and tells whether there was one.
 */
export function onDrag({ starts, drag, drop, cancel }) {
  const { element } = overlay;
  let start = null; // {pixel, x, y, made}
  let box = null;
  const pixel = (event) => overlay.pixel(event, explanation().heatmap.shape);
  const end = () => {
    if (!start) return false;
    start = null;
    cancel();
    return box !== null;
  };
  element.addEventListener("pointerdown", (event) => {
    const made = isFree(event) ? starts(event) : null;
    box = null;
    start = made && { pixel: pixel(event), x: event.clientX, y: event.clientY, made };
  });
  element.addEventListener("pointermove", (event) => {
    if (!start) return;
    if (!box && !isFar(start, event)) return;
    if (!box) element.setPointerCapture(event.pointerId);
    box = start.made(start.pixel, pixel(event));
    drag(box);
  });
  element.addEventListener("pointerup", () => {
    if (start && box) drop(box);
    start = null;
  });
  element.addEventListener("pointercancel", end);
  element.addEventListener("click", (event) => box && event.stopImmediatePropagation());
  return end;
}

/** Whether an event starts nothing else on the picture of an answer. */
const isFree = (event) => explanation() && event.button === 0 && !overlay.isSheet && !event.target.closest("#wipe");
