/** What stands in the place of the list: the exchanges, another table, a ladder, a timeline. */

import { element } from "./frame.js";
import { Ladder } from "./ladder.js";
import { Lists } from "./lists.js";
import { say } from "./rows.js";
import { joined, printable } from "./text.js";
import { Timeline } from "./timeline.js";

const NAMES = ["", "records", "frames", "pairs", "connections", "clients", "groups", "rebalances", "transactions", "journeys", "questions", "ladder", "timeline"];
/** The first one: exchanges. */

const DRAWN = ["ladder", "timeline"];
const OF_FILTER = ["records", "frames", "pairs"];
const TRACKS = ["connection", "client", "group", "member"];

/** @typedef {{list: string, question: string, tracks: string, filter: string, only: string, against: string}} Shown the part of the page's state that this is about */

export class Tabs {
  /**
   * @param {Shown} state
   * @param {object} to
   * @param {(change: Partial<Shown>, step?: boolean) => void} to.become
   * @param {(filter: string) => void} to.show the exchanges that a filter chooses
   * @param {(term: string) => void} to.narrow
   * @param {(key: string, side?: string, path?: string) => void} to.chosen
   * @param {(items: {text: string, does: () => void}[], x: number, y: number) => void} to.menu
   * @param {(side: string) => void} to.entered the chosen exchange is to be looked into
   * @param {() => {begin: number, growing: boolean, row: number, pairs: boolean}} to.now when the capture began, whether
   *   more comes, the chosen row, and whether anything is there twice
   * @param {(text: string) => void} to.copy
   * @param {(text: string) => void} to.tell
   * @param {(failure: unknown) => void} to.failed
   */
  constructor(state, to) {
    this.state = state;
    this.to = to;
    /** What was told of the list that is shown. */
    this.said = "";
    const { chosen, failed } = to;
    this.ladder = new Ladder(element("ladder", HTMLCanvasElement), element("drawn"), { chosen, failed });
    this.timeline = new Timeline(element("timeline", HTMLCanvasElement), element("drawn"), { chosen, failed }, to.narrow);
    this.tables = new Lists(element("other"), element("others-head"), {
      taken: (filter) => this.take(filter), opened: (question) => this.open(question), chosen, entered: to.entered, began: () => to.now().begin,
      menu: (filter, text, x, y) => to.menu(
        [
          ...(filter
            ? [
                { text: "its exchanges", does: () => this.take(filter) },
                { text: "its exchanges among those that are chosen", does: () => this.take(joined(state.filter, filter)) },
              ]
            : state.list === "questions" ? [] : [{ text: "among the exchanges", does: () => this.turn("") }]),
          { text: "copy value", does: () => to.copy(text) },
        ],
        x, y,
      ),
      counted: (text) => to.tell(this.said = text),
      answering: (text) => say(element("question"), printable(text)),
      failed,
    });
    element("only").addEventListener("click", () => this.differing());
    element("questions").addEventListener("click", () => this.turn("questions"));
  }

  /** Is a picture shown? */
  get picture() {
    return DRAWN.includes(this.state.list);
  }

  /** Does what is shown follow the filter? */
  get following() {
    return this.picture || OF_FILTER.includes(this.state.list);
  }

  get names() {
    return NAMES.filter((name) => name !== "pairs" || this.to.now().pairs);
  }

  /** Pairs that differ only, or all. */
  differing() {
    if (!this.to.now().pairs) return this.to.tell("there are no pairs: a RUN of kwire replay has pairs, and captures of both ends");
    const { list, only } = this.state;
    this.to.become({ only: list === "pairs" && only ? "" : "differing" });
    if (list === "pairs") this.redraw();
    else this.turn("pairs");
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

  /**
   * The answer to a question.
   * @param {string} question
   */
  open(question) {
    this.to.become({ question }, true);
    this.draw();
  }

  /**
   * What is wanted, in its place.
   * @param {boolean} [again] there may be more of it
   */
  draw(again = false) {
    const { list } = this.state, question = list === "questions" ? this.state.question : "", name = question ? "answer" : list;
    if (!list || this.picture) {
      this.tables.leave();
      if (this.said && element("status").textContent === this.said) this.to.tell("");
    }
    for (const one of [this.ladder, this.timeline]) one.stop.abort();
    element("others").hidden = !list || this.picture;
    element("drawing").hidden = !this.picture;
    for (const name of DRAWN) element(name).hidden = list !== name;
    element("scroll").hidden = Boolean(list);
    element("twice").hidden = list !== "pairs";
    element("asked").hidden = !question;
    element("tabs").replaceChildren(...this.names.map((name) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", String(list === name));
      tab.tabIndex = list === name ? 0 : -1;
      tab.textContent = name || "exchanges";
      tab.addEventListener("click", () => this.turn(name));
      return tab;
    }));
    if (this.following) this.redraw();
    else if (list && (this.tables.wanted.name !== name || this.tables.wanted.question !== question || again)) {
      if (question !== this.tables.asked.question && question) {
        say(element("question"), printable(question));
        this.to.tell(this.said = `asking ${question} …`);
      }
      void this.tables.show({ name, sort: "", filter: "", only: "", question });
    }
  }

  /** What is shown, of what the filter chooses. */
  redraw() {
    const { state } = this, { begin, row } = this.to.now();
    if (state.list === "ladder") void this.ladder.show(state.filter, begin, row);
    if (OF_FILTER.includes(state.list)) {
      element("only").setAttribute("aria-pressed", String(Boolean(state.only)));
      const { wanted } = this.tables, only = state.list === "pairs" ? state.only : "";
      void this.tables.show({ name: state.list, sort: wanted.name === state.list ? wanted.sort : "", filter: state.filter, only, question: "" });
    }
    if (state.list === "timeline") void this.timeline.show(state.filter, state.tracks || "connection", begin);
  }

  /** @param {string} name */
  turn(name) {
    this.to.become({ list: name, question: "", ...(name === "pairs" ? { against: "twin" } : {}) }, true);
    this.draw();
    this.focus();
  }

  get shown() {
    return element(this.picture ? this.state.list : this.state.list ? "other" : "list");
  }

  /** To what is shown. */
  focus() {
    this.shown.focus();
  }

  /** Has what is shown the focus? */
  get focused() {
    return document.activeElement === this.shown;
  }

  /** Moments are written otherwise. */
  told() {
    if (this.picture) this.redraw();
    else this.tables.told();
  }

  /** @param {number} step */
  next(step) {
    const { names } = this, at = Math.max(names.indexOf(this.state.list), 0);
    this.turn(names[(at + step + names.length) % names.length] ?? "");
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
    if (pane === this.tables && this.state.question && event.key === "Backspace") return this.turn("questions"), true;
    if (pane) return pane.pressed(event);
    if (at?.parentElement !== element("tabs") || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return false;
    this.next(event.key === "ArrowRight" ? 1 : -1);
    return true;
  }
}
