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

/**
 * @param {string} what
 * @param {Record<string, string | number>} query
 * @param {AbortSignal} [signal]
 * @param {string} [body] what is to be kept
 * @returns {Promise<Response>}
 */
async function answer(what, query, signal, body) {
  let response;
  try {
    response = await fetch(`/api/1/${what}?${worded(query)}`, { signal, cache: "no-store", method: body === undefined ? "GET" : "PUT", body });
  } catch (failure) {
    if (failure instanceof DOMException && failure.name === "AbortError") throw failure;
    throw new Refused({ message: "kwire view does not answer any more", hint: "start it again: what is shown stays" });
  }
  if (response.ok) return response;
  if (response.headers.get("content-type")?.startsWith("application/json")) throw new Refused((await response.json()).error);
  throw new Refused({ message: (await response.text()).trim() || `HTTP ${response.status}` });
}

/**
 * @param {string} what
 * @param {Record<string, string | number>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function ask(what, query = {}, signal) {
  return (await answer(what, query, signal)).json();
}

/**
 * Have something kept.
 * @param {string} what
 * @param {unknown} content
 * @returns {Promise<any>}
 */
export async function put(what, content) {
  return (await answer(what, {}, undefined, JSON.stringify(content))).json();
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
  const response = await answer("bytes", { key, side, start }, signal);
  return new Uint8Array(await response.arrayBuffer());
}

/**
 * Latencies over time: a line of JSON, then counts.
 * @param {string} filter
 * @param {number} width
 * @param {AbortSignal} [signal]
 * @returns {Promise<import("./heat.js").Grid>}
 */
export async function grid(filter, width, signal) {
  const whole = new Uint8Array(await (await answer("heatmap", { filter, width }, signal)).arrayBuffer());
  const line = whole.indexOf(10);
  const about = JSON.parse(new TextDecoder().decode(whole.subarray(0, line)));
  return { ...about, counts: new Uint32Array(whole.slice(line + 1).buffer) };
}

/**
 * @param {unknown} failure
 * @returns {boolean} whether a request was only given up for a newer one
 */
export function givenUp(failure) {
  return failure instanceof DOMException && failure.name === "AbortError";
}
