// One feature map, large, in a dialog: where it is strongest, and what the model says without it.

import { activationsOf } from "./activations.js";
import { openDialog } from "./dialog.js";
import { make } from "./dom.js";
import { Elsewhere } from "./elsewhere.js";
import { drawWhole, strongest } from "./featuremap.js";
import { classesWithout, intervene, sentence } from "./intervention.js";
import { LatestRequest } from "./latest.js";
import { change, explanation, state } from "./state.js";
import { count, number, signed } from "./words.js";

const SIDE = 720; // pixels of the longer side of the picture
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

/** Opens a channel of a layer; `order` lists the channels that the arrow keys lead through, by default by their effects. */
export async function openChannel(layer, channel, order = null) {
  const { channels, size } = await activationsOf(layer);
  if (!explanation()) return; // it is drawn over the picture of the answer
  const entries = new Map(channels.map((entry) => [entry.channel, entry]));
  new Viewer(layer, size, entries, order ?? channels.map((entry) => entry.channel)).open(channel);
}

class Viewer {
  #layer;
  #size;
  #entries;
  #order;
  #channel = null;
  #title = make("h2");
  #canvas = make("canvas", { role: "img" });
  #sentence = make("p", { role: "status" });
  #request = new LatestRequest(this.#sentence);
  #places = make("ol", { class: "strongest", "aria-label": "Strongest places" });
  #effect = make("p", { class: "help" });
  #switch = make("button", { class: "quiet", on: { click: () => this.#toggle() } });
  #elsewhere = null;

  constructor(layer, size, entries, order) {
    [this.#layer, this.#size, this.#entries, this.#order] = [layer, size, entries, order];
    const { shape: [height, width] } = explanation().heatmap;
    const scale = SIDE / Math.max(height, width);
    Object.assign(this.#canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  }

  open(channel) {
    const step = (by, text, name) => make("button", { class: "quiet", "aria-label": name, textContent: text, on: { click: () => this.#step(by) } });
    this.#elsewhere = new Elsewhere(this.#layer, () => dialog.close());
    const body = make("div", { class: "body channel" }, this.#canvas, this.#sentence, this.#places, this.#effect, this.#elsewhere.element);
    const steps = this.#order.length > 1 ? [step(-1, "←", "Previous channel"), step(1, "→", "Next channel")] : [];
    const dialog = openDialog(this.#title, body, make("footer", {}, ...steps, this.#switch));
    dialog.addEventListener("keydown", (event) => STEPS[event.key] && this.#step(STEPS[event.key]));
    dialog.addEventListener("close", () => {
      this.#request.stop();
      this.#elsewhere.stop();
    });
    this.#show(channel);
  }

  #step(by) {
    const place = this.#order.indexOf(this.#channel);
    this.#show(this.#order.at((place + by) % this.#order.length));
  }

  #show(channel) {
    this.#channel = channel;
    const { map, effect } = this.#entries.get(channel);
    const places = strongest(map, this.#size);
    this.#title.textContent = `Channel ${channel} of ${this.#layer}`;
    drawWhole(this.#canvas, map, this.#size, places).catch(() => {}); // the picture has changed meanwhile
    this.#canvas.setAttribute("aria-label", `Feature map of channel ${channel}; its strongest places are outlined`);
    this.#places.replaceChildren(...places.map(placeItem));
    if (!places.length) this.#places.replaceChildren(make("li", { textContent: "It is zero everywhere in this picture." }));
    this.#effect.textContent = `${ties(map, places.length)}Contribution to ${explanation().target.label}, estimated by the gradient: ${signed(effect)}.`;
    this.#elsewhere.show(channel);
    this.#showSwitch();
    this.#ask();
  }

  #ask() {
    const channels = [this.#channel];
    this.#sentence.textContent = "Asking the model…";
    const ask = async (signal) => {
      this.#sentence.textContent = sentence(this.#layer, channels, await intervene(classesWithout(this.#layer, channels), signal));
    };
    this.#request.run(ask, ({ message }) => (this.#sentence.textContent = message));
  }

  get #isOff() {
    return (state.inside ?? this.#layer) === this.#layer && state.off.includes(this.#channel);
  }

  /** Switches the channel off in the view into the model, or on again. */
  #toggle() {
    const others = state.inside === this.#layer || !state.inside ? state.off.filter((channel) => channel !== this.#channel) : [];
    change({ inside: this.#layer, off: this.#isOff ? others : [...others, this.#channel] });
    this.#showSwitch();
  }

  #showSwitch() {
    this.#switch.textContent = this.#isOff ? "Switched off" : "Switch off";
    this.#switch.setAttribute("aria-pressed", String(this.#isOff));
  }
}

/** Says that more places than the outlined ones have the largest value, as where an activation is bounded. */
function ties(map, outlined) {
  const sizes = Array.from(map, Math.abs);
  const largest = Math.max(...sizes);
  const many = sizes.filter((size) => size === largest).length;
  return largest && many > outlined ? `${count(many)} of ${count(map.length)} places reach ${number(largest)}; ${outlined} of them are outlined. ` : "";
}

function placeItem({ value, box: [left, top, right, bottom] }) {
  return make("li", { textContent: `${number(value)} at x ${Math.round((left + right) / 2)}, y ${Math.round((top + bottom) / 2)}` });
}
