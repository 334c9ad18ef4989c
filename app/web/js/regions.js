// The regions of a segmenter: what lies at a pixel, and where it ends.

import { Problem } from "./api.js";
import { make } from "./dom.js";
import { decoded } from "./overlay.js";

const MOST = 1024; // cells along the longer side: outlines of more would look the same

export class Regions {
  #classes; // of each cell
  #islands; // the number of the connected region of each cell
  #scale; // cells per pixel of the upload
  #labels;

  /** Reads an answer of /segment. */
  static async read({ classes, mask, void: unseen }) {
    if (unseen > 255) throw new Problem({ detail: "The page shows the regions of at most 255 classes; choose one from the list." });
    const image = await decoded(mask);
    const scale = Math.min(1, MOST / Math.max(image.naturalWidth, image.naturalHeight));
    const [width, height] = [image.naturalWidth, image.naturalHeight].map((side) => Math.max(1, Math.round(side * scale)));
    const context = make("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, width, height);
    const { data } = context.getImageData(0, 0, width, height);
    const cells = Uint8Array.from({ length: width * height }, (_, cell) => data[cell * 4]);
    return new Regions(classes, cells, [width, height], scale);
  }

  constructor(rows, classes, size, scale) {
    this.rows = rows;
    this.size = size;
    this.#classes = classes;
    this.#scale = scale;
    this.#labels = new Map(rows.map(({ index, label }) => [index, label]));
    this.#islands = islands(classes, size);
  }

  /** The region at a pixel of the upload; null where the model sees nothing. */
  at([x, y]) {
    const cell = this.#cell(x, y);
    const label = this.#labels.get(this.#classes[cell]);
    if (label === undefined) return null;
    const island = this.#islands[cell];
    return { key: `island ${island}`, target: `pixel:${x},${y}`, label, isIn: (other) => this.#islands[other] === island };
  }

  /** The whole region of a class. */
  row({ index }) {
    return { key: `class ${index}`, isIn: (cell) => this.#classes[cell] === index };
  }

  /** The region that an answer explains, `place` and `part` of its target; null for the whole picture. */
  explained({ index }, place, part) {
    if (part === "picture") return null;
    const [, ...pixel] = place.match(/^pixel:(\d+),(\d+)$/) ?? [];
    return pixel.length ? this.at(pixel.map(Number)) : this.row({ index });
  }

  outline({ isIn }) {
    const [width, height] = this.size;
    return lines(width, height, (x, y) => x >= 0 && y >= 0 && x < width && y < height && isIn(y * width + x));
  }

  area({ isIn }) {
    const [width, height] = this.size;
    return area(width, height, (x, y) => isIn(y * width + x));
  }

  /** The borders between all regions. */
  borders() {
    const [width, height] = this.size;
    const within = (place, size) => Math.min(size - 1, Math.max(0, place));
    return lines(width, height, (x, y) => this.#classes[within(y, height) * width + within(x, width)]);
  }

  #cell(x, y) {
    const [column, row] = [x, y].map((place, axis) => Math.min(this.size[axis] - 1, Math.floor((place + 0.5) * this.#scale)));
    return row * this.size[0] + column;
  }
}

/** The numbers, from 1, of the connected regions of cells of one class, neighbours by their sides. */
function islands(classes, [width]) {
  const numbers = new Int32Array(classes.length);
  let count = 0;
  for (let start = 0; start < classes.length; start += 1) {
    if (numbers[start]) continue;
    count += 1;
    const waiting = [start];
    numbers[start] = count;
    while (waiting.length) {
      const cell = waiting.pop();
      const column = cell % width;
      for (const step of [-1, 1, -width, width]) {
        const next = cell + step;
        if (classes[next] !== classes[start] || numbers[next]) continue;
        if ((step === -1 && column === 0) || (step === 1 && column === width - 1)) continue;
        numbers[next] = count;
        waiting.push(next);
      }
    }
  }
  return numbers;
}

/** Calls `add(row, from, to)` for each run of places in a row for which `holds(row, place)`. */
function eachRun(rows, length, holds, add) {
  for (let row = 0; row < rows; row += 1) {
    let start = -1;
    for (let place = 0; place <= length; place += 1) {
      const isIn = place < length && holds(row, place);
      if (isIn && start < 0) start = place;
      if (isIn || start < 0) continue;
      add(row, start, place);
      start = -1;
    }
  }
}

/** The lines between neighbouring cells whose `kind(x, y)` differs; it is also called one cell outside the grid. */
function lines(width, height, kind) {
  const parts = [];
  eachRun(height + 1, width, (y, x) => kind(x, y - 1) !== kind(x, y), (y, from, to) => parts.push(`M${from} ${y}H${to}`));
  eachRun(width + 1, height, (x, y) => kind(x - 1, y) !== kind(x, y), (x, from, to) => parts.push(`M${x} ${from}V${to}`));
  return parts.join("");
}

/** The area of the cells for which `isIn(x, y)`. */
function area(width, height, isIn) {
  const parts = [];
  eachRun(height, width, (y, x) => isIn(x, y), (y, from, to) => parts.push(`M${from} ${y}H${to}V${y + 1}H${from}Z`));
  return parts.join("");
}
