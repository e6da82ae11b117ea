/** Marks with notes, and colour rules: kept by the server outside the dataset, shown in the list. */

import { ask, put } from "./api.js";
import { printable } from "./text.js";

/** @typedef {{marks: Record<string, string>, rules: string[]}} Noted */

export const LETTERS = "abcdefgh";
/** A rule's sign in the gutter: colour alone says nothing. */

export class Notes {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    /** @type {Noted} */
    this.noted = { marks: {}, rules: [] };
  }

  async fetch() {
    this.noted = await ask("notes");
    this.changed();
  }

  /**
   * @param {Noted} noted
   */
  async keep(noted) {
    this.noted = await put("notes", noted);
    this.changed();
  }

  /**
   * Mark an exchange, or take its mark away; a note that is written stays unless another is.
   * @param {string} key
   * @param {string} [note]
   */
  async mark(key, note) {
    const { marks, rules } = this.noted;
    const { [key]: before, ...others } = marks;
    await this.keep({ marks: note === undefined && before !== undefined ? others : { ...others, [key]: note ?? "" }, rules });
  }

  /** @param {string} key @returns {string | undefined} its note; undefined: it has no mark */
  of(key) {
    return Object.hasOwn(this.noted.marks, key) ? this.noted.marks[key] : undefined;
  }

  /**
   * The dialog of colour rules.
   * @param {HTMLElement} box
   * @param {string} filter the one that is shown now
   * @param {(failure: unknown) => void} failed
   */
  rules(box, filter, failed) {
    const { marks, rules } = this.noted;
    /** @param {string[]} now */
    const keep = (now) => this.keep({ marks, rules: now }).then(() => this.rules(box, filter, failed), failed);
    const rows = rules.map((rule, at) => {
      const row = document.createElement("p"), sign = document.createElement("b"), text = document.createElement("code");
      row.className = `rule-${at}`;
      sign.textContent = LETTERS[at] ?? "";
      text.textContent = printable(rule);
      row.append(sign, text, button("first", () => keep([rule, ...rules.filter((_, other) => other !== at)])), button("take away", () => keep(rules.filter((_, other) => other !== at))));
      return row;
    });
    const add = button(filter ? `colour ${printable(filter)}` : "choose a filter, then colour what it chooses here", () => keep([...rules, filter]));
    add.disabled = !filter || rules.includes(filter) || rules.length >= LETTERS.length;
    box.replaceChildren(...rows, add);
  }
}

/**
 * @param {string} text
 * @param {() => void} does
 */
function button(text, does) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", does);
  return made;
}
