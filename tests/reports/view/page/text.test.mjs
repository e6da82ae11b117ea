// Values as text, and as words of a filter and of a shell. Run by tests/reports/view/test_scripts.py.
import assert from "node:assert/strict";
import test from "node:test";
import { clock, command, counted, duration, instant, joined, keyOf, marks, moment, printable, quoted, since, size, told } from "../../../../reports/view/page/text.js";

test("what is not printable is escaped, what is stays", () => {
  assert.equal(printable("orders-é-日本 x"), "orders-é-日本 x");
  assert.equal(printable("a\u202eb\u0000\u001b[31m\n"), "a\\u202eb\\x00\\x1b[31m\\n");
  assert.equal(printable("\u00a0\u2028\ud800\u{e0001}"), "\\xa0\\u2028\\ud800\\U000e0001");
});

test("amounts have their units", () => {
  assert.deepEqual([831, 3100, 2050000, -1500, null].map(duration), ["831 us", "3.1 ms", "2.05 s", "-1.5 ms", ""]);
  assert.deepEqual([866, 12300, 1050000, null].map(size), ["866 B", "12.3 kB", "1.1 MB", ""]);
  assert.deepEqual([0, 999, 1000, 9812440].map(counted), ["0", "999", "1,000", "9,812,440"]);
});

test("times keep their microseconds", () => {
  assert.equal(moment(1795225754504385), "2026-11-21T01:49:14.504385Z");
  assert.equal(moment(-1), "1969-12-31T23:59:59.999999Z");
  assert.equal(since(1795225754504385, 1795225754504293), "0.000092");
  assert.equal(since(10, 1_500_010), "-1.500000");
});

test("an identity is written as the server writes it", () => {
  assert.equal(keyOf(["a.pcap", "[::1]:1-[::2]:2#1"], 3, -1), '["a.pcap","[::1]:1-[::2]:2#1",3,null]');
  assert.equal(keyOf(['é"日\u007f\u{1f600}\n', "\ud800"], 0, 12), '["\\u00e9\\"\\u65e5\\u007f\\ud83d\\ude00\\n","\\ud800",0,12]');
});

test("a comparison is added to a filter without changing what it means", () => {
  assert.equal(joined("", "a == 1"), "a == 1");
  assert.equal(joined(" a == 1 ", "b == 2"), "a == 1 and b == 2");
  assert.equal(joined("a == 1 or b == 2", "c == 3"), "(a == 1 or b == 2) and c == 3");
  assert.equal(joined('a == "x or y"', "c == 3"), 'a == "x or y" and c == 3');
  assert.equal(joined("order == 1", "c == 3"), "order == 1 and c == 3");
  assert.equal(joined("(a == 1)or(b == 2)", "c == 3"), "((a == 1)or(b == 2)) and c == 3");
  assert.equal(joined("a == 1 and b == 2", "b == 2"), "a == 1 and b == 2");
  assert.equal(joined("a == 1 or c == 3 and b == 2", "b == 2"), "(a == 1 or c == 3 and b == 2) and b == 2");
});

test("values are quoted for filters, words for shells", () => {
  assert.equal(quoted('say "hi"'), '"say ""hi"""');
  assert.equal(command(["kwire", "show", "my file.pcap", "--filter", "a == 'b'"]), "kwire show 'my file.pcap' --filter 'a == '\\''b'\\'''");
  assert.equal(command(["$(rm)", "`x`", ""]), "'$(rm)' '`x`' ''");
});

test("a moment has one name at a time: since the capture began, or in UTC", () => {
  const start = Date.UTC(2026, 0, 2, 23, 59, 59) * 1000;
  assert.equal(instant(start + 1_500_000, start), "1.500000");
  assert.equal(told(start, start), "0.000000 s");
  clock.utc = true;
  try {
    assert.equal(instant(start + 500_000, start), "23:59:59.500000");
    assert.equal(instant(start + 1_500_000, start), "2026-01-03 00:00:00.500000");
    assert.equal(told(start, start), "23:59:59.000000 UTC");
  } finally {
    clock.utc = false;
  }
});

test("an axis has round moments, as the page's clock has them", () => {
  const start = Date.UTC(2026, 0, 2, 12, 0, 3) * 1000 + 250_000;
  assert.deepEqual(marks(start + 1_471, start + 2_100_000, 200, start).map(([, text]) => text), ["1 s", "2 s"]);
  assert.deepEqual(marks(start, start + 500_000, 600, start).map(([, text]) => text), ["0.0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s", "0.5 s"]);
  assert.deepEqual(marks(start, start + 3, 300, start).map(([at, text]) => [at - start, text]), [0, 1, 2, 3].map((at) => [at, `0.00000${at} s`]));
  assert.deepEqual(marks(start, start + 40 * 86_400e6, 350, start).length, 5);
  clock.utc = true;
  try {
    assert.deepEqual(marks(start, start + 60_000_000, 300, start).map(([, text]) => text), ["12:00:30 UTC", "12:01:00 UTC"]);
  } finally {
    clock.utc = false;
  }
});
