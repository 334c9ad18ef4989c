// The front end of MapWidget (widget.py), by anywidget's protocol: one picture with its maps, which a pointer or the arrow
// keys read. It stands alone, because a notebook loads one module.

const LEAST_SIDE = 480; // small pictures are drawn larger: their contours would be coarse
const DIM = 0.8; // opacity outside a mask
const VIEWS = { overlay: "Overlay", clear: "Overlay, low values clear", contour: "Contour", mask: "Mask" };
const STEPS = [1, 2].flatMap((step) => [[step, 0], [-step, 0], [0, step], [0, -step]]); // a contour is two pixels wide on each side
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function make(tag, { text = "", ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(text, ...children);
  return element;
}

function number(value) {
  const size = Math.abs(value);
  return value && (size >= 1e4 || size < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

/** A copy of the bytes of a trait, which starts where arrays of numbers may start. */
function bytes(model, name) {
  const { buffer, byteOffset, byteLength } = model.get(name);
  return buffer.slice(byteOffset, byteOffset + byteLength);
}

/** The two cells nearest to a place along `cells` cells from `start` to `stop`, and the share of the second. */
function neighbours(place, start, stop, cells) {
  const centre = clamp(((place - start) / (stop - start)) * cells - 0.5, 0, cells - 1);
  return [Math.floor(centre), Math.ceil(centre), centre % 1];
}

/** The map's value at a point of the upload, bilinear; beyond the map its nearest value. */
function interpolate({ values, size: [rows, columns], box: [left, top, right, bottom] }, x, y) {
  const [upper, lower, down] = neighbours(y, top, bottom, rows);
  const [first, second, across] = neighbours(x, left, right, columns);
  const inRow = (row) => values[row * columns + first] * (1 - across) + values[row * columns + second] * across;
  return inRow(upper) * (1 - down) + inRow(lower) * down;
}

/** The map's value at a point of the upload; 0 where the model saw nothing, as in `raw_heatmap`. */
function valueAt(map, x, y) {
  const [left, top, right, bottom] = map.box;
  return x < left || x >= right || y < top || y >= bottom ? 0 : interpolate(map, x, y);
}

/** The first pixel whose centre lies between two edges, and the one after the last; at least one pixel of `count`. */
function pixelRange(start, stop, count) {
  const first = clamp(Math.ceil(start - 0.5), 0, count - 1);
  return [first, clamp(Math.ceil(stop - 0.5), first + 1, count)];
}

/** The map's values at the pixels that the model saw, of the picture in `width` by `height` pixels, and where these lie. */
function resample(map, width, height) {
  const [across, down] = [width / map.shape[1], height / map.shape[0]];
  const [left, right] = pixelRange(map.box[0] * across, map.box[2] * across, width);
  const [top, bottom] = pixelRange(map.box[1] * down, map.box[3] * down, height);
  const values = new Float32Array((right - left) * (bottom - top));
  for (let place = 0, y = top; y < bottom; y += 1) {
    for (let x = left; x < right; x += 1, place += 1) values[place] = interpolate(map, (x + 0.5) / across, (y + 0.5) / down);
  }
  return { left, top, width: right - left, height: bottom - top, values, sorted: values.slice().sort() };
}

/** What lies over the part that the model saw, as a canvas. */
function layer({ low, high, pixels: { values, sorted, width, height } }, palette, model) {
  const [view, alpha] = [model.get("view"), model.get("alpha")];
  const image = new ImageData(width, height);
  const colour = (place, red, green, blue, opacity) => image.data.set([red, green, blue, 255 * opacity], 4 * place);
  const least = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * (1 - model.get("strongest") / 100)))];
  const isIn = (x, y) => x >= 0 && y >= 0 && x < width && y < height && values[y * width + x] >= least;
  const peak = Math.max(high, -low) || 1;
  values.forEach((value, place) => {
    if (view === "mask") {
      if (value < least) colour(place, 0, 0, 0, DIM);
    } else if (view === "contour") {
      const light = value >= least ? 255 : 0; // white inside and black outside, so that the line shows on any picture
      const [column, row] = [place % width, Math.floor(place / width)];
      if (STEPS.some(([x, y]) => isIn(column + x, row + y) !== (value >= least))) colour(place, light, light, light, 1);
    } else {
      const entry = 3 * Math.floor(clamp((value - low) / (high - low), 0, 1) * 255 + 0.5);
      // The power keeps the dark colours of low values from darkening the picture.
      const opacity = view === "clear" ? Math.min(1, 2 * alpha) * Math.min(1, Math.abs(value) / peak) ** 1.5 : alpha;
      colour(place, palette[entry], palette[entry + 1], palette[entry + 2], opacity);
    }
  });
  const canvas = make("canvas", { width, height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Draws a map over the picture, whose part that the model did not see is grey and dim. */
function draw(canvas, picture, map, palette, model) {
  const { left, top, width, height } = map.pixels;
  const context = canvas.getContext("2d");
  const [whole, part] = [[0, 0, canvas.width, canvas.height], [left, top, width, height]];
  context.drawImage(picture, ...whole);
  Object.assign(context, { globalCompositeOperation: "saturation" }).fillRect(...whole);
  Object.assign(context, { globalCompositeOperation: "source-over", globalAlpha: 0.7 }).fillRect(...whole);
  context.globalAlpha = 1;
  context.drawImage(picture, ...part.map((edge) => (edge * picture.width) / canvas.width), ...part);
  context.drawImage(layer(map, palette, model), left, top);
}

/** The elements of one map. */
function tile(map, size) {
  const canvas = make("canvas", { "aria-hidden": "true", ...size });
  const mark = make("span", { class: "mark", hidden: "" });
  const label = `${map.title}: value at a pixel; arrow keys move it`;
  const values = { "aria-valuemin": map.low, "aria-valuemax": map.high, "aria-valuenow": map.low, "aria-valuetext": "no pixel" };
  const reader = make("div", { class: "reader", role: "slider", tabindex: "0", "aria-label": label, ...values }, canvas, mark);
  const [colours, level, reading] = [make("div", { class: "colours" }), make("span", { class: "level", hidden: "" }), make("span")];
  const [low, high] = [number(map.low), number(map.high)];
  const bar = make("div", { class: "bar", role: "img", "aria-label": `Colours from ${low} to ${high}` }, colours, level);
  const ends = make("div", { class: "ends" }, make("span", { text: low }), reading, make("span", { text: high }));
  const caption = make("figcaption", {}, make("strong", { text: map.title }));
  if (map.proof) caption.append(make("p", { text: map.proof }));
  const figure = make("figure", { style: `max-width: ${size.width}px` }, caption, reader, bar, ends);
  return { figure, canvas, mark, reader, colours, level, reading };
}

async function render({ model, el }) {
  const picture = await createImageBitmap(new Blob([bytes(model, "_picture")]));
  const scale = Math.max(1, Math.round(LEAST_SIDE / Math.max(picture.width, picture.height)));
  const [width, height] = [picture.width * scale, picture.height * scale];
  const numbers = new Float32Array(bytes(model, "_values"));
  let start = 0;
  const maps = model.get("_maps").map((description) => {
    const end = start + description.size[0] * description.size[1];
    const map = { ...description, values: numbers.subarray(start, end) };
    start = end;
    return { ...map, pixels: resample(map, width, height) };
  });
  const tiles = maps.map((map) => tile(map, { width, height }));
  const [rows, columns] = maps[0].shape;
  const middle = [Math.floor(columns / 2), Math.floor(rows / 2)];
  const clampPixel = (x, y) => [clamp(x, 0, columns - 1), clamp(y, 0, rows - 1)];
  const send = (trait, value) => {
    model.set(trait, value);
    model.save_changes();
  };

  /** Reads a pixel in all maps, for a person at one of them; null for none. */
  let point = null;
  function read(pixel, which) {
    if (String(pixel) === String(point?.pixel) && which === point?.which) return;
    point = pixel && { pixel, which };
    const values = maps.map((map) => pixel && valueAt(map, pixel[0] + 0.5, pixel[1] + 0.5));
    tiles.forEach(({ mark, level, reading, reader }, place) => {
      const [value, { low, high }] = [values[place], maps[place]];
      mark.hidden = level.hidden = !pixel;
      reading.textContent = pixel ? `x ${pixel[0]}, y ${pixel[1]}: ${number(value)}` : "";
      reader.setAttribute("aria-valuetext", reading.textContent || "no pixel");
      if (!pixel) return;
      reader.setAttribute("aria-valuenow", value);
      level.style.left = `${clamp((value - low) / (high - low), 0, 1) * 100}%`;
      mark.style.left = `${((pixel[0] + 0.5) / columns) * 100}%`;
      mark.style.top = `${((pixel[1] + 0.5) / rows) * 100}%`;
    });
    send("pixel", pixel && { x: pixel[0], y: pixel[1], map: which, value: values[which] });
  }

  tiles.forEach(({ reader }, which) => {
    const readAtPointer = ({ clientX, clientY }) => {
      const box = reader.getBoundingClientRect();
      const [across, down] = [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
      read(clampPixel(Math.floor(across * columns), Math.floor(down * rows)), which);
    };
    for (const event of ["pointermove", "pointerdown"]) reader.addEventListener(event, readAtPointer);
    for (const event of ["pointerleave", "blur"]) reader.addEventListener(event, () => read(null));
    reader.addEventListener("focus", () => reader.matches(":focus-visible") && read(middle, which));
    reader.addEventListener("keydown", (event) => {
      if (!(event.key in ARROWS)) return;
      event.preventDefault();
      event.stopPropagation(); // notebooks go to the next cell
      const step = event.shiftKey ? 1 : Math.max(1, Math.round(columns / 40));
      const [x, y] = point?.pixel ?? middle;
      read(clampPixel(x + ARROWS[event.key][0] * step, y + ARROWS[event.key][1] * step), which);
    });
  });

  const view = make("select", { "aria-label": "View" }, ...Object.entries(VIEWS).map(([value, text]) => make("option", { value, text })));
  const [range, name, output] = [make("input", { type: "range" }), make("span"), make("output")];
  const strength = () => (["contour", "mask"].includes(model.get("view")) ? "strongest" : "alpha");
  view.addEventListener("change", () => send("view", view.value));
  range.addEventListener("input", () => send(strength(), Number(range.value)));

  function show() {
    const isAlpha = strength() === "alpha";
    view.value = model.get("view");
    name.textContent = isAlpha ? "Strength" : "Strongest";
    Object.assign(range, isAlpha ? { min: 0, max: 1, step: 0.01 } : { min: 1, max: 99, step: 1 });
    range.value = model.get(strength());
    output.textContent = `${Math.round(model.get(strength()) * (isAlpha ? 100 : 1))}%`;
    const palettes = new Uint8Array(bytes(model, "_palettes"));
    tiles.forEach(({ canvas, colours }, place) => {
      const palette = palettes.subarray(768 * place, 768 * (place + 1));
      draw(canvas, picture, maps[place], palette, model);
      const stops = Array.from({ length: 18 }, (_, stop) => `rgb(${palette.subarray(45 * stop, 45 * stop + 3).join()})`);
      colours.style.backgroundImage = `linear-gradient(to right, ${stops})`;
    });
  }
  for (const trait of ["alpha", "view", "strongest", "_palettes"]) model.on(`change:${trait}`, show);
  show();
  el.append(make("div", { class: "seewhy" }, make("div", { class: "maps" }, ...tiles.map(({ figure }) => figure)),
    make("div", { class: "controls" }, view, make("label", {}, name, range, output))));
}

export default { render };
