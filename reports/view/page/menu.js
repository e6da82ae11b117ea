/** A menu at a place: what can be done with a value. */

import { printable } from "./text.js";

/** @typedef {{text: string, does: () => void}} Item */

export class Menu {
  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
    /** @type {readonly Item[]} */
    this.items = [];
    /** @type {Element | null} */
    this.before = null;
    box.addEventListener("click", (event) => {
      const at = event.target instanceof HTMLElement ? event.target.dataset.at : undefined;
      if (at !== undefined) this.take(Number(at));
    });
    box.addEventListener("keydown", (event) => this.pressed(event));
    box.addEventListener("focusout", (event) => {
      if (!(event.relatedTarget instanceof Node && box.contains(event.relatedTarget))) this.close(false);
    });
  }

  /**
   * @param {readonly Item[]} items
   * @param {number} x
   * @param {number} y
   */
  open(items, x, y) {
    if (!items.length) return;
    this.before = document.activeElement;
    this.items = items;
    this.box.replaceChildren(...items.map((item, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("role", "menuitem");
      button.tabIndex = -1;
      button.dataset.at = String(at);
      button.textContent = printable(item.text);
      return button;
    }));
    this.box.hidden = false;
    const { offsetWidth, offsetHeight } = this.box;
    this.box.style.left = `${Math.max(4, Math.min(x, innerWidth - offsetWidth - 4))}px`;
    this.box.style.top = `${Math.max(4, Math.min(y, innerHeight - offsetHeight - 4))}px`;
    this.focus(0);
  }

  /** @param {number} at */
  focus(at) {
    const button = this.box.children[(at + this.items.length) % this.items.length];
    if (button instanceof HTMLElement) button.focus();
  }

  /** @param {number} at */
  take(at) {
    const item = this.items[at];
    this.close(true);
    item?.does();
  }

  /** @param {boolean} back give the focus back */
  close(back) {
    if (this.box.hidden) return;
    this.box.hidden = true;
    if (back && this.before instanceof HTMLElement) this.before.focus();
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const at = [...this.box.children].indexOf(/** @type {Element} */ (document.activeElement));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.items.length - 1 }[event.key];
    event.stopPropagation();
    if (to !== undefined) this.focus(to);
    else if (event.key === "Escape" || event.key === "Tab") this.close(true);
    else return;
    event.preventDefault();
  }
}
