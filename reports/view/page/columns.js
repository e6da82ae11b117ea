/** Columns of the list: what each shows, which columns of the table it needs, and what it is in a filter. */

import { duration, instant, moment, printable, quoted, size } from "./text.js";

/**
 * @typedef {{name: string, kind: string, about: string, empty: boolean, constant: boolean, stated: boolean}} TableColumn
 * @typedef {Record<string, any>} Row values of one exchange by column, and `outcome`, `subject`, `key`
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {number} width in characters; 0: what is left
 * @property {number} [tight] its width where the screen is narrow
 * @property {boolean} [drawn] it is no text, and always as wide
 * @property {boolean} [right]
 * @property {readonly string[]} needs
 * @property {string} sort column to sort by; empty: it cannot be sorted
 * @property {(row: Row, start: number) => string} text
 * @property {(row: Row) => [string, string][]} terms what to filter to: [name, value as a filter has it]
 * @property {string} about
 */

/** The list as it begins. */
const FIRST = ["time", "capture", "client", "client_id", "broker", "api", "latency_us", "parts", "request_bytes", "response_bytes", "result"];
/** And where the screen is narrow. */
const NARROW = ["time", "client_id", "api", "latency_us", "result"];
/** Left out where they say the same in every row, as `kwire show` leaves them out. */
const TOLD_ONCE = ["capture", "client", "client_id", "broker"];
/** Left out where there is little room, so that the result always has its place: below so many pixels. */
const ROOM = /** @type {[number, string[]][]} */ ([[1050, ["request_bytes", "response_bytes"]], [860, ["parts"]]]);

/** @returns {boolean} as the style sheet has it, too */
export function narrow() {
  return innerWidth <= 700;
}

/**
 * The columns that the list begins with.
 * @param {readonly TableColumn[]} table
 * @param {number} room pixels
 * @returns {string[]}
 */
export function first(table, room) {
  const same = new Set(table.filter((one) => one.constant || one.empty).map((one) => one.name));
  if (same.has("client_ip") && same.has("client_port")) same.add("client");
  if (same.has("broker_ip") && same.has("broker_port")) same.add("broker");
  const left = new Set(TOLD_ONCE.filter((name) => same.has(name)));
  for (const [least, names] of ROOM) if (room < least) for (const name of names) left.add(name);
  return (narrow() ? NARROW : FIRST).filter((name) => !left.has(name));
}

/**
 * Columns of a grid for these, and the gutter before them: as wide as what is in them, up to their width.
 * @param {readonly Column[]} columns
 * @param {ReadonlyMap<string, number>} filled characters of the longest value
 * @returns {string}
 */
export function widths(columns, filled) {
  const tight = narrow();
  const each = columns.map(({ id, title, width, tight: less, drawn }) => {
    if (!width) return `minmax(${tight ? 10 : 28}ch, 1fr)`;
    const most = (tight && less) || width, least = Math.min(title.length + 2, most);
    return `${drawn ? most : Math.min(most, Math.max(least, filled.get(id) ?? 0))}ch`;
  });
  return [tight ? "2ch" : "3ch", ...each].join(" ");
}

/** Parts of the time of an exchange, in the order that they are drawn. */
export const PARTS = ["queue_us", "muted_us", "network_us", "hold_us", "broker_us"];

/**
 * @param {string} ip
 * @param {number} port
 * @returns {string}
 */
