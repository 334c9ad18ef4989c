// The chart of a trace: outputs, shares of zeros and gradient norms, module by module. A module is read by the pointer or
// the arrow keys, and can be chosen; the chart is enlarged in its frame, which scrolls.

import { make, makeShape, pointAt } from "./dom.js";
import { count, number, percent } from "./words.js";

const HEIGHT = 100; // of a panel, in its own units
const ZOOMS = [1, 2, 4, 8, 16];
const [VANISHING, EXPLODING] = [1e-4, 1e4]; // norms, as the service judges them

const NO_ZEROS = "none in the output of any module (functions such as F.relu are not modules)";

/** Linear near zero and logarithmic beyond, as outputs have both signs. */
const symlog = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value));

export class Chart {
  #choose;
  #modules = []; // {path, call, output, gradient, dead}
  #place = 0; // the module that is read
  #marked = null; // the first module of the current layer and how many it has
  #layer = null;
  #zoom = 0;
  #panels = make("div", { class: "panels" });
  #groups = make("div", { class: "groups", "aria-hidden": "true" });
  #band = make("div", { class: "band", hidden: true });
  #cursor = make("div", { class: "cursor", hidden: true });
  #reader = make("div", { class: "reader", role: "slider", tabIndex: 0, "aria-label": "Module; arrow keys move, Enter shows its feature maps", "aria-valuemin": 0, "aria-valuenow": 0 });
  #reading = make("output", { class: "reading", textContent: `${pointAt()} a module, or use the arrow keys, to read its values.` });
  #in = make("button", { class: "quiet", "aria-label": "Enlarge the trace", textContent: "+", on: { click: () => this.#enlarge(this.#zoom + 1) } });
  #out = make("button", { class: "quiet", "aria-label": "Reduce the trace", textContent: "−", disabled: true, on: { click: () => this.#enlarge(this.#zoom - 1) } });
  #part = make("button", { class: "quiet", hidden: true, on: { click: () => this.#showPart() } });

