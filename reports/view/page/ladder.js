/**
 * A ladder: who asked whom and when, on a canvas. Time runs downwards; where nothing happens it is folded. More exchanges
 * than can be told apart are bands, of which one leads to its arrows.
 */

import { ask } from "./api.js";
import { strength } from "./heat.js";
import { Picture } from "./picture.js";
import { moved } from "./rows.js";
import { counted, duration, instant, printable, told } from "./text.js";

const TOP = 48;
const UPRIGHT = 118;
/** Pixels above the lines, and where names stand upright because they have no room beside each other. */

const LETTERS = 8;
/** Fewer are no name. */

const LEFT = 118;
const FOLD_US = 50_000;
/** A pause that is told as such. */

const ARROWS = 2_000;
const BAND = 3;
/** Pixels of an interval. */

/**
 * @typedef {{total: number, actors: string[], first: number, step: number, rows: number, starts: number[], cells: [number, number, number, number, number][]}} Bands
 *   cells: from, to, interval, exchanges, of which with errors
 */

/**
 * @typedef {object} Steps
 * @property {number} total
 * @property {number} start
 * @property {string[]} actors
 * @property {[number, number, number | null, number | null, string, number][]} arrows from, to, asked, answered, API, error
 * @property {string[]} keys
 * @property {{time: number, topic: string, partition: number, leader: number | null, epoch: number | null}[]} leaders
 */

/**
 * Where each moment is drawn: what lies close is drawn close, and a pause takes a line whatever it lasts.
 * @param {readonly number[]} times sorted
 * @returns {{at: Map<number, number>, height: number, folds: [number, number][]}} pixels by time; pauses: [pixel, us]
 */
export function folded(times) {
  /** @type {Map<number, number>} */
  const at = new Map();
  /** @type {[number, number][]} */
  const folds = [];
  let y = 12, before = times[0] ?? 0;
  for (const time of times) {
    const pause = time - before;
    if (pause > FOLD_US) {
      folds.push([y + 13, pause]);
      y += 26;
    } else if (pause > 0) y += 3 + Math.min(17, Math.log2(1 + pause));
    else if (at.has(time)) continue;
    at.set(time, y);
    before = time;
  }
  return { at, height: y + 24, folds };
}

