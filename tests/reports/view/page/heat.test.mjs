// Cells of the heatmap as filters, and coarser ones. Run by tests/reports/view/test_scripts.py.
import assert from "node:assert/strict";
import test from "node:test";
import { coarser, slots, strength, term } from "../../../../reports/view/page/heat.js";

const grid = {
  first: 1_000_000, step: 500, columns: 2, buckets: 3, edges: [4, 5, 6, 7], most: 6, exchanges: 21, without: 0,
  counts: Uint32Array.from([1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 7, 0, 1, 0, 0, 2, 0]),
};

test("a cell is an interval of times and one of latencies, a span one of times", () => {
  assert.equal(term(grid, 1, 1, 2), "request_time >= 1970-01-01T00:00:01.000500Z and request_time < 1970-01-01T00:00:01.001000Z and latency >= 6us and latency < 7us");
  assert.equal(term(grid, 0, 1), "request_time >= 1970-01-01T00:00:01.000000Z and request_time < 1970-01-01T00:00:01.001000Z");
});

test("coarser cells have the counts of those that they are made of", () => {
  const found = coarser(grid, 2);
  assert.deepEqual(found.edges, [4, 6, 7]);
  assert.deepEqual([...found.counts], [4, 6, 5, 6, 0, 0, 0, 7, 0, 1, 2, 0]);
  assert.equal(found.most, 13);
  assert.equal(coarser(grid, 1), grid);
});

test("a long run of empty columns is a pause, a short one is not", () => {
  const counts = new Uint32Array(300);
  for (const column of [0, 4, 50, 99]) counts[column] = 1;
  counts[100 + 60] = 1; // held
  const found = slots({ ...grid, columns: 100, buckets: 1, counts });
  assert.deepEqual(found.filter((one) => one.pause), [{ column: 5, pause: 45 }, { column: 51, pause: 9 }, { column: 61, pause: 38 }]);
  assert.deepEqual(found.slice(0, 6).map((one) => one.column), [0, 1, 2, 3, 4, 5]);
  assert.equal(found.reduce((sum, { pause }) => sum + Math.max(1, pause), 0), 100);
});

test("one exchange can be seen beside a million", () => {
  assert.equal(strength(0, 10), 0);
  assert.ok(strength(1, 1e6) >= 0.4);
  assert.equal(strength(1e6, 1e6), 1);
  assert.ok(Number.isFinite(strength(1, 1)));
});