  /** `choose(path)` is called with the module that is chosen. */
  constructor(choose) {
    this.#choose = choose;
    this.element = make("div", { class: "trace" }, this.#panels, this.#band, this.#cursor, this.#groups, this.#reader);
    new ResizeObserver(() => this.#fit()).observe(this.#groups);
    this.tools = [this.#in, this.#out, this.#part, this.#reading];
    this.#reader.addEventListener("pointermove", (event) => this.#read(this.#under(event)));
    this.#reader.addEventListener("pointerdown", (event) => this.#read(this.#under(event)));
    this.#reader.addEventListener("pointerleave", () => document.activeElement !== this.#reader && (this.#cursor.hidden = true));
    this.#reader.addEventListener("click", (event) => event.detail && this.#choose(this.#modules[this.#under(event)].path));
    this.#reader.addEventListener("focus", () => this.#read(this.#place));
    this.#reader.addEventListener("blur", () => (this.#cursor.hidden = true));
    this.#reader.addEventListener("keydown", (event) => this.#steer(event));
  }

  show({ events, summary }) {
    const dead = new Map(summary.dead_maps.map(({ path, channels, total }) => [path, `${count(channels.length)} of ${count(total)} feature maps are zero`]));
    const modules = new Map();
    const statistics = ({ tensors }) => tensors.find((tensor) => tensor.statistics)?.statistics ?? null;
    for (const event of events) {
      const key = `${event.path}#${event.call}`;
      if (event.kind === "after_forward") modules.set(key, { path: event.path, call: event.call, type: event.type, output: statistics(event), gradient: null, dead: dead.get(event.path) });
      else if (event.kind === "output_gradient" && modules.has(key)) modules.get(key).gradient = statistics(event);
    }
    this.#modules = [...modules.values()];
    this.#place = Math.min(this.#place, this.#modules.length - 1);
    this.#reader.setAttribute("aria-valuemax", this.#modules.length - 1);
    this.#draw();
    this.mark(this.#layer);
  }

  /** Marks the modules of a layer, or of none. */
  mark(layer) {
    this.#layer = layer;
    const places = this.#modules.flatMap(({ path }, place) => (layer && (path === layer || path.startsWith(`${layer}.`)) ? [place] : []));
    this.#marked = places.length ? { first: places[0], count: places.at(-1) - places[0] + 1 } : null;
    this.#band.hidden = !this.#marked;
    this.#part.hidden = !this.#marked;
    if (!this.#marked) return;
    this.#part.textContent = `Enlarge ${layer}`;
    this.#over(this.#band, this.#marked);
  }

  #over(element, { first, count }) {
    element.style.left = `${(100 * first) / this.#modules.length}%`;
    element.style.width = `${(100 * count) / this.#modules.length}%`;
  }

  #draw() {
    const outputs = this.#modules.map(({ output }) => output);
    const norms = this.#modules.map(({ gradient }) => (gradient && gradient.norm > 0 ? Math.log10(gradient.norm) : null));
    const finite = norms.filter((norm) => norm !== null);
    const [low, high] = [Math.min(...outputs.map((output) => symlog(output?.min ?? 0))), Math.max(...outputs.map((output) => symlog(output?.max ?? 0)))];
    const [least, most] = finite.length ? [Math.floor(Math.min(...finite)), Math.ceil(Math.max(...finite))] : [-1, 1];
    const of = (name) => outputs.map((output) => (output?.[name] == null ? null : symlog(output[name])));
    const spread = (sign) => outputs.map((output) => (output?.mean == null ? null : symlog(output.mean + sign * output.std)));
    const limits = [VANISHING, EXPLODING].map(Math.log10).filter((limit) => limit > least && limit < most);
    this.#panels.replaceChildren(
      panel("Output: mean, mean ± deviation, and range", [number(unlog(high)), number(unlog(low))], [
        ...area("wide", of("min"), of("max"), low, high),
        ...area("near", spread(-1), spread(1), low, high),
        steps("middle", of("mean"), low, high),
      ]),
      panel(outputs.some((output) => output?.zeros) ? "Share of zeros" : `Share of zeros: ${NO_ZEROS}`, ["100%", "0%"], area("zeros", outputs.map((output) => (output ? 0 : null)), outputs.map((output) => output?.zeros ?? null), 0, 1)),
      panel("Gradient norm; the target’s is 1", [number(10 ** most), number(10 ** least)], [steps("norm", norms, least, most), ...limits.map((limit) => across(limit, least, most, outputs.length))]),
    );
    for (const shape of this.#panels.querySelectorAll("svg")) shape.setAttribute("viewBox", `0 0 ${outputs.length} ${HEIGHT}`);
    this.#groups.replaceChildren(...this.#stages());
    this.#fit();
  }

  /** Leaves out the names of stages that are too narrow for them. */
  #fit() {
    for (const stage of this.#groups.children) stage.classList.remove("cut");
    const cut = [...this.#groups.children].filter((stage) => stage.scrollWidth > stage.clientWidth);
    for (const stage of cut) stage.classList.add("cut");
  }

  /** The names of stages: of neighbouring modules whose paths begin alike. */
  #stages() {
    const stages = [];
    this.#modules.forEach(({ path }, place) => {
      const name = path.match(/^[^.]+(\.\d+)?/)[0];
      if (stages.at(-1)?.name === name) stages.at(-1).count += 1;
      else stages.push({ name, first: place, count: 1 });
    });
    return stages.map((stage) => {
      const element = make("span", { textContent: stage.name, title: stage.name });
      this.#over(element, stage);
      return element;
    });
  }

  #under(event) {
    const { left, width } = this.#reader.getBoundingClientRect();
    return Math.min(this.#modules.length - 1, Math.max(0, Math.floor(((event.clientX - left) / width) * this.#modules.length)));
  }

  #read(place) {
    const module = this.#modules[place];
    if (!module) return;
    this.#place = place;
    this.#cursor.hidden = false;
    this.#over(this.#cursor, { first: place, count: 1 });
    this.#reading.replaceChildren(make("strong", { textContent: `${module.path || "the model"}${module.call ? ` #${module.call}` : ""}` }), ` ${described(module)}`);
    this.#reader.setAttribute("aria-valuenow", place);
    this.#reader.setAttribute("aria-valuetext", this.#reading.textContent);
  }

