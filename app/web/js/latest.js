// Requests whose answers are shown at one place of the page, which is busy meanwhile: each ends the one before.

export class LatestRequest {
  #place;
  #controller = new AbortController();

  constructor(place) {
    this.#place = place;
  }

  stop() {
    this.#controller.abort();
    this.#place.removeAttribute("aria-busy");
  }

  /** Runs `work(signal)`. If it fails, but for the end of a request, `refuse(error)` is called. */
  async run(work, refuse) {
    this.stop();
    this.#controller = new AbortController();
    const { signal } = this.#controller;
    this.#place.setAttribute("aria-busy", "true");
    try {
      await work(signal);
    } catch (error) {
      if (!signal.aborted && error.name !== "AbortError") refuse(error);
    } finally {
      if (!signal.aborted) this.#place.removeAttribute("aria-busy");
    }
  }
}
