// A heatmap over its picture: the picture lies below, and the map is drawn on a canvas in the strength that is asked for.

import { make } from "./dom.js";
import { seen } from "./maps.js";
import { state } from "./state.js";

export class Overlay {
  #canvas = make("canvas", { class: "map", "aria-hidden": "true" });
  #picture = make("img", { class: "below", alt: "", draggable: false });
  #drawn = null;
  #heatmap = null;

  constructor(element = make("div")) {
    this.element = element;
    element.classList.add("overlay");
    element.prepend(this.#picture, this.#canvas);
  }

  /** Shows the picture, and no heatmap yet. */
  showPicture({ url, width, height }, alt = "") {
    this.#drawn = null;
    this.#picture.src = url;
    this.#picture.alt = alt;
    this.element.style.aspectRatio = `${width} / ${height}`;
    this.element.style.setProperty("--ratio", width / height);
    this.draw();
  }

  describe(alt) {
    this.#picture.alt = alt;
  }

  /** Shows a drawn heatmap, a data URL; `heatmap` says where it lies, and is null for a preview. */
  async showMap(source, heatmap = null) {
    const image = new Image();
    image.src = source;
    await image.decode();
    this.#drawn = image;
    this.#heatmap = heatmap;
    this.draw();
  }

  /** Whether the drawing is a sheet of its own, and no map over the picture. */
  get isSheet() {
    const [height, width] = this.#heatmap?.shape ?? [0, 0];
    const { naturalWidth = 0, naturalHeight = 1 } = this.#drawn ?? {};
    return height > 0 && Math.abs(naturalWidth / naturalHeight - width / height) > 0.02 * (width / height);
  }

  draw() {
    const image = this.#drawn;
    this.#canvas.hidden = !image;
    if (!image) return;
    const { naturalWidth: width, naturalHeight: height } = image;
    Object.assign(this.#canvas, { width, height });
    this.element.style.aspectRatio = `${width} / ${height}`;
    this.element.style.setProperty("--ratio", width / height);
    const context = this.#canvas.getContext("2d");
    if (this.#heatmap) {
      // What the model never saw is grey and dim, however strong the map.
      context.drawImage(image, 0, 0);
      if (this.isSheet) return;
      const [left, top, right, bottom] = seen(this.#heatmap, width, height);
      context.clearRect(left, top, right - left, bottom - top);
      context.beginPath();
      context.rect(left, top, right - left, bottom - top);
      context.clip();
    }
    context.globalAlpha = state.alpha;
    context.drawImage(image, 0, 0);
  }

  /** Shows the map right of `share` of the width only. */
  wipe(share) {
    this.#canvas.style.clipPath = share ? `inset(0 0 0 ${share * 100}%)` : "";
  }

  /** The pixel of the upload under a pointer. */
  pixel(event) {
    const [height, width] = this.#heatmap.shape;
    const box = this.element.getBoundingClientRect();
    const place = (at, start, size, pixels) =>
      Math.min(pixels - 1, Math.max(0, Math.floor(((at - start) / size) * pixels)));
    return [place(event.clientX, box.left, box.width, width), place(event.clientY, box.top, box.height, height)];
  }

  /** Picture and map as one picture, as they are shown, without the wipe. */
  async blob() {
    const { width, height } = this.#canvas;
    const canvas = make("canvas", { width, height });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    if (!this.isSheet) context.drawImage(this.#picture, 0, 0, width, height);
    context.drawImage(this.#canvas, 0, 0);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
}
