// The view that alternates the plain picture and the heatmap. It pauses, and where motion is unwanted it waits for the
// button or the key.

import { byId } from "./dom.js";
import { onChange, redraws, state } from "./state.js";

const KEY = "b";
const still = matchMedia("(prefers-reduced-motion: reduce)");

let isStopped = false; // paused, or without motion: whether the plain picture is shown

export function prepareBlink() {
  byId("blink").addEventListener("click", toggle);
  document.addEventListener("keydown", (event) => {
    const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog");
    if (event.key === KEY && !isTyped && state.look === "blink" && state.show === "explain") toggle();
  });
  still.addEventListener("change", show);
  onChange((patch) => redraws(patch) && show());
  show();
}

function toggle() {
  isStopped = !isStopped;
  show();
}

function show() {
  const isOn = state.look === "blink";
  if (!isOn) isStopped = false;
  byId("stage").classList.toggle("blinking", isOn && !isStopped && !still.matches);
  byId("stage").classList.toggle("bare", isOn && isStopped && still.matches);
  byId("blink").hidden = !isOn;
  const [go, stop] = still.matches ? ["Show the heatmap", "Show the picture"] : ["Resume", "Pause"];
  byId("blink").textContent = isStopped ? go : stop;
}
