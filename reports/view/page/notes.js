/** Marks with notes, and colour rules: kept by the server outside the dataset, shown in the list. */

import { ask, put } from "./api.js";
import { printable } from "./text.js";

/** @typedef {{marks: Record<string, string>, rules: string[]}} Noted */

export const LETTERS = "abcdefgh";
/** A rule's sign in the gutter: colour alone says nothing. */

export class Notes {
  /** @param {(rules: boolean) => void} changed `rules`: colours may be others */
  constructor(changed) {
    this.changed = changed;
    /** @type {Noted} */
    this.noted = { marks: {}, rules: [] };
    /** @type {Promise<unknown>} */
    this.keeping = Promise.resolve();
  }

  /**
   * Have something changed: after what is being kept, and in what other pages kept meanwhile, of which nothing is lost.
   * @param {(noted: Noted) => Partial<Noted>} change
   */
  keep(change) {
    const kept = this.keeping.then(async () => {
      const before = await ask("notes");
      this.noted = await put("notes", { ...before, ...change(before) });
      this.changed(JSON.stringify(before.rules) !== JSON.stringify(this.noted.rules));
    });
    this.keeping = kept.catch(() => undefined);
    return kept;
  }

  /**
   * Mark an exchange, or take its mark away; a note that is written stays unless another is.
   * @param {string} key
   * @param {string} [note]
   */
  async mark(key, note) {
    await this.keep(({ marks }) => {
      const { [key]: before, ...others } = marks;
      return { marks: note === undefined && before !== undefined ? others : { ...others, [key]: note ?? "" } };
    });
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
    const { rules } = this.noted;
    /** @param {string[]} now */
    const keep = (now) => this.keep(() => ({ rules: now })).then(() => this.rules(box, filter, failed), failed);
    const rows = rules.map((rule, at) => {
      const row = document.createElement("p"), sign = document.createElement("b"), text = document.createElement("code");
      row.className = `rule-${at}`;
      sign.textContent = LETTERS[at] ?? "";
      text.textContent = printable(rule);
      row.append(sign, text, button("first", () => keep([rule, ...rules.filter((_, other) => other !== at)])), button("remove", () => keep(rules.filter((_, other) => other !== at))));
      return row;
    });
    const add = button(filter ? `colour ${printable(filter)}` : "choose a filter, then colour its exchanges here", () => keep([...rules, filter]));
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
