/** What pictures on a canvas have in common: a surface of the right size and colours, and one question at a time. */

import { givenUp } from "./api.js";

/** @typedef {{context: CanvasRenderingContext2D, width: number, height: number, colour: (name: string) => string}} Surface */
/** @typedef {{chosen: (what: string) => void, failed: (failure: unknown) => void}} To */

export class Picture {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} told what is chosen or pointed at, in words
   * @param {To} to
   */
  constructor(canvas, told, to) {
    this.canvas = canvas;
    this.told = told;
    this.to = to;
    this.filter = "";
    /** When the capture began. */
    this.begin = 0;
    this.stop = new AbortController();
    new ResizeObserver(() => this.sized()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** The canvas has another size. */
  sized() {
    this.draw();
  }

  draw() {}

  /**
   * A question, which ends the one before it. What was given up for a newer one is no failure.
   * @param {(signal: AbortSignal) => Promise<void>} question
   */
  async asking(question) {
    this.stop.abort();
    this.stop = new AbortController();
    try {
      await question(this.stop.signal);
    } catch (failure) {
      if (!givenUp(failure)) this.to.failed(failure);
    }
  }

  /**
   * An empty surface as large as the canvas.
   * @returns {Surface | null}
   */
  surface() {
    const { canvas } = this, context = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!context || !width) return null;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas), colours = /** @type {Map<string, string>} */ (new Map());
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    /** @param {string} name */
    const colour = (name) => {
      let found = colours.get(name);
      if (found === undefined) colours.set(name, found = style.getPropertyValue(name));
      return found;
    };
    return { context, width, height, colour };
  }
}
