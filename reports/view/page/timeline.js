/** A timeline: a track for each connection, client, group or member; what groups and transactions did is shaded. */

import { ask } from "./api.js";
import { Picture } from "./picture.js";
import { counted, duration, keyOf, marks, printable, told } from "./text.js";

const WIDEST = 250;
/** Pixels for names, at most. */

const TOP = 22;
const TALL = 18;
const LETTER = 6.7;
/** Pixels of a letter. */

/**
 * @typedef {{name: string, filter: string, exchanges: number, column: number[], lasting: number[], error: boolean[], held: boolean[],
 *   link: number[], exchange: number[], reply: number[]}} Track
 * @typedef {{kind: string, name: string, began: number, ended: number | null, text: string, stopped: number}} Band
 * @typedef {{first: number, step: number, columns: number, links: string[][], tracks: Track[], others: number, bands: Band[], by?: string}} Drawn
 *   by: what the tracks are
 */

/**
 * A span of time after a key: nearer, farther, earlier, later.
 * @param {string} key
 * @param {number} first
 * @param {number} last
 * @returns {[number, number] | null}
 */
export function zoomed(key, first, last) {
  const span = last - first, half = Math.max(1, Math.floor(span / 4));
  if (key === "w") return span < 8 ? null : [first + half, last - half];
  if (key === "s") return [first - 2 * half, last + 2 * half];
  if (key === "a") return [first - half, last - half];
  if (key === "d") return [first + half, last + half];
  return null;
}

/**
 * When a group's next rebalance begins: so far is room for what is said of one.
 * @param {readonly Band[]} bands
 * @returns {Map<Band, number>}
 */
export function following(bands) {
  const found = new Map(), begins = new Map();
  for (const band of [...bands].sort((one, other) => other.began - one.began)) {
    if (band.kind !== "rebalance") continue;
    if (begins.has(band.name)) found.set(band, begins.get(band.name));
    begins.set(band.name, band.began);
  }
  return found;
}

/**
 * A name in so many letters. The end of a connection's stays: its broker's port tells it.
 * @param {string} name
 * @param {number} most
 * @returns {string}
 */
