// Where keys lead in a list, and what columns offer as filters. Run by tests/reports/view/test_scripts.py.
import assert from "node:assert/strict";
import test from "node:test";
import { known, parts, spent } from "../../../../reports/view/page/columns.js";
import { moved } from "../../../../reports/view/page/rows.js";

test("keys move within the list", () => {
  assert.equal(moved("j", 3, 10, 4), 4);
  assert.equal(moved("ArrowUp", 0, 10, 4), 0);
  assert.equal(moved("PageDown", 8, 10, 4), 9);
  assert.equal(moved("PageUp", 8, 10, 4), 4);
  assert.equal(moved("Home", 8, 10, 4), 0);
  assert.equal(moved("End", -1, 10_000_000, 4), 9_999_999);
  assert.equal(moved("ArrowDown", -1, 10, 4), 0);
  assert.equal(moved("x", 3, 10, 4), null);
  assert.equal(moved("ArrowDown", -1, 0, 4), null);
});

const table = [
  { name: "client_id", kind: "text", about: "", empty: false, stated: false },
  { name: "latency_us", kind: "duration", about: "", empty: false, stated: false },
  { name: "topics", kind: "topics", about: "", empty: false, stated: false },
];
const row = {
  outcome: "NOT_COORDINATOR (16)", subject: 'topics a"b', errors: [{ code: 16, count: 1 }], status: "answered", topics: ['a"b'], group_id: null,
  client_id: 'x" or api == Fetch or client_id == "', latency_us: 1500, client_ip: "::1", client_port: 5, api: null, api_key: 900, api_version: 1,
  request_time: 2_000_000, response_time: null,
};

test("a value is offered as a filter that means only itself", () => {
  const columns = known(table);
  const terms = (id) => columns.get(id).terms(row);
  assert.deepEqual(terms("client_id"), [["client_id", '"x"" or api == Fetch or client_id == """']]);
  assert.deepEqual(terms("latency_us"), [["latency_us", "1500us"]]);
  assert.deepEqual(terms("result"), [["error", "16"], ["topic", '"a""b"']]);
  assert.deepEqual(terms("client"), [["client", "[::1]:5"]]);
  assert.deepEqual(terms("api"), [["api_key", "900"]]);
  assert.equal(columns.get("api").text(row, 0), "API 900 v1");
  assert.equal(columns.get("time").text(row, 500_000), "1.500000");
});

test("what an exchange is a part of is followed by filters that mean only it", () => {
  const one = { connection: 'a"b', client_id: "c", group_id: null, transactional_id: "t", topics: ['x" or api == Fetch'] };
  assert.deepEqual(parts(one), [
    ["connection", 'connection == "a""b"'], ["client", 'client_id == "c"'], ["transaction", 'transactional_id == "t"'],
    ['topic x" or api == Fetch', 'topic == "x"" or api == Fetch"'],
  ]);
});

test("the time of an exchange is told by its parts, and what cannot be told is", () => {
  const whole = { total_us: 510_000, queue_us: 30, muted_us: 0, network_us: 70, hold_us: 500_000, broker_us: 9_900 };
  assert.equal(spent(whole), "510.0 ms: queue 30 us + network 70 us + held on purpose 500.0 ms + broker 9.9 ms");
  assert.equal(spent({ ...whole, hold_us: null, broker_us: null }), "510.0 ms: queue 30 us + network 70 us, the rest is unknown");
  assert.equal(spent({ ...whole, total_us: null }), "");
});
