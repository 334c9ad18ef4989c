// Strokes of a brush: as text that fits into a link, and drawn. A stroke is {width, points}: its points are shares of the
// picture's sides, its width is a share of the longer one.

import { canvas } from "./shrink.js";

const STEPS = 36 ** 2 - 1; // of a side: two digits to base 36
const STROKE = /^[\da-z]{2}([\da-z]{4})+$/;
const SLACK = 0.05; // of its width, by which a stroke may lie beside where it was painted
const FINE = 8; // pixels along a cell, to measure how much of it is painted

const digits = (share) => Math.round(Math.min(1, Math.max(0, share)) * STEPS).toString(36).padStart(2, "0");

export const textOf = (strokes) => strokes.map(({ width, points }) => [width, ...points.flat()].map(digits).join("")).join(".");

/** The strokes of a text; null if it has none. */
export function strokesOf(text) {
  const strokes = text.split(".");
  if (!strokes.every((stroke) => STROKE.test(stroke))) return null;
  return strokes.map((stroke) => {
    const [width, ...places] = stroke.match(/../g).map((pair) => parseInt(pair, 36) / STEPS);
    const points = places.flatMap((x, place) => (place % 2 ? [] : [[x, places[place + 1]]]));
    return { width: Math.max(width, 1 / STEPS), points };
  });
}

/** A stroke with as few of its points as show where it was painted, by the algorithm of Ramer, Douglas and Peucker. */
export function simplified({ width, points }, shape) {
  const [height, wide] = shape.map((side) => side / Math.max(...shape));
  const least = (from, to) => {
    const [[x, y], [u, v]] = [points[from], points[to]];
    const [across, down] = [(u - x) * wide, (v - y) * height];
    const length = Math.hypot(across, down);
    const beside = ([s, t]) => {
      const [right, below] = [(s - x) * wide, (t - y) * height];
      const along = length ? Math.min(1, Math.max(0, (right * across + below * down) / length ** 2)) : 0;
      return Math.hypot(right - along * across, below - along * down);
    };
    const far = points.slice(from + 1, to).map(beside);
    const most = Math.max(0, ...far);
    if (most <= SLACK * width) return [points[from]];
    const middle = from + 1 + far.indexOf(most);
    return [...least(from, middle), ...least(middle, to)];
  };
  return { width, points: [...least(0, points.length - 1), points.at(-1)] };
}

/** The line of a stroke, in pixels of a picture; a bit longer, as a canvas draws no dot for one without a length. */
const line = ({ points }, [height, width]) => `M${points.map(([x, y]) => `${x * width} ${y * height}`).join("L")}h.1`;

/** What draws a stroke: its line and its width, in pixels of a picture. */
export const drawn = (stroke, shape) => ({ line: line(stroke, shape), width: stroke.width * Math.max(...shape) });

/** Paints strokes on a canvas, where a picture has this height and width. */
export function paint(context, strokes, shape) {
  Object.assign(context, { lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    const { line: path, width } = drawn(stroke, shape);
    context.lineWidth = width;
    context.stroke(new Path2D(path));
  }
}

/** The box around strokes, in whole pixels of a picture. */
export function around(strokes, [height, width]) {
  const edges = (side, axis) => {
    const ends = strokes.flatMap((stroke) => {
      const reach = (stroke.width * Math.max(height, width)) / 2;
      return stroke.points.flatMap((point) => [point[axis] * side - reach, point[axis] * side + reach]);
    });
    const [low, high] = [Math.floor(Math.min(...ends)), Math.ceil(Math.max(...ends))];
    return [Math.min(side - 1, Math.max(0, low)), Math.max(1, Math.min(side, high))];
  };
  const [[left, right], [top, bottom]] = [edges(width, 0), edges(height, 1)];
  return [left, top, right, bottom];
}

/** Strokes elsewhere, by pixels of a picture. */
export function moved(strokes, [across, down], [height, width]) {
  return strokes.map((stroke) => ({ ...stroke, points: stroke.points.map(([x, y]) => [x + across / width, y + down / height]) }));
}

/** The share of each cell that is painted, of a grid over the box of a picture of this shape. */
export function painted(strokes, shape, [left, top, right, bottom], [rows, columns]) {
  const [{ width, height }, context] = canvas(columns * FINE, rows * FINE);
  context.scale(width / (right - left), height / (bottom - top));
  context.translate(-left, -top);
  paint(context, strokes, shape);
  const { data } = context.getImageData(0, 0, width, height);
  const shares = new Float64Array(rows * columns);
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    const [row, column] = [Math.floor(pixel / width / FINE), Math.floor((pixel % width) / FINE)];
    shares[row * columns + column] += data[4 * pixel + 3] / 255 / FINE ** 2;
  }
  return shares;
}
