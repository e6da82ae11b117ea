/** Asking where a network comes or goes: the browser gives up what it asks, and it is asked again. */

import assert from "node:assert/strict";
import test from "node:test";

import { Refused, ask, givenUp, octets } from "../../../../reports/view/page/api.js";

/**
 * A server that fails to be reached so many times.
 * @param {number} times
 * @param {() => Response} answers
 */
function failing(times, answers) {
  let asked = 0;
  globalThis.fetch = async () => {
    if (++asked <= times) throw new TypeError("network error");
    return answers();
  };
  return () => asked;
}

const said = () => new Response('{"rows": 3}', { headers: { "content-type": "application/json" } });

test("what was given up is asked again", async () => {
  const asked = failing(3, said);
  assert.deepEqual(await ask("info"), { rows: 3 });
  assert.equal(asked(), 4);
});

test("an answer that breaks off is asked for again", async () => {
  let broken = 0;
  globalThis.fetch = async () => {
    const response = new Response(new Uint8Array([1, 2]));
    if (broken++ === 0) response.arrayBuffer = () => Promise.reject(new TypeError("network error"));
    return response;
  };
  assert.deepEqual([...await octets("k", "request", 0)], [1, 2]);
});

test("who never answers is said to be gone", async () => {
  failing(99, said);
  await assert.rejects(ask("info"), (failure) => failure instanceof Refused && failure.message.includes("does not answer any more"));
});

test("what is refused, or given up for something newer, is asked once", async () => {
  const asked = failing(0, () => new Response('{"error": {"message": "no"}}', { status: 400, headers: { "content-type": "application/json" } }));
  await assert.rejects(ask("rows"), (failure) => failure instanceof Refused && failure.message === "no");
  assert.equal(asked(), 1);
  let tries = 0;
  globalThis.fetch = async () => { tries++; throw new DOMException("", "AbortError"); };
  await assert.rejects(ask("rows"), givenUp);
  assert.equal(tries, 1);
});
