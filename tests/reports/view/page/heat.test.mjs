// Cells of the heatmap as filters, and coarser ones. Run by tests/reports/view/test_scripts.py.
import assert from "node:assert/strict";
import test from "node:test";
import { coarser, strength, term } from "../../../../reports/view/page/heat.js";

const grid = {
  first: 1_000_000, step: 500, columns: 2, buckets: 3, edges: [4, 5, 6, 7], most: 6, exchanges: 21, without: 0,
  counts: Uint32Array.from([1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 7]),
};

test("a cell is an interval of times and one of latencies, a span one of times", () => {
  assert.equal(term(grid, 1, 1, 2), "request_time >= 1970-01-01T00:00:01.000500Z and request_time < 1970-01-01T00:00:01.001000Z and latency >= 6us and latency < 7us");
  assert.equal(term(grid, 0, 1), "request_time >= 1970-01-01T00:00:01.000000Z and request_time < 1970-01-01T00:00:01.001000Z");
});

test("coarser cells have the counts of those that they are made of", () => {
  const found = coarser(grid, 2);
  assert.deepEqual(found.edges, [4, 6, 7]);
  assert.deepEqual([...found.counts], [4, 6, 5, 6, 0, 0, 0, 7]);
  assert.equal(found.most, 13);
  assert.equal(coarser(grid, 1), grid);
});

test("one exchange can be seen beside a million", () => {
  assert.equal(strength(0, 10), 0);
  assert.ok(strength(1, 1e6) >= 0.4);
  assert.equal(strength(1e6, 1e6), 1);
  assert.ok(Number.isFinite(strength(1, 1)));
});
