// One of two compared pictures: its map, and its patches, which a pointer or the arrow keys choose.

import { arrow, make, makeShape } from "./dom.js";
import { Overlay } from "./overlay.js";
import { showProof } from "./proof.js";

export class Patches {
  overlay = new Overlay();
  #heatmap = null;
  #cell = 0; // that the keyboard chose last
  #proof = make("p", { class: "proof", hidden: true });
  #shapes = makeShape("svg", { class: "places", "aria-hidden": "true", preserveAspectRatio: "none" });
  #reader = make("div", { class: "reader", role: "slider", tabIndex: 0, "aria-valuemin": -1, "aria-valuemax": 1, "aria-valuenow": 0 });

  /** `choose(cell)` is called with the number of a cell, or with null; it returns what to say of it. */
  constructor(title, choose) {
    this.#reader.setAttribute("aria-label", `Patches of ${title.toLowerCase()}; arrow keys move`);
    const { element } = this.overlay;
    element.append(this.#shapes, this.#reader);
    element.addEventListener("pointermove", (event) => this.#heatmap && choose(this.#under(event)));
    element.addEventListener("pointerdown", (event) => this.#heatmap && choose(this.#under(event)));
    element.addEventListener("pointerleave", () => choose(null));
    const read = () => {
      const said = choose(this.#cell);
      this.#reader.setAttribute("aria-valuetext", said);
      this.#reader.setAttribute("aria-valuenow", this.values[this.#cell]);
    };
    this.#reader.addEventListener("focus", () => this.#heatmap && read());
    this.#reader.addEventListener("blur", () => choose(null));
    this.#reader.addEventListener("keydown", (event) => {
      const step = arrow(event);
      if (!step || !this.#heatmap) return;
      event.preventDefault();
      this.#move(step);
      read();
    });
    this.element = make("article", { class: "alike" }, element, this.#proof, make("h3", { textContent: title }));
  }

  /** What each cell adds to the likeness, row after row. */
  get values() {
    return this.#heatmap.map.flat();
  }

  showPicture(picture) {
    this.#heatmap = null;
    this.overlay.showPicture(picture);
    showProof(this.#proof, null);
    this.mark([]);
  }

  /** Shows a map in its colours; `colour(heatmap)` returns a canvas of its cells. */
  async showMap(heatmap, colour) {
    this.#heatmap = heatmap;
    this.#cell = this.values.indexOf(Math.max(...this.values));
    const [height, width] = heatmap.shape;
    this.#shapes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const scale = Math.min(1, 1024 / Math.max(width, height));
    const canvas = make("canvas", { width: Math.max(1, width * scale), height: Math.max(1, height * scale) });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    const [left, top, right, bottom] = heatmap.box.map((edge) => edge * scale);
    context.fillStyle = "rgb(64 64 64 / .7)"; // what the model did not see
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.clearRect(left, top, right - left, bottom - top);
    context.drawImage(colour(heatmap), left, top, right - left, bottom - top);
    await this.overlay.showMap({ overlay: canvas.toDataURL(), heatmap, regions: [] });
    showProof(this.#proof, heatmap.proof);
  }

  /** The number of the cell in the middle of a box in pixels of the picture. */
  cellOf([left, top, right, bottom]) {
    return this.#at((left + right) / 2, (top + bottom) / 2);
  }

  /** Outlines patches, boxes in pixels of the picture, the first one most. */
  mark(boxes) {
    this.#shapes.replaceChildren(
      ...boxes.map(([left, top, right, bottom], rank) =>
        makeShape("path", { class: rank ? "borders" : "chosen", d: `M${left} ${top}H${right}V${bottom}H${left}Z` }),
      ),
    );
  }

  /** The box of a cell, in pixels of the picture. */
  boxOf(cell) {
    const [left, top, across, down, columns] = this.#grid();
    const [column, row] = [cell % columns, Math.floor(cell / columns)];
    return [left + column * across, top + row * down, left + (column + 1) * across, top + (row + 1) * down];
  }

  #grid() {
    const [left, top, right, bottom] = this.#heatmap.box;
    const { map } = this.#heatmap;
    return [left, top, (right - left) / map[0].length, (bottom - top) / map.length, map[0].length, map.length];
  }

  #at(x, y) {
    const [left, top, across, down, columns, rows] = this.#grid();
    const [column, row] = [Math.floor((x - left) / across), Math.floor((y - top) / down)];
    return column < 0 || row < 0 || column >= columns || row >= rows ? null : row * columns + column;
  }

  #under(event) {
    const [x, y] = this.overlay.pixel(event, this.#heatmap.shape);
    return this.#at(x + 0.5, y + 0.5);
  }

  #move([right, down]) {
    const [, , , , columns, rows] = this.#grid();
    const column = Math.min(columns - 1, Math.max(0, (this.#cell % columns) + right));
    const row = Math.min(rows - 1, Math.max(0, Math.floor(this.#cell / columns) + down));
    this.#cell = row * columns + column;
  }
}
