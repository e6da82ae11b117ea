/**
 * The chosen exchange: two messages as trees, and the bytes of one of them, linked both ways. The messages are its
 * request and its response; or, of what is there twice, the same message on both sides, with what differs.
 */

import { ask } from "./api.js";
import { spent } from "./columns.js";
import { element } from "./frame.js";
import { Hex } from "./hex.js";
import { counted, duration, printable, size } from "./text.js";
import { Tree } from "./tree.js";

/** @import { Column, Row } from "./columns.js" */
/** @import { Node } from "./tree.js" */
/** @typedef {{key: string, side: string, path: string, against: string}} Shown the part of the page's state that this is about */
/** @typedef {"request" | "response"} Pane the places of the two trees, called after what they show as a rule */
/** @typedef {{key: string, side: string}} Place a message */
/** @typedef {{key: string | null, first: boolean, names: [string, string], judged: boolean, outcome: any, differences: {text: string, rule: string | null}[], sides: ({outcome: string, latency_us: number | null} | null)[]}} Twin */

const PANES = /** @type {const} */ (["request", "response"]);
const SIGNS = /** @type {Record<string, string>} */ ({ changed: "≠", left: "−", right: "+" });
const BUSY_MS = 150;
const TABS = [...PANES, "bytes"];
const SAID = 4;
/** Differences that are told in words; the trees have them all. */

const REST_MS = 60;
/** Where one exchange after the other is chosen, messages are asked for when the keys rest so long. */

