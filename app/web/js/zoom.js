// A closer look at the picture: it is enlarged inside its frame, which scrolls, or fills the screen.

import { byId } from "./dom.js";
import { isFar, isHeld } from "./drag.js";
import { onChange } from "./state.js";

const STEPS = [1, 1.5, 2, 3, 4, 6, 8];

let step = 0;

/** Whether a drag moves the enlarged picture in its frame; it marks a part if that was chosen. */
export const isPanned = () => step > 0 && !byId("stage").classList.contains("marking");

export function prepareZoom() {
  const viewport = byId("viewport");
  byId("zoom-in").addEventListener("click", () => zoom(step + 1));
  byId("zoom-out").addEventListener("click", () => zoom(step - 1));
  viewport.addEventListener("keydown", ({ key }) => {
    if (["+", "="].includes(key)) zoom(step + 1);
    if (key === "-") zoom(step - 1);
  });
  viewport.addEventListener("wheel", scale, { passive: false });
  preparePan(viewport);
  const full = byId("full-screen");
  full.hidden = !document.fullscreenEnabled;
  full.addEventListener("click", () => (document.fullscreenElement ? document.exitFullscreen() : byId("panel-explain").requestFullscreen()));
  onChange((patch) => {
    if (patch.picture) zoom(0);
    if ("show" in patch && document.fullscreenElement) document.exitFullscreen(); // another view is not in it
  });
}

/** Moves the enlarged picture with a mouse or a pen; fingers scroll it without this. */
function preparePan(viewport) {
  let start = null; // {x, y, left, top}
  let isMoved = false;
  viewport.addEventListener("pointerdown", (event) => {
    isMoved = false;
    const isOurs = isPanned() && event.button === 0 && event.pointerType !== "touch";
    const isOnPicture = byId("stage").contains(event.target) && !event.target.closest("#wipe");
    start = isOurs && isOnPicture ? { x: event.clientX, y: event.clientY, left: viewport.scrollLeft, top: viewport.scrollTop } : null;
  });
  viewport.addEventListener("pointermove", (event) => {
    if (!isHeld(event)) start = null;
    if (!start || !(isMoved || isFar(start, event))) return;
    if (!isMoved) viewport.setPointerCapture(event.pointerId);
    isMoved = true;
    viewport.scrollTo(start.left + start.x - event.clientX, start.top + start.y - event.clientY);
  });
  for (const end of ["pointerup", "pointercancel"]) viewport.addEventListener(end, () => (start = null));
  viewport.addEventListener("click", (event) => isMoved && event.stopPropagation(), true);
}

/** Zooms by a wheel with Ctrl, as a trackpad's pinch is one, around the pointer. */
function scale(event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const { left, top } = byId("viewport").getBoundingClientRect();
  zoom(step + (event.deltaY < 0 ? 1 : -1), [event.clientX - left, event.clientY - top]);
}

/** Changes the size of the picture; the point of it at `place` of its frame, by default the middle, stays there. */
function zoom(to, place) {
  const [viewport, stage] = [byId("viewport"), byId("stage")];
  const [x, y] = place ?? [viewport.clientWidth / 2, viewport.clientHeight / 2];
  const [across, down] = [(viewport.scrollLeft + x) / stage.offsetWidth, (viewport.scrollTop + y) / stage.offsetHeight];
  step = Math.min(STEPS.length - 1, Math.max(0, to));
  byId("figure").classList.toggle("zoomed", step > 0);
  stage.style.setProperty("--zoom", STEPS[step]);
  byId("zoom-in").disabled = step === STEPS.length - 1;
  byId("zoom-out").disabled = step === 0;
  viewport.scrollTo(across * stage.offsetWidth - x, down * stage.offsetHeight - y);
}
