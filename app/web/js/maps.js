// Values of maps: the value at a pixel, by the service's resizing, and the agreement of two maps.

/** The first and the last pixel, exclusive, whose centres lie between `start` and `stop`; at least one. */
function centres(start, stop, size) {
  const first = Math.min(Math.max(Math.ceil(start - 0.5), 0), size - 1);
  return [first, Math.min(Math.max(Math.ceil(stop - 0.5), first + 1), size)];
}

/** Left, top, right, bottom in whole pixels of the part that the model saw, in a picture of this size. */
export function seen(heatmap, width, height) {
  const [full, wide] = heatmap.shape;
  const [left, top, right, bottom] = heatmap.box;
  const [first, last] = centres((left * width) / wide, (right * width) / wide, width);
  const [upper, lower] = centres((top * height) / full, (bottom * height) / full, height);
  return [first, upper, last, lower];
}

/** Cells of a padded row of `cells`, with their weights, for the pixel `place` of `first` to `last`. */
function weights(place, [first, last], [start, stop], cells) {
  const per = cells / (stop - start);
  const from = Math.min(Math.max(1 + (first - start) * per, 0), cells + 2);
  const to = Math.min(Math.max(1 + (last - start) * per, 0), cells + 2);
  const step = (to - from) / (last - first);
  const reach = Math.max(step, 1);
  const centre = from + (place - first + 0.5) * step;
  const weighted = [];
  const low = Math.max(0, Math.trunc(centre - reach + 0.5));
  const high = Math.min(cells + 2, Math.trunc(centre + reach + 0.5));
  for (let cell = low; cell < high; cell += 1) {
    const weight = 1 - Math.abs((cell - centre + 0.5) / reach);
    // The end cells of the padded row repeat their neighbours.
    if (weight > 0) weighted.push([Math.min(Math.max(cell - 1, 0), cells - 1), weight]);
  }
  const sum = weighted.reduce((total, [, weight]) => total + weight, 0);
  return weighted.map(([cell, weight]) => [cell, weight / sum]);
}

/** Whether the model saw a pixel of the upload; elsewhere, a map says nothing. */
export function isSeen(heatmap, x, y) {
  const [height, width] = heatmap.shape;
  const [left, top, right, bottom] = seen(heatmap, width, height);
  return x >= left && x < right && y >= top && y < bottom;
}

/** The heatmap's value at a pixel of the upload, divided by the largest magnitude, as in an npz answer. */
export function valueAt(heatmap, x, y) {
  if (!isSeen(heatmap, x, y)) return 0;
  const [height, width] = heatmap.shape;
  const [left, top, right, bottom] = seen(heatmap, width, height);
  const columns = weights(x, [left, right], [heatmap.box[0], heatmap.box[2]], heatmap.map[0].length);
  const rows = weights(y, [top, bottom], [heatmap.box[1], heatmap.box[3]], heatmap.map.length);
  let value = 0;
  for (const [row, down] of rows) for (const [column, across] of columns) value += heatmap.map[row][column] * down * across;
  const largest = Math.max(heatmap.max, -heatmap.min) || 1;
  return Math.min(1, Math.max(heatmap.signed ? -1 : 0, value / largest));
}

/** Whether two maps of the same part of the picture are the same but for their scale; a map of zeros is like no other. */
export function areSame(first, second) {
  const [one, other] = [first, second].map(({ map }) => map.flat());
  const [most, least] = [one, other].map((values) => values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0));
  if (String([first.box, first.map.length]) !== String([second.box, second.map.length]) || one.length !== other.length || !most || !least) return false;
  return one.every((value, place) => Math.abs(value / most - other[place] / least) <= 1e-3); // rounding
}

const WHOLE = [0, 0, 1, 1];

/** Resizes a part of rows bilinearly to a finer grid; `part` is left, top, right, bottom as shares. */
export function resized(rows, height, width, [left, top, right, bottom] = WHOLE) {
  if (rows.length === height && rows[0].length === width && String([left, top, right, bottom]) === String(WHOLE)) return rows.flat();
  const places = (size, cells, from, to) =>
    Array.from({ length: size }, (_, place) => {
      const centre = Math.max(0, (from + ((place + 0.5) * (to - from)) / size) * cells - 0.5);
      const low = Math.floor(centre);
      return [low, Math.min(low + 1, cells - 1), centre - low];
    });
  const across = places(width, rows[0].length, left, right);
  return places(height, rows.length, top, bottom).flatMap(([upper, lower, down]) =>
    across.map(([left, right, share]) => {
      const above = rows[upper][left] * (1 - share) + rows[upper][right] * share;
      const below = rows[lower][left] * (1 - share) + rows[lower][right] * share;
      return above * (1 - down) + below * down;
    }),
  );
}

/** Ranks, from 1; equal values share their mean rank. */
function ranks(values) {
  const order = Array.from(values.keys()).sort((first, second) => values[first] - values[second]);
  const result = new Float64Array(values.length);
  for (let start = 0, stop = 0; start < order.length; start = stop) {
    while (stop < order.length && values[order[stop]] === values[order[start]]) stop += 1;
    for (let place = start; place < stop; place += 1) result[order[place]] = (start + stop + 1) / 2;
  }
  return result;
}

const ranked = new WeakMap(); // of heatmaps, the ranks by their grid and part: sorting takes longest

/** Ranks of a heatmap's values over a part of the upload, on a grid. */
function ranksOf(heatmap, [height, width], [left, top, right, bottom]) {
  const [start, upper, stop, lower] = heatmap.box;
  const shares = [(left - start) / (stop - start), (top - upper) / (lower - upper), (right - start) / (stop - start), (bottom - upper) / (lower - upper)];
  const key = String([height, width, ...shares]);
  if (!ranked.has(heatmap)) ranked.set(heatmap, new Map());
  const byPart = ranked.get(heatmap);
  if (!byPart.has(key)) byPart.set(key, ranks(resized(heatmap.map, height, width, shares)));
  return byPart.get(key);
}

/**
 * Spearman's rank correlation of two heatmaps, on the finer of their grids, over what both models see; null if one is
 * constant or they see nothing in common.
 */
export function rankCorrelation(first, second) {
  const constant = ({ map }) => map.every((row) => row.every((value) => value === map[0][0]));
  if (constant(first) || constant(second)) return null; // resizing would round it to nearly constant
  const part = first.box.map((edge, side) => (side < 2 ? Math.max(edge, second.box[side]) : Math.min(edge, second.box[side])));
  if (part[0] >= part[2] || part[1] >= part[3]) return null;
  const grid = ({ map }) => [map.length, map[0].length];
  const cells = ([height, width]) => height * width;
  const finest = cells(grid(first)) >= cells(grid(second)) ? grid(first) : grid(second);
  const [one, other] = [first, second].map((heatmap) => ranksOf(heatmap, finest, part));
  const mean = (one.length + 1) / 2;
  let product = 0;
  let squares = 0;
  let others = 0;
  for (let place = 0; place < one.length; place += 1) {
    product += (one[place] - mean) * (other[place] - mean);
    squares += (one[place] - mean) ** 2;
    others += (other[place] - mean) ** 2;
  }
  return squares && others ? product / Math.sqrt(squares * others) : null;
}
