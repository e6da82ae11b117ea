/** Asking the server (API.md): one function a kind of answer. Errors are `Refused`, with the server's own words. */

/** What the server says is wrong; `start` and `length`: where in the filter, if it is about one. */
export class Refused extends Error {
  /** @param {{message: string, hint?: string, start?: number, length?: number}} said */
  constructor(said) {
    super(said.message);
    this.hint = said.hint ?? "";
    this.start = said.start ?? null;
    this.length = said.length ?? 0;
  }
}

/** What every filter looks within: a partition, as TOPIC-NUMBER; empty: everything. */
export const within = { partition: "" };

/**
 * A query as an address has it.
 * @param {Record<string, string | number>} query
 */
export function worded(query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== "") words.set(name, String(value));
  if ("filter" in query && within.partition) words.set("partition", within.partition);
  return words;
}

/** How often a question is asked, and how long is waited before it is asked again: a browser gives up what it asks this
 * machine, too, where a network comes or goes. */
const TRIES = 4, PAUSE_MS = 150;

/**
 * @template T
 * @param {string} what
 * @param {Record<string, string | number>} query
 * @param {(response: Response) => Promise<T>} read
 * @param {AbortSignal} [signal]
 * @param {string} [body] what is to be kept
 * @returns {Promise<T>}
 */
async function answer(what, query, read, signal, body) {
  const address = `/api/1/${what}?${worded(query)}`, method = body === undefined ? "GET" : "PUT";
  for (let tries = 1; ; tries++) {
    try {
      const response = await fetch(address, { signal, cache: "no-store", method, body });
      if (response.ok) return await read(response);
      throw await refusal(response);
    } catch (failure) {
      if (!(failure instanceof TypeError)) throw failure; // that is what a network's failure is
      if (tries === TRIES) throw new Refused({ message: "kwire view does not answer any more", hint: "start it again: the page stays as it is" });
    }
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
}

/** @param {Response} response */
async function refusal(response) {
  if (response.headers.get("content-type")?.startsWith("application/json")) return new Refused((await response.json()).error);
  return new Refused({ message: (await response.text()).trim() || `HTTP ${response.status}` });
}

/** @param {Response} response */
const parsed = (response) => response.json();

/** @param {Response} response */
const whole = async (response) => new Uint8Array(await response.arrayBuffer());

/**
 * @param {string} what
 * @param {Record<string, string | number>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function ask(what, query = {}, signal) {
  return answer(what, query, parsed, signal);
}

/**
 * Have something kept.
 * @param {string} what
 * @param {unknown} content
 * @returns {Promise<any>}
 */
export async function put(what, content) {
  return answer(what, {}, parsed, undefined, JSON.stringify(content));
}

/**
 * Bytes of a message, and how many it has.
 * @param {string} key
 * @param {string} side
 * @param {number} start
 * @param {AbortSignal} [signal]
 * @returns {Promise<Uint8Array>}
 */
export async function octets(key, side, start, signal) {
  return answer("bytes", { key, side, start }, whole, signal);
}

/**
 * Latencies over time: a line of JSON, then counts.
 * @param {string} filter
 * @param {number} width
 * @param {AbortSignal} [signal]
 * @returns {Promise<import("./heat.js").Grid>}
 */
export async function grid(filter, width, signal) {
  const bytes = await answer("heatmap", { filter, width }, whole, signal);
  const line = bytes.indexOf(10);
  const about = JSON.parse(new TextDecoder().decode(bytes.subarray(0, line)));
  return { ...about, counts: new Uint32Array(bytes.slice(line + 1).buffer) };
}

/**
 * @param {unknown} failure
 * @returns {boolean} whether a request was only given up for a newer one
 */
export function givenUp(failure) {
  return failure instanceof DOMException && failure.name === "AbortError";
}
