// A heatmap over its picture: the picture is below, and the map is drawn on a canvas with the chosen opacity.

import { arrow, make } from "./dom.js";
import { drawLook, drawOutline } from "./looks.js";
import { seen } from "./maps.js";
import { state } from "./state.js";

export class Overlay {
  #canvas = make("canvas", { class: "map", "aria-hidden": "true" });
  #picture = make("img", { class: "below", alt: "", draggable: false });
  #map = null; // {image, heatmap, drawn, isFine, isSheet}
  #preview = null; // an image
  #outlined = null; // share of the map whose highest part is outlined
  #turn = 0; // an image decoded after a newer one is not shown
  #previews = 0;
  #showing = null;

  constructor(element = make("div")) {
    this.element = element;
    element.classList.add("overlay");
    element.prepend(this.#picture, this.#canvas);
  }

  /** Shows the picture without a heatmap. */
  showPicture({ url, width, height }, alt = "") {
    this.#turn += 1;
    this.#map = null;
    this.#preview = null;
    this.#picture.src = url;
    this.#picture.alt = alt;
    this.#shape(width, height);
    this.draw();
  }

  /** Outlines the highest part of the map, a share of it, until the next map; null for none. */
  outline(share) {
    this.#outlined = share;
    this.draw();
  }

  describe(alt) {
    this.#picture.alt = alt;
  }

  /** Shows the map of an explanation; one with regions is a sheet of its own instead of an overlay. */
  showMap({ overlay, heatmap, drawn, regions }, isFine = false) {
    this.#showing = this.#show(overlay, { heatmap, drawn, isFine, isSheet: regions.length > 0 });
    return this.#showing;
  }

  async #show(source, map) {
    this.#turn += 1;
    const mine = this.#turn;
    const image = await decoded(source);
    if (mine !== this.#turn) return;
    this.#map = { image, ...map };
    this.#preview = null;
    this.#outlined = null;
    this.draw();
  }

  /** Shows a preview of a map until the next preview or map. */
  async showPreview(source) {
    this.#previews += 1;
    const [turn, mine] = [this.#turn, this.#previews];
    const image = await decoded(source);
    if (turn !== this.#turn || mine !== this.#previews) return;
    this.#preview = image;
    this.draw();
  }

  dropPreview() {
    this.#previews += 1;
    this.#preview = null;
    this.draw();
  }

  get isSheet() {
    return this.#map?.isSheet ?? false;
  }

  get isPreview() {
    return Boolean(this.#preview);
  }

  /** Whether a map over the picture is shown, with a value for each pixel. */
  get isReadable() {
    return Boolean(this.#map) && !this.isSheet && !this.isPreview;
  }

  draw() {
    const shown = this.#preview ? { image: this.#preview, before: this.#map } : this.#map;
    this.#canvas.hidden = !shown;
    if (!shown) return;
    paint(this.#canvas, { ...shown, outlined: this.#outlined });
    this.#shape(this.#canvas.width, this.#canvas.height);
  }

  #shape(width, height) {
    this.element.style.aspectRatio = `${width} / ${height}`;
    (this.element.closest("figure") ?? this.element).style.setProperty("--ratio", width / height); // its frame has the same
  }

  /** Shows the map only to the right of `share` of the width. */
  wipe(share) {
    this.#canvas.style.clipPath = share ? `inset(0 0 0 ${share * 100}%)` : "";
  }

  /** The pixel under a pointer, of an upload of this height and width. */
  pixel(event, [height, width] = this.#map.heatmap.shape) {
    const box = this.element.getBoundingClientRect();
    const place = (at, start, size, pixels) =>
      Math.min(pixels - 1, Math.max(0, Math.floor(((at - start) / size) * pixels)));
    return [place(event.clientX, box.left, box.width, width), place(event.clientY, box.top, box.height, height)];
  }

  /** Picture and map in one image, as the service draws them: without wipe or preview, over white. */
  async blob() {
    await this.#showing;
    const map = make("canvas");
    paint(map, this.#map);
    const { width, height } = map;
    const canvas = make("canvas", { width, height });
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height);
    context.imageSmoothingQuality = "high";
    if (!this.isSheet) context.drawImage(this.#picture, 0, 0, width, height);
    context.drawImage(map, 0, 0);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
}

/** The pixel that an arrow key leads to, with Shift the next one; null for other keys. `shape` is that of the upload. */
export function pixelBeside([x, y], event, [height, width]) {
  const direction = arrow(event);
  if (!direction) return null;
  event.preventDefault();
  const step = event.shiftKey ? 1 : Math.max(1, Math.round(width / 40));
  const within = (value, size) => Math.min(size - 1, Math.max(0, value));
  return [within(x + direction[0] * step, width), within(y + direction[1] * step, height)];
}

export async function decoded(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

/** Paints a map with the chosen opacity; `heatmap`, which previews do not have, gives its position. */
function paint(canvas, { image, before = null, heatmap = null, drawn = null, isFine = false, isSheet = false, outlined = null }) {
  const { naturalWidth: width, naturalHeight: height } = image;
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  if (heatmap) {
    // The part that the model did not see is grey and dim whatever the opacity.
    context.drawImage(image, 0, 0);
    if (isSheet) return;
    const [left, top, right, bottom] = seen(heatmap, width, height);
    context.clearRect(left, top, right - left, bottom - top);
    context.beginPath();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    const place = [left, top, right - left, bottom - top];
    drawLook(context, image, heatmap, drawn, place, isFine);
    if (outlined) drawOutline(context, heatmap, outlined, place);
    return;
  }
  context.globalAlpha = state.alpha;
  context.drawImage(image, 0, 0);
  if (before && !before.isSheet) paintUnseen(context, before, width, height);
}

/** Paints what the model does not see as the map before did, so that it does not change under a preview. */
function paintUnseen(context, { image, heatmap }, width, height) {
  const [left, top, right, bottom] = seen(heatmap, width, height);
  const around = new Path2D();
  around.rect(0, 0, width, height);
  around.rect(left, top, right - left, bottom - top);
  context.clip(around, "evenodd");
  context.clearRect(0, 0, width, height);
  context.globalAlpha = 1;
  context.drawImage(image, 0, 0, width, height);
}
