/** A timeline: a track for each connection, client, group or member; what groups and transactions did is shaded; below, events of TCP. */

import { ask } from "./api.js";
import { bounds } from "./columns.js";
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
 *   queue: number[], hold: number[], low: number[], high: number[], link: number[], exchange: number[], reply: number[]}} Track
 *   queue: how long it waited behind requests of its connection, or for a quota; hold: how long the broker held it; low, high: bounds of the broker's own time, where that is not known; -1: none
 * @typedef {{kind: string, name: string, began: number, ended: number | null, text: string, stopped: number}} Band
 * @typedef {{first: number, step: number, columns: number, links: string[][], tracks: Track[], others: number, bands: Band[], by?: string}} Drawn
 *   by: what the tracks are
 * @typedef {{kind: string, total: number, column: number[], count: number[], time: number[], link: number[], of: number[]}} Lane
 *   time, link: of the first event of an interval; of: how many connections have any
 * @typedef {{known: boolean, first: number | null, last: number | null, links: string[][], filters: string[], lanes: Lane[]}} Events
 */

/** @type {Record<string, string>} */
const PLURAL = { retransmission: "retransmissions", "zero window": "zero windows", reset: "resets" };

/** @type {Readonly<Events>} */
const NO_EVENTS = { known: true, first: null, last: null, links: [], filters: [], lanes: [] };

/**
 * Parts of an exchange's time in order: it waits in a queue, the broker works or TCP carries it, it is held on purpose, and
 * what nobody can tell: with acks=all that is the broker's own time or the wait for replicas.
 * @param {number} lasting
 * @param {number} queue
 * @param {number} hold -1: not known
 * @param {number} low of the broker's own time
 * @param {number} high -1: there are no bounds
 * @returns {[number, number, number, number]} microseconds
 */
export function portions(lasting, queue, hold, low, high) {
  const unsure = hold < 0 && high > low ? Math.min(high - low, lasting) : 0, held = Math.min(Math.max(hold, 0), lasting);
  const waits = Math.min(Math.max(queue, 0), lasting - unsure - held);
  return [waits, lasting - waits - held - unsure, held, unsure];
}

/**
 * Which of a track's bars is at a column, or else closest to it.
 * @param {readonly number[]} bars the columns where they begin
 * @param {number} column
 * @param {number} columns that are drawn
 * @returns {number} -1 where the column is not drawn, or there is no bar
 */
