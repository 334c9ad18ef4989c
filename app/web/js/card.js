// One of the compared maps: it is requested, shows previews, and can be cancelled and requested again.

import { explain } from "./api.js";
import { make } from "./dom.js";
import { Overlay } from "./overlay.js";
import { problemBox } from "./problems.js";
import { badge } from "./proof.js";
import { HEATMAP } from "./question.js";
import { state } from "./state.js";
import { duration, progress, reading } from "./words.js";

export class Card {
  heatmap = null; // once it has arrived
  isToBeAsked = false; // it failed, or was stopped when its view was left
  value = make("output", { class: "value" });
  overlay = new Overlay();
  #asking = null;
  #facts = make("p", { class: "facts" });
  #bar = make("progress");
  #again = make("button", { class: "link", textContent: "Run again", hidden: true });
  #fields;
  #picture = state.picture;
  #tell;

  /** `fields` are those of the request, `open()` shows the map alone, and `tell()` is called after each change. */
  constructor(name, fields, { open, tell }) {
    this.name = name;
    this.#fields = fields;
    this.#tell = tell;
    this.overlay.showPicture(this.#picture);
    this.#bar.setAttribute("aria-label", `Progress of ${name}`);
    this.#again.setAttribute("aria-label", `Run ${name} again`);
    const opener = make("button", { class: "quiet", textContent: "Open", "aria-label": `Open ${name}`, on: { click: open } });
    this.#again.addEventListener("click", () => {
      opener.focus(); // this button disappears
      this.#run();
      tell();
    });
    this.element = make(
      "article",
      { class: "card" },
      this.overlay.element,
      make("header", {}, make("h3", { textContent: name }), opener),
      make("div", { class: "line" }, this.#facts, this.#again, this.value),
    );
    this.#run();
  }

  get isRunning() {
    return this.#asking !== null;
  }

  /** Stops the request, because the view was left. */
  stop() {
    if (!this.isRunning) return;
    this.#end();
    this.isToBeAsked = true;
  }

  /** Cancels the request and shows that; returns whether there was one. */
  cancel() {
    if (!this.isRunning) return false;
    this.#end();
    this.#facts.textContent = "Cancelled.";
    this.#again.hidden = false;
    return true;
  }

  focus() {
    this.#again.focus();
  }

  #end() {
    this.#asking.abort();
    this.#asking = null;
    this.#bar.remove();
    this.overlay.dropPreview();
  }

  async #run() {
    const mine = new AbortController();
    this.#asking = mine;
    this.#again.hidden = true;
    this.#facts.textContent = "Working…";
    this.#bar.removeAttribute("value");
    this.element.append(this.#bar);
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
      this.isToBeAsked = true;
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

  async #show({ explanations: [first], timings_ms: timings }) {
    await this.overlay.showMap(first);
    this.heatmap = first.heatmap;
    this.overlay.describe(`Heatmap of ${this.name} for ${first.target.label}`);
    const rather = first.against ? ` rather than ${first.against.label}` : "";
    const blank = first.diagnostics.some((diagnostic) => diagnostic.code === "blank-map") ? ", blank" : "";
    const facts = `${first.target.label}${rather} ${reading(first.target)} · ${duration(timings.explain)}${blank} `;
    this.#facts.replaceChildren(facts, ...(first.proof ? [badge(first.proof)] : []));
  }
}
