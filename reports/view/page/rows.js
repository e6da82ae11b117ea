/**
 * A list of any number of rows, of which only those in sight are elements.
 *
 * The position is a row number with a fraction, not pixels: browsers limit an element's height, and beyond 500,000 rows
 * a native scroll position cannot name a row. So a notch of the wheel moves the same rows at any size.
 */

const NOTCH = 40;
/** Pixels of a line, where a wheel counts lines (Firefox). */

/**
 * @typedef {object} Options
 * @property {number} height pixels of a row
 * @property {(element: HTMLElement, index: number) => void} draw fills an element with a row
 * @property {string} role of a row's element
 * @property {() => number} [chosen] the row that stays in sight where the list gets another height; negative: none
 * @property {(index: number, event: MouseEvent) => void} [menu] the right button on a row
 * @property {(first: number, last: number) => boolean} [ready] may these rows be drawn now? Where not, the last picture
 *   stays until `refresh` is called
 */

export class Rows {
  /**
   * @param {HTMLElement} box takes the rows; it has the focus and the keys
   * @param {Options} options
   */
  constructor(box, options) {
    this.box = box;
    this.options = options;
    this.count = 0;
    /** Row number at the top, with a fraction. */
    this.position = 0;
    /** @type {HTMLElement[]} */
    this.pool = [];
    this.frame = 0;
    this.held = false;
    /** Rows that fitted, before the list got another height. */
    this.fitted = 0;
    this.area = document.createElement("div");
    this.area.className = "rows";
    this.area.setAttribute("role", "presentation");
    this.bar = document.createElement("div");
    this.bar.className = "bar";
    this.bar.setAttribute("role", "scrollbar");
    this.bar.setAttribute("aria-orientation", "vertical");
    this.bar.setAttribute("aria-controls", box.id);
    this.bar.setAttribute("aria-label", "position in the list");
    this.thumb = document.createElement("div");
    this.thumb.className = "thumb";
    this.bar.append(this.thumb);
    box.append(this.area, this.bar);
    box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.bar.addEventListener("pointerdown", (event) => this.drag(event));
    this.touched();
    box.addEventListener("contextmenu", (event) => {
      const index = this.at(event);
      if (index < 0 || !options.menu) return;
      event.preventDefault();
      options.menu(index, event);
    });
    new ResizeObserver(() => this.sized()).observe(box);
  }

  /** The list has another height. */
  sized() {
    const chosen = this.options.chosen?.() ?? -1, seen = chosen >= this.position - 1 && chosen < this.position + this.fitted;
    this.fitted = this.fitting;
    if (chosen >= 0 && seen) this.reveal(chosen);
    this.refresh(true);
  }

  /** Rows that fit. */
  get fitting() {
    return Math.max(1, Math.floor(this.area.clientHeight / this.options.height));
  }

  /** The largest position. */
  get end() {
    return Math.max(0, this.count - this.area.clientHeight / this.options.height);
  }

  /** @param {number} count */
  resize(count) {
    this.count = count;
    this.box.setAttribute("aria-rowcount", String(count));
    this.move(this.position);
    this.refresh(true);
  }

  /** @param {number} position */
  move(position) {
    this.position = Math.min(Math.max(0, position), this.end);
    this.refresh();
  }

  /**
   * Bring a row into sight.
   * @param {number} index
   * @param {boolean} [middle] into the middle, if it is not in sight
   */
  reveal(index, middle = false) {
    const fitting = this.area.clientHeight / this.options.height;
    if (!fitting) return this.move(index); // not shown now: it is the first row when it is
    if (index >= this.position && index + 1 <= this.position + fitting) return this.refresh();
    if (middle) this.move(index - fitting / 2);
    else this.move(index < this.position ? index : index + 1 - fitting);
  }