export class Ladder extends Picture {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} told
   * @param {import("./picture.js").To} to
   */
  constructor(canvas, told, to) {
    super(canvas, told, to);
    /** @type {Steps | null} */
    this.steps = null;
    /** @type {Bands | null} */
    this.bands = null;
    this.index = -1;
    /** The row that is asked to begin with, or is begun with. */
    this.start = -1;
    this.scroll = 0;
    this.picture = folded([]);
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey) return;
      event.preventDefault();
      this.move(this.scroll + event.deltaY * (event.deltaMode ? 40 : 1));
    }, { passive: false });
    canvas.addEventListener("click", (event) => this.clicked(event));
    canvas.addEventListener("pointermove", (event) => this.pointed(event));
  }

  /**
   * @param {string} filter
   * @param {number} begin when the capture began
   * @param {number} start row to begin with; -1: with none, so that many of them are bands
   */
  async show(filter, begin, start) {
    this.begin = begin;
    this.filter = filter;
    this.start = Math.max(0, start);
    await this.asking(async (signal) => {
      if (start < 0) {
        const rows = Math.max(20, Math.floor((this.canvas.clientHeight - this.top) / BAND));
        const bands = /** @type {Bands} */ (await ask("ladder", { filter, bands: rows }, signal));
        if (bands.total > ARROWS) {
          this.bands = bands;
          this.steps = null;
          this.index = -1;
          return this.draw();
        }
      }
      const steps = /** @type {Steps} */ (await ask("ladder", { filter, start: Math.max(0, start) }, signal));
      const times = steps.arrows.flatMap(([, , asked, answered]) => [asked, answered].filter((one) => one !== null));
      this.picture = folded(/** @type {number[]} */ (times).sort((a, b) => a - b));
      this.steps = steps;
      this.bands = null;
      this.index = -1;
      this.scroll = 0;
      this.draw();
    });
  }

  /** Letters that there are for a name. */
  get room() {
    return Math.max(2, Math.floor((this.canvas.clientWidth - LEFT) / Math.max(1, (this.bands ?? this.steps)?.actors.length ?? 1) / 7));
  }

  /** Pixels above the lines. */
  get top() {
    return this.room < LETTERS ? UPRIGHT : TOP;
  }

  /** @param {number} index */
  x(index) {
    return middle(index, (this.bands ?? this.steps)?.actors.length || 1, this.canvas.clientWidth);
  }

  /** @param {number} scroll */
  move(scroll) {
    this.scroll = Math.min(Math.max(0, scroll), Math.max(0, this.picture.height + this.top - this.canvas.clientHeight));
    this.draw();
  }

  draw() {
    const { steps } = this, surface = this.surface();
    if (!surface) return;
    if (this.bands) return this.dense(this.bands, surface);
    if (!steps) return;
    const { context, width: clientWidth, height: clientHeight, colour } = surface;
    const { at, folds } = this.picture, y = (/** @type {number} */ time) => this.top + (at.get(time) ?? 0) - this.scroll;
    context.strokeStyle = colour("--line");
    steps.actors.forEach((_, index) => line(context, this.x(index), this.top - 6, this.x(index), clientHeight));
    const leads = this.band(context, colour);
    /** Where names of APIs stand: left, right, middle. @type {[number, number, number][]} */
    const labels = [];
    context.textAlign = "right";
    for (const [place, pause] of folds) {
      const here = this.top + place - this.scroll;
      if (here < this.top || here > clientHeight) continue;
      context.fillStyle = colour("--quiet");
      context.fillText(`… ${duration(pause)} …`, LEFT - 6, here);
      context.setLineDash([2, 4]);
      line(context, LEFT, here, clientWidth, here);
      context.setLineDash([]);
    }
    let above = -Infinity;
    steps.arrows.forEach(([from, to, asked, answered, api, error], index) => {
      const first = asked ?? answered, last = answered ?? asked;
      if (first === null || last === null || y(last) < this.top || y(first) > clientHeight) return;
      const chosen = index === this.index;
      context.strokeStyle = context.fillStyle = colour(error ? "--bad" : chosen ? "--mark" : "--broker");
      context.lineWidth = chosen ? 2.5 : 1;
      const [left, right] = [this.x(from), this.x(to)];
      // There it slopes as the time until the answer allows, back it is level where that came.
      if (asked !== null) arrow(context, left, y(asked), right, y(asked) + Math.min(6, Math.max(0, (y(last) - y(asked)) / 2)));
      if (answered !== null) {
        context.setLineDash([5, 3]);
        arrow(context, right, y(answered) - 3, left, y(answered));
        context.setLineDash([]);
      }
      context.lineWidth = 1;
      if (y(first) - above >= 12 && y(first) >= this.top) {
        above = y(first);
        context.fillStyle = colour("--quiet");
        context.textAlign = "right";
        context.fillText(instant(first, this.begin), LEFT - 6, y(first));
        context.fillStyle = colour(error ? "--bad" : "--ink");
        context.textAlign = "left";
        const text = api + (error ? ` (${error})` : "") + (answered === null ? " …" : ""), wide = context.measureText(text).width;
        const from = right > left ? left + 6 : Math.max(LEFT, left - 6 - wide);
        context.fillText(text, from, y(first) - 6);
        labels.push([from, from + wide, y(first) - 6]);
      }
    });
    context.fillStyle = colour("--quiet");
    context.textAlign = "left";
    for (const [text, left, from, to] of leads) {
      const right = left + context.measureText(text).width;
      let at = from;
      while (at < to && labels.some(([begin, end, middle]) => left < end && right > begin && Math.abs(middle - at) < 12)) at += 4;
      if (at < to) context.fillText(text, left, at);
    }
    this.heads(steps.actors, surface);
    const row = steps.arrows[this.index];
    this.told.textContent = row
      ? `${row[4]} from ${printable(steps.actors[row[0]] ?? "")} to ${printable(steps.actors[row[1]] ?? "")}, ` +
        (row[2] !== null && row[3] !== null ? `answered after ${duration(row[3] - row[2])}` : "not answered") + (row[5] ? `, error ${row[5]}` : "")
      : `${counted(steps.arrows.length)} of ${counted(steps.total)} exchanges${steps.start ? `, from no. ${counted(steps.start + 1)} on` : ""}; arrows: requests, dashed: responses` + (steps.total > ARROWS ? "; Backspace: all of them as bands" : "");
  }

  /**
   * Who stands above the lines.
   * @param {string[]} actors
   * @param {import("./picture.js").Surface} surface
   */
  heads(actors, { context, width, colour }) {
    context.fillStyle = colour("--raised");
    context.fillRect(0, 0, width, this.top - 8);
    context.fillStyle = colour("--ink");
    context.textAlign = "center";
    const { room } = this;
    heads(actors).forEach((lines, index) => {
      if (room >= LETTERS) return lines.forEach((text, at) => context.fillText(shortened(text, room), this.x(index), lines.length > 1 ? 12 + 15 * at : 19));
      context.save();
      context.translate(this.x(index), this.top - 14);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(shortened(lines[0] ?? "", Math.floor((this.top - 14) / 7)), 0, 0);
      context.restore();
    });
  }

  /**
   * Whose line a pointer is at, in full, where it is among the heads.
   * @param {PointerEvent} event
   */
  pointed(event) {
    const place = this.canvas.getBoundingClientRect(), actors = (this.bands ?? this.steps)?.actors ?? [];
    const at = Math.floor(((event.clientX - place.left - LEFT) / (place.width - LEFT)) * actors.length);
    this.canvas.title = event.clientY - place.top < this.top - 8 ? printable(actors[at] ?? "") : "";
  }

  /**
   * All exchanges as bands: the more there are in an interval, the stronger; what has errors is hatched.
   * @param {Bands} bands
   * @param {import("./picture.js").Surface} surface
   */
  dense(bands, surface) {
    const { context, width, height, colour } = surface, tall = (height - this.top) / Math.max(1, bands.rows);
    context.strokeStyle = colour("--line");
    bands.actors.forEach((_, index) => line(context, this.x(index), this.top - 6, this.x(index), height));
    const most = Math.max(1, ...bands.cells.map(([, , , count]) => count));
    for (const [from, to, row, count, errors] of bands.cells) {
      const y = this.top + row * tall, left = this.x(from), right = this.x(to);
      context.globalAlpha = strength(count, most);
      context.fillStyle = colour("--broker");
      context.fillRect(left, y, right - left, Math.max(1, tall - 1));
      if (!errors) continue;
      context.globalAlpha = 1;
      context.fillStyle = colour("--bad");
      for (let at = left; at < right; at += 12) context.fillRect(at, y, 4, Math.max(1, tall - 1));
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("--quiet");
    context.textAlign = "right";
    for (let tick = 0; tick <= 8; tick++) {
      const row = Math.floor((bands.rows * tick) / 8);
      context.fillText(told(bands.first + row * bands.step, this.begin), LEFT - 6, Math.min(this.top + row * tall + 6, height - 6));
    }
    if (this.index >= 0) {
      context.strokeStyle = colour("--mark");
      context.strokeRect(LEFT, this.top + this.index * tall - 0.5, width - LEFT - 4, tall + 1);
    }
    this.heads(bands.actors, surface);
    const mine = bands.cells.filter(([, , row]) => row === this.index), from = bands.first + this.index * bands.step;
    const [exchanges, errors] = [3, 4].map((at) => mine.reduce((sum, cell) => sum + (cell[at] ?? 0), 0));
    this.told.textContent = this.index >= 0
      ? `${instant(from, this.begin)} to ${told(from + bands.step, this.begin)}: ${counted(exchanges ?? 0)} exchanges, ${counted(errors ?? 0)} with errors; Enter: their arrows`
      : `${counted(bands.total)} exchanges as bands, ${duration(bands.step)} each: darker means more, hatched: errors; arrows and Enter, or a click: show its exchanges`;
  }

  /**
   * The arrows of an interval.
   * @param {number} row
   */
  enter(row) {
    const start = this.bands?.starts[row];
    if (start !== undefined) void this.show(this.filter, this.begin, start);
  }

  /**
   * Who leads the partition that most is said of.
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} colour
   * @returns {[string, number, number, number][]} what is to be said, from the left, and from where to where downwards
   */
  band(context, colour) {
    const { steps } = this;
    const first = steps?.leaders[0];
    /** @type {[string, number, number, number][]} */
    const said = [];
    if (!steps || !first) return said;
    const mine = steps.leaders.filter((one) => one.topic === first.topic && one.partition === first.partition);
    const times = [...this.picture.at.entries()];
    mine.forEach((one, index) => {
      const actor = steps.actors.indexOf(`broker ${one.leader}`);
      if (actor < 0) return;
      const from = times.find(([time]) => time >= one.time)?.[1] ?? this.picture.height;
      const next = mine[index + 1];
      const to = next ? times.find(([time]) => time >= next.time)?.[1] ?? this.picture.height : this.picture.height;
      context.fillStyle = colour("--on");
      context.globalAlpha = 0.5;
      context.fillRect(this.x(actor) - 7, Math.max(this.top, this.top + from - this.scroll), 14, to - from);
      context.globalAlpha = 1;
      const y = this.top + from - this.scroll + 8;
      if (y > this.top) said.push([`leads ${printable(one.topic)}-${one.partition}${one.epoch === null ? "" : `, epoch ${one.epoch}`}`, this.x(actor) + 10, y, Math.min(this.top + to - this.scroll, this.canvas.clientHeight)]);
    });
    return said;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const { steps, bands } = this, place = this.canvas.getBoundingClientRect();
    if (bands) return this.enter(Math.floor(((event.clientY - place.top - this.top) / (place.height - this.top)) * bands.rows));
    if (!steps) return;
    const wanted = event.clientY - place.top - this.top + this.scroll, x = event.clientX - place.left;
    let best = -1, nearest = 12;
    steps.arrows.forEach(([from, to, asked, answered], index) => {
      if (x < Math.min(this.x(from), this.x(to)) - 8 || x > Math.max(this.x(from), this.x(to)) + 8) return;
      for (const time of [asked, answered]) {
        const far = time === null ? Infinity : Math.abs((this.picture.at.get(time) ?? 0) - wanted);
        if (far < nearest) [nearest, best] = [far, index];
      }
    });
    if (best >= 0) this.choose(best);
  }

  /** @param {number} index */
  choose(index) {
    if (this.bands) {
      this.index = index;
      return this.draw();
    }
    const row = this.steps?.arrows[index];
    if (!row) return;
    this.index = index;
    const y = this.picture.at.get(row[2] ?? row[3] ?? 0) ?? 0, room = this.canvas.clientHeight - this.top;
    if (y < this.scroll + 20 || y > this.scroll + room - 30) this.move(y - room / 3);
    else this.draw();
    this.to.chosen(this.steps?.keys[index] ?? "");
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  pressed(event) {
    const { steps, bands } = this;
    if (bands && event.key === "Enter") {
      this.enter(this.index);
      return true;
    }
    if (steps && event.key === "Backspace" && steps.total > ARROWS) {
      void this.show(this.filter, this.begin, -1);
      return true;
    }
    if (bands) {
      const to = moved(event.key, this.index, bands.rows, 20);
      if (to !== null) this.choose(to);
      return to !== null;
    }
    if (!steps) return false;
    const page = steps.arrows.length, step = { w: -page, s: page }[event.key];
    if (step !== undefined) {
      const start = Math.min(Math.max(0, this.start + step), Math.max(0, steps.total - 1));
      if (start !== this.start) void this.show(this.filter, this.begin, start);
      return true;
    }
    const to = moved(event.key, this.index, steps.arrows.length, 20);
    if (to === null) return false;
    this.choose(to);
    return true;
  }
}

/**
 * Where a line stands: in the middle of its part of the picture, which its name has as room.
 * @param {number} index
 * @param {number} count lines
 * @param {number} width of the picture
 * @returns {number}
 */
export function middle(index, count, width) {
  return LEFT + ((width - LEFT) * (index + 0.5)) / count;
}

/**
 * What stands above a line: of a client its id, and its address below that.
 * @param {string} actor
 * @returns {string[]} lines
 */
export function named(actor) {
  const name = printable(actor.replace(/^client /, "")), at = name.indexOf(" ");
  return actor.startsWith("client ") && at > 0 ? [name.slice(at + 1), name.slice(0, at)] : [name];
}

/**
 * What stands above each line: the address only where clients have different ones, or several the same id.
 * @param {readonly string[]} actors
 * @returns {string[][]} lines
 */
export function heads(actors) {
  const lines = actors.map(named), clients = lines.filter((one) => one.length > 1);
  const distinct = (/** @type {number} */ at) => new Set(clients.map((one) => one[at])).size;
  return clients.length > 1 && distinct(1) === 1 && distinct(0) === clients.length ? lines.map(([name]) => [name ?? ""]) : lines;
}

/**
 * A name in so many letters: its beginning and its end, for members of a group differ there.
 * @param {string} text
 * @param {number} room characters
 * @returns {string}
 */
export function shortened(text, room) {
  if (text.length <= room) return text;
  if (room < 4) return text.slice(0, room);
  const end = Math.floor((room - 1) / 2);
  return `${text.slice(0, room - 1 - end)}…${text.slice(-end)}`;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} toX
 * @param {number} toY
 */
function line(context, x, y, toX, toY) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} toX
 * @param {number} toY
 */
function arrow(context, x, y, toX, toY) {
  line(context, x, y, toX, toY);
  const way = Math.sign(toX - x);
  context.beginPath();
  context.moveTo(toX, toY);
  context.lineTo(toX - way * 6, toY - 3);
  context.lineTo(toX - way * 6, toY + 3);
  context.fill();
}
