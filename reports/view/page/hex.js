/** One message's bytes, sixteen a line (eight where the screen is narrow), fetched as they come into sight. */

import { octets } from "./api.js";
import { narrow } from "./columns.js";
import { Rows } from "./rows.js";

const HEIGHT = 20;
const LINE = 16, SHORT = 8;
/** Bytes of a line, and of one where the screen is narrow: lines are never cut. */

const PIECE = 64 << 10;

export class Hex {
  /**
   * @param {HTMLElement} box
   * @param {object} to
   * @param {(offset: number) => void} to.chosen a byte was chosen
   * @param {(failure: unknown) => void} to.failed
   */
  constructor(box, to) {
    this.box = box;
    this.to = to;
    this.key = "";
    this.side = "request";
    this.total = 0;
    this.start = 0;
    this.end = 0;
    this.cursor = -1;
    this.line = narrow() ? SHORT : LINE;
    addEventListener("resize", () => this.sized());
    /** @type {Map<number, Uint8Array>} */
    this.pieces = new Map();
    /** @type {Set<number>} */
    this.coming = new Set();
    this.rows = new Rows(box, {
      height: HEIGHT, role: "row",
      draw: (element, index) => this.draw(element, index),
      ready: (first, last) => this.ready(first * this.line, last * this.line),
    });
    box.addEventListener("click", (event) => {
      const cell = event.target instanceof Element ? event.target.closest("[data-at]") : null;
      if (cell instanceof HTMLElement && cell.dataset.at) this.choose(Number(cell.dataset.at));
    });
  }

  /**
   * @param {string} key
   * @param {string} side
   * @param {number} total
   */
  show(key, side, total) {
    if (key !== this.key || side !== this.side) {
      this.pieces = new Map(); // what comes of another message goes to that one's
      this.coming = new Set();
      this.start = this.end = 0;
      this.cursor = -1;
      this.rows.position = 0;
    }
    this.key = key;
    this.side = side;
    this.total = total;
    this.rows.resize(Math.ceil(total / this.line));
  }

  /** The screen is narrow now, or not any more. */
  sized() {
    const line = narrow() ? SHORT : LINE;
    if (line === this.line) return;
    this.line = line;
    for (const element of this.rows.pool.splice(0)) element.remove();
    this.rows.resize(Math.ceil(this.total / line));
    this.mark(this.start, this.end);
  }

  /**
   * Mark a field's bytes, and bring them into sight.
   * @param {number} start
   * @param {number} end
   */
  mark(start, end) {
    this.start = start;
    this.end = end;
    const line = Math.floor(start / this.line), last = Math.floor(Math.max(start, end - 1) / this.line);
    if (last - line < this.rows.fitting) this.rows.reveal(last);
    this.rows.reveal(line);
    this.rows.refresh(true);
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  ready(first, last) {
    let here = true;
    for (let at = Math.floor(first / PIECE); at <= Math.floor((Math.min(last, this.total) - 1) / PIECE); at++) {
      if (this.pieces.has(at)) continue;
      here = false;
      void this.load(at);
    }
    return here;
  }

  /** @param {number} at */
  async load(at) {
    if (this.coming.has(at)) return;
    const { key, side, coming, pieces } = this;
    coming.add(at);
    try {
      pieces.set(at, await octets(key, side, at * PIECE));
      this.rows.refresh(true);
    } catch (failure) {
      if (pieces === this.pieces) this.to.failed(failure);
    } finally {
      coming.delete(at);
    }
  }

  /**
   * @param {HTMLElement} element
   * @param {number} index
   */
  draw(element, index) {
    if (!element.children.length) {
      for (let at = 0; at < 1 + 2 * this.line; at++) element.append(document.createElement("span"));
      element.children[0]?.classList.add("at");
    }
    const first = index * this.line;
    const cells = /** @type {HTMLElement[]} */ ([...element.children]);
    const place = cells[0];
    if (place) place.textContent = first.toString(16).padStart(8, "0");
    for (let at = 0; at < this.line; at++) {
      const offset = first + at;
      const byte = offset < this.total ? this.pieces.get(Math.floor(offset / PIECE))?.[offset % PIECE] : undefined;
      const on = (offset >= this.start && offset < this.end ? " on" : "") + (offset === this.cursor ? " cursor" : "");
      const [hex, char] = [cells[1 + at], cells[1 + this.line + at]];
      if (!hex || !char) continue;
      hex.className = `hex${on}`;
      char.className = `char${on}`;
      if (byte === undefined) {
        hex.textContent = char.textContent = "";
        delete hex.dataset.at;
        delete char.dataset.at;
        continue;
      }
      hex.dataset.at = char.dataset.at = String(offset);
      hex.textContent = byte.toString(16).padStart(2, "0");
      char.textContent = byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·";
    }
  }

  /** @param {number} offset */
  choose(offset) {
    if (offset < 0 || offset >= this.total) return;
    this.cursor = offset;
    this.rows.reveal(Math.floor(offset / this.line));
    this.rows.refresh(true);
    this.to.chosen(offset);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  pressed(event) {
    const now = this.cursor < 0 ? this.start : this.cursor;
    const page = this.line * this.rows.fitting;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.line, ArrowUp: -this.line, j: this.line, k: -this.line, PageDown: page, PageUp: -page, Home: -now, End: this.total - 1 - now }[event.key];
    if (step === undefined || !this.total) return false;
    this.choose(Math.min(Math.max(now + step, 0), this.total - 1));
    return true;
  }
}
