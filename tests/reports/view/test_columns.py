"""The viewer's arrays against plain Python: orders, cached arrays, mapped columns.

Proves: reports/view/columns, orders, cache, source
"""

from __future__ import annotations

import contextlib
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kwire import analyzer
from kwire.analyzer.frame import counting
from kwire.analyzer.frame.parquet import RowGroups, read
from kwire.reports.view import columns, orders
from kwire.reports.view.cache import ArrayCache
from tests.reports.forging import Forged
from tests.reports.view.conftest import TXN, Asking, viewed


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("wide", [False, True], ids=["few values", "all values"])
@pytest.mark.parametrize("descending", [False, True])
def test_any_window_of_an_order_is_that_of_the_whole(
    kind: type[np.signedinteger[Any]], wide: bool, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    ends = np.iinfo(kind)
    values = random.integers(ends.min + 1 if wide else -2, ends.max if wide else 3, 500, kind, endpoint=True)
    values[random.integers(0, 500, 40)] = ends.min
    present = values != ends.min
    sign = -1 if descending else 1
    expected = sorted(range(500), key=lambda at: (not present[at], sign * int(values[at]) * bool(present[at]), at))
    there = values[present]
    keys = orders.keys(values.__getitem__, 500, int(there.min()), int(there.max()), descending)
    assert orders.whole(keys).tolist() == expected
    monkeypatch.setattr(orders, "NEAR", 60)  # from both ends, and from neither
    monkeypatch.setattr(counting, "CACHE_BLOCK", 90)
    for start, count in ((0, 10), (3, 50), (200, 33), (455, 20), (455, 45), (499, 5), (0, 500), (600, 3)):
        assert orders.window(keys, start, count).tolist() == expected[start : start + count]
    for at in range(0, 500, 37):
        assert expected[orders.position(keys, at)] == at


def test_keys_of_nothing_are_in_order_of_the_rows() -> None:
    nothing = np.full(5, -128, np.int8)
    assert orders.whole(orders.keys(nothing.__getitem__, 5, 0, 0, True)).tolist() == [0, 1, 2, 3, 4]
    assert orders.window(np.zeros(0, np.uint8), 0, 5).tolist() == []


def test_what_is_kept_is_made_once_and_bounded() -> None:
    cache = ArrayCache(100)
    numbers_made: list[int] = []

    def make(number: int) -> np.ndarray:
        numbers_made.append(number)
        return np.zeros(60, np.int8)

    threads = [threading.Thread(target=cache.get_or_make, args=(("one", ""), lambda: make(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers_made == [1]
    cache.get_or_make(("two", ""), lambda: make(2))
    assert cache.get(("one", "")) is None
    assert cache.get(("two", "")) is not None


def test_rows_beyond_what_is_sorted_at_once_have_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows and positions are the same before and after the whole order is made."""
    forged = Forged(tmp_path / "forged")
    for number in range(300):
        forged.exchange("Fetch", latency_ms=(number * 7919) % 70_000 / 7 if number % 9 else None, second=number)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        tables = asking.view.tables
        monkeypatch.setattr("kwire.reports.view.tables.SORT_ROWS", 0)
        monkeypatch.setattr(tables._sorting, "submit", lambda *_: None)
        before = [asking("rows", sort="latency", start=start, count=50)["keys"] for start in range(0, 300, 50)]
        keys_in_order = [key for keys in before for key in keys]
        assert len(set(keys_in_order)) == 300
        assert tables._cache.get(("", "latency")) is None
        assert [asking("locate", sort="latency", key=key)["row"] for key in keys_in_order[::17]] == list(
            range(0, 300, 17)
        )
        assert tables._cache.get(("", "latency")) is None
        whole = tables.ordered("", "latency").rows
        assert list(map(tables.key_of, whole.tolist())) == tables.keys_of(whole)
        assert asking("rows", sort="latency", count=300)["keys"] == keys_in_order


def test_the_ranges_that_are_kept_are_those_of_the_numbers(tmp_path: Path) -> None:
    analyzer.analyze(TXN, tmp_path / "data")
    columns.write_columns(analyzer.open_dataset(tmp_path / "data"), str, tmp_path / "columns")
    mapped = columns.open_columns(tmp_path / "columns")
    ranges = dict(mapped._ranges)
    mapped._ranges.clear()
    assert ranges == {name: mapped.range(name) for name in columns.INTEGERS}
    assert {name for name, span in ranges.items() if span is None} == mapped.empty & {*columns.INTEGERS}


def test_topics_are_read_whatever_dictionaries_row_groups_have(tmp_path: Path) -> None:
    parts = [[["a", "b"], ["a"]], [[], ["c", "a"]]]
    path = tmp_path / "part.parquet"
    with pyarrow.parquet.ParquetWriter(path, pa.schema({"topics": pa.list_(pa.string())})) as writer:
        for topics in parts:
            writer.write_table(pa.table({"topics": topics}))
    column = read(RowGroups({"exchanges": [path]}, ()), "exchanges").lists("topics")
    codes, values = column.elements.text("value")
    texts = [values[code] for code in codes.tolist()]
    bounds = pairwise(column.offsets.tolist())
    assert [texts[start:end] for start, end in bounds] == [*parts[0], *parts[1]]
