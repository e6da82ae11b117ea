/** Latencies over time of what the filter chooses, on a canvas: held ones hatched; a cell or a span becomes a filter. */

import { grid, within } from "./api.js";
import { Picture } from "./picture.js";
import { counted, duration, instant, marks, moment, told } from "./text.js";

const BUSY_MS = 150;
const LEFT = 62;
/** Pixels for the latencies beside the cells. */

const FEW = 20_000;
/** Exchanges that are shown in wider columns. */

const MOST = 2_000;
/** Columns that the server counts, at most. */

const AXIS = 16;
/** Pixels for the times below them. */

const PAUSE = 0.06;
/** Share of the columns from which a run of empty ones is a pause, told in so many pixels: */
const FOLD = 30;

const TALL = 5;
/** Pixels of a cell, at least: one that is hatched is to be seen as such. */

/**
 * @typedef {object} Grid
 * @property {number} first
 * @property {number} step
 * @property {number[]} edges
 * @property {number} columns
 * @property {number} buckets
 * @property {number} most
 * @property {number} exchanges
 * @property {number} without
 * @property {Uint32Array} counts by layer (worked, held, of both those with errors), bucket, column
 */

/** Columns side by side as they are drawn, or a pause: how many of them are empty. @typedef {{column: number, pause: number}} Slot */

const LAYERS = [0, 1, 2], FAILED = 2;

/**
 * What is drawn from left to right: columns, and pauses where nothing happens for long.
 * @param {Grid} grid
 * @returns {Slot[]}
 */
export function slots(grid) {
  const { columns, buckets, counts } = grid, size = columns * buckets, least = Math.max(8, Math.ceil(columns * PAUSE));
  const used = (/** @type {number} */ column) => {
    for (let bucket = 0; bucket < buckets; bucket++) if (counts[bucket * columns + column] || counts[size + bucket * columns + column]) return true;
    return false;
  };
  /** @type {Slot[]} */
  const found = [];
  for (let column = 0; column < columns;) {
    let end = column;
    while (end < columns && !used(end)) end++;
    if (end - column >= least) found.push({ column, pause: end - column });
    else for (let at = column; at < end; at++) found.push({ column: at, pause: 0 });
    column = end;
    if (column < columns) found.push({ column: column++, pause: 0 });
  }
  return found;
}

/**
 * A cell, or a span of columns, as a filter has it.
 * @param {Grid} grid
 * @param {number} from column
 * @param {number} to column, included
 * @param {number} [bucket]
 * @returns {string}
 */
export function term(grid, from, to, bucket) {
  const times = `request_time >= ${moment(grid.first + from * grid.step)} and request_time < ${moment(grid.first + (to + 1) * grid.step)}`;
  if (bucket === undefined) return times;
  return `${times} and latency >= ${grid.edges[bucket]}us and latency < ${grid.edges[bucket + 1]}us`;
}

/**
 * The same with some buckets as one.
 * @param {Grid} grid
 * @param {number} factor
 * @returns {Grid}
 */
export function coarser(grid, factor) {
  if (factor <= 1) return grid;
  const { columns, buckets } = grid, fewer = Math.ceil(buckets / factor), size = fewer * columns;
  const counts = new Uint32Array(LAYERS.length * size);
  let most = 0;
  for (let bucket = 0; bucket < buckets; bucket++) {
    for (let column = 0; column < columns; column++) {
      const to = Math.floor(bucket / factor) * columns + column, from = bucket * columns + column;
      for (const layer of LAYERS) counts[layer * size + to] = (counts[layer * size + to] ?? 0) + (grid.counts[layer * buckets * columns + from] ?? 0);
      most = Math.max(most, (counts[to] ?? 0) + (counts[size + to] ?? 0));
    }
  }
  const edges = [];
  for (let at = 0; at <= fewer; at++) edges.push(/** @type {number} */ (grid.edges[Math.min(at * factor, buckets)]));
  return { ...grid, buckets: fewer, edges, counts, most };
}

/**
 * The column of another grid that has a column's time.
 * @param {Grid | null} before
 * @param {number} column
 * @param {Grid} grid
 * @returns {number} the nearest one that there is
 */