export class Detail {
  /**
   * @param {Shown} state
   * @param {object} to
   * @param {(change: Partial<Shown>) => void} to.become
   * @param {(node: Node, x: number, y: number) => void} to.menu
   * @param {(text: string, bad?: boolean) => void} to.tell
   * @param {() => string} to.told what is told now
   * @param {() => string} to.standing what is to be told where there is nothing else
   * @param {(failure: unknown) => void} to.failed
   * @param {() => {bytes: boolean, columns: Map<string, Column>, pairs: boolean}} to.now are messages at hand? is anything
   *   there twice?
   */
  constructor(state, to) {
    this.state = state;
    this.to = to;
    /** Bytes of each message, and which messages they are. */
    this.lengths = { request: 0, response: 0 };
    /** @type {Record<Pane, Place>} */
    this.places = { request: { key: "", side: "request" }, response: { key: "", side: "response" } };
    /** @type {Pane} */
    this.pane = "request";
    /** Rounds of asking for messages: only the last one counts. */
    this.round = 0;
    /** What was looked at: answers about something earlier lead nowhere. */
    this.looks = 0;
    this.timer = 0;
    /** When an exchange was chosen last. */
    this.last = -Infinity;
    const [request, response] = PANES.map((pane) => new Tree(element(pane), pane, {
      chosen: (node, path) => this.chosen(pane, node, path), menu: to.menu, failed: to.failed,
    }));
    this.trees = { request: /** @type {Tree} */ (request), response: /** @type {Tree} */ (response) };
    this.bytes = new Hex(element("bytes"), {
      chosen: (offset) => void this.pointed(offset),
      failed: to.failed,
    });
    for (const button of document.querySelectorAll("button.side")) {
      if (button instanceof HTMLElement) button.addEventListener("click", () => this.enter(button.dataset.side ?? "request"));
    }
    // Where the screen is narrow, one of three has it for itself.
    element("sides").replaceChildren(...TABS.map((name) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.setAttribute("role", "tab");
      tab.dataset.tab = name;
      tab.textContent = name;
      tab.addEventListener("click", () => this.enter(name));
      return tab;
    }));
    this.look("request");
  }

  /**
   * What is shown where the screen is narrow.
   * @param {string} name
   */
  look(name) {
    element("detail").dataset.tab = name;
    for (const tab of element("sides").children) {
      if (!(tab instanceof HTMLElement)) continue;
      tab.setAttribute("aria-selected", String(tab.dataset.tab === name));
      tab.tabIndex = tab.dataset.tab === name ? 0 : -1;
    }
  }

  /** Do both trees show one side's message, as it is here and there? */
  get paired() {
    return Boolean(this.state.against) && this.to.now().pairs;
  }

  /**
   * @param {Pane} pane
   * @param {Node | null} node
   * @param {number[]} path
   */
  chosen(pane, node, path) {
    if (!node) return;
    this.looks++;
    // What stands here may be the exchange before, until the messages of the chosen one come.
    if (this.places[pane].key === this.state.key) this.to.become({ ...(this.paired ? {} : { side: pane }), path: path.join(".") });
    if (this.paired) void this.follow(pane, path);
    this.turn(pane);
    this.bytes.mark(node.start, node.end);
    this.to.tell(`${node.name}: ${node.type}, ` + (node.start === node.end ? "no bytes of its own here (compressed)" : `bytes ${node.start} to ${node.end} (${size(node.end - node.start)})`));
  }

  /**
   * The same field on the other side, beside it.
   * @param {Pane} pane
   * @param {number[]} path
   */
  async follow(pane, path) {
    const { looks, places } = this;
    try {
      const found = await ask("counterpart", { ...this.places[pane], path: path.join(".") });
      if (found.path && looks === this.looks && places === this.places) await this.trees[pane === "request" ? "response" : "request"].reveal(found.path, true);
    } catch (failure) {
      this.to.failed(failure);
    }
  }

  /**
   * The field that a byte is a part of.
   * @param {number} offset
   */
  async pointed(offset) {
    const mine = ++this.looks, { pane } = this, place = this.places[pane];
    try {
      const { path } = await ask("field", { ...place, offset });
      if (mine === this.looks && place === this.places[pane]) await this.trees[pane].reveal(path);
    } catch (failure) {
      if (mine === this.looks) this.to.failed(failure);
    }
  }

  /**
   * Look at the bytes of one message.
   * @param {Pane} pane
   */
  turn(pane) {
    this.pane = pane;
    element("detail").dataset.side = pane;
    if (element("detail").dataset.tab !== "bytes") this.look(pane);
    for (const button of document.querySelectorAll("button.side")) {
      if (button instanceof HTMLElement) button.setAttribute("aria-pressed", String(button.dataset.side === pane));
    }
    const total = this.lengths[pane], { key, side } = this.places[pane];
    this.bytes.show(key, side, total);
    element("about-bytes").textContent = total ? `${counted(total)} bytes` : "no bytes";
  }

  /**
   * Into one of the trees, or the bytes.
   * @param {string} name
   */
  enter(name) {
    this.look(name);
    if (name === "bytes") return element(name).focus();
    const pane = name === "response" ? "response" : "request";
    this.looks++;
    this.turn(pane);
    if (!this.paired && pane !== this.state.side) this.to.become({ side: pane, path: this.places[pane].key === this.state.key ? this.trees[pane].path : "" });
    element(pane).focus();
  }

  /** The other message: of two sides, both show it. */
  other() {
    const side = this.state.side === "request" ? "response" : "request";
    if (!this.paired) return this.enter(side);
    this.to.become({ side, path: "" });
    void this.messages();
  }

  /** Both sides of what is there twice, or the two messages of one. */
  beside() {
    if (!this.to.now().pairs) return this.to.tell("there are no pairs: a RUN of kwire replay has pairs, and captures of both ends");
    this.to.become({ against: this.state.against ? "" : "twin", path: "" });
    void this.messages();
  }

  /** @param {Row} row */
  facts(row) {
    const { columns } = this.to.now();
    const said = [
      columns.get("api")?.text(row, 0), row.client_id, row.connection, row.key && `exchange ${JSON.parse(row.key)[2] ?? "–"}`,
      columns.get("latency_us")?.text(row, 0), row.outcome, row.subject, spent(row),
    ];
    element("facts").textContent = printable(said.filter(Boolean).join(" · "));
  }

  /** The messages of the chosen exchange: at once, or when the keys rest. */
  soon() {
    clearTimeout(this.timer);
    const now = performance.now(), rested = now - this.last > REST_MS;
    this.last = now;
    if (rested) void this.messages();
    else this.timer = window.setTimeout(() => void this.messages(), REST_MS);
  }

  /** The messages of the chosen exchange, now. What is looked at meanwhile stays looked at. */
  async messages() {
    clearTimeout(this.timer);
    const mine = ++this.round, { key, side, path } = this.state, { tell, told, standing } = this.to, { paired, looks } = this;
    if (!key) return;
    /** @type {Twin | null} */
    let twin = null;
    try {
      if (paired) twin = await ask("twin", { key });
    } catch (failure) {
      return mine === this.round ? this.to.failed(failure) : undefined;
    }
    if (mine !== this.round) return;
    const places = placed(key, side, twin);
    if (!this.to.now().bytes) {
      this.titled(places, side, twin);
      for (const one of PANES) element(`about-${one}`).textContent = "not in this dataset";
      return tell(standing() || "the bytes of messages are not in this dataset — analyse with --keep-bytes, or look at the capture itself: kwire view CAPTURE");
    }
    const reading = "reading the messages …", before = told();
    const busy = setTimeout(() => { if (mine === this.round && told() === before) tell(reading); }, BUSY_MS); // else it said more since
    const found = await Promise.allSettled(PANES.map((pane) => places[pane].key ? ask("message", places[pane]) : null));
    clearTimeout(busy);
    if (mine !== this.round) return;
    if ([before, reading].includes(told())) tell(standing());
    this.titled(places, side, twin);
    PANES.forEach((pane, at) => this.show(pane, /** @type {PromiseSettledResult<any>} */ (found[at])));
    const pane = !twin ? (side === "response" ? "response" : "request") : twin.first ? "request" : "response", same = looks === this.looks;
    this.turn(same ? pane : this.pane);
    if (twin?.key) await this.differing(mine, same && !path);
    if (path && same && mine === this.round && looks === this.looks) await this.trees[pane].reveal(path.split(".").map(Number)).catch(this.to.failed);
  }

  /**
   * How what the trees show is called.
   * @param {Record<Pane, Place>} places
   * @param {string} side
   * @param {Twin | null} twin
   */
  titled(places, side, twin) {
    this.places = places;
    PANES.forEach((pane, at) => {
      element(`title-${pane}`).textContent = twin ? `${printable(twin.names[at] ?? "")}: ${side}` : pane;
      const button = document.querySelector(`button.side[data-side=${pane}]`);
      for (const one of [button, element("sides").children[at]]) if (one) one.textContent = twin ? printable(twin.names[at] ?? "") : pane;
    });
    const box = element("pair");
    box.hidden = !twin;
    if (twin) box.replaceChildren(...this.said(twin));
  }

  /**
   * A pair in words.
   * @param {Twin} twin
   */
  said({ names, sides, outcome, differences, judged }) {
    const told = names.map((name, at) => {
      const one = sides[at];
      return `${name}: ${one ? `${one.outcome}${one.latency_us === null ? "" : ` after ${duration(one.latency_us)}`}` : "not there"}`;
    });
    if (outcome) told.push([outcome.action, outcome.rule && `by ${outcome.rule}`, outcome.reason, outcome.retries.length ? `sent again: ${outcome.retries.join(", ")}` : ""].filter(Boolean).join(" "));
    if (!judged) told.push("being compared …");
    const said = [line("", told.join(" · "))];
    for (const one of differences.slice(0, SAID)) said.push(line(one.rule ? "expected" : "different", `${one.rule ? "expected" : "different"}: ${one.text}`));
    if (differences.length > SAID) said.push(line("", `and ${counted(differences.length - SAID)} more`));
    return said;
  }

  /**
   * Mark what differs.
   * @param {number} mine round
   * @param {boolean} first bring the first one into sight
   */
  async differing(mine, first) {
    const { looks } = this, before = this.to.told();
    try {
      const { total, differences } = await ask("differences", this.places.request);
      if (mine !== this.round) return;
      for (const pane of PANES) {
        const here = pane === "request" ? "left" : "right";
        this.trees[pane].mark(differences.flatMap((/** @type {any} */ one) => one[here] ? [[one[here], SIGNS[one.what] ?? "≠"]] : []));
      }
      const told = total ? `${counted(total)} ${total === 1 ? "field differs" : "fields differ"} byte by byte: ≠ different value, − and + on one side only; includes ids, offsets and times that a target assigns` : "every field is the same on both sides";
      if (this.to.told() === before) this.to.tell([this.to.standing(), told].filter(Boolean).join("; "));
      const one = differences[0];
      if (!first || !one || looks !== this.looks) return;
      if (one.left) await this.trees.request.reveal(one.left, true);
      if (one.right && mine === this.round && looks === this.looks) await this.trees.response.reveal(one.right, true);
    } catch (failure) {
      if (mine === this.round) this.to.failed(failure);
    }
  }

  /**
   * One message, or why there is none.
   * @param {Pane} pane
   * @param {PromiseSettledResult<any>} found
   */
  show(pane, found) {
    const about = element(`about-${pane}`), tree = this.trees[pane], { key, side } = this.places[pane];
    if (found.status === "rejected" || !found.value) {
      this.lengths[pane] = 0;
      tree.empty();
      about.textContent = found.status === "fulfilled" ? "not there" : found.reason instanceof Error ? printable(found.reason.message) : "";
      if (found.status === "rejected") this.to.failed(found.reason);
      return;
    }
    const { bytes, incomplete, reason, source } = found.value;
    this.lengths[pane] = bytes;
    tree.show(key, side, found.value);
    const notes = [bytes ? size(bytes) : "", incomplete ? "bytes are missing" : "", reason ?? "", bytes ? `from ${source}` : ""];
    about.textContent = printable(notes.filter(Boolean).join(" · "));
  }

  /**
   * @param {Element | null} at what has the focus
   * @param {KeyboardEvent} event
   * @returns {boolean} whether the key was meant for it
   */
  pressed(at, event) {
    if (at === this.bytes.box) return this.bytes.pressed(event);
    if (at?.parentElement === element("sides") && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      const tabs = [...element("sides").children], next = tabs[(tabs.indexOf(at) + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length];
      if (next instanceof HTMLElement) {
        next.click();
        next.focus();
      }
      return true;
    }
    const tree = Object.values(this.trees).find((one) => one.box === at);
    return tree ? tree.pressed(event) : false;
  }
}

/**
 * The messages that the trees are to show.
 * @param {string} key
 * @param {string} side
 * @param {Twin | null} twin
 * @returns {Record<Pane, Place>}
 */
function placed(key, side, twin) {
  const [one, other] = twin?.first === false ? [twin.key ?? "", key] : [key, twin ? twin.key ?? "" : key];
  return { request: { key: one, side: twin ? side : "request" }, response: { key: other, side: twin ? side : "response" } };
}

/**
 * @param {string} kind
 * @param {string} text
 */
function line(kind, text) {
  const made = document.createElement("p");
  if (kind) made.className = kind;
  made.textContent = printable(text);
  return made;
}
