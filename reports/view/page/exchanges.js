/** The list of exchanges: a window of what the filter chooses, fetched as it comes into sight. */

import { ask, givenUp } from "./api.js";
import { PARTS, bounds, widths } from "./columns.js";
import { LETTERS } from "./notes.js";
import { Rows, heading, menuKey, moved, say } from "./rows.js";
import { duration, printable } from "./text.js";

/** @import { Column, Row } from "./columns.js" */

const BLOCK = 100;
const KEPT = 60;
/** Blocks of rows that stay: some 6,000 rows. */

const HEIGHT = 22;
const SLOW_US = 100_000;
const BUSY_MS = 150;

/**
 * @typedef {object} Asked what the list shows
 * @property {string} filter
 * @property {string} sort
 */

export class Exchanges {
  /**
   * @param {HTMLElement} box
   * @param {HTMLElement} head
   * @param {object} to
   * @param {(key: string, row: Row) => void} to.chosen a row was chosen
   * @param {(column: Column, row: Row, x: number, y: number) => void} to.menu a value's menu was asked for
   * @param {(sort: string) => void} to.sorted
   * @param {(column: Column, x: number, y: number) => void} to.headed a column's menu was asked for
   * @param {(total: number, ms: number) => void} to.counted rows are there
   * @param {(failure: unknown) => void} to.failed
   * @param {(running: boolean) => void} to.running
   * @param {(key: string) => string | undefined} to.note of a marked exchange
   */
  constructor(box, head, to) {
    this.box = box;
    this.head = head;
    this.to = to;
    /** @type {Asked} */
    this.asked = { filter: "", sort: "" };
    /** @type {Column[]} */
    this.columns = [];
    /** Characters of the longest value of each column, of the rows that came. */
    this.filled = new Map();
    this.start = 0;
    this.longest = 1;
    /** @type {Map<number, Row[]>} */
    this.blocks = new Map();
    this.round = 0;
    this.loading = false;
    /** @type {Promise<boolean>} what is being shown, or was last */
    this.showing = Promise.resolve(true);
    this.index = -1;
    /** A row that is to be chosen when it comes. */
    this.wanted = -1;
    /** The identity of the chosen row. */
    this.key = "";
    this.cell = 0;
    /** @type {AbortController} */
    this.stop = new AbortController();
    this.rows = new Rows(box, {
      height: HEIGHT, role: "row",
      draw: (element, index) => this.draw(element, index),
      ready: (first, last) => this.ready(first, last),
      menu: (index, event) => this.menu(index, event),
      chosen: () => this.index,
    });
    box.addEventListener("click", (event) => this.clicked(event));
    head.addEventListener("click", (event) => this.headed(event));
    head.addEventListener("contextmenu", (event) => this.headed(event, true));
  }

  /**
   * @param {Column[]} columns
   * @param {number} start when the capture began
   */
  shown(columns, start) {
    const same = columns.map((one) => one.id).join() === this.columns.map((one) => one.id).join();
    this.columns = columns;
    this.start = start;
    this.cell = Math.min(this.cell, columns.length - 1);
    this.filled = new Map();
    this.fit();
    this.headings();
    this.blocks = new Map(); // what is on its way has the columns of before
    if (!same) for (const element of this.rows.pool.splice(0)) element.remove();
    this.rows.refresh(true);
  }

  fit() {
    const wide = widths(this.columns, this.filled);
    for (const element of [this.box, this.head]) element.style.setProperty("--columns", wide);
  }

  headings() {
    const gutter = document.createElement("span");
    gutter.setAttribute("role", "columnheader");
    gutter.setAttribute("aria-label", "mark");
    const cells = this.columns.map((column) => {
      const cell = heading({ ...column, by: column.sort }, this.asked.sort);
      cell.className = column.right ? "right" : "";
      return cell;
    });
    this.head.replaceChildren(gutter, ...cells);
  }

