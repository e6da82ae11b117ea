/** One message's fields as a tree; what is inside comes when it is opened. */

import { ask } from "./api.js";
import { Rows, menuKey, moved, say } from "./rows.js";
import { counted, printable } from "./text.js";

const HEIGHT = 20;

/**
 * @typedef {object} Node
 * @property {string} name
 * @property {string} type
 * @property {string} value
 * @property {number} start
 * @property {number} end
 * @property {number} total children that it has
 * @property {Node[]} [children] those that are here
 * @property {boolean} [secret]
 * @property {string} [exact] its value, as filters have it
 * @property {string} [field] its name, as filters have it
 * @property {boolean} [open]
 *
 * @typedef {{node: Node, path: number[], more?: undefined} | {node: Node, path: number[], more: number}} Line a field, or
 *   `more` children of a node that are not here yet
 */

export class Tree {
  /**
   * @param {HTMLElement} box
   * @param {string} side
   * @param {object} to
   * @param {(node: Node | null, path: number[]) => void} to.chosen
   * @param {(node: Node, x: number, y: number) => void} to.menu
   * @param {(failure: unknown) => void} to.failed
   */
  constructor(box, side, to) {
    this.box = box;
    this.side = side;
    this.to = to;
    this.key = "";
    /** Signs of fields that differ from another message's, by path. */
    this.marks = /** @type {Map<string, string>} */ (new Map());
    /** @type {Node} */
    this.root = { name: side, type: "", value: "", start: 0, end: 0, total: 0, children: [], open: true };
    /** @type {Line[]} */
    this.lines = [];
    this.index = -1;
    /** Ways to nodes that are being opened: only the last one counts, and not where a line was chosen meanwhile. */
    this.round = 0;
    this.rows = new Rows(box, {
      height: HEIGHT, role: "treeitem", draw: (element, index) => this.draw(element, index),
      menu: (index, event) => {
        const line = this.lines[index];
        this.choose(index);
        if (line?.more === undefined && line) this.to.menu(line.node, event.clientX, event.clientY);
      },
    });
    box.addEventListener("click", (event) => this.clicked(event));
  }

  /**
   * Show a side of an exchange.
   * @param {string} key
   * @param {string} side
   * @param {any} told the first page of its fields
   */
  show(key, side, told) {
    this.key = key;
    this.side = side;
    this.marks.clear();
    this.root = { ...this.root, total: told.total, children: told.children, open: true };
    for (const node of told.children) opened(node);
    this.index = -1;
    this.rows.position = 0;
    this.flatten();
  }

  empty() {
    this.key = "";
    this.root = { ...this.root, total: 0, children: [] };
    this.index = -1;
    this.flatten();
  }

  /** The chosen field, as the page's state has it. */
  get path() {
    const line = this.lines[this.index];
    return line && line.more === undefined ? line.path.join(".") : "";
  }

  /** What is open, as lines. The chosen line stays chosen, wherever it is then. */
  flatten() {
    const chosen = this.lines[this.index];
    /** @type {Line[]} */
    const lines = [];
    /** @param {Node} node @param {number[]} path */
    const walk = (node, path) => {
      const children = node.children ?? [];
      children.forEach((child, at) => {
        const here = [...path, at];
        lines.push({ node: child, path: here });
        if (child.open) walk(child, here);
      });
      const more = node.total - children.length;
      if (more > 0) lines.push({ node, path, more });
    };
    walk(this.root, []);
    this.lines = lines;
    if (chosen) this.index = this.place(chosen);
    this.rows.resize(lines.length);
    this.rows.refresh(true);
  }

  /**
   * Where a line of before is now: itself, the first of the children that came in its place, or what it is inside.
   * @param {Line} line
   * @returns {number} -1: nowhere
   */
  place(line) {
    const same = this.lines.findIndex((one) => one.node === line.node && one.more === line.more);
    if (same >= 0) return same;
    for (let path = line.more === undefined ? line.path : [...line.path, line.node.total - line.more]; path.length; path = path.slice(0, -1)) {
      const words = path.join(), at = this.lines.findIndex((one) => one.more === undefined && one.path.join() === words);
      if (at >= 0) return at;
    }
    return -1;
  }

  /**
   * @param {HTMLElement} element
   * @param {number} index
   */
  draw(element, index) {
    const line = this.lines[index];
    if (!line) return;
    if (!element.children.length) {
      for (const name of ["fold", "name", "value"]) {
        const part = document.createElement("span");
        part.className = name;
        element.append(part);
      }
    }
    const [fold, name, value] = /** @type {HTMLElement[]} */ ([...element.children]);
    if (!fold || !name || !value) return;
    const { node, path } = line;
    const level = line.more === undefined ? path.length : path.length + 1;
    element.style.setProperty("--level", String(level - 1));
    element.setAttribute("aria-level", String(level));
    element.setAttribute("aria-selected", String(index === this.index));
    if (index === this.index) this.box.setAttribute("aria-activedescendant", element.id);
    if (line.more !== undefined) {
      element.className = "row more";
      element.removeAttribute("aria-expanded");
      say(fold, "");
      say(name, `${counted(line.more)} more`);
      say(value, "");
      return;
    }
    element.className = `row${node.secret ? " secret" : ""}`;
    if (node.total) element.setAttribute("aria-expanded", String(Boolean(node.open)));
    else element.removeAttribute("aria-expanded");
    say(fold, node.total ? (node.open ? "▾" : "▸") : "");
    const sign = this.marks.get(path.join("."));
    if (sign) element.classList.add(sign === "·" ? "around" : "differs");
    say(name, `${sign ? `${sign} ` : ""}${printable(node.name)}${node.value ? ":" : ""}`);
    say(value, printable(node.value));
    element.title = `${node.type}, bytes ${node.start} to ${node.end}` + (node.start === node.end ? ": compressed, or none of its own" : "");
  }

