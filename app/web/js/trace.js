// The trace: activations and gradients of the modules without submodules, over the depth of the model.

import { currentLayer } from "./activations.js";
import { post } from "./api.js";
import { Chart } from "./chart.js";
import { copy, curl } from "./copy.js";
import { byId, make } from "./dom.js";
import { LatestRequest } from "./latest.js";
import { layersOf } from "./layers.js";
import { modelName } from "./question.js";
import { visit } from "./network.js";
import { problemBox } from "./problems.js";
import { state, subject } from "./state.js";
import { count } from "./words.js";

const SAID = {
  dead_maps: ["module has feature maps", "modules have feature maps", "that are zero everywhere in this picture"],
  vanishing: ["module gets", "modules get", "a vanishing gradient"],
  exploding: ["module gets", "modules get", "an exploding gradient"],
  without_gradient: ["module gets", "modules get", "no gradient"],
  non_finite: ["module has", "modules have", "NaN or infinite values"],
  not_run: ["module is", "modules are", "not called for this picture"],
};

let shown = null;
let usable = []; // paths of the layers with feature maps

const request = new LatestRequest(byId("trace"));

const chart = new Chart((path) => {
  const layer = usable.filter((candidate) => candidate === path || path.startsWith(`${candidate}.`)).at(-1);
  if (layer) visit(layer);
});

export function prepareTrace() {
  byId("trace").append(chart.element);
  byId("trace-tools").prepend(...chart.tools);
  byId("copy-trace").addEventListener("click", (event) =>
    copy(curl("/hooks/trace", [...subject(), ["format", "svg"]], "trace.svg"), event.currentTarget),
  );
}

export async function showTrace() {
  markLayer();
  const fields = [...subject(), ["format", "json"]];
  const key = JSON.stringify([state.picture.url, fields]);
  if (key === shown) return;
  shown = key;
  const show = async (signal) => {
    const trace = await (await post("/hooks/trace", state.picture.file, fields, { signal })).json();
    chart.show(trace);
    byId("trace").replaceChildren(chart.element);
    byId("trace-summary").replaceChildren(...sentences(trace.summary).map((text) => make("li", {}, ...text)));
    markLayer();
  };
  await request.run(show, (error) => {
    shown = null;
    byId("trace").replaceChildren(problemBox(error));
  });
}

/** Marks the part of the current layer. */
async function markLayer() {
  try {
    usable = (await layersOf(modelName())).filter((layer) => layer.cam && layer.path).map((layer) => layer.path);
    chart.mark(await currentLayer());
  } catch {
    chart.mark(null); // the feature maps say why there is no layer
  }
}

/** The name of a module, with how many of its feature maps are zero. */
const nameOf = (entry) => (entry.channels ? `${entry.path} (${count(entry.channels.length)} of ${count(entry.total)})` : (entry.path ?? entry));

function sentences(summary) {
  return Object.entries(SAID)
    .filter(([name]) => summary[name].length)
    .map(([name, [single, plural, what]]) => {
      const paths = summary[name].map(nameOf);
      const names = paths.slice(0, 3).join(", ") + (paths.length > 3 ? " …" : "");
      return [`${count(paths.length)} ${paths.length === 1 ? single : plural} ${what}: `, make("code", { textContent: names })];
    });
}
