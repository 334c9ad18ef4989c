// Rectangles that are dragged over the picture, as left, top, right, bottom in pixels of the upload.

import { overlay } from "./stage.js";
import { explanation, onChange } from "./state.js";

const LEAST = 4; // pixels of the screen: a shorter drag is a click

/** Whether a pointer is so far from its start, {x, y} on the screen, that it drags. */
export const isFar = ({ x, y }, event) => Math.hypot(event.clientX - x, event.clientY - y) >= LEAST;

/** Whether the main button is held, a finger or a pen is down: a button that is released elsewhere tells nothing. */
export const isHeld = ({ buttons }) => Boolean(buttons & 1);

/** The rectangle between two pixels, both included. */
export const spanned = ([x, y], [u, v]) => [Math.min(x, u), Math.min(y, v), Math.max(x, u) + 1, Math.max(y, v) + 1];

/**
 * Calls `drag(box)` while a rectangle is dragged, and `drop(box)` or `cancel()` at its end. `starts(event)` returns null, or
 * how a rectangle is made of the first pixel and the current one, such as `spanned`. While `takesClicks()`, a click is a drag
 * that ends where it starts. Returns a function that ends a drag and tells whether there was one.
 */
export function onDrag({ starts, drag, drop, cancel, takesClicks = () => false }) {
  const { element } = overlay;
  let start = null; // {pixel, x, y, made}
  let box = null;
  const pixel = (event) => overlay.pixel(event, explanation().heatmap.shape);
  const end = () => {
    if (!start) return false;
    start = null;
    if (box) cancel();
    return box !== null;
  };
  const follow = (event) => {
    if (!box) element.setPointerCapture(event.pointerId);
    box = start.made(start.pixel, pixel(event));
    drag(box);
  };
  element.addEventListener("pointerdown", (event) => {
    const made = isFree(event) ? starts(event) : null;
    box = null;
    start = made && { pixel: pixel(event), x: event.clientX, y: event.clientY, made };
    if (start && takesClicks()) follow(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (!start) return;
    if (!isHeld(event)) end();
    else if (box || isFar(start, event)) follow(event);
  });
  element.addEventListener("pointerup", () => {
    if (start && box) drop(box);
    start = null;
  });
  element.addEventListener("pointercancel", end);
  element.addEventListener("click", (event) => box && event.stopImmediatePropagation());
  onChange(() => explanation() || end()); // such as of another picture
  return end;
}

/** Whether an event starts nothing else on the picture of an answer. */
const isFree = (event) => explanation() && event.button === 0 && !overlay.isSheet && !event.target.closest("#wipe");
