/** The filter bar: the language of `kwire show --filter`, with what may come next and where a mistake is. */

import { ask, givenUp } from "./api.js";
import { counted, printable } from "./text.js";

/** @typedef {{text: string, about?: string, count?: number}} Candidate */

const REST_MS = 500;
/** Who types no more for so long is told in words what is wrong. */

export class FilterBar {
  /**
   * @param {HTMLInputElement} input
   * @param {HTMLElement} list candidates
   * @param {HTMLElement} mark the mistake's place, under the text
   * @param {HTMLElement} told what is wrong
   * @param {(filter: string) => void} applied
   */
  constructor(input, list, mark, told, applied) {
    this.input = input;
    this.list = list;
    this.mark = mark;
    this.told = told;
    this.applied = applied;
    /** @type {Candidate[]} */
    this.candidates = [];
    /** Where a candidate goes: after so many characters, and before so many. */
    this.start = 0;
    this.rest = 0;
    /** The text that candidates were offered for. */
    this.about = "";
    this.chosen = -1;
    this.stop = new AbortController();
    input.addEventListener("input", () => void this.typed(true));
    input.addEventListener("keydown", (event) => this.pressed(event));
    input.addEventListener("blur", () => this.close());
    input.addEventListener("scroll", () => this.place());
    list.addEventListener("pointerdown", (event) => {
      const row = event.target instanceof Element ? event.target.closest("[role=option]") : null;
      if (!(row instanceof HTMLElement)) return;
      event.preventDefault(); // the focus stays
      this.take(Number(row.dataset.at));
    });
  }

  get value() {
    return this.input.value;
  }

  /** @param {string} text */
  set value(text) {
    this.stop.abort(); // what was asked about an earlier text says nothing of this one
    this.input.value = text;
    this.right();
    this.close();
  }

  /**
   * Look at what is typed.
   * @param {boolean} completing
   */
  async typed(completing) {
    this.stop.abort();
    this.stop = new AbortController();
    const { value } = this.input;
    if (this.candidates.length && !this.fits()) this.close();
    const at = this.input.selectionStart ?? value.length;
    try {
      const [checked, found] = await Promise.all([
        ask("check", { filter: value }, this.stop.signal),
        completing ? ask("complete", { text: value, at }, this.stop.signal) : null,
      ]);
      if (checked.ok) this.right();
      else {
        this.wrong(checked.message, checked.hint, checked.start, checked.length, at < value.length);
        const { signal } = this.stop;
        setTimeout(() => { if (!signal.aborted) this.told.hidden = false; }, REST_MS); // who rests wants to know
      }
      if (found) this.offer(found);
    } catch (failure) {
      if (!givenUp(failure)) this.wrong(failure instanceof Error ? failure.message : String(failure), "", 0, 0, true);
    }
  }

