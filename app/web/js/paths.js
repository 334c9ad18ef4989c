// Outlines and areas of cells in a grid, as paths of SVG in units of cells.

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
export function lines(width, height, kind) {
  const parts = [];
  eachRun(height + 1, width, (y, x) => kind(x, y - 1) !== kind(x, y), (y, from, to) => parts.push(`M${from} ${y}H${to}`));
  eachRun(width + 1, height, (x, y) => kind(x - 1, y) !== kind(x, y), (x, from, to) => parts.push(`M${x} ${from}V${to}`));
  return parts.join("");
}

/** The area of the cells for which `isIn(x, y)`. */
export function area(width, height, isIn) {
  const parts = [];
  eachRun(height, width, (y, x) => isIn(x, y), (y, from, to) => parts.push(`M${from} ${y}H${to}V${y + 1}H${from}Z`));
  return parts.join("");
}
