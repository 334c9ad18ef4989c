// Asks a detector why it shows no box in a rectangle, which is dragged over the picture or typed.

import { byId } from "./dom.js";
import { kind, split } from "./scene.js";
import { overlay } from "./stage.js";
import { askedTarget, change, explained, explanation, onChange, state } from "./state.js";

const LEAST = 4; // pixels of the screen: a shorter drag is a click

let start = null; // {pixel, x, y} where a drag began
let isDragged = false;

export function prepareAbsent() {
  const { element } = overlay;
  element.addEventListener("pointerdown", (event) => {
    isDragged = false;
    const isOurs = kind()?.isDragged && state.scene && event.button === 0 && !overlay.isSheet && !event.target.closest("#wipe");
    start = isOurs ? { pixel: pixelUnder(event), x: event.clientX, y: event.clientY } : null;
  });
  element.addEventListener("pointermove", drag);
  element.addEventListener("pointerup", drop);
  element.addEventListener("pointercancel", () => {
    start = null;
    showAsked();
  });
  element.addEventListener("click", (event) => isDragged && event.stopImmediatePropagation());
  byId("edges").addEventListener("input", () => draw(byId("edges").value));
  byId("target-form").addEventListener("submit", () => kind()?.isDragged && ask());
  onChange((patch) => {
    if ("answer" in patch || "scene" in patch) showAsked();
  });
}

const pixelUnder = (event) => overlay.pixel(event, explanation().heatmap.shape);

function drag(event) {
  if (!start) return;
  if (!isDragged && Math.hypot(event.clientX - start.x, event.clientY - start.y) < LEAST) return;
  if (!isDragged) overlay.element.setPointerCapture(event.pointerId);
  isDragged = true;
  const [x, y] = pixelUnder(event);
  const [left, top] = [Math.min(x, start.pixel[0]), Math.min(y, start.pixel[1])];
  const [right, bottom] = [Math.max(x, start.pixel[0]) + 1, Math.max(y, start.pixel[1]) + 1];
  byId("edges").value = [left, top, right, bottom].join(",");
  draw(byId("edges").value);
}

function drop() {
  if (start && isDragged) byId("target").focus();
  start = null;
}

/** Asks about the rectangle, by default the whole picture, and the class, by default any. */
function ask() {
  const [height, width] = explanation().heatmap.shape;
  const edges = byId("edges").value.replaceAll(" ", "") || `0,0,${width},${height}`;
  const label = byId("target").value.trim();
  change({ target: `region:${edges}${label && `:${label}`}`, against: null });
}

function showAsked() {
  byId("absent").hidden = !kind()?.isDragged;
  byId("ask").hidden = !kind()?.isDragged;
  byId("target-title").textContent = kind()?.isDragged ? "Class" : "Another class";
  const [, edges] = split(askedTarget()).place.match(/^region:([^:]*)/) ?? [];
  byId("edges").value = edges ?? "";
  if (edges !== undefined) byId("target").value = explained()?.label ?? "";
  draw(edges ?? "");
}

function draw(edges) {
  const [left, top, right, bottom] = edges.split(",").map(Number);
  const isWhole = bottom > top && right > left;
  byId("places").querySelector(".asked").setAttribute("d", isWhole ? `M${left} ${top}H${right}V${bottom}H${left}Z` : "");
}
