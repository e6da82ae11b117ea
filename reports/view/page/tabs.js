/** What stands in the place of the list: the exchanges, another table, a ladder, a timeline. */

import { element } from "./frame.js";
import { Ladder } from "./ladder.js";
import { Lists } from "./lists.js";
import { joined } from "./text.js";
import { Timeline } from "./timeline.js";

const NAMES = ["", "connections", "clients", "groups", "rebalances", "transactions", "ladder", "timeline"];
/** The first one: exchanges. */

const DRAWN = ["ladder", "timeline"];
const TRACKS = ["connection", "client", "group", "member"];

/** @typedef {{list: string, tracks: string, filter: string}} Shown the part of the page's state that this is about */

export class Tabs {
  /**
   * @param {Shown} state
   * @param {object} to
   * @param {(change: Partial<Shown>, step?: boolean) => void} to.become
   * @param {(filter: string) => void} to.show the exchanges that a filter chooses
   * @param {(term: string) => void} to.narrow
   * @param {(key: string) => void} to.chosen
   * @param {(items: {text: string, does: () => void}[], x: number, y: number) => void} to.menu
   * @param {() => {begin: number, growing: boolean, row: number}} to.now when the capture began, whether more comes, and
   *   the chosen row
   * @param {(text: string) => void} to.copy
   * @param {(text: string) => void} to.tell
   * @param {(failure: unknown) => void} to.failed
   */
  constructor(state, to) {
    this.state = state;
    this.to = to;
    const { chosen, failed } = to;
    this.ladder = new Ladder(element("ladder", HTMLCanvasElement), element("drawn"), { chosen, failed });
    this.timeline = new Timeline(element("timeline", HTMLCanvasElement), element("drawn"), { chosen, failed }, to.narrow);
    this.tables = new Lists(element("other"), element("others-head"), {
      taken: (filter) => this.take(filter),
      menu: (filter, text, x, y) => to.menu(
        [
          { text: "its exchanges", does: () => this.take(filter) },
          { text: "its exchanges among those that are chosen", does: () => this.take(joined(state.filter, filter)) },
          { text: "copy value", does: () => to.copy(text) },
        ],
        x, y,
      ),
      counted: to.tell,
      failed,
    });
  }

  /** Is a picture shown, which changes with the filter? */
  get picture() {
    return DRAWN.includes(this.state.list);
  }

  /**
   * The exchanges of a row.
   * @param {string} filter
   */
  take(filter) {
    this.to.become({ list: "" }, true);
    this.draw();
    this.to.show(filter);
    element("list").focus();
  }

  /** What is wanted, in its place. */
  draw() {
    const { list } = this.state;
    element("others").hidden = !list || this.picture;
    element("drawing").hidden = !this.picture;
    for (const name of DRAWN) element(name).hidden = list !== name;
    element("scroll").hidden = Boolean(list);
    element("tabs").replaceChildren(...NAMES.map((name) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", String(list === name));
      tab.tabIndex = list === name ? 0 : -1;
      tab.textContent = name || "exchanges";
      tab.addEventListener("click", () => this.turn(name));
      return tab;
    }));
    if (this.picture) this.redraw();
    else if (list && (this.tables.name !== list || this.to.now().growing)) void this.tables.show(list);
  }

  /** The picture, of what the filter chooses. */
  redraw() {
    const { state } = this, { begin, row } = this.to.now();
    if (state.list === "ladder") void this.ladder.show(state.filter, begin, Math.max(0, row));
    if (state.list === "timeline") void this.timeline.show(state.filter, state.tracks || "connection", begin);
  }

  /** @param {string} name */
  turn(name) {
    this.to.become({ list: name }, true);
    this.draw();
    element(DRAWN.includes(name) ? name : name ? "other" : "list").focus();
  }

  /** @param {number} step */
  next(step) {
    const at = Math.max(NAMES.indexOf(this.state.list), 0);
    this.turn(NAMES[(at + step + NAMES.length) % NAMES.length] ?? "");
  }

  /** A timeline by something else. */
  otherTracks() {
    this.to.become({ tracks: TRACKS[(TRACKS.indexOf(this.state.tracks || "connection") + 1) % TRACKS.length] ?? "" });
    if (this.state.list === "timeline") this.redraw();
    else this.turn("timeline");
  }

  /**
   * @param {Element | null} at what has the focus
   * @param {KeyboardEvent} event
   * @returns {boolean} whether the key was meant for it
   */
  pressed(at, event) {
    const pane = [this.ladder, this.timeline].find((one) => one.canvas === at) ?? (this.tables.box === at ? this.tables : null);
    if (pane) return pane.pressed(event);
    if (at?.getAttribute("role") !== "tab" || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return false;
    this.next(event.key === "ArrowRight" ? 1 : -1);
    return true;
  }
}
