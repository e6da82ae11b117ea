/** Lists beside that of the exchanges: connections, clients, groups and what they did. A row becomes a filter. */

import { ask, givenUp } from "./api.js";
import { Rows, heading, menuKey, moved, say } from "./rows.js";
import { counted, duration, instant, printable, size } from "./text.js";

const BLOCK = 100;
const HEIGHT = 22;
const WAITING_MS = 300;
/** Who waits longer for a list is told so. */


/** @type {ListColumn} */
const NOTHING = { name: "", sort: "", filter: "", only: "", question: "" };

/** @typedef {{name: string, kind: string, about: string, sorted?: boolean, title?: string | null, quiet?: boolean, wide?: boolean}} About */

/**
 * What is listed: `name` of a list, of what a filter chooses where it follows that; `only`: pairs that differ;
 * `question`: what an answer answers.
 * @typedef {{name: string, sort: string, filter: string, only: string, question: string}} ListColumn
 */

/**
 * @typedef {object} To
 * @property {(filter: string) => void} taken the exchanges of a row are wanted
 * @property {(key: string, side?: string, path?: string) => void} chosen a row that is an exchange's, or a field's of it
 * @property {(side: string) => void} entered and that is to be looked into
 * @property {(question: string) => void} opened the answer to a row's question is wanted
 * @property {(text: string) => void} answering which question the rows answer
 * @property {(filter: string, text: string, x: number, y: number) => void} menu
 * @property {(text: string) => void} counted
 * @property {(failure: unknown) => void} failed
 * @property {() => number} began when the capture began
 */

/** Widths of columns, in characters, where what is in them does not say. */
const WIDTHS = /** @type {Record<string, number>} */ ({ duration: 10, size: 10 });
const WIDEST = 44;

/** What rows of a list are, where its name does not say. */
const ROWS = /** @type {Record<string, string>} */ ({ groups: "events of groups", answer: "rows" });

/**
 * A value as text.
 * @param {About} column
 * @param {any} value
 * @param {number} [start] when the capture began
 * @returns {string}
 */
export function shown(column, value, start = 0) {
  if (value === null || value === undefined) return "";
  if (column.kind === "time") return instant(value, start);
  if (column.kind === "duration") return duration(value);
  if (column.kind === "size") return size(value);
  return printable(String(value));
}

/**
 * What a column is called.
 * @param {About} column
 */
function headed({ name, title }) {
  return title || name.replace(/_us$/, "").replaceAll("_", " ");
}

/**
 * The width of a column.
 * @param {About} column
 * @param {any[]} values of its first rows
 * @param {number} start when the capture began
 */
function width(column, values, start) {
  const least = headed(column).length + 2, fixed = WIDTHS[column.kind];
  if (fixed) return `${Math.max(fixed, least)}ch`;
  const needed = Math.min(WIDEST, values.reduce((most, value) => Math.max(most, shown(column, value, start).length + 1), least));
  return column.wide ? `minmax(${needed}ch, 1fr)` : `${needed}ch`;
}

export class Lists {
  /**
   * @param {HTMLElement} box
   * @param {HTMLElement} head
   * @param {To} to
   */
  constructor(box, head, to) {
    this.box = box;
    this.head = head;
    this.to = to;
    /** @type {ListColumn} */
    this.asked = NOTHING;
    /** What is asked for, or shown. */
    this.wanted = NOTHING;
    this.index = -1;
    /** A row that is to be chosen when it comes. */
    this.due = -1;
    /** @type {About[]} */
    this.about = [];
    /** @type {Map<number, {columns: Record<string, any[]>, filters?: string[], opens?: string[], keys?: string[], sides?: string[], paths?: string[]}>} */
    this.blocks = new Map();
    this.stop = new AbortController();
    /** @type {Set<number>} */
    this.coming = new Set();
    this.rows = new Rows(box, {
      height: HEIGHT, role: "row", draw: (element, index) => this.draw(element, index), ready: (first, last) => this.ready(first, last),
      menu: (index, event) => {
        this.choose(index);
        this.menu(event.target, event.clientX, event.clientY);
      },
      chosen: () => this.index,
    });
    box.addEventListener("click", (event) => this.choose(this.rows.at(event)));
    box.addEventListener("dblclick", (event) => this.take(this.rows.at(event)));
    head.addEventListener("click", (event) => {
      const name = event.target instanceof HTMLElement ? event.target.dataset.id : undefined;
      const { sort } = this.wanted;
      if (!name || this.about.find((one) => one.name === name)?.sorted === false) return;
      void this.show({ ...this.wanted, sort: sort === name ? `-${name}` : sort === `-${name}` ? "" : name });
    });
  }

