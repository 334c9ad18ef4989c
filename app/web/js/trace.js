// The trace: activations and gradients of every module, over the depth of the model.

import { post } from "./api.js";
import { copy, curl } from "./copy.js";
import { byId, make } from "./dom.js";
import { problemBox } from "./problems.js";
import { state, subject } from "./state.js";

const SAID = {
  dead_maps: ["module has feature maps", "modules have feature maps", "that are zero everywhere"],
  vanishing: ["module gets", "modules get", "a vanishing gradient"],
  exploding: ["module gets", "modules get", "an exploding gradient"],
  without_gradient: ["module gets", "modules get", "no gradient"],
  non_finite: ["module has", "modules have", "NaN or infinite values"],
  not_run: ["module is", "modules are", "not run by this picture"],
};

let shown = null;
let asking = null;

const fields = (format) => [...subject(), ["format", format]];

export function prepareTrace() {
  byId("copy-trace").addEventListener("click", (event) =>
    copy(curl("/hooks/trace", fields("svg"), "trace.svg"), event.currentTarget),
  );
}

export async function showTrace() {
  const key = JSON.stringify([state.picture.url, fields("svg")]);
  if (key === shown) return;
  shown = key;
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const place = byId("trace");
  place.setAttribute("aria-busy", "true");
  try {
    const ask = (format) => post("/hooks/trace", state.picture.file, fields(format), { signal });
    const [chart, trace] = await Promise.all([ask("svg").then((response) => response.blob()), ask("json").then((response) => response.json())]);
    if (signal.aborted) return;
    const image = make("img", { alt: `Outputs, shares of zeros and gradients of ${trace.model.name}, module by module`, src: URL.createObjectURL(chart) });
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    place.replaceChildren(image);
    byId("trace-summary").replaceChildren(...sentences(trace.summary).map((text) => make("li", {}, ...text)));
  } catch (error) {
    if (error.name === "AbortError") return;
    shown = null;
    place.replaceChildren(problemBox(error));
  } finally {
    if (!signal.aborted) place.removeAttribute("aria-busy");
  }
}

function sentences(summary) {
  return Object.entries(SAID)
    .filter(([name]) => summary[name].length)
    .map(([name, [single, plural, what]]) => {
      const paths = summary[name].map((entry) => entry.path ?? entry);
      const names = paths.slice(0, 3).join(", ") + (paths.length > 3 ? " …" : "");
      return [`${paths.length} ${paths.length === 1 ? single : plural} ${what}: `, make("code", { textContent: names })];
    });
}
