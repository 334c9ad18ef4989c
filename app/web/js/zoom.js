// A closer look at the picture: it is enlarged inside its frame, which scrolls, or fills the screen.

import { byId } from "./dom.js";
import { isFar, isHeld } from "./drag.js";
import { onChange } from "./state.js";

const LARGEST = 8;
const STEP = 1.5; // of a button or a key
const DOUBLE = 100; // pixels of the wheel that double the size: a notch of most mice

let size = 1; // of the picture, in sizes of its frame

/** Whether a drag moves the enlarged picture in its frame; it marks a part if that was chosen. */
export const isPanned = () => size > 1.1 && !byId("stage").classList.contains("marking");

export function prepareZoom() {
  const viewport = byId("viewport");
  byId("zoom-in").addEventListener("click", () => zoom(next(1)));
  byId("zoom-out").addEventListener("click", () => zoom(next(-1)));
  viewport.addEventListener("keydown", ({ key }) => {
    if (["+", "="].includes(key)) zoom(next(1));
    if (key === "-") zoom(next(-1));
  });
  viewport.addEventListener("wheel", scale, { passive: false });
  preparePan(viewport);
  const full = byId("full-screen");
  full.hidden = !document.fullscreenEnabled;
  full.addEventListener("click", () => (document.fullscreenElement ? document.exitFullscreen() : byId("panel-explain").requestFullscreen()));
  onChange((patch) => {
    if (patch.picture) zoom(1);
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

/** The next larger or smaller size of the buttons, which are powers of `STEP`. */
function next(way) {
  const steps = Math.log(size) / Math.log(STEP);
  return STEP ** (way * Math.floor(way * steps + 1.001));
}

/** Zooms by a wheel with Ctrl, as a trackpad's pinch is one, around the pointer. */
function scale(event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const { left, top } = byId("viewport").getBoundingClientRect();
  zoom(size * 2 ** (-event.deltaY / DOUBLE), [event.clientX - left, event.clientY - top]);
}

/** Changes the size of the picture; the point of it at `place` of its frame, by default the middle, stays there. */
function zoom(to, place) {
  const [viewport, stage] = [byId("viewport"), byId("stage")];
  const [x, y] = place ?? [viewport.clientWidth / 2, viewport.clientHeight / 2];
  const [across, down] = [(viewport.scrollLeft + x) / stage.offsetWidth, (viewport.scrollTop + y) / stage.offsetHeight];
  size = to < 1.000001 ? 1 : Math.min(LARGEST, to); // rounding must not leave it enlarged
  byId("figure").classList.toggle("zoomed", size > 1);
  stage.style.setProperty("--zoom", size);
  byId("zoom-in").disabled = size === LARGEST;
  byId("zoom-out").disabled = size === 1;
  viewport.scrollTo(across * stage.offsetWidth - x, down * stage.offsetHeight - y);
}
