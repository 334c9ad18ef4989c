// The places of the scene on the picture: their outlines, and clicks that explain them.

import { byId, make } from "./dom.js";
import { explainPlace, kind, split } from "./scene.js";
import { overlay, pixelRead } from "./stage.js";
import { askedTarget, explained, explanation, onChange, state } from "./state.js";

const READER = byId("reader").getAttribute("aria-label");

let pointed = null; // the key of the place under the pointer

export function preparePlaces() {
  const { element } = overlay;
  element.addEventListener("pointermove", (event) => point(placeUnder(event)));
  element.addEventListener("pointerleave", () => point(null));
  element.addEventListener("click", (event) => explain(placeUnder(event)));
  const reader = byId("reader");
  reader.addEventListener("keydown", (event) => {
    if (!state.scene || overlay.isSheet) return;
    const place = state.scene.at(pixelRead());
    if (event.key === "Enter") explain(place);
    else point(place);
  });
  reader.addEventListener("blur", () => point(null));
  onChange((patch) => {
    if ("scene" in patch) showScene();
    if ("scene" in patch || "answer" in patch) showExplained();
    if ("altered" in patch || "scene" in patch) draw("altered", state.altered?.scene?.borders());
  });
}

function placeUnder(event) {
  if (!state.scene || !state.answer || overlay.isSheet || event.target.closest("#wipe")) return null;
  return state.scene.at(overlay.pixel(event, explanation().heatmap.shape));
}

function explain(place) {
  if (place) explainPlace(place.target);
}

/** Shows the area of a place, or of none. */
export function point(place) {
  if (pointed === (place?.key ?? null)) return;
  pointed = place?.key ?? null;
  overlay.element.classList.toggle("pointing", Boolean(place));
  draw("pointed", place && state.scene.area(place));
}

function showScene() {
  const { scene } = state;
  byId("places").toggleAttribute("hidden", !scene);
  pointed = null;
  draw("pointed", null);
  draw("borders", scene?.borders());
  byId("names").replaceChildren(...(scene?.names?.() ?? []).map(nameTag));
  if (scene) byId("places").setAttribute("viewBox", `0 0 ${scene.size.join(" ")}`);
  byId("places-help").textContent = scene ? kind().help : "";
  byId("reader").setAttribute("aria-label", scene ? `${READER}; ${kind().key}` : READER);
}

function nameTag({ key, label, left, top }) {
  const tag = make("span", { textContent: label });
  tag.dataset.key = key;
  tag.style.top = `${Math.max(0, top) * 100}%`;
  tag.style.maxWidth = `${(1 - left) * 100}%`;
  tag.style.left = `${left * 100}%`;
  return tag;
}

function showExplained() {
  const { scene, answer } = state;
  const { place, part } = split(askedTarget());
  const chosen = scene && answer ? scene.explained(explained(), place, part) : null;
  draw("chosen", chosen && scene.outline(chosen));
  for (const tag of byId("names").children) tag.classList.toggle("chosen", tag.dataset.key === String(explained()?.number));
}

function draw(name, path) {
  byId("places").querySelector(`.${name}`).setAttribute("d", path ?? "");
}
