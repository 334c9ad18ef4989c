// The page: composition of its parts.

import { prepareAbsent } from "./absent.js";
import { keepAddress, readAddress } from "./address.js";
import { prepareBlink } from "./blink.js";
import { prepareChannels, showChannels } from "./channels.js";
import { prepareClasses } from "./classes.js";
import { prepareCompare } from "./compare.js";
import { prepareCopy } from "./copy.js";
import { prepareScrolls } from "./dom.js";
import { prepareExplain } from "./explain.js";
import { prepareFires } from "./fires.js";
import { prepareGallery } from "./gallery.js";
import { prepareIntake, tellPending } from "./intake.js";
import { prepareLikeness } from "./likeness.js";
import { prepareMarking } from "./marking.js";
import { prepareModels } from "./models.js";
import { showNetwork } from "./network.js";
import { prepareOptions } from "./options.js";
import { openExample } from "./picture.js";
import { preparePlaces } from "./places.js";
import { prepareProblems, showProblem } from "./problems.js";
import { prepareScene } from "./scene.js";
import { prepareSettings } from "./settings.js";
import { prepareStage } from "./stage.js";
import { onChange, state } from "./state.js";
import { prepareStrip } from "./strip.js";
import { prepareTabs } from "./tabs.js";
import { prepareTrace, showTrace } from "./trace.js";
import { prepareZoom } from "./zoom.js";

const NEEDS = ["show", "picture", "model", "target", "answer", "inside", "off", "method", "layer", "options"];

/** Inside the model: the tree of its layers, the feature maps of one, predictions without some of them, and the trace. */
function prepareInside() {
  prepareChannels();
  prepareTrace();
  onChange((patch) => {
    if (state.show !== "inside" || !state.picture || !NEEDS.some((name) => name in patch)) return;
    showNetwork().catch(() => {}); // the feature maps say why there are no layers
    showChannels();
    showTrace();
  });
}

async function start() {
  const errors = await readAddress();
  prepareScrolls();
  prepareScene();
  prepareStage();
  prepareZoom();
  prepareAbsent();
  prepareMarking();
  prepareFires();
  prepareBlink();
  preparePlaces();
  prepareTabs();
  prepareClasses();
  prepareModels();
  prepareOptions();
  prepareCopy();
  prepareCompare();
  prepareLikeness();
  prepareInside();
  await prepareSettings();
  keepAddress();
  prepareGallery();
  prepareStrip();
  prepareProblems(errors);
  prepareExplain();
  // After all listeners are registered: an earlier picture would be shown but not explained.
  if (!prepareIntake()) await (state.example ? openExample(state.example) : tellPending());
  if (errors.length) showProblem();
  document.body.dataset.ready = "true";
}

start().catch((error) => showProblem(error, () => location.reload()));