  /**
   * Show a list; where it is shown already, there may be more of it, and what is chosen stays chosen.
   * @param {ListColumn} asked
   */
  async show(asked) {
    this.stop.abort();
    this.stop = new AbortController();
    this.wanted = asked;
    const stays = JSON.stringify(asked) === JSON.stringify(this.asked), named = ROWS[asked.name] ?? asked.name;
    const waiting = stays ? 0 : setTimeout(() => this.to.counted(`reading ${named} …`), WAITING_MS);
    try {
      const found = await ask("table", { ...asked, count: BLOCK }, this.stop.signal);
      this.asked = asked;
      this.blocks = new Map([[0, found]]);
      this.coming = new Set();
      const before = this.about.map((one) => one.name).join();
      this.about = found.about.filter((/** @type {About} */ one) => !one.quiet); // those that say nothing in any row
      this.fit();
      if (before !== this.about.map((one) => one.name).join()) for (const element of this.rows.pool.splice(0)) element.remove();
      this.headings();
      if (!stays) {
        this.index = this.due = -1;
        this.rows.position = 0;
      }
      if (!stays || found.total !== this.rows.count) this.to.counted(`${counted(found.total)}${found.more ? ", and more" : ""} ${named}`);
      this.to.answering(found.question ?? "");
      this.rows.resize(found.total);
    } catch (failure) {
      if (givenUp(failure)) return;
      if (asked.name !== this.asked.name || asked.question !== this.asked.question) this.empty();
      this.wanted = this.asked;
      this.to.failed(failure);
    } finally {
      clearTimeout(waiting);
    }
  }

  /** Columns are as wide as what is in their first rows. */
  fit() {
    const first = this.blocks.get(0)?.columns ?? {};
    const widths = this.about.map((one) => width(one, first[one.name] ?? [], this.to.began()));
    for (const element of [this.box, this.head]) element.style.setProperty("--columns", widths.join(" "));
  }

  /** Moments are written otherwise. */
  told() {
    this.fit();
    this.rows.refresh(true);
  }

  /** Nobody looks any more. */
  leave() {
    this.stop.abort();
    this.stop = new AbortController();
    this.wanted = this.asked;
  }

  empty() {
    this.asked = NOTHING;
    this.about = [];
    this.blocks = new Map();
    this.index = this.due = -1;
    this.headings();
    this.rows.resize(0);
  }

  headings() {
    this.head.replaceChildren(...this.about.map((one) => heading({ id: one.name, title: headed(one), about: one.about, by: one.name }, this.asked.sort)));
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  ready(first, last) {
    let there = true;
    for (let block = Math.floor(first / BLOCK); block <= Math.floor((last - 1) / BLOCK); block++) {
      if (this.blocks.has(block)) continue;
      there = false;
      if (!this.coming.has(block)) void this.load(block);
    }
    return there;
  }

  /** @param {number} block */
  async load(block) {
    const { blocks, coming } = this;
    coming.add(block);
    try {
      blocks.set(block, await ask("table", { ...this.asked, start: block * BLOCK, count: BLOCK }, this.stop.signal));
      this.rows.refresh(true);
      if (blocks === this.blocks && Math.floor(this.due / BLOCK) === block) this.choose(this.due);
    } catch (failure) {
      if (!givenUp(failure)) this.to.failed(failure);
    } finally {
      coming.delete(block);
    }
  }

  /**
   * @param {HTMLElement} element
   * @param {number} index
   */
  draw(element, index) {
    const block = this.blocks.get(Math.floor(index / BLOCK));
    if (!block) return;
    while (element.children.length < this.about.length) {
      const cell = document.createElement("span");
      cell.setAttribute("role", "gridcell");
      element.append(cell);
    }
    element.setAttribute("aria-selected", String(index === this.index));
    element.dataset.verdict = block.columns.verdict?.[index % BLOCK] ?? "";
    if (index === this.index) this.box.setAttribute("aria-activedescendant", element.id);
    this.about.forEach((one, at) => {
      const cell = /** @type {HTMLElement} */ (element.children[at]);
      cell.dataset.id = one.name;
      say(cell, shown(one, block.columns[one.name]?.[index % BLOCK], this.to.began()));
    });
  }

  /**
   * The filter of a row.
   * @param {number} index
   */
  filter(index) {
    return this.blocks.get(Math.floor(index / BLOCK))?.filters?.[index % BLOCK] ?? "";
  }

  /** @param {number} index */
  choose(index) {
    if (index < 0) return;
    this.index = index;
    this.rows.reveal(index);
    this.rows.refresh(true);
    const block = this.blocks.get(Math.floor(index / BLOCK)), key = block?.keys?.[index % BLOCK];
    this.due = block ? -1 : index;
    if (key) this.to.chosen(key, block?.sides?.[index % BLOCK], block?.paths?.[index % BLOCK]);
  }

  /** @param {number} index */
  take(index) {
    const filter = this.filter(index), block = this.blocks.get(Math.floor(index / BLOCK)), question = block?.opens?.[index % BLOCK];
    if (filter) this.to.taken(filter);
    else if (question) this.to.opened(question);
    else if (block?.keys) this.to.entered(block.sides?.[index % BLOCK] ?? "request");
  }

  /**
   * @param {EventTarget | null} target
   * @param {number} x
   * @param {number} y
   */
  menu(target, x, y) {
    const text = target instanceof Element ? target.closest("[role=gridcell]")?.textContent ?? "" : "";
    this.to.menu(this.filter(this.index), text, x, y);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  pressed(event) {
    const to = moved(event.key, this.index, this.rows.count, this.rows.fitting);
    if (to !== null) this.choose(to);
    else if (event.key === "Enter") this.take(this.index);
    else if (menuKey(event)) {
      const row = this.box.querySelector('[aria-selected="true"]');
      if (!row) return false;
      const place = row.getBoundingClientRect();
      this.menu(row.firstElementChild, place.left + 20, place.bottom);
    } else return false;
    return true;
  }
}
