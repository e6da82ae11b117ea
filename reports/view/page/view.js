/** The page: panes wired to each other, and to the address, which is the state. */

import { Refused, ask, givenUp, within } from "./api.js";
import { chooser } from "./chooser.js";
import { first, known, narrow as tight, parts } from "./columns.js";
import { Counts } from "./counts.js";
import { Detail } from "./detail.js";
import { Exchanges } from "./exchanges.js";
import { forms } from "./export.js";
import { FilterBar, saved } from "./filter.js";
import { Findings } from "./findings.js";
import { element, splitting, themed } from "./frame.js";
import { growing } from "./growing.js";
import { Heat } from "./heat.js";
import { listen } from "./keys.js";
import { Menu } from "./menu.js";
import { Notes } from "./notes.js";
import { clock, command, counted, joined, printable, quoted } from "./text.js";
import { Tabs } from "./tabs.js";

/** @import { Column, Row } from "./columns.js" */
/** @import { Node } from "./tree.js" */

/**
 * What the address says.
 * @typedef {object} State
 * @property {string} filter
 * @property {string} sort
 * @property {string} key identity of the chosen exchange
 * @property {string} side
 * @property {string} path of the chosen field
 * @property {string} columns
 * @property {string} list which list: empty for the exchanges, or the name of a table
 * @property {string} question which question in SQL the list of questions is answered for; empty: none
 * @property {string} tracks what the tracks of the timeline are
 * @property {string} above what is shown above the list: `heat`, `none`; empty: what fits
 * @property {string} beside what is shown beside the list: `counts`, `findings`, nothing
 * @property {string} partition nothing but exchanges about it, as TOPIC-NUMBER
 * @property {string} only `differing`: pairs that differ
 * @property {string} clock `utc`: times in UTC, else since the capture began
 * @property {string} against `twin`: both sides of what is there twice are shown, else request and response
 */
const NAMES = /** @type {const} */ (["filter", "sort", "key", "side", "path", "columns", "list", "question", "tracks", "above", "beside", "partition", "only", "clock", "against"]);

/** @returns {State} */
function addressed() {
  const words = new URLSearchParams(location.search);
  const found = Object.fromEntries(NAMES.map((name) => [name, words.get(name) ?? ""]));
  return /** @type {State} */ ({ ...found, side: found.side || "request" });
}

const FILTERED_OUT = "the filter excludes the chosen exchange";

/** Told where it takes long until there is something: a first run compiles what reads captures. */
const OPENING = "opening: the first exchanges are not there yet …", BUSY_MS = 300;

const state = addressed();

/**
 * Answers come when they like: one to an earlier wish must not undo a later one. So wishes are counted: to choose an
 * exchange, and to look at others through a filter.
 */
let choosing = 0, filtering = 0;

/** @type {{filter: string, sort: string} | null} what is asked for, and not shown yet */
let coming = null;

/**
 * Change the state.
 * @param {Partial<State>} change
 * @param {boolean} [step] one that the back button takes back
 */
