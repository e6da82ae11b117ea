// Time on a ladder and a timeline. Run by tests/reports/view/test_scripts.py.
import assert from "node:assert/strict";
import test from "node:test";
import { folded, heads, middle, named, shortened as headed } from "../../../../reports/view/page/ladder.js";
import { shown } from "../../../../reports/view/page/lists.js";
import { brief, following, nearest, portions, shortened, zoomed } from "../../../../reports/view/page/timeline.js";

test("what lies close is drawn close, a long pause takes a line", () => {
  const { at, height, folds } = folded([0, 0, 10, 1000, 90_000_000, 90_000_010]);
  const places = [0, 10, 1000, 90_000_000, 90_000_010].map((time) => at.get(time));
  assert.deepEqual(places, [...places].sort((a, b) => a - b));
  assert.deepEqual(folds.map(([, pause]) => pause), [89_999_000]);
  assert.ok(height < 200);
  assert.equal(folded([]).at.size, 0);
});

test("a name above a line of a ladder is not cut off, and meets no other", () => {
  const lines = [0, 1, 2].map((index) => middle(index, 3, 1000)), room = lines[1] - lines[0];
  assert.ok(lines[0] - room / 2 >= 0);
  assert.equal(lines[2] + room / 2, 1000);
});

test("a client has its id and its address above its line", () => {
  assert.deepEqual(named("client 10.0.0.1 orders-app"), ["orders-app", "10.0.0.1"]);
  assert.deepEqual(named("client 10.0.0.1"), ["10.0.0.1"]);
  assert.deepEqual(named("broker 3"), ["broker 3"]);
  assert.deepEqual(named("client others"), ["others"]);
});

test("an address stands above a line only where it tells clients apart", () => {
  assert.deepEqual(heads(["client 10.0.0.1 a", "broker 1", "client 10.0.0.1 b"]), [["a"], ["broker 1"], ["b"]]);
  assert.deepEqual(heads(["client 10.0.0.1 a", "client 10.0.0.2 b"]), [["a", "10.0.0.1"], ["b", "10.0.0.2"]]);
  assert.deepEqual(heads(["client 10.0.0.1 a", "broker 1"]), [["a", "10.0.0.1"], ["broker 1"]]);
});

test("members of a group stay apart where there is little room", () => {
  assert.equal(headed("orders-member-1", 6), "ord…-1");
  assert.equal(headed("orders-member-1", 3), "ord");
  assert.equal(headed("member-1", 8), "member-1");
});

test("connections are told without the addresses that all have", () => {
  const one = "127.0.0.1:38686-127.0.0.1:9092#1", two = "127.0.0.1:38690-127.0.0.1:9093#2", far = "[::1]:5-127.0.0.1:9092#1";
  assert.deepEqual(brief([one, two]), [":38686-:9092#1", ":38690-:9093#2"]);
  assert.deepEqual(brief([one, far]), ["127.0.0.1:38686-:9092#1", "[::1]:5-:9092#1"]);
  assert.deepEqual(brief([one]), [one]);
  assert.deepEqual(brief([one, "somebody"]), [one, "somebody"]);
});

test("a name that has no room keeps its broker's port", () => {
  assert.equal(shortened("127.0.0.1:38686-127.0.0.1:9092#1", 40), "127.0.0.1:38686-127.0.0.1:9092#1");
  assert.equal(shortened("127.0.0.1:38686-127.0.0.1:9092#1", 20), "127.0.0.1:38…:9092#1");
  assert.equal(shortened("an-application-with-a-name", 10), "an-applic…");
});

test("a timeline goes nearer and farther, earlier and later", () => {
  assert.deepEqual(zoomed("w", 0, 400), [100, 300]);
  assert.deepEqual(zoomed("s", 100, 500), [-100, 700]);
  assert.deepEqual(zoomed("a", 100, 500), [0, 400]);
  assert.deepEqual(zoomed("d", 100, 500), [200, 600]);
  assert.equal(zoomed("w", 0, 4), null);
  assert.equal(zoomed("x", 0, 4), null);
});

test("what was chosen is found again by its time, or what is closest to it", () => {
  assert.equal(nearest([2, 7, 30], 7, 40), 1);
  assert.equal(nearest([2, 7, 30], 20, 40), 2);
  assert.equal(nearest([2, 7, 30], 0, 40), 0);
  assert.equal(nearest([2, 7, 30], 40, 40), -1);
  assert.equal(nearest([2, 7, 30], -1, 40), -1);
  assert.equal(nearest([], 3, 40), -1);
});

test("what is said of a rebalance has room up to the group's next", () => {
  const [later, other, first, bar] = [["rebalance", "g", 30], ["rebalance", "h", 20], ["rebalance", "g", 10], ["transaction", "g", 15]]
    .map(([kind, name, began]) => ({ kind, name, began, ended: null, text: "", stopped: 0 }));
  const nexts = following([later, other, first, bar]);
  assert.deepEqual([...nexts], [[first, 30]]);
});

test("values of other tables are text", () => {
  const about = (kind) => ({ name: "", kind, about: "" });
  assert.equal(shown(about("duration"), 1500), "1.5 ms");
  assert.equal(shown(about("size"), 1500), "1.5 kB");
  assert.equal(shown(about("text"), "a\u202eb"), "a\\u202eb");
  assert.equal(shown(about("text"), null), "");
});

test("what was held is hatched, what acks=all may have waited is not certain, and a queue comes first", () => {
  assert.deepEqual(portions(500, 5, 480, -1, -1), [5, 15, 480, 0]); // a long poll
  assert.deepEqual(portions(500, 30, -1, 0, 450), [30, 20, 0, 450]); // acks=all
  assert.deepEqual(portions(500, 0, -1, -1, -1), [0, 500, 0, 0]);
  assert.deepEqual(portions(500, 0, 0, -1, -1), [0, 500, 0, 0]);
  assert.deepEqual(portions(500, 900, 900, -1, -1), [0, 0, 500, 0]); // of a clock that went back
});