  /**
   * Show what a filter chooses, in an order.
   * @param {Asked} asked
   * @param {boolean} [stay] where it is: the same was asked, and more is there
   * @returns {Promise<boolean>} whether it is shown; not if a newer question came
   */
  show(asked, stay = false) {
    this.showing = this.asking(asked, stay);
    return this.showing;
  }

  /** The same once more, where there may be more of it: after what is being shown, which is not given up for it. */
  async again() {
    let before;
    do await (before = this.showing); while (before !== this.showing);
    return this.show(this.asked, true);
  }

  /**
   * @param {Asked} asked
   * @param {boolean} stay
   */
  async asking(asked, stay) {
    const round = ++this.round, { columns } = this;
    this.stop.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    this.loading = false;
    const began = performance.now();
    const busy = setTimeout(() => this.to.running(true), BUSY_MS);
    try {
      let { key } = this, place = await this.place(asked, signal);
      const first = stay ? Math.floor(this.rows.position / BLOCK) : place.row === null ? 0 : Math.max(0, Math.floor((place.row - this.rows.fitting / 2) / BLOCK));
      const found = await ask("rows", this.query(asked, first), signal);
      while (key !== this.key) { // another was chosen meanwhile
        ({ key } = this);
        place = await this.place(asked, signal);
      }
      if (round !== this.round) return false;
      this.asked = asked;
      this.blocks = new Map();
      if (columns === this.columns) {
        this.filled = new Map();
        this.blocks.set(first, this.came(this.made(found)));
      } // else they come as they are in sight
      if (!stay) this.wanted = -1;
      if (this.wanted < 0) this.index = place.row ?? -1;
      this.headings();
      if (!stay) this.rows.position = 0;
      this.rows.resize(found.total);
      if (this.index >= 0 && !stay) this.rows.reveal(this.index, true);
      if (this.row(this.wanted)) this.choose(this.wanted);
      this.to.counted(found.total, performance.now() - began);
      return true;
    } catch (failure) {
      if (givenUp(failure) || round !== this.round) return false;
      this.to.failed(failure);
      this.rows.refresh(); // what was coming of the list that stays was given up
      return false;
    } finally {
      clearTimeout(busy);
      if (round === this.round) this.to.running(false);
    }
  }

  /**
   * Where the chosen exchange is.
   * @param {Asked} asked
   * @param {AbortSignal} signal
   * @returns {Promise<{row: number | null}>}
   */
  async place(asked, signal) {
    return this.key ? ask("locate", { ...asked, key: this.key }, signal) : { row: null };
  }

  /** Give up what is running. */
  cancel() {
    this.round++;
    this.stop.abort();
    this.stop = new AbortController();
    this.loading = false;
    this.to.running(false);
    this.rows.refresh();
  }

  /**
   * @param {Asked} asked
   * @param {number} block
   */
  query(asked, block) {
    const needs = new Set(this.columns.flatMap((column) => column.needs));
    for (const name of ["status", "errors", "latency_us", "hold_us", "request_state", "response_state", "reason", "topics", "group_id", "connection", "client_id", "transactional_id", "api", "total_us", "broker_low_us", "broker_high_us", ...PARTS]) needs.add(name);
    return { ...asked, start: block * BLOCK, count: BLOCK, columns: [...needs].join(",") };
  }

  /**
   * @param {any} found
   * @returns {Row[]}
   */
  made(found) {
    return found.keys.map((/** @type {string} */ key, /** @type {number} */ at) => {
      /** @type {Row} */
      const row = { key, outcome: found.outcome[at], subject: found.subject[at], rule: found.rule[at] };
      for (const name in found.columns) row[name] = found.columns[name][at];
      return row;
    });
  }