export function end(ip, port) {
  return ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`;
}

/**
 * @param {string} side
 * @param {ReadonlySet<string>} same columns that have one value in all rows: what tells ends apart is enough
 * @param {boolean} named addresses have names (--names)
 * @returns {Column}
 */
function address(side, same, named) {
  const [ip, port, name] = [`${side}_ip`, `${side}_port`, `${side}_name`];
  const short = same.has(ip) ? (/** @type {Row} */ row) => `:${row[port]}` : same.has(port) && side === "broker" ? (/** @type {Row} */ row) => row[ip] : (/** @type {Row} */ row) => end(row[ip], row[port]);
  return {
    id: side, title: side, width: 21, needs: named ? [ip, port, name] : [ip, port], sort: side,
    about: side === "client" ? "Address of the client." : "Address of the broker.",
    text: (row) => (row[ip] === null ? "" : row[name] ? `${printable(row[name])}:${row[port]}` : short(row)),
    terms: (row) => (row[ip] === null ? [] : [[side, end(row[ip], row[port])]]),
  };
}

/**
 * @param {ReadonlySet<string>} same
 * @param {ReadonlySet<string>} there columns of the table
 * @returns {Column[]}
 */
const made = (same, there) => [
  {
    id: "time", title: "time", width: 26, tight: 15, right: true, needs: ["request_time", "response_time"], sort: "request_time",
    about: "First byte of the request: in seconds since the capture began, or in UTC (u).",
    text: (row, start) => {
      const when = row.request_time ?? row.response_time;
      return when === null ? "" : instant(when, start);
    },
    terms: (row) => (row.request_time === null ? [] : [["request_time", moment(row.request_time)]]),
  },
  address("client", same, there.has("client_name")),
  address("broker", same, there.has("broker_name")),
  {
    id: "api", title: "API", width: 23, tight: 13, needs: ["api", "api_key", "api_version"], sort: "api", about: "API and its version.",
    text: (row) => {
      const name = row.api ?? (row.api_key === null ? "?" : `API ${row.api_key}`);
      return row.api_version === null ? name : `${name} v${row.api_version}`;
    },
    terms: (row) => (row.api !== null ? [["api", row.api]] : row.api_key !== null ? [["api_key", String(row.api_key)]] : []),
  },
  {
    id: "parts", title: "share of time", width: 14, drawn: true, needs: [...PARTS, "total_us", "cause"], sort: "total_us",
    about: "Shares of the time from the request's first byte to the response's last: queue, throttle, network, held on purpose (hatched), broker.",
    text: () => "",
    terms: (row) => (row.cause === null ? [] : [["cause", row.cause]]),
  },
  {
    id: "result", title: "result", width: 0, needs: ["errors", "status", "topics", "group_id", "response_state"], sort: "errors",
    about: "Outcome and subject of the exchange.",
    text: (row) => `${row.outcome} ${row.subject}`.trim(),
    terms: (row) => [
      ...row.errors.map((/** @type {{code: number}} */ one) => /** @type {[string, string]} */ (["error", String(one.code)])),
      ...(row.status === "answered" ? [] : [/** @type {[string, string]} */ (["status", row.status])]),
      ...row.topics.slice(0, 5).map((/** @type {string} */ one) => /** @type {[string, string]} */ (["topic", quoted(one)])),
      ...(row.group_id === null ? [] : [/** @type {[string, string]} */ (["group", quoted(row.group_id)])]),
    ],
  },
];

/** @param {TableColumn} column @returns {Column} */
function plain(column) {
  const { name, kind, about } = column;
  const wide = { time: 27, text: 18, duration: 10, size: 10, topics: 24, errors: 24 }[kind] ?? 10;
  return {
    id: name, title: name.replace(/_(us|bytes)$/, "").replaceAll("_", " "), width: wide, tight: { text: 10, duration: 8 }[kind],
    right: ["duration", "size", "integer"].includes(kind), needs: [name], sort: name, about,
    text: (row, start) => {
      const value = row[name];
      if (value === null) return "";
      if (kind === "duration") return duration(value);
      if (kind === "size") return size(value);
      if (kind === "time") return instant(value, start);
      if (kind === "topics") return value.map(printable).join(", ");
      if (kind === "errors") return value.map((/** @type {{code: number}} */ one) => one.code).join(", ");
      return printable(String(value));
    },
    terms: (row) => {
      const value = row[name];
      if (value === null) return [];
      if (kind === "topics") return value.slice(0, 5).map((/** @type {string} */ one) => ["topic", quoted(one)]);
      if (kind === "errors") return value.map((/** @type {{code: number}} */ one) => ["error", String(one.code)]);
      if (kind === "duration") return [[name, `${value}us`]];
      if (kind === "time") return [[name, moment(value)]];
      return [[name, kind === "text" ? quoted(value) : String(value)]];
    },
  };
}

/**
 * Every column that the list can show.
 * @param {readonly TableColumn[]} table
 * @returns {Map<string, Column>}
 */
export function known(table) {
  const same = new Set(table.filter((one) => one.constant).map((one) => one.name)), there = new Set(table.map((one) => one.name));
  const found = new Map(made(same, there).map((column) => [column.id, column]));
  for (const column of table) if (!found.has(column.name)) found.set(column.name, plain(column));
  const latency = found.get("latency_us");
  if (latency) latency.title = "latency";
  for (const [name, title] of /** @type {const} */ ([["request_bytes", "request"], ["response_bytes", "response"]])) {
    const column = found.get(name);
    if (column) column.title = title;
  }
  return found;
}

/**
 * What an exchange is a part of, each with the filter that chooses all of it.
 * @param {Row} row
 * @returns {[string, string][]}
 */
export function parts(row) {
  /** @type {[string, string][]} */
  const found = [["connection", `connection == ${quoted(row.connection)}`]];
  if (row.client_id) found.push(["client", `client_id == ${quoted(row.client_id)}`]);
  if (row.group_id) found.push(["group", `group == ${quoted(row.group_id)}`]);
  if (row.transactional_id) found.push(["transaction", `transactional_id == ${quoted(row.transactional_id)}`]);
  for (const topic of row.topics.slice(0, 5)) found.push([`topic ${topic}`, `topic == ${quoted(topic)}`]);
  return found;
}

/**
 * Where the time of an exchange went, in words.
 * @param {Row} row
 * @returns {string}
 */
export function spent(row) {
  const said = PARTS.filter((part) => row[part]).map((part) => `${/** @type {Record<string, string>} */ (SAID)[part]} ${duration(row[part])}`);
  if ((!said.length && !bounds(row)) || row.total_us === null) return "";
  const known = PARTS.every((part) => row[part] !== null);
  const rest = known ? "" : bounds(row) || "the rest is unknown";
  return `${duration(row.total_us)}: ${[said.join(" + "), rest].filter(Boolean).join(", ")}`;
}

/**
 * The broker's own time between its bounds, where it cannot be told exactly: acks=all also waits for replicas.
 * @param {Row} row
 * @returns {string} empty: it is known, or nothing is
 */
export function bounds(row) {
  const { broker_us: exact, broker_low_us: low, broker_high_us: high } = row;
  if (exact !== null || low === undefined || low === null || high === null) return "";
  return `broker ${duration(low)} to ${duration(high)}, held the rest`;
}

const SAID = { queue_us: "queue", muted_us: "throttled", network_us: "network", hold_us: "held on purpose", broker_us: "broker" };
