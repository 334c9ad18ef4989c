// A cell of the grid: a map that waits for its turn, is requested, shows previews, and can be cancelled and requested again.

import { explain } from "./api.js";
import { make } from "./dom.js";
import { drawnBy } from "./doubt.js";
import { isSeen, valueAt } from "./maps.js";
import { Overlay } from "./overlay.js";
import { problemBox } from "./problems.js";
import { badge } from "./proof.js";
import { HEATMAP, isFine } from "./question.js";
import { readingOf, subjectOf } from "./scene.js";
import { state } from "./state.js";
import { duration, progress } from "./words.js";

/** The maps of a grid have units of their own: what can be compared is the share of each one’s maximum. */
const ofMaximum = (share) => `${(100 * share).toFixed(1).replace("-", "−")}% of maximum`;

export class Card {
  heatmap = null; // once it has arrived
  phase = "waiting"; // or running, done, failed or cancelled
  overlay = new Overlay();
  #asking = null;
  #facts = make("p", { class: "facts", textContent: "Waiting…" });
  #below = make("div", { class: "line" });
  #value = make("output", { class: "value" });
  #mark = make("span", { class: "mark", "aria-hidden": "true", hidden: true });
  #bar = make("progress");
  #again = make("button", { class: "link", textContent: "Run again", hidden: true });
  #opener = make("button", { class: "link" });
  #fields;
  #model;
  #picture = state.picture;
  #answer = null;
  #tell;

  /** `fields` are those of the request; `open()` makes it the question of the page, and `tell()` is called after each change. */
  constructor(fields, { open, tell }) {
    this.#fields = fields;
    this.#model = new Map(fields).get("model");
    this.#tell = tell;
    this.overlay.showPicture(this.#picture);
    this.#opener.addEventListener("click", open);
    let isTouch = false; // which reads the map
    this.overlay.element.addEventListener("pointerdown", ({ pointerType }) => (isTouch = pointerType === "touch"));
    this.overlay.element.addEventListener("click", () => isTouch || open());
    this.#again.addEventListener("click", () => {
      this.#opener.focus(); // this button disappears
      this.#again.hidden = true;
      this.#wait();
      tell();
    });
    this.overlay.element.append(this.#mark);
    this.element = make(
      "article",
      { class: "card" },
      this.overlay.element,
      make("div", { class: "line" }, make("h3", {}, this.#opener), this.#value),
      make("div", { class: "line" }, this.#facts, this.#again),
      this.#below,
    );
  }

  get name() {
    return this.#opener.textContent;
  }

  set name(name) {
    if (name === this.name) return;
    // Long names break between their parts.
    this.#opener.replaceChildren(...name.split(/(?<=[_/.])/).flatMap((part) => [part, make("wbr")]));
    this.#opener.setAttribute("aria-label", `Open ${name}`);
    this.#again.setAttribute("aria-label", `Run ${name} again`);
    this.#bar.setAttribute("aria-label", `Progress of ${name}`);
    if (this.phase === "done") this.#describe();
  }

  get isUnderway() {
    return this.phase === "running" || this.phase === "waiting";
  }

  /** Lets the map wait again, because its view was left. */
  stop() {
    if (this.phase !== "running") return;
    this.#end();
    this.#wait();
  }

  /** Cancels the map and shows that; returns whether it was under way. */
  cancel() {
    if (!this.isUnderway) return false;
    this.#end();
    this.phase = "cancelled";
    this.#facts.textContent = "Cancelled.";
    this.#again.hidden = false;
    return true;
  }

  focus() {
    this.#again.focus();
  }

  /** Marks a pixel of an upload of this shape and shows the map's value there, or neither; returns the value as text. */
  read(pixel, [height, width] = []) {
    this.#mark.hidden = !pixel || this.overlay.isSheet;
    if (pixel) {
      this.#mark.style.left = `${((pixel[0] + 0.5) / width) * 100}%`;
      this.#mark.style.top = `${((pixel[1] + 0.5) / height) * 100}%`;
    }
    const value = () => (isSeen(this.heatmap, ...pixel) ? ofMaximum(valueAt(this.heatmap, ...pixel)) : "not seen");
    this.#value.textContent = pixel && this.heatmap ? value() : "";
    return this.#value.textContent;
  }

  #wait() {
    this.phase = "waiting";
    this.#facts.textContent = "Waiting…";
  }

  #end() {
    this.#asking?.abort();
    this.#asking = null;
    this.#bar.remove();
    this.overlay.dropPreview();
  }

  async run() {
    const mine = new AbortController();
    this.#asking = mine;
    this.phase = "running";
    this.#facts.textContent = "Working…";
    this.#bar.removeAttribute("value");
    this.#below.replaceChildren(this.#bar);
    const onProgress = (event) => {
      if (this.#asking !== mine) return;
      if (event.total) {
        Object.assign(this.#bar, { max: event.total, value: event.done });
        this.#facts.textContent = progress(event);
      }
      if (event.preview) this.overlay.showPreview(event.preview).catch(() => {}); // the next one may be whole
    };
    try {
      const answer = await explain(this.#picture.file, [...this.#fields, ...HEATMAP], { signal: mine.signal, onProgress });
      if (this.#asking === mine) await this.#show(answer);
    } catch (error) {
      if (this.#asking !== mine) return;
      this.phase = "failed";
      this.overlay.dropPreview();
      this.#facts.replaceWith(problemBox(error));
    } finally {
      if (this.#asking === mine) {
        this.#asking = null;
        this.#bar.remove();
      }
      this.#tell();
    }
  }

  async #show(answer) {
    await this.overlay.showMap(answer.explanations[0], isFine(answer.method.name));
    this.phase = "done";
    this.heatmap = answer.explanations[0].heatmap;
    this.#answer = answer;
    this.#describe();
  }

  /** Says what the name does not: class, model and duration, and how far the map can be relied on. */
  #describe() {
    const { explanations: [explanation], method, model: { head }, timings_ms: timings } = this.#answer;
    const { target, against, diagnostics, proof } = explanation;
    this.overlay.describe(`Heatmap of ${method.name} for ${subjectOf(target)}, by ${this.#model}`);
    const rather = against ? ` rather than ${against.label}` : "";
    const isBlank = diagnostics.some(({ code }) => code === "blank-map");
    const kind = `${drawnBy(method, explanation) === method.name ? "" : ", drawn by Grad-CAM"}${isBlank ? ", blank" : ""}`;
    const said = readingOf(target, new Map(this.#fields).get("target") ?? null, head);
    const model = this.name.endsWith(` ${this.#model}`) ? "" : `, ${this.#model}`;
    const facts = `${subjectOf(target)} ${said}${rather}${model}, ${duration(timings.explain)}${kind}`;
    this.#facts.textContent = facts;
    this.#below.replaceChildren(...(proof ? [badge(proof)] : []));
  }
}
