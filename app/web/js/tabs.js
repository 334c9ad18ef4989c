// The views of one picture, as tabs.

import { byId } from "./dom.js";
import { change, onChange, state } from "./state.js";

export const VIEWS = ["explain", "compare", "likeness", "inside"];

export function prepareTabs() {
  for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => change({ show: view }));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const to = step ? VIEWS.at((VIEWS.indexOf(state.show) + step) % VIEWS.length) : { Home: VIEWS[0], End: VIEWS.at(-1) }[event.key];
    if (!to) return;
    event.preventDefault();
    change({ show: to });
    byId(`tab-${to}`).focus();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    const place = [byId("reader"), byId(`tab-${state.show}`)].find((one) => one.checkVisibility());
    if (!place) return; // there is no picture
    event.preventDefault();
    place.focus();
  });
  onChange((patch) => {
    if ("show" in patch) show();
    if ("picture" in patch) {
      document.body.classList.toggle("working", Boolean(state.picture));
      byId("work").hidden = !state.picture;
    }
  });
  show();
}

function show() {
  for (const view of VIEWS) {
    const shown = view === state.show;
    byId(`tab-${view}`).setAttribute("aria-selected", String(shown));
    byId(`tab-${view}`).tabIndex = shown ? 0 : -1;
    byId(`panel-${view}`).hidden = !shown;
  }
}