function become(change, step = false) {
  Object.assign(state, change);
  if (within.partition !== state.partition) scoped();
  element("main").classList.toggle("closed", !state.key);
  const words = new URLSearchParams();
  for (const name of NAMES) if (state[name] && !(name === "side" && state.side === "request")) words.set(name, state[name]);
  const address = `/${words.size ? `?${words}` : ""}`;
  if (address === location.pathname + location.search) return;
  if (step) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** What everything is within. */
function scoped() {
  within.partition = state.partition;
  const part = element("part");
  part.hidden = !state.partition;
  part.textContent = `only partition ${printable(state.partition)} ✕`;
  part.title = "only exchanges about this partition: of its producers, consumers and followers; click for all exchanges";
}

const status = element("status");
const none = element("none");
const count = element("count");

/** @param {unknown} failure */
function complain(failure) {
  if (givenUp(failure)) return;
  const hint = failure instanceof Refused && failure.hint ? ` — ${failure.hint}` : "";
  tell(`${failure instanceof Error ? failure.message : failure}${hint}`, true);
}

/**
 * @param {string} text
 * @param {boolean} [bad]
 */
function tell(text, bad = false) {
  status.textContent = printable(text);
  status.classList.toggle("bad", bad);
}

/** @type {any} */
let info;
/** @type {Map<string, Column>} */
let columns = new Map();

const menu = new Menu(element("menu"));

const bar = new FilterBar(
  element("filter", HTMLInputElement), element("candidates"), element("mark"), element("mistake"),
  (filter) => {
    void show({ filter }, true);
    element("list").focus();
  },
);

const list = new Exchanges(element("list"), element("head"), {
  chosen: (key, row) => {
    choosing++;
    become({ key, path: "" });
    detail.facts(row);
    detail.soon();
  },
  menu: (column, row, x, y) => menu.open(
    [
      ...column.terms(row).flatMap(([name, value]) => values(name, value)),
      { text: "copy value", does: () => void copy(column.text(row, list.start)) },
        ...following(row),
        { text: WIRESHARK, does: () => void wireshark(itself(row.key)) },
    ],
    x, y,
  ),
  note: (key) => notes.of(key),
  headed: (column, x, y) => menu.open(
    [
      ...(column.sort
        ? [
            { text: "largest first", does: () => void show({ sort: column.sort }, true) },
            { text: "smallest first", does: () => void show({ sort: `-${column.sort}` }, true) },
            { text: "in order of the requests", does: () => void show({ sort: "" }, true) },
          ]
        : []),
      ...(list.columns.length > 1 ? [{ text: `hide ${column.title}`, does: () => pick(list.columns.filter((one) => one !== column).map((one) => one.id)) }] : []),
      { text: "choose columns", does: choose },
    ],
    x, y,
  ),
  sorted: (sort) => void show({ sort }, true),
  counted: (total, ms) => {
    count.textContent = `${counted(total)} of ${counted(info.exchanges)} · ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
    none.hidden = total > 0;
    const shut = info.encrypted ? ` ${counted(info.encrypted)} of its connections ${info.encrypted === 1 ? "is" : "are"} TLS and could not be decrypted: --keylog FILE decrypts them with a key log of the clients or brokers.` : "";
    none.textContent = info.exchanges ? "No exchange passes the filter." : `No Kafka traffic was found in the capture.${shut}`;
  },
  failed: (failure) => {
    if (failure instanceof Refused && failure.start !== null) bar.wrong(failure.message, failure.hint, failure.start, failure.length, true);
    else complain(failure);
  },
  running: (running) => {
    element("cancel").hidden = !running;
    document.body.classList.toggle("running", running);
  },
});

const notes = new Notes((rules) => rules ? void list.again() : list.rows.refresh(true));

const tabs = new Tabs(state, {
  become, chosen: (key, side, path) => void find(key, { side, path }), narrow, entered: (side) => detail.enter(side), tell, failed: complain,
  show: (filter) => void show({ filter }), copy: (text) => void copy(text), menu: (items, x, y) => menu.open(items, x, y),
  now: () => ({ begin: info.first_time ?? 0, growing: info.growing, row: list.index, pairs: Boolean(info.pairs) }),
});

const WIRESHARK = "open in Wireshark (copies the command)";

/** What is chosen, as a file. */
function exporting() {
  const { left, bottom } = element("exporting").getBoundingClientRect();
  menu.open([...forms(state.filter, state.sort, info.bytes, info.growing, complain), { text: WIRESHARK, does: () => void wireshark(state.filter) }], left, bottom);
}

/**
 * The filter of an exchange alone.
 * @param {string} key
 */
function itself(key) {
  const [capture, connection, exchange] = JSON.parse(key), several = info.captures.length > 1;
  return `${several ? `capture == ${quoted(capture)} and ` : ""}connection == ${quoted(connection)}${exchange === null ? "" : ` and exchange == ${exchange}`}`;
}

/**
 * Copy the command that opens packets in Wireshark: a page may not start a program.
 * @param {string} filter of their exchanges
 */
function wireshark(filter) {
  if (info.command[1] !== "show") return tell("a dataset has no packets: kwire view CAPTURE has");
  return copy(`${command([...info.command, ...(filter ? ["--filter", filter] : []), "-w", "exchanges.pcapng"])} && wireshark exchanges.pcapng`);
}

/**
 * What an exchange is a part of: filters that follow it, whatever is filtered now.
 * @param {Row} row
 */
function following(row) {
  return [
    ...parts(row).map(([name, filter]) => ({ text: `follow ${name}`, does: () => void show({ filter, sort: "" }, true) })),
    ...(row.topics.length ? [{ text: "follow partition …", does: () => void followPartition(row.key) }] : []),
    ...(row.api === "Produce" ? [{ text: "follow batch", does: () => void followBatch(row.key) }] : []),
  ];
}

/** @param {string} key */
async function followBatch(key) {
  const mine = ++filtering;
  try {
    const { filter } = await ask("batch", { key });
    if (mine !== filtering) return;
    if (filter) await show({ filter, sort: "" }, true);
    else tell("this exchange has no batch with a producer's sequence");
  } catch (failure) {
    complain(failure);
  }
}

/** @param {string} key */
async function followPartition(key) {
  const mine = ++filtering, at = document.activeElement;
  try {
    const { partitions } = await ask("partitions", { key });
    if (mine !== filtering || document.activeElement !== at) return;
    if (!partitions.length) tell("this exchange names no partition");
    const items = partitions.map((/** @type {string} */ name) => ({ text: `follow ${name}`, does: () => void scope(name) }));
    if (items.length === 1) items[0].does();
    else unfold(items);
  } catch (failure) {
    complain(failure);
  }
}

/**
 * Look at nothing but a partition; empty: at everything again.
 * @param {string} partition
 */
async function scope(partition) {
  become({ partition }, true);
  await show({ filter: partition ? "" : wanted().filter, sort: "" });
}

/**
 * A menu at the chosen row.
 * @param {{text: string, does: () => void}[]} items
 */
function unfold(items) {
  const at = (document.querySelector('#list .row[aria-selected="true"]') ?? list.box).getBoundingClientRect();
  menu.open(items, at.left + 60, at.top + 24);
}

function followed() {
  if (list.current) unfold(following(list.current));
}

let walking = Promise.resolve();

/**
 * From the chosen exchange to another: after the steps before it, and not where something else was chosen meanwhile.
 * @param {(mine: number) => Promise<unknown>} step
 */
function walk(step) {
  const mine = choosing;
  walking = walking.then(async () => { if (mine === choosing) await step(mine); }).catch(complain);
}

/** @param {number} step */
function marked(step) {
  walk(async (mine) => {
    const { marked: found } = await ask("marked", { filter: state.filter, sort: state.sort });
    if (mine !== choosing) return;
    const rows = step > 0 ? found : found.reverse();
    const next = rows.find((/** @type {{row: number}} */ one) => (one.row - list.index) * step > 0);
    if (next) await find(next.key, { step: true, mine });
    else tell(`no mark ${step > 0 ? "after" : "before"} this exchange`);
  });
}

function note() {
  if (!state.key) return tell("choose an exchange to write a note about");
  element("note-text", HTMLTextAreaElement).value = notes.of(state.key) ?? "";
  element("note", HTMLDialogElement).showModal();
}

function colours() {
  notes.rules(element("rules"), state.filter, complain);
  element("colours", HTMLDialogElement).showModal();
}

/**
 * What can be done with a value.
 * @param {string} name
 * @param {string} value as a filter has it
 */
function values(name, value) {
  const not = name === "topic" || name === "error" ? `not ${name} == ${value}` : `${name} != ${value}`;
  return [
    { text: `filter to ${name} == ${value}`, does: () => narrow(`${name} == ${value}`) },
    { text: `exclude ${name} == ${value}`, does: () => narrow(not) },
    ...(columns.has(name) && !list.columns.some((one) => one.id === name)
      ? [{ text: `add ${name} as a column`, does: () => pick([...list.columns.map((one) => one.id), name]) }]
      : []),
  ];
}

/** @param {string} term */
function narrow(term) {
  void show({ filter: joined(wanted().filter, term) }, true);
}

const detail = new Detail(state, {
  become, tell, failed: complain, told: () => status.textContent ?? "", standing: () => (hidden() ? FILTERED_OUT : ""), now: () => ({ bytes: info.bytes, columns, pairs: Boolean(info.pairs) }),
  menu: (node, x, y) => menu.open(nodeMenu(node), x, y),
});

/** @param {Node} node */
function nodeMenu(node) {
  const { field, exact, type } = node;
  const text = type === "string" || type === "uuid";
  return [
    ...(field && exact !== undefined ? values(field, text ? quoted(exact) : exact) : []),
    { text: "copy value", does: () => void copy(exact ?? node.value) },
  ];
}

const counts = new Counts(element("counts"), { chosen: (name, word) => narrow(`${name} == ${word}`), failed: complain });

const heat = new Heat(element("cells", HTMLCanvasElement), element("cell"), { chosen: (term) => narrow(term), failed: complain });

/** Pixels of what stands beside the list. */
const PANEL = 350;

/** @type {Findings} */
let findings;

/**
 * What stands above and beside the list, where something is wanted there.
 * @param {boolean} [again] there may be more of it
 */
function panels(again = false) {
  for (const [name, button] of /** @type {const} */ ([["counts", "counting"], ["findings", "finding"]])) {
    element(name).hidden = state.beside !== name;
    element(button).setAttribute("aria-pressed", String(state.beside === name));
  }
  resized();
  const above = heated();
  element("heat").hidden = !above;
  element("heating").setAttribute("aria-pressed", String(above));
  if (above) void heat.show(state.filter, info.first_time ?? 0, again);
  if (state.beside === "counts") void counts.show(state.filter);
  if (state.beside === "findings") void findings.show().catch(complain);
}

/** Are latencies over time shown? If nobody said, where there is room for them. */
function heated() {
  return state.above ? state.above === "heat" : innerWidth >= 700 && innerHeight >= 700;
}

function heating() {
  become({ above: heated() ? "none" : "heat" });
  panels();
}

/** @param {string} name */
function toggle(name) {
  become({ beside: state.beside === name ? "" : name });
  panels();
}

/** @param {number} step */
function evidence(step) {
  become({ beside: "findings" });
  panels();
  walk(async (mine) => {
    await findings.show();
    const key = mine === choosing && findings.step(step);
    if (key) await find(key, { step: true, mine });
  });
}

/**
 * Choose an exchange by its identity, wherever it is.
 * @param {string} key
 * @param {object} [how]
 * @param {boolean} [how.step] one that the back button takes back
 * @param {string} [how.side]
 * @param {string} [how.path]
 * @param {number} [how.mine] the wish that this is a part of
 */
async function find(key, { step = false, side = "", path = "", mine = ++choosing } = {}) {
  try {
    const told = await ask("exchange", { key });
    if (mine !== choosing) return;
    become({ key, path, ...(side && { side }) }, step);
    detail.facts({ ...told.row, outcome: told.outcome, subject: told.subject, key });
    await list.find(key);
    if (key === state.key) void detail.messages().catch(complain);
  } catch (failure) {
    if (mine === choosing) complain(failure);
  }
}

/** Is the chosen exchange none of those that the list has? */
function hidden() {
  return Boolean(state.key) && list.index < 0;
}

/** Filter and order as they are, or as they are about to be. */
function wanted() {
  return coming ?? state;
}

/**
 * @param {{filter?: string, sort?: string}} change
 * @param {boolean} [step]
 */
async function show(change, step = false) {
  const { filter, sort } = { ...wanted(), ...change }, asked = { filter, sort };
  filtering++;
  coming = asked;
  if (state.list && !tabs.following && change.filter !== undefined) {
    become({ list: "" });
    tabs.draw();
  }
  bar.value = filter;
  const there = await list.show(asked);
  if (coming !== asked) return;
  coming = null;
  if (!there) return;
  become(asked, step);
  panels();
  if (tabs.following) tabs.redraw();
  document.title = `${filter ? `${printable(filter)} – ` : ""}${printable(info.name)} – kwire`;
  if (hidden()) tell(FILTERED_OUT);
  else if (status.textContent === FILTERED_OUT) tell("");
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell(`copied: ${text}`);
  } catch {
    tell(text); // where the browser lets no page copy, it can be marked here
  }
}

function copyCommand() {
  /** @type {string[]} */
  const words = [...info.command];
  if (state.filter) words.push("--filter", state.filter);
  if (state.sort && words[1] === "show") words.push(`--sort=${state.sort}`);
  void copy(command(words));
}

/** @param {string[]} ids */
function pick(ids) {
  become({ columns: ids.join(",") });
  draw();
}

/** The columns that the list has now: those that were chosen, else those that fit. */
function fitting() {
  const room = element("body").clientWidth - (state.beside && !tight() ? PANEL : 0);
  const [chosen, fit] = [state.columns.split(","), first(info.columns, room)].map((ids) => ids.flatMap((id) => columns.get(id) ?? []));
  return chosen?.length ? chosen : fit ?? [];
}

function draw() {
  list.shown(fitting(), info.first_time ?? 0);
}

/** There is more room, or less of it. */
function resized() {
  if (info && fitting().map((one) => one.id).join() !== list.columns.map((one) => one.id).join()) draw();
}

/** Times in UTC, or since the capture began. */
function ticking() {
  clock.utc = state.clock === "utc";
  element("clock").setAttribute("aria-pressed", String(clock.utc));
}

function otherClock() {
  become({ clock: clock.utc ? "" : "utc" });
  ticking();
  draw();
  tabs.told();
  heat.draw();
}

/** No exchange is looked at any more. */
function shut() {
  choosing++;
  become({ key: "", path: "" }, true);
  list.forget();
  tabs.focus();
}

/**
 * A dialog, from its top on.
 * @param {string} id
 */
function dialog(id) {
  const box = element(id, HTMLDialogElement);
  box.showModal();
  box.scrollTop = 0;
}

function choose() {
  chooser(element("choices"), info.columns, columns, list.columns, pick);
  dialog("choose");
}

/** @param {string} step */
function beside(step) {
  walk(async (mine) => {
    if (!state.key) return;
    const { key } = await ask("neighbour", { key: state.key, step });
    if (mine !== choosing) return;
    if (key) await find(key, { step: true, mine });
    else tell(`this is the connection's ${step === "back" ? "first" : "last"} exchange`);
  });
}

async function goTo() {
  const text = element("packet", HTMLInputElement).value.trim();
  if (!/^\d+$/.test(text)) return tell("a packet has a number, as Wireshark shows it");
  const mine = ++choosing;
  try {
    const found = await ask("rows", { filter: `packet == ${text}`, count: 1, columns: "api" });
    if (mine !== choosing) return;
    if (found.keys.length) await find(found.keys[0], { step: true, mine });
    else tell(`no message begins with packet ${text}`);
  } catch (failure) {
    complain(failure);
  }
}

function maximise() {
  const pane = document.activeElement?.closest(".pane");
  const big = document.querySelector(".pane.big");
  big?.classList.remove("big");
  document.body.classList.toggle("maximised", !big && Boolean(pane));
  if (!big) pane?.classList.add("big");
}

/** @param {KeyboardEvent} event */
function pane(event) {
  const at = document.activeElement;
  if (at === list.box) {
    if (event.key === "Enter" && list.current) {
      detail.enter(state.side);
      return true;
    }
    return list.pressed(event);
  }
  if (tabs.pressed(at, event)) return true;
  if (at === heat.canvas) return heat.pressed(event);
  return detail.pressed(at, event);
}

listen(
  [
    { keys: ["/"], shown: "/", about: "filter", does: () => bar.input.focus() },
    { keys: [], shown: "j k ↑ ↓ PgUp PgDn Home End", about: "move in the pane with the focus", does: null },
    { keys: [], shown: "← →", about: "list: select a value; tree: close and open; bytes: move", does: null },
    { keys: [], shown: "v, Shift+F10", about: "menu for the value: filter, exclude, add as column, copy", does: null },
    { keys: [], shown: "Enter", about: "list: to the fields; tree: open and close", does: null },
    { keys: ["Escape"], shown: "Esc", about: "back to the list; there: close the details; from another list: to the exchanges", does: () => (!tabs.focused ? tabs.focus() : state.key && !state.list ? shut() : tabs.turn("")) },
    { keys: ["."], shown: ".", about: "next exchange of this connection, filtered or not", does: () => beside("on") },
    { keys: [","], shown: ",", about: "the previous one", does: () => beside("back") },
    { keys: ["r"], shown: "r", about: "request or response", does: () => detail.other() },
    { keys: ["b"], shown: "b", about: "to the bytes", does: () => detail.enter("bytes") },
    { keys: ["g"], shown: "g", about: "go to a packet by its number", does: () => element("go", HTMLDialogElement).showModal() },
    { keys: ["f"], shown: "f", about: "counts of the chosen exchanges: quantiles, APIs, errors, topics", does: () => toggle("counts") },
    { keys: ["h"], shown: "h", about: "latency over time; arrows move in it, Shift marks a span, Enter filters to it", does: heating },
    { keys: ["i"], shown: "i", about: "findings", does: () => toggle("findings") },
    { keys: ["n"], shown: "n", about: "the next exchange that shows a finding", does: () => evidence(1) },
    { keys: ["p"], shown: "p", about: "the previous one", does: () => evidence(-1) },
    { keys: ["o"], shown: "o, O", about: "the next list: records, frames, connections, clients, groups, rebalances, transactions, journeys, questions in SQL; and back", does: () => tabs.next(1) },
    { keys: ["O"], shown: "", about: "", does: () => tabs.next(-1) },
    { keys: ["l"], shown: "l", about: "ladder: requests and responses; w and s: earlier and later exchanges; Backspace: all of them as bands", does: () => tabs.turn("ladder") },
    { keys: ["t"], shown: "t", about: "timeline: connections, groups, transactions; w s a d: zoom in, zoom out, earlier, later", does: () => tabs.turn("timeline") },
    { keys: ["u"], shown: "u", about: "times in UTC, or since the capture began", does: otherClock },
    { keys: ["y"], shown: "y", about: "timeline by connection, client, group or member", does: () => tabs.otherTracks() },
    { keys: ["="], shown: "=", about: "both exchanges of a pair, captured and replayed or at two capture points; and back", does: () => detail.beside() },
    { keys: ["d"], shown: "d", about: "the pairs that differ, or all pairs", does: () => tabs.differing() },
    { keys: ["x"], shown: "x", about: "export the chosen exchanges: csv, json, Parquet, pcapng", does: exporting },
    { keys: ["F"], shown: "F", about: "follow: all of this connection, client, group, transaction, topic, partition or batch", does: followed },
    { keys: ["m"], shown: "m", about: "mark this exchange, or remove its mark", does: () => void (state.key && notes.mark(state.key).catch(complain)) },
    { keys: ["e"], shown: "e", about: "write a note about it", does: note },
    { keys: ["]"], shown: "] [", about: "the next mark, the previous one", does: () => marked(1) },
    { keys: ["["], shown: "", about: "", does: () => marked(-1) },
    { keys: ["c"], shown: "c", about: "copy the command line that shows the same", does: copyCommand },
    { keys: ["\\"], shown: "\\", about: "the pane with the focus as large as the page, and back", does: maximise },
    { keys: ["?"], shown: "?", about: "these keys", does: () => dialog("keys") },
  ],
  element("keys", HTMLDialogElement), pane,
);

/** What the address says, shown. */
async function follow() {
  const mine = ++choosing;
  coming = null;
  Object.assign(state, addressed());
  scoped();
  ticking();
  become({});
  tabs.draw();
  list.key = state.key;
  draw();
  await show({});
  if (state.key && mine === choosing) await find(state.key, { side: state.side, path: state.path, mine });
}

/** There is more of the capture, or all of it. */
async function grown() {
  info = await ask("info");
  columns = known(info.columns);
  saved(element("saved"), info.columns, narrow);
  findings.forget();
  draw();
  tabs.draw(true);
  await list.again();
  panels(true);
  noted();
}

/** @type {Set<string>} */
const dismissed = new Set();

/** What there is to know of the captures: that one was not read to its end, say. One after the other, until dismissed. */
function noted() {
  const left = info.growing ? [] : info.notes.filter((/** @type {string} */ one) => !dismissed.has(one));
  const box = element("noted"), text = box.querySelector("span");
  box.hidden = !left.length;
  if (text && left.length) text.textContent = printable(`note: ${left[0]}${left.length > 1 ? ` (and ${counted(left.length - 1)} more)` : ""}`);
  box.dataset.note = left[0] ?? "";
}

/** How the sides of what is there twice compare, as soon as it is known. */
async function judged() {
  const { replay, names, count: pairs } = info.pairs, box = element("verdict");
  box.textContent = `${counted(pairs)} pairs` + (replay ? "; being compared …" : ` at ${printable(names.join(" and "))}`);
  if (!replay) return;
  const { verdict, counts: of } = await ask("judged");
  box.textContent = printable(`${counted(pairs)} pairs; of what was captured ${Object.entries(of).map(([name, many]) => `${counted(many)} ${name}`).join(", ")}; ${verdict}`);
  if (state.list === "pairs") tabs.redraw();
}

async function begin() {
  document.body.inert = true; // until it is known what there is
  themed(() => {
    for (const one of [heat, tabs.ladder, tabs.timeline]) one.draw();
  });
  splitting();
  const busy = setTimeout(() => tell(OPENING), BUSY_MS);
  try {
    [info, notes.noted] = await Promise.all([ask("info"), ask("notes")]);
  } finally {
    clearTimeout(busy);
  }
  if (status.textContent === OPENING) tell("");
  columns = known(info.columns);
  element("name").textContent = printable(info.name);
  element("name").title = `kwire ${info.version}: ${printable(info.captures.join(", "))}`;
  if (!location.search && info.filter) state.filter = info.filter;
  saved(element("saved"), info.columns, narrow);
  element("part").addEventListener("click", () => void scope(""));
  if (info.pairs?.replay && !location.search) Object.assign(state, { list: "pairs", against: "twin", side: "response", above: "none" });
  element("cancel").addEventListener("click", () => list.cancel());
  element("columns").addEventListener("click", choose);
  element("clock").addEventListener("click", otherClock);
  element("close").addEventListener("click", shut);
  element("noted").addEventListener("click", (event) => {
    if (!(event.target instanceof HTMLButtonElement)) return;
    dismissed.add(element("noted").dataset.note ?? "");
    noted();
  });
  addEventListener("resize", resized);
  findings = new Findings(element("findings"), () => info.growing ? "Findings follow when the analysis is complete." : info.meaning ? "No findings." : "The dataset was made without analysis.", (key) => void find(key, { step: true }));
  element("heating").addEventListener("click", heating);
  element("counting").addEventListener("click", () => toggle("counts"));
  element("finding").addEventListener("click", () => toggle("findings"));
  element("command").addEventListener("click", copyCommand);
  element("help").addEventListener("click", () => dialog("keys"));
  element("exporting").addEventListener("click", exporting);
  element("colouring").addEventListener("click", colours);
  element("note").addEventListener("submit", () => void notes.mark(state.key, element("note-text", HTMLTextAreaElement).value).catch(complain));
  element("go").addEventListener("submit", () => void goTo());
  addEventListener("popstate", () => void follow());
  become({});
  document.body.inert = false;
  await follow();
  noted();
  if (info.pairs) void judged().catch(complain);
  if (document.activeElement === document.body) tabs.focus();
  if (document.activeElement === document.body && state.beside) element(state.beside).focus(); // it has the place of the list
  if (info.growing) growing(element("progress"), { grown, done: () => void (state.key && detail.messages()), failed: complain });
}

void begin().catch(complain).finally(() => { document.body.inert = false; });
