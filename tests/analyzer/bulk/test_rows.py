"""Windows: read-only, the same however many shards there are, and nothing that shards handed out is changed.

(proves: analyzer/bulk/rows.py, analyzer/bulk/shard_result.py)
"""

from __future__ import annotations

import copy
import os
import threading
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.bulk.column_names import COLUMNS
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.dataset import tables
from kwire.captures.files import capture_points
from kwire.captures.kernels import NULL
from tests.shared import SAMPLES, capture_files

SAMPLE = "txn-librdkafka-4.3"


def engine(shards: int, window_bytes: int = 20_000) -> Engine:
    [point] = capture_points([str(capture_files(SAMPLES / SAMPLE)[0])], False)
    return Engine(point, Settings(2, shards, window_bytes, keep_messages=True, keep_records=True))


def arrays(thing: Any) -> list[np.ndarray]:
    """All arrays of a dataclass of arrays, as they are now."""
    fields = [getattr(thing, name) for name in thing.__slots__]
    return [copy.copy(value) for value in fields if isinstance(value, np.ndarray)]


def described(window: Window) -> list[tuple[Any, ...]]:
    """Describe a window's exchanges in words: numbers mean what its names hold now."""
    names, rows = window.names, window.exchanges
    texts = {"client_id", "group_id", "member_id", "transactional_id"}
    rows_described = []
    for i, connection in enumerate(rows.connection.tolist()):
        values: list[Any] = [names.connections[connection]]
        for name in COLUMNS:
            value = int(rows.column(name)[i])
            if value != NULL and name in texts:
                values.append(names.strings[value])
            elif value != NULL and name == "topics":
                values.append([names.strings[number] for number in names.lists[value]])
            else:
                values.append(names.lists[value] if value != NULL and name == "errors" else value)
        rows_described.append(tuple(values))
    return rows_described


def test_a_window_is_read_only_and_what_shards_handed_out_stays_as_it_was() -> None:
    reading = engine(2)
    seen = 0
    for shards in reading.ended():
        before = [arrays(ended) for ended in shards]
        window = reading.merging.take(shards, reading.done_packets)
        for ended, was in zip(shards, before, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(arrays(ended), was, strict=True))
        rows = window.exchanges
        for array in (rows.columns, rows.connection, rows.partitions, window.leaders, window.topic_ids):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        seen += len(rows)
    assert seen > 100


@pytest.mark.parametrize("shards", [2, 3])
def test_any_number_of_shards_gives_the_same_windows(shards: int) -> None:
    single = [described(window) for window in engine(1).windows()]
    assert [described(window) for window in engine(shards).windows()] == single
    assert sum(map(len, single)) > 100


@pytest.mark.parametrize("shards", [1, 2])
def test_what_was_read_of_a_stream_is_told_while_more_is_awaited(shards: int) -> None:
    """Also where there is one thread, as on a broker's host of one core."""
    data = capture_files(SAMPLES / SAMPLE)[0].read_bytes()
    source, sink = os.pipe()

    def write_the_rest() -> None:
        with os.fdopen(sink, "wb") as writer:
            writer.write(data[60_000:])

    with os.fdopen(source, "rb") as stdin:
        [point] = capture_points(["-"], False)
        windows = Engine(point, Settings(1, shards), stdin=stdin).windows()
        os.write(sink, data[:60_000])  # a pipe takes 64 KiB
        late = threading.Timer(30, write_the_rest)
        late.start()
        counts = [len(next(windows).exchanges)]
        assert counts[0] > 50
        assert not late.finished.is_set()
        late.cancel()
        writing = threading.Thread(target=write_the_rest)
        writing.start()
        counts += [len(window.exchanges) for window in windows]
        writing.join()
    assert sum(counts) == sum(len(window.exchanges) for window in engine(1).windows())


def test_columns_by_name_are_those_of_the_table_or_say_what_they_are() -> None:
    """So that `columns`, `--fields` and filters have a new one from one place."""
    known = {column.name for column in tables.EXCHANGES}
    assert set(COLUMNS) - known == {"throttle_ms", "packet_index", "completed_by", "holes"}


def test_exchanges_that_are_left_out_take_their_partitions_along() -> None:
    for window in engine(2).windows():
        rows = window.exchanges
        produced = rows.where(rows.column("api_key") == 0)
        owners = np.flatnonzero(rows.column("api_key") == 0)
        assert np.array_equal(produced.columns, rows.columns[:, owners])
        assert np.array_equal(owners[produced.owner], rows.owner[np.isin(rows.owner, owners)])
        assert window.only(produced).every is rows


def test_numbers_of_ended_connections_are_given_again_after_release_only() -> None:
    names = Names("c")
    first = names.connection((1, 1), (2, 9092), 0, 0)
    names.over([first])
    assert names.connection((1, 2), (2, 9092), 0, 1) != first
    names.release()
    assert names.connection((1, 3), (2, 9092), 0, 2) == first