export function followed(before, column, grid) {
  const time = before && before.columns ? before.first + column * before.step : grid.first;
  return Math.min(Math.max(Math.floor((time - grid.first) / grid.step), 0), Math.max(0, grid.columns - 1));
}

/**
 * How strongly a count is coloured: by its logarithm, and never so weakly that it cannot be seen.
 * @param {number} count
 * @param {number} most
 * @returns {number} 0 to 1
 */
export function strength(count, most) {
  return count ? 0.4 + (0.6 * Math.log(count)) / Math.max(Math.log(most), 1e-9) : 0;
}

export class Heat extends Picture {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} told
   * @param {import("./picture.js").To} to
   */
  constructor(canvas, told, to) {
    super(canvas, told, to);
    /** @type {Grid | null} */
    this.grid = null;
    /** @type {Slot[]} */
    this.slots = [];
    /** Columns that were asked for. */
    this.asked = 0;
    this.partition = "";
    this.column = 0;
    this.bucket = 0;
    /** The column where a span began; -1: none. */
    this.anchor = -1;
    this.pointed = false;
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || !this.moved(event)) return;
      canvas.setPointerCapture(event.pointerId);
      this.anchor = this.column;
    });
    canvas.addEventListener("pointerup", () => {
      if (this.anchor >= 0) this.take();
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointed = document.activeElement === canvas;
      this.draw();
    });
    canvas.addEventListener("focus", () => { this.pointed = true; this.draw(); });
    canvas.addEventListener("blur", () => { this.pointed = false; this.anchor = -1; this.draw(); });
  }

  /**
   * Show what a filter chooses.
   * @param {string} filter
   * @param {number} begin when the capture began
   * @param {boolean} [again] there may be more of it
   */
  async show(filter, begin, again = false) {
    const same = filter === this.filter && within.partition === this.partition && this.grid && !again;
    this.filter = filter;
    this.partition = within.partition;
    this.begin = begin;
    const width = this.wanted();
    if (width < 1 || (same && width === this.asked)) return this.draw();
    this.asked = 0;
    const busy = setTimeout(() => this.canvas.setAttribute("aria-busy", "true"), BUSY_MS);
    await this.asking(async (signal) => {
      let fine = await grid(filter, width, signal), asked = width;
      const before = this.grid, better = this.fitting(fine.exchanges);
      if (better > 0 && better < width) fine = await grid(filter, asked = better, signal); // it is quick of so few
      const paused = slots(fine).reduce((sum, one) => sum + one.pause, 0);
      if (fine.exchanges < FEW && paused > fine.columns / 2) { // pauses are folded: finer columns have their room
        const finer = Math.min(MOST, Math.floor((fine.columns * fine.columns) / Math.max(1, fine.columns - paused)));
        fine = await grid(filter, finer, signal);
      }
      this.grid = coarser(fine, Math.ceil((fine.buckets * TALL) / Math.max(1, this.canvas.clientHeight - AXIS)));
      this.slots = slots(this.grid);
      this.bucket = Math.min(this.bucket, Math.max(0, this.grid.buckets - 1));
      if (this.anchor >= 0) this.anchor = followed(before, this.anchor, this.grid);
      this.column = followed(before, this.column, this.grid);
      this.asked = asked;
      this.draw();
    });
    clearTimeout(busy);
    this.canvas.removeAttribute("aria-busy");
  }

  /** How many columns there is room for: fewer and wider ones where there is little to show. */
  wanted() {
    return this.fitting(this.grid ? this.grid.exchanges : Infinity);
  }

  /** @param {number} exchanges */
  fitting(exchanges) {
    return Math.floor((this.canvas.clientWidth - LEFT) / (exchanges < FEW ? 6 : 3));
  }

  /** The canvas has another size. */
  sized() {
    const width = this.wanted();
    if (this.grid && width !== this.asked && width > 0) void this.show(this.filter, this.begin);
    else this.draw();
  }

  /** @returns {{height: number, wide: number, tall: number}} pixels of the cells */
  measures() {
    const { clientWidth, clientHeight } = this.canvas, pauses = this.slots.filter((one) => one.pause).length;
    const height = clientHeight - AXIS, columns = this.slots.length - pauses;
    return { height, wide: Math.max(0.5, (clientWidth - LEFT - pauses * FOLD) / (columns || 1)), tall: height / (this.grid?.buckets || 1) };
  }

  /**
   * Where each slot begins, in pixels.
   * @returns {number[]}
   */
  places() {
    const { wide } = this.measures();
    let x = LEFT;
    return this.slots.map(({ pause }) => {
      const here = x;
      x += pause ? FOLD : wide;
      return here;
    });
  }

  /**
   * The slot that has a column.
   * @param {number} column
   */
  slot(column) {
    return this.slots.findIndex((one) => column >= one.column && column < one.column + Math.max(1, one.pause));
  }

  draw() {
    const { grid: shown } = this, surface = this.surface();
    if (!surface) return;
    const { context, colour } = surface;
    if (!shown || !shown.columns) return this.say();
    const [ink, quiet, mark, worked, held, bad] = ["--ink", "--quiet", "--mark", "--broker", "--held", "--bad"].map(colour);
    const { height, wide, tall } = this.measures(), places = this.places();
    const size = shown.columns * shown.buckets;
    for (const [layer, one] of [worked, held, bad].entries()) {
      context.fillStyle = /** @type {string} */ (one);
      for (let bucket = 0; bucket < shown.buckets; bucket++) {
        this.slots.forEach(({ column, pause }, at) => {
          const count = pause ? 0 : shown.counts[layer * size + bucket * shown.columns + column] ?? 0;
          if (!count) return;
          context.globalAlpha = layer === FAILED ? 1 : strength(count, shown.most);
          const x = places[at] ?? 0, y = height - (bucket + 1) * tall;
          // Held time is hatched, and errors are a line below, so that neither is told by its colour alone.
          if (layer === 0) context.fillRect(x, y, Math.max(wide, 1), Math.max(tall, 1));
          else if (layer === FAILED) context.fillRect(x, y + tall - 2, Math.max(wide, 1), 2);
          else for (let line = 0; line < tall; line += 3) context.fillRect(x, y + line, Math.max(wide, 1), 1.5);
        });
      }
    }
    context.globalAlpha = 1;
    this.axis(surface, places);
    context.fillStyle = /** @type {string} */ (quiet);
    context.textAlign = "right";
    let above = Infinity;
    shown.edges.forEach((edge, at) => {
      const y = Math.min(Math.max(height - at * tall, 6), height - 6);
      if (above - y < 14) return;
      above = y;
      context.fillText(duration(edge), LEFT - 6, y);
    });
    if (this.anchor >= 0 && this.anchor !== this.column) {
      const [from, to] = [Math.min(this.anchor, this.column), Math.max(this.anchor, this.column)];
      context.globalAlpha = 0.2;
      context.fillStyle = /** @type {string} */ (mark);
      const begin = places[this.slot(from)] ?? LEFT;
      context.fillRect(begin, 0, (places[this.slot(to)] ?? LEFT) + wide - begin, height);
      context.globalAlpha = 1;
    } else if (this.pointed) {
      context.strokeStyle = /** @type {string} */ (ink);
      context.strokeRect((places[this.slot(this.column)] ?? LEFT) - 0.5, height - (this.bucket + 1) * tall - 0.5, Math.max(wide, 2) + 1, tall + 1);
    }
    this.say();
  }

  /**
   * Times below the cells, and how long pauses are.
   * @param {import("./picture.js").Surface} surface
   * @param {number[]} places
   */
  axis({ context, width, height, colour }, places) {
    const { grid: shown } = this;
    if (!shown) return;
    const y = height - AXIS / 2 + 1, { wide } = this.measures();
    /** Pixels that have text. @type {[number, number][]} */
    const used = [];
    const free = (/** @type {number} */ from, /** @type {number} */ to) => !used.some(([left, right]) => from < right + 8 && to > left - 8);
    context.strokeStyle = colour("--line");
    context.fillStyle = colour("--quiet");
    this.slots.forEach(({ pause }, at) => {
      if (!pause) return; // the times beside it do not follow each other
      const middle = (places[at] ?? 0) + FOLD / 2, text = `… ${duration(pause * shown.step)} …`, half = context.measureText(text).width / 2;
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(middle, 0);
      context.lineTo(middle, height - AXIS);
      context.stroke();
      context.setLineDash([]);
      const centre = Math.min(middle, width - half);
      if (!free(centre - half, centre + half)) return;
      context.textAlign = "center";
      context.fillText(text, centre, y);
      used.push([centre - half, centre + half]);
    });
    context.textAlign = "left";
    for (const [time, text] of marks(shown.first, shown.first + shown.columns * shown.step - 1, shown.columns * wide, this.begin)) {
      const at = this.slot(Math.floor((time - shown.first) / shown.step)), slot = this.slots[at];
      if (!slot || slot.pause) continue;
      const x = (places[at] ?? 0) + (wide * ((time - shown.first) % shown.step)) / shown.step, end = x + context.measureText(text).width;
      context.fillRect(x, height - AXIS, 1, 3);
      if (end > width || !free(x, end)) continue;
      context.fillText(text, x, y);
      used.push([x, end]);
    }
  }

  /** What is pointed at, in words. */
  say() {
    const { grid: shown, column, bucket } = this;
    if (!shown || !shown.columns) {
      this.told.textContent = shown ? "no exchange has a latency" : "";
      return;
    }
    const from = shown.first + column * shown.step;
    if (!this.pointed) {
      const span = duration(shown.step * shown.columns);
      this.told.textContent = `latency (log scale) of ${counted(shown.exchanges)} exchanges over ${span}` + (shown.without ? `; ${counted(shown.without)} without` : "");
      return;
    }
    const at = bucket * shown.columns + column, size = shown.columns * shown.buckets;
    const [worked, held, failed] = [shown.counts[at] ?? 0, shown.counts[size + at] ?? 0, shown.counts[FAILED * size + at] ?? 0];
    this.told.textContent = `${instant(from, this.begin)} to ${told(from + shown.step, this.begin)}, ` +
      `${duration(shown.edges[bucket] ?? 0)} to ${duration(shown.edges[bucket + 1] ?? 0)}: ${counted(worked + held)}` +
      (held ? `, of which ${counted(held)} held` : "") + (failed ? `, ${counted(failed)} with errors` : "");
  }

  /**
   * @param {PointerEvent} event
   * @returns {boolean} whether a cell is there
   */
  moved(event) {
    const shown = this.grid;
    if (!shown || !shown.columns) return false;
    const place = this.canvas.getBoundingClientRect();
    const { height, tall } = this.measures(), places = this.places();
    const x = event.clientX - place.left;
    if (x < LEFT && this.anchor < 0) return false;
    const at = Math.max(0, places.findLastIndex((left) => left <= x));
    this.column = this.slots[at]?.column ?? 0;
    this.bucket = Math.min(Math.max(Math.floor((height - (event.clientY - place.top)) / tall), 0), shown.buckets - 1);
    this.pointed = true;
    this.draw();
    return true;
  }

  /** What is marked becomes a filter: a span of time, or a cell. */
  take() {
    const { grid: shown, anchor, column, bucket } = this;
    this.anchor = -1;
    if (!shown || !shown.columns) return;
    if (anchor >= 0 && anchor !== column) this.to.chosen(term(shown, Math.min(anchor, column), Math.max(anchor, column)));
    else this.to.chosen(term(shown, column, column, bucket));
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  pressed(event) {
    const shown = this.grid;
    if (!shown || !shown.columns) return false;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Home: [-Infinity, 0], End: [Infinity, 0] }[event.key];
    if (step) {
      if (event.shiftKey && this.anchor < 0) this.anchor = this.column;
      if (!event.shiftKey) this.anchor = -1;
      const slot = Math.min(Math.max(this.slot(this.column) + (step[0] ?? 0), 0), this.slots.length - 1);
      this.column = this.slots[slot]?.column ?? 0;
      this.bucket = Math.min(Math.max(this.bucket + (step[1] ?? 0), 0), shown.buckets - 1);
      this.draw();
      return true;
    }
    if (event.key === "Enter" || event.key === " ") {
      this.take();
      return true;
    }
    return false;
  }
}
