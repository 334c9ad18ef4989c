// Asks a detector why it shows no box in a rectangle, which is dragged over the picture or typed.

import { byId } from "./dom.js";
import { onDrag, spanned } from "./drag.js";
import { kind, split } from "./scene.js";
import { askedTarget, change, explained, explanation, onChange, state } from "./state.js";
import { isPanned } from "./zoom.js";

export function prepareAbsent() {
  onDrag({
    starts: ({ target }) => (kind()?.isDragged && state.scene && !isMarking() && !isPanned() && target !== byId("marker") ? spanned : null),
    drag: (box) => draw((byId("edges").value = box.join(","))),
    drop: () => byId("target").focus(),
    cancel: showAsked,
  });
  byId("edges").addEventListener("input", () => draw(byId("edges").value));
  byId("target-form").addEventListener("submit", () => kind()?.isDragged && ask());
  onChange((patch) => {
    if ("answer" in patch || "scene" in patch) showAsked();
  });
}

/** Whether a drag marks a part of the picture instead. */
const isMarking = () => byId("stage").classList.contains("marking");

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
  byId("target-title").textContent = kind()?.isDragged ? "Class" : state.answer?.model.head === "value" ? "Another value" : "Another class";
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