  /**
   * Draw at the next frame.
   * @param {boolean} [again] every row, what stands there is not right any more
   */
  refresh(again = false) {
    this.again ||= again;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.drawn();
    });
  }

  drawn() {
    const { height, draw, ready, role } = this.options;
    const visible = Math.ceil(this.area.clientHeight / height) + 1;
    const first = Math.floor(this.position);
    const last = Math.min(this.count, first + visible);
    if (this.area.clientHeight === 0) return;
    this.held = ready !== undefined && last > first && !ready(first, last);
    if (this.held) return;
    while (this.pool.length < visible) {
      const element = document.createElement("div");
      element.className = "row";
      element.setAttribute("role", role);
      element.dataset.index = "-1";
      this.area.append(element);
      this.pool.push(element);
    }
    if (this.pool.length > visible) for (const element of this.pool.splice(visible)) element.remove();
    const pool = this.pool;
    for (let index = first; index < first + pool.length; index++) {
      const element = /** @type {HTMLElement} */ (pool[index % pool.length]);
      if (index >= last) {
        element.hidden = true;
        element.dataset.index = "-1";
        for (const name of ["id", "aria-selected", "aria-rowindex"]) element.removeAttribute(name);
        continue;
      }
      if (this.again || element.dataset.index !== String(index)) {
        element.hidden = false;
        element.dataset.index = String(index);
        element.id = `${this.box.id}-${index}`;
        element.setAttribute("aria-rowindex", String(index + 1));
        draw(element, index);
      }
      element.style.transform = `translateY(${Math.round((index - this.position) * height)}px)`;
    }
    this.again = false;
    this.measured();
  }

  /** The thumb, where the position is. */
  measured() {
    const fitting = this.area.clientHeight / this.options.height;
    const hidden = this.count <= fitting;
    this.bar.hidden = hidden;
    if (hidden) return;
    const room = this.bar.clientHeight;
    const length = Math.max(24, (room * fitting) / this.count);
    this.thumb.style.height = `${length}px`;
    this.thumb.style.transform = `translateY(${((room - length) * this.position) / (this.end || 1)}px)`;
    this.bar.setAttribute("aria-valuemax", String(Math.ceil(this.end)));
    this.bar.setAttribute("aria-valuenow", String(Math.round(this.position)));
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (event.ctrlKey || event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
    event.preventDefault();
    const pixels = [1, NOTCH, this.area.clientHeight][event.deltaMode] ?? 1;
    this.move(this.position + (event.deltaY * pixels) / this.options.height);
  }

  /** @param {PointerEvent} event */
  drag(event) {
    event.preventDefault();
    this.bar.setPointerCapture(event.pointerId);
    const length = this.thumb.offsetHeight;
    const top = this.thumb.getBoundingClientRect().top;
    const grip = event.target === this.thumb ? event.clientY - top : length / 2;
    /** @param {PointerEvent} now */
    const follow = (now) => {
      const room = this.bar.clientHeight - length;
      const ratio = (now.clientY - this.bar.getBoundingClientRect().top - grip) / (room || 1);
      this.move(Math.min(Math.max(ratio, 0), 1) * this.end);
    };
    follow(event);
    this.bar.addEventListener("pointermove", follow);
    this.bar.addEventListener("lostpointercapture", () => this.bar.removeEventListener("pointermove", follow), { once: true });
  }

  /** Fingers. */
  touched() {
    let last = 0;
    this.area.addEventListener("touchstart", (event) => { last = event.touches[0]?.clientY ?? 0; }, { passive: true });
    this.area.addEventListener("touchmove", (event) => {
      const now = event.touches[0]?.clientY ?? last;
      this.move(this.position + (last - now) / this.options.height);
      last = now;
      event.preventDefault();
    }, { passive: false });
  }

  /**
   * The row that an event happened in.
   * @param {Event} event
   * @returns {number} -1: none
   */
  at(event) {
    const row = event.target instanceof Element ? event.target.closest(".row") : null;
    return row instanceof HTMLElement ? Number(row.dataset.index) : -1;
  }
}

/**
 * Where a key that moves in a list leads.
 * @param {string} key
 * @param {number} index
 * @param {number} count
 * @param {number} fitting rows of a page
 * @returns {number | null} null: it does not move
 */
export function moved(key, index, count, fitting) {
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: fitting, PageUp: -fitting, " ": fitting }[key];
  if (key === "Home") return count ? 0 : null;
  if (key === "End") return count ? count - 1 : null;
  if (step === undefined || !count) return null;
  return Math.min(Math.max(index + step, 0), count - 1);
}

/**
 * Does a key ask for a menu?
 * @param {KeyboardEvent} event
 */
export function menuKey(event) {
  return event.key === "ContextMenu" || event.key === "v" || (event.key === "F10" && event.shiftKey);
}

/**
 * The heading of a column.
 * @param {{id: string, title: string, about: string, by: string}} column `by`: what it sorts by
 * @param {string} sort what is sorted by now, `-` before it: smallest first
 * @returns {HTMLElement}
 */
export function heading(column, sort) {
  const cell = document.createElement("button");
  cell.type = "button";
  cell.tabIndex = -1;
  cell.setAttribute("role", "columnheader");
  cell.dataset.id = column.id;
  cell.title = column.about;
  const by = sort.replace(/^-/, "") === column.by, down = !sort.startsWith("-");
  cell.setAttribute("aria-sort", by ? (down ? "descending" : "ascending") : "none");
  cell.textContent = column.title + (by ? (down ? " ▼" : " ▲") : "");
  return cell;
}

/**
 * Set an element's text where it is another.
 * @param {Node} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