export function shortened(name, most) {
  if (name.length <= most) return name;
  const end = /:\d+(#\d+)?$/.exec(name)?.[0] ?? "";
  return end.length + 2 > most ? `${name.slice(0, most - 1)}…` : `${name.slice(0, most - 1 - end.length)}…${end}`;
}

/**
 * Names of connections without the addresses that all of them have, as `:38686-:9092#1`.
 * @param {readonly string[]} names
 * @returns {readonly string[]}
 */
export function brief(names) {
  const parts = names.map((name) => /^(.*)(:\d+)-(.*)(:\d+#\d+)$/.exec(name) ?? []);
  if (names.length < 2 || parts.some((one) => !one.length)) return names;
  const [client, broker] = [1, 3].map((at) => parts.every((one) => one[at] === parts[0]?.[at]));
  return parts.map(([, from, port, to, end]) => `${client ? "" : from}${port}-${broker ? "" : to}${end}`);
}

export class Timeline extends Picture {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} told
   * @param {import("./picture.js").To} to
   * @param {(filter: string) => void} taken a track's exchanges are wanted
   */
  constructor(canvas, told, to, taken) {
    super(canvas, told, to);
    this.taken = taken;
    /** @type {Drawn | null} */
    this.drawn = null;
    this.by = "connection";
    /** @type {[number, number] | null} */
    this.span = null;
    this.track = 0;
    this.place = -1;
    this.scroll = 0;
    canvas.addEventListener("click", (event) => this.clicked(event));
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey) return;
      event.preventDefault();
      this.scroll = Math.min(Math.max(0, this.scroll + event.deltaY), Math.max(0, this.height() - canvas.clientHeight));
      this.draw();
    }, { passive: false });
  }

  /**
   * @param {string} filter
   * @param {string} by
   * @param {number} begin when the capture began
   */
  async show(filter, by, begin) {
    if (filter !== this.filter) this.span = null;
    this.filter = filter;
    this.by = by;
    this.begin = begin;
    const width = Math.max(50, this.canvas.clientWidth - this.left);
    /** @type {Record<string, string | number>} */
    const asked = { filter, by, width };
    if (this.span) Object.assign(asked, { first: this.span[0], last: this.span[1] });
    await this.asking(async (signal) => {
      const drawn = /** @type {Drawn} */ (await ask("timeline", asked, signal)), before = this.drawn?.tracks[this.track]?.name;
      this.drawn = { ...drawn, by };
      this.track = Math.max(0, drawn.tracks.findIndex((one) => one.name === before));
      this.place = -1;
      this.draw();
    });
  }

  /** Pixels for names: on a phone they leave room for what they name. */
  get left() {
    return Math.min(WIDEST, Math.round(this.canvas.clientWidth * 0.4));
  }

  /** Tracks of what groups and transactions did come first. */
  lanes() {
    const { drawn } = this;
    return drawn ? [...new Set(drawn.bands.map((one) => `${one.kind === "rebalance" ? "group" : "transaction"} ${one.name}`))] : [];
  }

  height() {
    return TOP + (this.lanes().length + (this.drawn?.tracks.length ?? 0)) * TALL + 8;
  }

  draw() {
    const { drawn } = this, surface = this.surface();
    if (!surface || !drawn) return;
    if (!drawn.columns) {
      this.told.textContent = `no chosen exchange has a ${drawn.by}`;
      return;
    }
    const { context, width: clientWidth, height: clientHeight, colour } = surface;
    const span = drawn.step * drawn.columns, room = clientWidth - this.left - 8;
    const x = (/** @type {number} */ time) => this.left + (room * (time - drawn.first)) / span;
    const lanes = this.lanes();
    context.save();
    context.beginPath();
    context.rect(0, TOP, clientWidth, clientHeight - TOP);
    context.clip();
    /** @param {number} row */
    const y = (row) => TOP + row * TALL - this.scroll;
    const nexts = following(drawn.bands);
    for (const band of drawn.bands) {
      const rebalance = band.kind === "rebalance", row = lanes.indexOf(`${rebalance ? "group" : "transaction"} ${band.name}`);
      const left = Math.max(this.left, x(band.began)), right = Math.max(left + 2, Math.min(clientWidth - 8, x(band.ended ?? drawn.first + span)));
      context.fillStyle = colour(rebalance ? "--bad" : "--good");
      if (rebalance) { // the world stands still: shaded over all tracks, hatched in its own
        context.globalAlpha = 0.12;
        context.fillRect(left, TOP, right - left, clientHeight);
        context.globalAlpha = 1;
        for (let at = left; at < right; at += 4) context.fillRect(at, y(row) + 3, 2, TALL - 6);
      } else context.fillRect(left, y(row) + 4, right - left, TALL - 8);
      const [from, until] = rebalance ? [right, x(nexts.get(band) ?? drawn.first + span)] : [left, right];
      const said = printable(band.text); // what has no room is told by the list of rebalances
      const text = [said, said.replace(/^generation /, "")].find((one) => until - from > LETTER * one.length + 4);
      if (text) {
        context.fillStyle = colour(rebalance ? "--ink" : "--ground");
        context.textAlign = "left";
        context.fillText(text, from + 4, y(row) + TALL / 2);
      }
    }
    lanes.forEach((name, row) => this.label(context, colour, name, "", y(row), false));
    const names = drawn.by === "connection" ? brief(drawn.tracks.map((track) => track.name)) : drawn.tracks.map((track) => track.name);
    drawn.tracks.forEach((track, index) => {
      const row = y(lanes.length + index);
      if (row < TOP - TALL || row > clientHeight) return;
      this.label(context, colour, names[index] ?? "", ` (${counted(track.exchanges)})`, row, index === this.track);
      const left = (/** @type {number} */ at) => this.left + (room * (track.column[at] ?? 0)) / drawn.columns;
      const wide = (/** @type {number} */ at) => Math.max(1.5, (room * (track.lasting[at] ?? 0)) / span);
      for (const bad of [false, true]) { // errors last: they are seen
        context.fillStyle = colour(bad ? "--bad" : "--broker");
        const above = bad ? 2 : 4;
        track.error.forEach((error, at) => {
          if (error !== bad) return;
          const from = left(at), until = from + Math.min(wide(at), clientWidth - 8 - from);
          if (!track.held[at]) return context.fillRect(from, row + above, until - from, TALL - 2 * above);
          for (let x = from; x < until; x += 5) context.fillRect(x, row + above, Math.min(2, until - x), TALL - 2 * above); // held on purpose
        });
      }
      if (index === this.track && this.place >= 0) {
        context.strokeStyle = colour("--ink");
        context.strokeRect(left(this.place) - 1.5, row + 1.5, Math.max(wide(this.place), 2) + 3, TALL - 3);
      }
    });
    context.restore();
    context.fillStyle = colour("--quiet");
    context.textAlign = "left";
    for (const [time, text] of marks(drawn.first, drawn.first + span, room, this.begin)) {
      context.fillRect(x(time), TOP - 4, 1, 4);
      if (x(time) + context.measureText(text).width <= clientWidth) context.fillText(text, x(time), 10);
    }
    this.say();
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} colour
   * @param {string} text cut where there is no room for it
   * @param {string} more stays
   * @param {number} y
   * @param {boolean} chosen
   */
  label(context, colour, text, more, y, chosen) {
    if (chosen) {
      context.fillStyle = colour("--chosen");
      context.fillRect(0, y, this.left - 4, TALL);
    }
    context.fillStyle = colour("--ink");
    context.textAlign = "left";
    const shown = printable(text), most = Math.max(4, Math.floor((this.left - 16) / LETTER) - more.length);
    context.fillText(shortened(shown, most) + more, 6, y + TALL / 2);
  }

  say() {
    const { drawn } = this, track = drawn?.tracks[this.track];
    if (!drawn || !track) return;
    const at = this.place;
    this.told.textContent = at >= 0
      ? `${printable(track.name)}: ${told(drawn.first + (track.column[at] ?? 0) * drawn.step, this.begin)}, longest ${duration(track.lasting[at] ?? 0)}${track.held[at] ? ", held on purpose" : ""}${track.error[at] ? ", with an error" : ""}`
      : `${counted(drawn.tracks.length)} tracks by ${drawn.by}${drawn.others ? `, ${counted(drawn.others)} with fewer exchanges are left out` : ""}; hatched: rebalances, and what was held on purpose. ↑ ↓ ← → Enter, w s a d: zoom in, zoom out, earlier, later; y: tracks by something else`;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const { drawn } = this;
    if (!drawn) return;
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left - this.left;
    const row = Math.floor((event.clientY - box.top - TOP + this.scroll) / TALL) - this.lanes().length;
    const track = drawn.tracks[row];
    if (!track) return;
    this.track = row;
    if (x < 0) return this.taken(track.filter);
    const column = (x / (this.canvas.clientWidth - this.left - 8)) * drawn.columns;
    let best = -1;
    track.column.forEach((one, at) => { if (one <= column + 3) best = at; });
    this.choose(best);
  }

  /** @param {number} place */
  choose(place) {
    const track = this.drawn?.tracks[this.track];
    if (!track || place < 0) return;
    this.place = Math.min(place, track.column.length - 1);
    this.draw();
    this.to.chosen(keyOf(this.drawn?.links[track.link[this.place] ?? -1] ?? [], track.exchange[this.place], track.reply[this.place]));
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  pressed(event) {
    const { drawn } = this;
    if (!drawn) return false;
    const [first, last] = this.span ?? [drawn.first, drawn.first + drawn.step * drawn.columns], span = zoomed(event.key, first, last);
    if (span) {
      this.span = span;
      void this.show(this.filter, this.by, this.begin);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp" || event.key === "j" || event.key === "k") {
      const step = event.key === "ArrowDown" || event.key === "j" ? 1 : -1;
      this.track = Math.min(Math.max(0, this.track + step), drawn.tracks.length - 1);
      this.place = -1;
      const y = (this.lanes().length + this.track) * TALL;
      if (y < this.scroll || y + TALL > this.scroll + this.canvas.clientHeight - TOP) this.scroll = Math.max(0, y - 60);
      this.draw();
    } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") this.choose(Math.max(0, this.place + (event.key === "ArrowRight" ? 1 : -1)));
    else if (event.key === "Enter") this.taken(drawn.tracks[this.track]?.filter ?? "");
    else return false;
    return true;
  }
}
