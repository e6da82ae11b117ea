/**
 * Values as text, and as words of a filter.
 *
 * Rule: what comes from a capture is shown through `printable` and set as `textContent`, never as markup.
 */

/** Categories that are not printable: controls, marks of direction, halves of pairs, separators other than a space. */
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const EVERY_UNPRINTABLE = new RegExp(UNPRINTABLE.source, "gu");

/**
 * Others' text made fit to be seen: what is not printable becomes `\xNN`, `\uNNNN`, as in the terminal.
 * @param {string} text
 * @returns {string}
 */
export function printable(text) {
  if (!UNPRINTABLE.test(text)) return text;
  return text.replace(EVERY_UNPRINTABLE, (char) => {
    const known = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[char];
    if (known) return known;
    const code = /** @type {number} */ (char.codePointAt(0));
    if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
    if (code < 0x10000) return "\\u" + code.toString(16).padStart(4, "0");
    return "\\U" + code.toString(16).padStart(8, "0");
  });
}

/**
 * An exchange's identity, letter for letter as the server writes it.
 * @param {string[]} link its capture and connection
 * @param {(number | undefined)[]} numbers its ordinal and its reply's; -1: none
 * @returns {string}
 */
export function keyOf(link, ...numbers) {
  const key = JSON.stringify([...link, ...numbers.map((one) => (one === undefined || one < 0 ? null : one))]);
  return key.replace(/[^ -~]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * @param {number | null} micros
 * @returns {string} `831 us`, `3.1 ms`, `2.05 s`
 */
export function duration(micros) {
  if (micros === null) return "";
  if (Math.abs(micros) < 1000) return `${micros} us`;
  if (Math.abs(micros) < 1e6) return `${(micros / 1e3).toFixed(1)} ms`;
  return `${(micros / 1e6).toFixed(2)} s`;
}

/**
 * @param {number | null} count
 * @returns {string} `866 B`, `12.3 kB`, `1.1 MB`
 */
export function size(count) {
  if (count === null) return "";
  if (count < 1000) return `${count} B`;
  for (const [unit, scale] of /** @type {[string, number][]} */ ([["kB", 1e3], ["MB", 1e6], ["GB", 1e9]])) {
    if (count < scale * 1000) return `${(count / scale).toFixed(1)} ${unit}`;
  }
  return `${(count / 1e12).toFixed(1)} TB`;
}

/**
 * @param {number} micros since 1970
 * @returns {string} RFC 3339, six decimals
 */
export function moment(micros) {
  const whole = Math.floor(micros / 1e6);
  const rest = micros - whole * 1e6;
  return new Date(whole * 1000).toISOString().slice(0, 19) + "." + String(rest).padStart(6, "0") + "Z";
}

/**
 * @param {number} micros since 1970
 * @param {number} start of the capture
 * @returns {string} seconds since then
 */
export function since(micros, start) {
  const left = micros - start;
  const sign = left < 0 ? "-" : "";
  const whole = Math.floor(Math.abs(left) / 1e6);
  return `${sign}${whole}.${String(Math.abs(left) - whole * 1e6).padStart(6, "0")}`;
}

/** How moments are written everywhere on the page: since the capture began, or in UTC. */
export const clock = { utc: false };

/**
 * A moment, as the page's clock has it.
 * @param {number} micros since 1970
 * @param {number} start of the capture
 * @returns {string} `1.205338`, or `12:04:36.205338`; with the date where the capture began on another day
 */
export function instant(micros, start) {
  if (!clock.utc) return since(micros, start);
  const text = moment(micros);
  return text.slice(0, 10) === moment(start).slice(0, 10) ? text.slice(11, 26) : `${text.slice(0, 10)} ${text.slice(11, 26)}`;
}

/**
 * The same where it stands alone, with its unit.
 * @param {number} micros
 * @param {number} start
 * @returns {string}
 */
export function told(micros, start) {
  return `${instant(micros, start)} ${clock.utc ? "UTC" : "s"}`;
}

const SECOND = 1e6;
const ROUND = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];
/** Seconds between marks of an axis. */

/**
 * Round moments of an axis, with what stands beside them.
 * @param {number} first microseconds since 1970
 * @param {number} last
 * @param {number} width pixels from the first to the last
 * @param {number} start of the capture
 * @returns {[number, string][]} `2.5 s`, or `12:04:30 UTC`
 */
export function marks(first, last, width, start) {
  const least = ((last - first) * (clock.utc ? 110 : 75)) / width;
  let step = 1;
  if (least > SECOND) step = SECOND * (ROUND.find((seconds) => seconds * SECOND >= least) ?? 86_400 * Math.ceil(least / SECOND / 86_400));
  else while (step < least) step *= String(step).startsWith("2") ? 2.5 : 2;
  const origin = clock.utc ? 0 : start, decimals = step >= SECOND ? 0 : 6 - Math.floor(Math.log10(step));
  /** @type {[number, string][]} */
  const found = [];
  for (let at = origin + Math.ceil((first - origin) / step) * step; at <= last; at += step) {
    const text = instant(at, start), cut = text.slice(0, text.length - (decimals ? 6 - decimals : 7));
    found.push([at, `${cut} ${clock.utc ? "UTC" : "s"}`]);
  }
  return found;
}

/**
 * @param {number} count
 * @returns {string} `1,234`
 */
export function counted(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * A value as a filter has it. Always quoted, so that it is never taken for a name.
 * @param {string} value
 * @returns {string}
 */
export function quoted(value) {
  return `"${value.replaceAll('"', '""')}"`;
}

/**
 * Words for a shell.
 * @param {readonly string[]} words
 * @returns {string}
 */
export function command(words) {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

/**
 * A filter with one comparison more.
 * @param {string} filter
 * @param {string} term
 * @returns {string}
 */
export function joined(filter, term) {
  const now = filter.trim();
  if (!now) return term;
  const bare = now.replace(/"(?:[^"]|"")*"|'(?:[^']|'')*'/g, "");
  if (/(^|[\s()])or([\s()]|$)/i.test(bare)) return now === term ? now : `(${now}) and ${term}`; // `and` binds first
  return now === term || now.endsWith(` and ${term}`) ? now : `${now} and ${term}`;
}
