// The boxes of a detector: which one is at a pixel, and where it lies. Boxes are left, top, right, bottom in pixels.

const NAMED = 8; // boxes whose names are written into the picture; more would hide it

export class Boxes {
  /** Reads an answer of /detect about an upload of this height and width. */
  static read({ boxes }, [height, width]) {
    return new Boxes(boxes, [width, height]);
  }

  constructor(boxes, size) {
    this.rows = boxes.map(({ index, score, ...row }) => ({ ...row, number: index, probability: score }));
    this.size = size;
  }

  /** The smallest box at a pixel, or null. */
  at([x, y]) {
    const around = this.rows.filter(({ box: [left, top, right, bottom] }) => x + 1 > left && x < right && y + 1 > top && y < bottom);
    const surface = ({ box: [left, top, right, bottom] }) => (right - left) * (bottom - top);
    around.sort((first, second) => surface(first) - surface(second));
    return around.length ? this.row(around[0]) : null;
  }

  row({ number, box, label }) {
    return { key: `box ${number}`, target: `box:${number}`, label, box };
  }

  /** The box that an answer explains. */
  explained({ box }) {
    return { box };
  }

  outline({ box }) {
    const [left, top, right, bottom] = box.map((edge) => Number(edge.toFixed(2)));
    return `M${left} ${top}H${right}V${bottom}H${left}Z`;
  }

  area(place) {
    return this.outline(place);
  }

  borders() {
    return this.rows.map((row) => this.outline(row)).join("");
  }

  /** What is written into the picture, the surest box over the others, and where, as shares of the picture's sides. */
  names() {
    const [width, height] = this.size;
    const names = this.rows.slice(0, NAMED).map(({ number, label, box: [left, top] }) => ({ key: number, label, left: left / width, top: top / height }));
    return names.reverse();
  }
}
