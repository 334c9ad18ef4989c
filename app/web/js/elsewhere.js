// Where a channel fires in the other pictures of the strip, the strongest first.

import { channelsOf } from "./activations.js";
import { AT_ONCE } from "./api.js";
import { make } from "./dom.js";
import { drawWhole, strongest } from "./featuremap.js";
import { alike, openPicture } from "./gallery.js";
import { count, number } from "./words.js";

const MOST = 24; // pictures that are asked about at a time
const KEPT = 96; // pictures whose maps are kept: the next channel is looked for in them
const LISTED = 6;
const SIDE = 144; // pixels of the longer side of a small copy

export class Elsewhere {
  #layer;
  #close;
  #channel = null;
  #pictures = alike().reverse(); // the newest first
  #answers = new Map(); // of pictures, {maps, size}
  #asking = new AbortController();
  #seek = make("button", { class: "quiet", on: { click: () => this.#start() } });
  #note = make("p", { class: "help", role: "status" });
  #list = make("ul", { class: "elsewhere", "aria-label": "Strongest places in other pictures" });
  element = make("div");

  /** `close()` closes the dialog, before another picture is opened. */
  constructor(layer, close) {
    [this.#layer, this.#close] = [layer, close];
    const all = this.#pictures.length;
    const others = all > MOST ? `the ${MOST} newest of ${count(all)} other pictures` : `${all} other pictures`;
    this.#seek.textContent = `Find it in ${all === 1 ? "the other picture" : others}`;
    if (all) this.element.append(this.#note, this.#list, this.#seek);
  }

  show(channel) {
    this.#channel = channel;
    if (this.#answers.size) this.#draw();
  }

  stop() {
    this.#asking.abort();
  }

  async #start() {
    this.#seek.hidden = true;
    this.#note.tabIndex = -1;
    this.#note.focus(); // the button has disappeared
    this.#tell();
    const waiting = this.#pictures.slice(this.#answers.size, this.#answers.size + MOST);
    const work = async () => {
      for (let picture = waiting.shift(); picture; picture = waiting.shift()) await this.#ask(picture);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    const left = this.#pictures.length - this.#answers.size;
    this.#seek.textContent = `Search ${count(Math.min(MOST, left))} more`;
    this.#seek.hidden = !left || this.#answers.size >= KEPT;
    for (const part of [this.#list, this.#seek, this.#list.firstElementChild]) part?.scrollIntoView({ block: "nearest" });
  }

  async #ask(picture) {
    const { signal } = this.#asking;
    if (signal.aborted) return;
    try {
      await picture.ready;
      this.#answers.set(picture, await channelsOf(picture.file, this.#layer, signal));
    } catch (error) {
      if (signal.aborted) return;
      this.#answers.set(picture, null);
    }
    if (!signal.aborted) this.#draw();
  }

  #tell() {
    const failed = [...this.#answers.values()].filter((answer) => !answer).length;
    const [done, all] = [this.#answers.size, this.#pictures.length];
    const said = all === 1 ? `${done ? "Searched" : "Searching"} the other picture.` : `Searched ${count(done)} of ${count(all)} other pictures. The strongest responses come first.`;
    this.#note.textContent = failed ? `${said} ${failed} could not be read.` : said;
  }

  #draw() {
    const rows = [...this.#answers].filter(([, answer]) => answer).map(([picture, { maps, size }]) => {
      const map = maps[this.#channel];
      return { picture, map, size, places: strongest(map, size, picture.result.seen).slice(0, 1) };
    });
    const value = ({ places: [place] }) => Math.abs(place?.value ?? 0);
    rows.sort((one, other) => value(other) - value(one));
    this.#list.replaceChildren(...rows.slice(0, LISTED).map((row) => make("li", {}, this.#tile(row))));
    this.#tell();
  }

  #tile({ picture, map, size, places }) {
    const { seen } = picture.result;
    const scale = SIDE / Math.max(...seen.shape);
    const [height, width] = seen.shape.map((side) => Math.max(1, Math.round(side * scale)));
    const canvas = make("canvas", { width, height, "aria-hidden": "true" });
    if (picture.plain) drawWhole(canvas, map, size, places, { url: picture.plain, seen }).catch(() => {}); // it was removed
    const path = picture.path.split(/(?<=\/)/).flatMap((part) => [part, make("wbr")]);
    const value = number(places[0]?.value ?? 0);
    const text = make("span", {}, make("strong", { textContent: value }), " ", ...path);
    const open = () => {
      this.#close();
      openPicture(picture);
    };
    return make("button", { title: `Open ${picture.path}`, on: { click: open } }, canvas, text);
  }
}