  /**
   * Rows that came: their columns are as wide as what is in them.
   * @param {Row[]} rows
   */
  came(rows) {
    for (const { id, text } of this.columns) {
      this.filled.set(id, rows.reduce((most, row) => Math.max(most, printable(text(row, this.start)).length), this.filled.get(id) ?? 0));
    }
    this.fit();
    return rows;
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  ready(first, last) {
    const from = Math.floor(first / BLOCK), to = Math.floor((last - 1) / BLOCK);
    const missing = [];
    for (let block = from; block <= to; block++) if (!this.blocks.has(block)) missing.push(block);
    if (missing.length) this.load(/** @type {number} */ (missing[0]));
    else {
      for (const ahead of [to + 1, from - 1]) {
        if (ahead >= 0 && ahead * BLOCK < this.rows.count && !this.blocks.has(ahead)) this.load(ahead);
      }
    }
    return missing.length === 0;
  }

  /**
   * One request at a time; when it is answered, what is in sight by then decides what comes next.
   * @param {number} block
   */
  async load(block) {
    if (this.loading) return;
    this.loading = true;
    const { round, blocks } = this;
    try {
      const found = await ask("rows", this.query(this.asked, block), this.stop.signal);
      if (round !== this.round) return;
      this.loading = false;
      const rows = this.made(found);
      blocks.set(block, blocks === this.blocks ? this.came(rows) : rows); // of the list of before, where another was shown meanwhile
      if (this.blocks.size > KEPT) {
        const now = Math.floor(this.rows.position / BLOCK);
        const far = [...this.blocks.keys()].sort((a, b) => Math.abs(b - now) - Math.abs(a - now))[0];
        if (far !== undefined) this.blocks.delete(far);
      }
      this.rows.refresh();
      if (this.row(this.wanted)) this.choose(this.wanted);
    } catch (failure) {
      if (round !== this.round) return;
      this.loading = false;
      if (!givenUp(failure)) this.to.failed(failure);
    }
  }

  /**
   * @param {number} index
   * @returns {Row | undefined}
   */
  row(index) {
    return this.blocks.get(Math.floor(index / BLOCK))?.[index % BLOCK];
  }

  /**
   * @param {HTMLElement} element
   * @param {number} index
   */
  draw(element, index) {
    const row = this.row(index);
    if (!row) return;
    while (element.children.length < this.columns.length + 1) {
      const cell = document.createElement("span");
      cell.setAttribute("role", "gridcell");
      element.append(cell);
    }
    const chosen = row.key === this.key;
    element.setAttribute("aria-selected", String(chosen));
    const failed = row.errors.length > 0 || row.status === "unanswered" || row.status === "orphan_response" ||
      row.request_state === "undecoded" || row.response_state === "undecoded";
    const slow = row.latency_us !== null && row.latency_us - (row.hold_us ?? 0) >= SLOW_US;
    const note = this.to.note(row.key), gutter = /** @type {HTMLElement} */ (element.children[0]);
    element.className = `row${failed ? " failed" : slow ? " slow" : ""}${row.rule === null ? "" : ` rule-${row.rule}`}`;
    say(gutter, `${note === undefined ? "" : "◆"}${failed ? "!" : slow ? "~" : ""}${LETTERS[row.rule] ?? ""}`);
    gutter.title = note === undefined ? "" : `marked${note ? `: ${printable(note)}` : ""}`;
    this.columns.forEach((column, at) => {
      const cell = /** @type {HTMLElement} */ (element.children[at + 1]);
      cell.dataset.id = column.id;
      cell.className = `${column.right ? "right" : ""}${chosen && at === this.cell ? " cell" : ""}`;
      if (column.id === "parts") this.bar(cell, row);
      else say(cell, printable(column.text(row, this.start)));
    });
    if (chosen) this.box.setAttribute("aria-activedescendant", element.id);
  }

  /**
   * The parts of an exchange's time as a bar.
   * @param {HTMLElement} cell
   * @param {Row} row
   */
  bar(cell, row) {
    if (cell.children.length !== PARTS.length) {
      cell.replaceChildren(...PARTS.map((part) => {
        const piece = document.createElement("i");
        piece.className = `part ${part}`;
        return piece;
      }));
    }
    cell.classList.add("parts");
    const known = PARTS.every((part) => row[part] !== null);
    cell.classList.toggle("unknown", !known && row.total_us !== null);
    PARTS.forEach((part, at) => {
      const least = part === "broker_us" && bounds(row) ? row.broker_low_us : 0; // at least: the rest stays hatched
      const share = row.total_us ? Math.max(0, row[part] ?? least) / row.total_us : 0;
      /** @type {HTMLElement} */ (cell.children[at]).style.width = `${(share * 100).toFixed(1)}%`;
    });
    const said = PARTS.filter((part) => row[part]).map((part) => `${part.replace("_us", "")} ${duration(row[part])}`);
    cell.title = (row.total_us === null ? "no answer" : [...said, known ? "" : bounds(row) || "held or broker: unknown"].filter(Boolean).join(", "));
    cell.setAttribute("aria-label", cell.title);
  }

  /**
   * Choose a row.
   * @param {number} index
   */
  choose(index) {
    const row = this.row(index);
    this.index = index;
    this.rows.reveal(index);
    this.wanted = row ? -1 : index;
    if (!row) return; // it is chosen when it comes
    this.key = row.key;
    this.rows.refresh(true);
    this.to.chosen(row.key, row);
  }

  /**
   * Choose an exchange by its identity. Where another list is on its way, it is found in that.
   * @param {string} key
   */
  async find(key) {
    const { round } = this;
    this.key = key;
    this.wanted = -1;
    try {
      const { row } = await this.place(this.asked, this.stop.signal);
      if (key !== this.key || round !== this.round) return;
      this.index = row ?? -1;
      if (row !== null) this.rows.reveal(row, true);
      this.rows.refresh(true);
    } catch (failure) {
      if (!givenUp(failure)) throw failure;
    }
  }

  /** No row is chosen any more. */
  forget() {
    this.key = "";
    this.index = this.wanted = -1;
    this.box.removeAttribute("aria-activedescendant");
    this.rows.refresh(true);
  }

  /** The row that is chosen, if it is at hand. */
  get current() {
    return this.index < 0 ? undefined : this.row(this.index);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean} whether the key was meant for the list
   */
  pressed(event) {
    const to = moved(event.key, this.index, this.rows.count, this.rows.fitting);
    if (to !== null) {
      this.choose(to);
      return true;
    }
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      this.cell = Math.min(Math.max(this.cell + (event.key === "ArrowLeft" ? -1 : 1), 0), this.columns.length - 1);
      this.rows.refresh(true);
      return true;
    }
    if (menuKey(event)) {
      const row = this.current, column = this.columns[this.cell];
      const cell = this.box.querySelector(".cell");
      if (!row || !column || !cell) return false;
      const place = cell.getBoundingClientRect();
      this.to.menu(column, row, place.left, place.bottom);
      return true;
    }
    return false;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const index = this.rows.at(event);
    if (index < 0) return;
    this.pick(event);
    this.choose(index);
  }

  /** @param {Event} event */
  pick(event) {
    const cell = event.target instanceof Element ? event.target.closest("[data-id]") : null;
    const at = this.columns.findIndex((column) => cell instanceof HTMLElement && column.id === cell.dataset.id);
    if (at >= 0) this.cell = at;
  }

  /**
   * @param {number} index
   * @param {MouseEvent} event
   */
  menu(index, event) {
    this.pick(event);
    this.choose(index);
    const row = this.row(index), column = this.columns[this.cell];
    if (row && column) this.to.menu(column, row, event.clientX, event.clientY);
  }

  /**
   * @param {MouseEvent} event
   * @param {boolean} [menu]
   */
  headed(event, menu = false) {
    const cell = event.target instanceof Element ? event.target.closest("button") : null;
    const column = this.columns.find((one) => one.id === cell?.dataset.id);
    if (!column) return;
    event.preventDefault();
    if (menu) return this.to.headed(column, event.clientX, event.clientY);
    if (!column.sort) return;
    // Largest first, smallest first, in order of the requests.
    const { sort } = this.asked;
    this.to.sorted(sort === column.sort ? `-${column.sort}` : sort === `-${column.sort}` ? "" : column.sort);
  }
}