  /** Are the candidates still about the word that is being typed? Those for its next letter may be on their way. */
  fits() {
    const { value, about, start, rest } = this, to = value.length - rest;
    return value.slice(0, start) === about.slice(0, start) && to >= start && value.slice(to) === about.slice(about.length - rest) &&
      /^("[^"]*|[\w.-]*)$/.test(value.slice(start, to));
  }

  right() {
    this.input.setAttribute("aria-invalid", "false");
    this.mark.hidden = true;
    this.told.textContent = "";
    this.told.hidden = true;
  }

  /**
   * @param {string} message
   * @param {string} hint
   * @param {number} start
   * @param {number} length
   * @param {boolean} loud said in words, too: not while it is being typed
   */
  wrong(message, hint, start, length, loud) {
    this.input.setAttribute("aria-invalid", "true");
    this.place = () => {
      this.mark.style.left = `calc(${start}ch - ${this.input.scrollLeft}px)`;
      this.mark.style.width = `${Math.max(1, length)}ch`;
    };
    this.place();
    this.mark.hidden = false;
    this.told.hidden = !loud;
    this.told.textContent = printable(message) + (hint ? ` — ${printable(hint)}` : "");
  }

  /** Put the mark where the mistake is. */
  place() {}

  /** @param {{start: number, end: number, candidates: Candidate[]}} found */
  offer(found) {
    const pointed = this.candidates[this.chosen]?.text;
    this.candidates = found.candidates;
    this.about = this.value;
    this.start = found.start;
    this.rest = this.value.length - found.end;
    const only = this.candidates.length === 1 && this.candidates[0]?.text === this.value.slice(found.start, found.end);
    if (!this.candidates.length || only || document.activeElement !== this.input) return this.close();
    this.list.replaceChildren(...this.candidates.map((one, at) => {
      const row = document.createElement("div");
      row.setAttribute("role", "option");
      row.id = `option-${at}`;
      row.dataset.at = String(at);
      const text = document.createElement("b"), about = document.createElement("span");
      text.textContent = printable(one.text);
      about.textContent = one.count === undefined ? (one.about ?? "") : counted(one.count);
      about.className = one.count === undefined ? "about" : "count";
      row.append(text, about);
      return row;
    }));
    this.list.hidden = false;
    this.list.scrollTop = 0;
    this.input.setAttribute("aria-expanded", "true");
    this.point(pointed === undefined ? -1 : this.candidates.findIndex((one) => one.text === pointed));
  }

  /** @param {number} at */
  point(at) {
    this.chosen = at;
    [...this.list.children].forEach((row, index) => row.setAttribute("aria-selected", String(index === at)));
    if (at < 0) this.input.removeAttribute("aria-activedescendant");
    else {
      this.input.setAttribute("aria-activedescendant", `option-${at}`);
      this.list.children[at]?.scrollIntoView({ block: "nearest" });
    }
  }

  close() {
    this.list.hidden = true;
    this.candidates = [];
    this.chosen = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  /** @param {number} at */
  take(at) {
    const one = this.candidates[at];
    if (!one) return;
    this.chosen = -1;
    const before = this.value.slice(0, this.start) + one.text;
    const after = this.value.slice(this.value.length - this.rest);
    const space = one.text.endsWith("(") || after.startsWith(" ") ? "" : " ";
    this.input.value = before + space + after;
    const caret = before.length + space.length;
    this.input.setSelectionRange(caret, caret);
    void this.typed(true);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const open = !this.list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!open) return void this.typed(true);
      const count = this.candidates.length, step = event.key === "ArrowDown" ? 1 : -1;
      this.point(this.chosen < 0 ? (step > 0 ? 0 : count - 1) : (this.chosen + step + count) % count);
    } else if (event.key === "Tab" && open && !event.shiftKey && this.chosen >= 0) {
      event.preventDefault();
      this.take(this.chosen);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (open && this.chosen >= 0) return this.take(this.chosen);
      this.stop.abort(); // a late word on what was being typed must not hide what is said of the whole
      this.close();
      this.applied(this.value.trim());
    } else if (event.key === "Escape") {
      event.stopPropagation();
      if (open) {
        this.close();
        void this.typed(false); // candidates on their way are not wanted
      } else this.input.blur();
    }
  }
}

/**
 * Filters that many begin with.
 * @param {HTMLElement} box
 * @param {readonly {name: string, empty: boolean}[]} columns
 * @param {(filter: string) => void} chosen
 */
export function saved(box, columns, chosen) {
  const parts = columns.some((one) => one.name === "cause" && !one.empty);
  const filters = [
    ["errors", "error is not null"],
    ["slow, not held", parts ? "latency > 100ms and cause != hold" : "latency > 100ms"],
    ["no answer", "status in (unanswered, in_flight)"],
    ["no heartbeats", "api not in (Heartbeat, ConsumerGroupHeartbeat)"],
  ];
  box.replaceChildren(...filters.map(([name, filter]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name ?? "";
    button.title = filter ?? "";
    button.addEventListener("click", () => chosen(filter ?? ""));
    return button;
  }));
}