  #steer(event) {
    const last = this.#modules.length - 1;
    const to = { ArrowLeft: this.#place - 1, ArrowRight: this.#place + 1, Home: 0, End: last, PageUp: this.#place - 10, PageDown: this.#place + 10 }[event.key];
    if (event.key === "Enter") this.#choose(this.#modules[this.#place].path);
    else if (["+", "="].includes(event.key)) this.#enlarge(this.#zoom + 1);
    else if (event.key === "-") this.#enlarge(this.#zoom - 1);
    if (to === undefined) return;
    event.preventDefault();
    this.#read(Math.min(last, Math.max(0, to)));
    this.#scrollTo(this.#place, 1);
  }

  /** Changes the width of the chart; the module that was read last stays in sight. */
  #enlarge(to) {
    this.#zoom = Math.min(ZOOMS.length - 1, Math.max(0, to));
    this.element.style.setProperty("--zoom", ZOOMS[this.#zoom]);
    this.#in.disabled = this.#zoom === ZOOMS.length - 1;
    this.#out.disabled = this.#zoom === 0;
    this.#scrollTo(this.#place, 1);
  }

  #showPart() {
    const { first, count } = this.#marked;
    this.#place = first;
    this.#enlarge(ZOOMS.findLastIndex((zoom) => zoom * count <= this.#modules.length));
    this.#scrollTo(first, count);
    this.#read(first);
  }

  /** Scrolls so that modules are in the middle of the frame. */
  #scrollTo(first, count) {
    const frame = this.element.parentElement;
    const width = this.element.offsetWidth / this.#modules.length;
    frame.scrollLeft = (first + count / 2) * width - frame.clientWidth / 2;
  }
}

const unlog = (level) => Math.sign(level) * (10 ** Math.abs(level) - 1);

function described({ type, output, gradient, dead }) {
  const said = [type];
  if (output?.mean != null) said.push(`output ${number(output.mean)} ± ${number(output.std)}, ${number(output.min)} to ${number(output.max)}`, `${percent(output.zeros)} zeros`);
  said.push(gradient ? `gradient norm ${number(gradient.norm)}` : "no gradient");
  if (dead) said.push(dead);
  return said.join(" · ");
}

function panel(title, [upper, lower], shapes) {
  const chart = makeShape("svg", { "aria-hidden": "true", preserveAspectRatio: "none" }, ...shapes);
  return make("figure", {}, make("figcaption", { textContent: title }), make("div", { class: "plot" }, chart, make("span", { class: "upper", textContent: upper }), make("span", { class: "lower", textContent: lower })));
}

const level = (value, low, high) => HEIGHT * (1 - (value - low) / (high - low || 1));

/** A line in steps, one for each module; it is interrupted where there is no value. */
function steps(name, values, low, high) {
  const parts = values.map((value, place) => (value === null ? "" : `${values[place - 1] == null ? "M" : "L"}${place} ${level(value, low, high)}H${place + 1}`));
  return makeShape("path", { class: name, d: parts.join("") });
}

function area(name, lower, upper, low, high) {
  const parts = lower.map((value, place) =>
    value === null || upper[place] === null ? "" : `M${place} ${level(value, low, high)}V${level(upper[place], low, high)}H${place + 1}V${level(value, low, high)}Z`,
  );
  return [makeShape("path", { class: name, d: parts.join("") })];
}

const across = (value, low, high, width) => makeShape("path", { class: "limit", d: `M0 ${level(value, low, high)}H${width}` });