  /**
   * @param {number} index
   * @param {boolean} [quiet] nobody is told
   */
  choose(index, quiet = false) {
    if (!this.lines[index]) return;
    this.round++;
    this.index = index;
    this.rows.reveal(index);
    this.rows.refresh(true);
    if (quiet) return;
    const line = this.lines[index];
    if (line && line.more === undefined) this.to.chosen(line.node, line.path);
  }

  /**
   * Open or close a node, or fetch more children.
   * @param {number} index
   * @param {boolean} [open]
   */
  async toggle(index, open) {
    const line = this.lines[index];
    if (!line) return;
    const { node, path } = line, { root } = this;
    try {
      if (line.more !== undefined) await this.fetch(node, path);
      else if (node.total) {
        node.open = open ?? !node.open;
        if (node.open && !node.children) await this.fetch(node, path);
      }
    } catch (failure) {
      if (root !== this.root) return;
      node.open = Boolean(node.children);
      this.to.failed(failure);
    }
    this.flatten();
  }

  /**
   * The next children of a node.
   * @param {Node} node
   * @param {number[]} path
   */
  async fetch(node, path) {
    const { root } = this, first = node.children?.length ?? 0;
    const told = await ask("message", { key: this.key, side: this.side, path: path.join("."), first });
    if (root !== this.root || (node.children?.length ?? 0) !== first) return; // another message, or they came already
    for (const child of told.children) opened(child);
    node.children = [...(node.children ?? []), ...told.children];
    node.total = told.total;
  }

  /**
   * Mark fields that differ, and what is around them.
   * @param {readonly (readonly [readonly number[], string])[]} signs by path
   */
  mark(signs) {
    this.marks.clear();
    for (const [path, sign] of signs) {
      for (let depth = 1; depth < path.length; depth++) {
        const around = path.slice(0, depth).join(".");
        if (!this.marks.has(around)) this.marks.set(around, "·");
      }
      this.marks.set(path.join("."), sign);
    }
    this.rows.refresh(true);
  }

  /**
   * Open the way to a node, and choose it.
   * @param {readonly number[]} path
   * @param {boolean} [quiet] nobody is told
   */
  async reveal(path, quiet = false) {
    const { root } = this, mine = ++this.round;
    let node = root;
    for (const [depth, at] of path.entries()) {
      node.open = true;
      while ((node.children?.length ?? 0) <= at) {
        const before = node.children?.length ?? 0;
        await this.fetch(node, path.slice(0, depth));
        if (root !== this.root || mine !== this.round || (node.children?.length ?? 0) === before) return;
      }
      node = /** @type {Node} */ (node.children?.[at]);
    }
    this.flatten();
    const index = this.lines.findIndex((line) => line.more === undefined && line.node === node);
    if (index < 0) return;
    this.rows.reveal(index, true);
    this.choose(index, quiet);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const index = this.rows.at(event);
    const line = this.lines[index];
    if (!line) return;
    if (line.more !== undefined || (event.target instanceof Element && event.target.className === "fold")) void this.toggle(index);
    else this.choose(index);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  pressed(event) {
    const line = this.lines[this.index];
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const right = event.key === "ArrowRight";
      if (!line || line.more !== undefined) return false;
      if (line.node.total && Boolean(line.node.open) !== right) void this.toggle(this.index, right);
      else if (right && line.node.total) this.choose(this.index + 1);
      else if (!right) this.choose(this.lines.findIndex((one) => one.more === undefined && one.path.join() === line.path.slice(0, -1).join()));
      return true;
    }
    if (menuKey(event)) {
      const row = this.box.querySelector('[aria-selected="true"]');
      if (!line || line.more !== undefined || !row) return false;
      const place = row.getBoundingClientRect();
      this.to.menu(line.node, place.left + 40, place.bottom);
      return true;
    }
    if (event.key === "Enter" && line && (line.more !== undefined || line.node.total)) {
      void this.toggle(this.index);
      return true;
    }
    const to = moved(event.key, this.index, this.lines.length, this.rows.fitting);
    if (to === null) return false;
    this.choose(to);
    return true;
  }
}

/**
 * A node whose children came along is open.
 * @param {Node} node
 */
function opened(node) {
  node.open = node.children !== undefined;
  for (const child of node.children ?? []) opened(child);
}
