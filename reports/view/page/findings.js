/** What is wrong, and the exchanges that show it: one key from a finding to its evidence, one from that to the next. */

import { ask } from "./api.js";
import { printable } from "./text.js";

/**
 * @typedef {{severity: string, code: string, text: string, cause: string | null, proven: boolean | null, advice: string,
 *   evidence: {which: string, key: string}[]}} Finding
 */

export class Findings {
  /**
   * @param {HTMLElement} box
   * @param {() => string} none what is said where there are none
   * @param {(key: string) => void} chosen a piece of evidence was chosen
   */
  constructor(box, none, chosen) {
    this.box = box;
    this.none = none;
    this.chosen = chosen;
    /** @type {HTMLButtonElement[]} */
    this.pieces = [];
    this.at = -1;
    /** @type {Promise<void> | null} */
    this.asked = null;
  }

  /** There may be more now. */
  forget() {
    this.asked = null;
  }

  /** Fetched once. */
  show() {
    if (this.asked) return this.asked;
    /** @type {Promise<void>} */
    const mine = ask("findings").then(({ findings }) => mine === this.asked ? this.draw(findings) : this.show()).catch((failure) => {
      if (mine === this.asked) this.forget(); // to be asked for again
      throw failure;
    });
    this.asked = mine;
    return mine;
  }

  /** @param {Finding[]} findings */
  draw(findings) {
    const before = this.pieces[this.at]?.dataset.key;
    this.pieces = [];
    this.box.replaceChildren();
    if (!findings.length) this.box.append(line(this.none()));
    for (const one of findings) {
      const article = document.createElement("article"), head = document.createElement("h3");
      article.className = one.severity;
      head.textContent = `${one.severity}: ${one.code}`;
      article.append(head, line(one.text));
      if (one.cause && !one.text.includes(one.cause)) article.append(line(`${one.proven ? "cause" : "probably"}: ${one.cause}`));
      article.append(line(`do: ${one.advice}`));
      for (const { which, key } of one.evidence) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = which;
        button.title = printable(key);
        const at = this.pieces.push(button) - 1;
        button.addEventListener("click", () => this.chosen(this.go(at)));
        button.dataset.key = key;
        article.append(button);
      }
      this.box.append(article);
    }
    this.at = this.pieces.findIndex((piece) => piece.dataset.key === before);
    this.pieces[this.at]?.setAttribute("aria-current", "true");
  }

  /**
   * To a piece of evidence.
   * @param {number} at
   * @returns {string} its identity; empty: there is none
   */
  go(at) {
    const piece = this.pieces[at];
    if (!piece?.dataset.key) return "";
    this.pieces[this.at]?.removeAttribute("aria-current");
    piece.setAttribute("aria-current", "true");
    piece.scrollIntoView({ block: "nearest" });
    this.at = at;
    return piece.dataset.key;
  }

  /**
   * From one piece to another, once they are shown.
   * @param {number} step
   * @returns {string} its identity; empty: there is none
   */
  step(step) {
    return this.go(Math.min(Math.max(this.at + step, 0), this.pieces.length - 1));
  }
}

/** @param {string} text */
function line(text) {
  const made = document.createElement("p");
  made.textContent = printable(text);
  return made;
}
