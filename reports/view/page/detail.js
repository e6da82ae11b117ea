/** The chosen exchange: its two messages as trees, and the bytes of one of them, linked both ways. */

import { ask } from "./api.js";
import { spent } from "./columns.js";
import { element } from "./frame.js";
import { Hex } from "./hex.js";
import { counted, printable, size } from "./text.js";
import { Tree } from "./tree.js";

/** @import { Column, Row } from "./columns.js" */
/** @import { Node } from "./tree.js" */
/** @typedef {{key: string, side: string, path: string}} Shown the part of the page's state that this is about */

export const SIDES = /** @type {const} */ (["request", "response"]);
const BUSY_MS = 150;
const REST_MS = 60;
/** Messages are asked for when the keys rest so long. */

export class Detail {
  /**
   * @param {Shown} state
   * @param {object} to
   * @param {(change: Partial<Shown>) => void} to.become
   * @param {(node: Node, x: number, y: number) => void} to.menu
   * @param {(text: string, bad?: boolean) => void} to.tell
   * @param {() => string} to.told what is told now
   * @param {(failure: unknown) => void} to.failed
   * @param {() => {bytes: boolean, columns: Map<string, Column>}} to.now are messages at hand?
   */
  constructor(state, to) {
    this.state = state;
    this.to = to;
    /** Bytes of each side of the chosen exchange. */
    this.lengths = { request: 0, response: 0 };
    /** Rounds of asking for messages: only the last one counts. */
    this.round = 0;
    this.timer = 0;
    const [request, response] = SIDES.map((side) => new Tree(element(side), side, {
      chosen: (node, path) => this.chosen(side, node, path), menu: to.menu, failed: to.failed,
    }));
    this.trees = { request: /** @type {Tree} */ (request), response: /** @type {Tree} */ (response) };
    this.bytes = new Hex(element("bytes"), {
      chosen: (offset) => void ask("field", { key: state.key, side: this.bytes.side, offset })
        .then(({ path }) => this.tree(this.bytes.side).reveal(path)).catch(to.failed),
      failed: to.failed,
    });
    for (const button of document.querySelectorAll("button.side")) {
      if (button instanceof HTMLElement) button.addEventListener("click", () => this.other(button.dataset.side ?? "request"));
    }
  }

  /** @param {string} side */
  tree(side) {
    return side === "response" ? this.trees.response : this.trees.request;
  }

  /**
   * @param {string} side
   * @param {Node | null} node
   * @param {number[]} path
   */
  chosen(side, node, path) {
    if (!node) return;
    this.to.become({ side, path: path.join(".") });
    this.turn(side);
    this.bytes.mark(node.start, node.end);
    this.to.tell(`${node.name}: ${node.type}, ` + (node.start === node.end ? "no bytes of its own here (compressed)" : `bytes ${node.start} to ${node.end} (${size(node.end - node.start)})`));
  }

  /**
   * Look at one side.
   * @param {string} side
   */
  turn(side) {
    element("detail").dataset.side = side;
    for (const button of document.querySelectorAll("button.side")) {
      if (button instanceof HTMLElement) button.setAttribute("aria-pressed", String(button.dataset.side === side));
    }
    const total = side === "response" ? this.lengths.response : this.lengths.request;
    this.bytes.show(this.state.key, side, total);
    element("about-bytes").textContent = total ? `${counted(total)} bytes` : "no bytes";
  }

  /** @param {string} side */
  other(side) {
    this.turn(side);
    this.to.become({ side });
    element(side).focus();
  }

  /** @param {Row} row */
  facts(row) {
    const { columns } = this.to.now();
    const said = [
      columns.get("api")?.text(row, 0), row.connection, row.key && `exchange ${JSON.parse(row.key)[2] ?? "–"}`,
      columns.get("latency_us")?.text(row, 0), row.outcome, row.subject, spent(row),
    ];
    element("facts").textContent = printable(said.filter(Boolean).join(" · "));
  }

  /** The messages of the chosen exchange, when the keys rest. */
  soon() {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.messages(), REST_MS);
  }

  async messages() {
    clearTimeout(this.timer);
    const mine = ++this.round, { key, side, path } = this.state, { tell, told } = this.to;
    if (!key) return;
    if (!this.to.now().bytes) {
      for (const one of SIDES) element(`about-${one}`).textContent = "not in this dataset";
      return tell("the bytes of messages are not in this dataset — analyse with --keep-bytes, or look at the capture itself: kwire view CAPTURE");
    }
    const reading = "reading the messages …", before = told();
    const busy = setTimeout(() => { if (told() === before) tell(reading); }, BUSY_MS); // else it said more since
    const found = await Promise.allSettled(SIDES.map((one) => ask("message", { key, side: one })));
    clearTimeout(busy);
    if (mine !== this.round) return;
    if ([before, reading].includes(told())) tell("");
    SIDES.forEach((name, at) => this.show(name, key, /** @type {PromiseSettledResult<any>} */ (found[at])));
    this.turn(side);
    if (path) await this.tree(side).reveal(path.split(".").map(Number)).catch(this.to.failed);
  }

  /**
   * One message, or why there is none.
   * @param {"request" | "response"} name
   * @param {string} key
   * @param {PromiseSettledResult<any>} found
   */
  show(name, key, found) {
    const about = element(`about-${name}`), tree = this.trees[name];
    if (found.status === "rejected") {
      this.lengths[name] = 0;
      tree.empty();
      about.textContent = found.reason instanceof Error ? printable(found.reason.message) : "";
      return this.to.failed(found.reason);
    }
    const { bytes, incomplete, reason, source } = found.value;
    this.lengths[name] = bytes;
    tree.show(key, found.value);
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
    const tree = Object.values(this.trees).find((one) => one.box === at);
    return tree ? tree.pressed(event) : false;
  }
}