export function nearest(bars, column, columns) {
  if (column < 0 || column >= columns) return -1;
  return bars.reduce((best, one, at) => (best < 0 || Math.abs(one - column) < Math.abs((bars[best] ?? 0) - column) ? at : best), -1);
}

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
    /** @type {Readonly<Events>} */
    this.events = NO_EVENTS;
    this.by = "connection";
    /** @type {[number, number] | null} */
    this.span = null;
    this.track = 0;
    this.place = -1;
    /** @type {string | undefined} the lane of TCP that was chosen when the picture was last drawn */
    this.kind = undefined;
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
      this.take(/** @type {Drawn} */ (await ask("timeline", asked, signal)), NO_EVENTS);
      let events = await this.eventsOf(signal);
      const { drawn } = this, end = drawn ? drawn.first + drawn.step * drawn.columns - 1 : 0;
      if (!drawn || !events || events.first === null || events.last === null) return;
      if (!this.span && drawn.columns && (events.first < drawn.first || events.last > end)) { // what was sent again after the last request
        Object.assign(asked, { first: Math.min(events.first, drawn.first), last: Math.max(events.last, end) });
        this.take(/** @type {Drawn} */ (await ask("timeline", asked, signal)), NO_EVENTS);
        events = await this.eventsOf(signal);
      }
    });
  }

  /**
   * Events of TCP in the time that is drawn: they are read from the capture, so they come later.
   * @param {AbortSignal} signal
   * @returns {Promise<Events | null>}
   */
  async eventsOf(signal) {
    const { drawn } = this;
    if (!drawn?.columns) return null;
    const { first, step, columns } = drawn, events = /** @type {Events} */ (await ask("tcp", { filter: this.filter, first, step, columns }, signal));
    const row = events.lanes.findIndex((one) => one.kind === this.kind);
    if (row >= 0 && !this.track && this.place < 0) this.track = drawn.tracks.length + row;
    this.events = events;
    this.draw();
    return events;
  }

  /**
   * What was chosen stays so while it is drawn: a picture is drawn anew by itself too, as events come and a capture grows.
   * @param {Drawn} drawn
   * @param {Readonly<Events>} events
   */
  take(drawn, events) {
    this.kind = this.lane?.kind;
    const before = this.drawn, track = before?.tracks[this.track], column = track?.column[this.place];
    this.drawn = { ...drawn, by: this.by };
    this.events = events;
    const row = drawn.tracks.findIndex((one) => one.name === track?.name);
    this.track = Math.max(0, row);
    const time = before && row >= 0 && column !== undefined ? before.first + column * before.step : -1;
    this.place = nearest(drawn.tracks[row]?.column ?? [], Math.floor((time - drawn.first) / drawn.step), drawn.columns);
    this.draw();
  }

  /** The lane of TCP that is chosen, if one is: they follow the tracks. */
  get lane() {
    return this.events.lanes[this.track - (this.drawn?.tracks.length ?? 0)];
  }

  /** Pixels of the lanes of TCP, which stay in sight. */
  get below() {
    return this.events.lanes.length * TALL + (this.events.lanes.length ? 4 : 0);
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
    return TOP + (this.lanes().length + (this.drawn?.tracks.length ?? 0)) * TALL + 8 + this.below;
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
    context.rect(0, TOP, clientWidth, clientHeight - TOP - this.below);
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
          const from = left(at), until = Math.min(from + wide(at), clientWidth - 8), tall = TALL - 2 * above;
          const parts = portions(track.lasting[at] ?? 0, track.queue[at] ?? 0, track.hold[at] ?? -1, track.low[at] ?? -1, track.high[at] ?? -1);
          const [queue = 0, sure = 0, held = 0, unsure = 0] = parts.map((part) => (room * part) / span);
          const waited = Math.min(until, from + queue), cut = held || unsure ? Math.min(until, waited + sure) : until;
          context.fillRect(from, row + TALL / 2 - 1, waited - from, 2); // behind others: a line, or bars would cover each other
          context.fillRect(waited, row + above, cut - waited, tall);
          if (unsure && cut < until) { // acks=all: the broker, or replicas
            context.globalAlpha = 0.3;
            context.fillRect(cut, row + above, until - cut, tall);
            context.globalAlpha = 1;
          }
          for (let x = until - cut < 6 ? cut : Math.ceil(cut / 5) * 5; x < until; x += 5) context.fillRect(x, row + above, Math.min(2, until - x), tall); // one grid for all
        });
      }
      if (index === this.track && this.place >= 0) {
        context.strokeStyle = colour("--ink");
        context.strokeRect(left(this.place) - 1.5, row + 1.5, Math.max(wide(this.place), 2) + 3, TALL - 3);
      }
    });
    context.restore();
    this.drawEvents(surface, drawn, room);
    context.fillStyle = colour("--quiet");
    context.textAlign = "left";
    for (const [time, text] of marks(drawn.first, drawn.first + span, room, this.begin)) {
      context.fillRect(x(time), TOP - 4, 1, 4);
      if (x(time) + context.measureText(text).width <= clientWidth) context.fillText(text, x(time), 10);
    }
    this.say();
  }

  /**
   * Lanes of TCP below the tracks: each kind has its own shape, so that none is told by its colour alone.
   * @param {import("./picture.js").Surface} surface
   * @param {Drawn} drawn
   * @param {number} room pixels of time
   */
  drawEvents({ context, width, height, colour }, drawn, room) {
    const { lanes } = this.events, top = height - this.below + 4;
    if (!lanes.length) return;
    context.fillStyle = colour("--line");
    context.fillRect(0, top - 3, width, 1);
    lanes.forEach((lane, row) => {
      const y = top + row * TALL, chosen = lane === this.lane;
      this.label(context, colour, PLURAL[lane.kind] ?? lane.kind, ` (${counted(lane.total)})`, y, chosen);
      context.fillStyle = context.strokeStyle = colour({ retransmission: "--bad", "zero window": "--muted", reset: "--ink" }[lane.kind] ?? "--ink");
      lane.column.forEach((column, at) => {
        const x = this.left + (room * column) / drawn.columns, tall = Math.min(TALL - 4, 8 + 2 * Math.log2(lane.count[at] ?? 1));
        if (lane.kind === "retransmission") context.fillRect(x - 1, y + TALL - 2 - tall, 2.5, tall);
        else if (lane.kind === "zero window") context.strokeRect(x - 2.5, y + 5.5, 5, TALL - 11);
        else {
          context.beginPath();
          for (const side of [-4, 4]) {
            context.moveTo(x - side, y + 5);
            context.lineTo(x + side, y + TALL - 5);
          }
          context.stroke();
        }
        if (chosen && at === this.place) context.strokeRect(x - 5.5, y + 0.5, 11, TALL - 1);
      });
    });
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
    const { drawn, lane } = this, track = drawn?.tracks[this.track], at = this.place;
    if (!drawn || !(track || lane)) return;
    if (lane && at >= 0) {
      const count = lane.count[at] ?? 0, of = lane.of[at] ?? 1, named = this.events.links[lane.link[at] ?? 0]?.[1] ?? "";
      this.told.textContent = `${counted(count)} ${count === 1 ? lane.kind : PLURAL[lane.kind]} at ${told(lane.time[at] ?? 0, this.begin)}: `
        + `${printable(named)}${of > 1 ? ` and ${counted(of - 1)} more connections` : ""}; Enter: its exchanges`;
    } else if (track && at >= 0) {
      const within = bounds({ broker_us: (track.hold[at] ?? -1) >= 0 ? 0 : null, broker_low_us: track.low[at], broker_high_us: (track.high[at] ?? -1) < 0 ? null : track.high[at] });
      this.told.textContent = `${printable(track.name)}: ${told(drawn.first + (track.column[at] ?? 0) * drawn.step, this.begin)}, longest ${duration(track.lasting[at] ?? 0)}${track.held[at] ? ", held on purpose" : ""}${within ? `, ${within}` : ""}${track.error[at] ? ", with an error" : ""}`;
    } else {
      const lanes = this.events.lanes.map((one) => `${counted(one.total)} ${one.total === 1 ? one.kind : PLURAL[one.kind]}`).join(", ");
      this.told.textContent = `${counted(drawn.tracks.length)} tracks by ${drawn.by}${lanes && `, ${lanes} of TCP`}${drawn.others ? `, ${counted(drawn.others)} with fewer exchanges are left out` : ""}; hatched: rebalances, what was held on purpose, and, over a paler bar, what acks=all may have waited for replicas; a thin line: in a queue${this.events.known ? "" : "; the capture is not at hand, and with it the events of TCP"}. ↑ ↓ ← → Enter, w s a d: zoom in, zoom out, earlier, later; y: tracks by something else`;
    }
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const { drawn } = this;
    if (!drawn) return;
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left - this.left;
    const below = event.clientY - box.top - (this.canvas.clientHeight - this.below + 4);
    const row = below >= 0 ? drawn.tracks.length + Math.floor(below / TALL)
      : Math.floor((event.clientY - box.top - TOP + this.scroll) / TALL) - this.lanes().length;
    const track = drawn.tracks[row] ?? this.events.lanes[row - drawn.tracks.length];
    if (!track || (below < 0 && row >= drawn.tracks.length)) return;
    this.track = row;
    if (x < 0) return "filter" in track ? this.taken(track.filter) : this.draw();
    const column = (x / (this.canvas.clientWidth - this.left - 8)) * drawn.columns;
    let best = -1;
    track.column.forEach((one, at) => { if (one <= column + 3) best = at; });
    this.choose(best);
  }

  /** @param {number} place */
  choose(place) {
    const track = this.drawn?.tracks[this.track], columns = (track ?? this.lane)?.column;
    if (!columns || place < 0) return;
    this.place = Math.min(place, columns.length - 1);
    this.draw();
    if (!track) return;
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
      this.track = Math.min(Math.max(0, this.track + step), drawn.tracks.length + this.events.lanes.length - 1);
      this.place = -1;
      const y = (this.lanes().length + this.track) * TALL;
      const seen = this.canvas.clientHeight - TOP - this.below;
      if (!this.lane && (y < this.scroll || y + TALL > this.scroll + seen)) this.scroll = Math.max(0, y - 60);
      this.draw();
    } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") this.choose(Math.max(0, this.place + (event.key === "ArrowRight" ? 1 : -1)));
    else if (event.key === "Enter" && this.lane) {
      const filter = this.events.filters[this.lane.link[this.place] ?? -1];
      if (filter) this.taken(filter);
    } else if (event.key === "Enter") this.taken(drawn.tracks[this.track]?.filter ?? "");
    else return false;
    return true;
  }
}
