// Inside the model: the feature maps of a layer, predictions without some of them, and the trace.

import { prepareChannels, showChannels } from "./channels.js";
import { onChange, state } from "./state.js";
import { prepareTrace, showTrace } from "./trace.js";

const NEEDS = ["show", "picture", "model", "target", "answer", "inside", "off", "method", "layer", "options"];

export function prepareInside() {
  prepareChannels();
  prepareTrace();
  onChange((patch) => {
    if (state.show !== "inside" || !state.picture || !NEEDS.some((name) => name in patch)) return;
    showChannels();
    showTrace();
  });
}
