"""Rows of analysis that are made before the capture ends, because state is bounded: the same rows, each once.

(proves: `AnalysisTables.early` of analyzer/pipeline/analysis_tables.py; `held_bytes` of analyzer/analysis)
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire.analyzer.analysis.clients import Clients
from kwire.analyzer.analysis.control_exchanges import APIS, Border, ControlExchanges
from kwire.analyzer.analysis.groups import GroupCollector
from kwire.analyzer.analysis.offsets import Offsets
from kwire.analyzer.analysis.transactions import Transactions
from kwire.analyzer.api import decode
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.dataset.dataset import Dataset
from kwire.analyzer.dataset.parquet_files import tables_of
from kwire.analyzer.pipeline import analysis_tables
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.analysis_tables import AnalysisTables
from kwire.analyzer.pipeline.drive import drive
from kwire.analyzer.pipeline.point_tables import PointTables
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import embedded
from kwire.captures.files import capture_points
from tests.analyzer.checkpoints import cutting
from tests.bench import seen
from tests.shared import SAMPLES, capture_files

MEANT = ("groups", "rebalances", "offsets", "transactions", "readers", "clients")


def read(path: Path, window_bytes: int = 10_000) -> Dataset:
    [point] = capture_points([str(path)], False)
    return decode(point, None, ReadOptions(threads=4, window_bytes=window_bytes), AnalysisOptions.of())


def counted(name: str, table: pa.Table) -> Counter[str]:
    """Rows without order; which group a reader is of may be learned after it is over."""
    return Counter(map(repr, (table.drop_columns("group_id") if name == "readers" else table).to_pylist()))


@pytest.fixture(autouse=True)
def garbage_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here something is told after each of some hundred small windows, and in a process in which thousands of tests ran
    before to look for garbage takes a second. It is no matter of rows."""
    monkeypatch.setattr(analysis_tables, "give_back", lambda: None)


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has ended is told after each window, but for what may still wait for an answer."""
    monkeypatch.setattr(analysis_tables, "MOST_HELD_BYTES", 0)
    monkeypatch.setattr(analysis_tables, "MOST_READERS", 0)


@pytest.mark.parametrize(
    "sample",
    [
        "txn-librdkafka-4.3",
        "group-kip848-librdkafka-4.3",
        "client-kafkajs-3.9",
        "old-java-0.8.2",
        "zookeeper-java-0.8.2",
    ],
)
def test_rows_are_those_of_one_that_keeps_all(sample: str, nothing_kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = capture_files(SAMPLES / sample)
    aged = read(path)
    assert any("more happened" in note for note in aged.notes)
    monkeypatch.setattr(analysis_tables, "MOST_HELD_BYTES", 1 << 40)
    monkeypatch.setattr(analysis_tables, "MOST_READERS", 1 << 40)
    whole = read(path)
    assert not whole.notes
    assert sum(whole.tables[name].num_rows for name in MEANT) > 5
    for name in MEANT:
        assert counted(name, aged.tables[name]) == counted(name, whole.tables[name]), name


@pytest.mark.parametrize("waits_ns", [0, analysis_tables.ANSWERED_NS], ids=["none waits", "all waits"])
def test_what_was_told_is_not_told_again_after_a_snapshot(
    waits_ns: int, nothing_kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis_tables, "ANSWERED_NS", waits_ns)
    [path] = capture_files(SAMPLES / "txn-librdkafka-4.3")
    count = len(cutting.packets(cutting.content(path))[1])
    paths = cutting.cut(path, range(count // 6, count, count // 6), tmp_path)
    how, choice = ReadOptions(threads=4), AnalysisOptions.of()
    expected, name = cutting.at_once(paths, how, choice)
    counts, _ = cutting.resumed(paths, how, choice, name)
    for table in MEANT:
        assert counted(table, counts.tables[table]) == counted(table, expected.tables[table]), table
    assert any("more happened" in note for note in counts.notes)


@pytest.mark.parametrize(
    ("kind", "count", "rows"),
    [
        ("groups", 120, {"groups": 120, "rebalances": 120, "offsets": 120}),
        ("offsets", 10, {"offsets": 1000}),
        ("transactions", 120, {"transactions": 120}),
        ("topics", 120, {"readers": 120}),
    ],
)
def test_what_is_kept_is_bounded(
    kind: str, count: int, rows: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as much happens, as much is kept."""
    monkeypatch.setattr(analysis_tables, "MOST_HELD_BYTES", 20_000)
    monkeypatch.setattr(analysis_tables, "MOST_READERS", 20)
    monkeypatch.setattr(analysis_tables, "ANSWERED_NS", 10**8)
    for module, name, most in (
        ("offsets", "MOST_KEPT", 20),
        ("journeys", "MOST_KEPT", 20),
        ("groups", "MOST_OF_ALL", 20),
        ("groups", "MOST_CONTACTS", 20),
        ("transactions", "MOST_PRODUCERS", 10),
        ("transactions", "MOST_WAITING", 20),
    ):
        monkeypatch.setattr(f"kwire.analyzer.analysis.{module}.{name}", most)
    counts: dict[str, int] = {}
    held = [most_held(tmp_path / "a.pcap", kind, count * times, counts if times == 1 else {}) for times in (1, 3, 9)]
    assert {name: counts[name] for name in rows} == rows
    assert 0 < held[2] < held[1] * 1.3 + analysis_tables.MOST_HELD_BYTES


def test_what_was_learned_is_let_go_of_as_its_rows_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one listener are made while those that come after it are there, and none before."""
    there: list[list[str]] = []
    for kind in (Clients, GroupCollector, Offsets, Transactions):
        monkeypatch.setattr(kind, "tables", _noting(kind.tables, there))
    monkeypatch.setattr(AnalysisTables, "collectors", _Listeners(), raising=False)
    assert most_held(tmp_path / "a.pcap", "groups", 10, {})
    kinds = ["GroupCollector", "Offsets", "Transactions", "Journeys"]
    assert there == [kinds, kinds[1:], kinds[2:], kinds[3:]]


class _Listeners:
    """The attribute of that name; the last that was set to it is `latest`."""

    latest: tuple[Any, ...] = ()

    def __get__(self, instance: Any, of: Any = None) -> tuple[Any, ...]:
        return _Listeners.latest

    def __set__(self, instance: Any, value: tuple[Any, ...]) -> None:
        _Listeners.latest = value


def _noting(tables: Any, there: list[list[str]]) -> Any:
    def noted(self: Any, *given: Any) -> Any:
        there.append([type(collector).__name__ for collector in _Listeners.latest])
        return tables(self, *given)

    return noted


def test_ends_of_transactions_are_counted_and_forgotten(tmp_path: Path) -> None:
    """An EndTxn matters to commits before it alone; this capture has none."""
    seen.capture(tmp_path / "a.pcap", "transactions", 300, 10)
    [point] = capture_points([str(tmp_path / "a.pcap")], False)
    hearing, offsets = ControlExchanges(), Offsets()
    for window in Engine(point, ReadOptions(threads=1).settings(APIS)).windows():
        for piece, control in hearing.pieces(window):
            offsets.take(piece, control)
    assert offsets.held_bytes > 300 * 32
    assert offsets.onward(Border(str, 0)).held_bytes == 0


def test_readers_of_whom_no_table_tells_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_tables, "MOST_READERS", 20)
    counts: dict[str, int] = {}
    assert most_held(tmp_path / "a.pcap", "topics", 500, counts, "api == Metadata") <= 20 * 500
    assert (counts["exchanges"], counts["readers"]) == (500, 0)


def most_held(path: Path, kind: str, count: int, counts: dict[str, int], filter: str | None = None) -> int:
    """Bytes held of a capture with so many of a kind, at most; `counts` gets how many rows came."""
    seen.capture(path, kind, count, 10)
    [point] = capture_points([str(path)], False)
    choice = AnalysisOptions.of(filter, records="none")
    engine = Engine(point, ReadOptions(threads=1, window_bytes=10_000).settings(choice.keep))
    sink = _Measured(engine.merging.names, choice, enough_rows=0)
    for name, rows in tables_of(drive(engine, [sink])):
        counts[name] = counts.get(name, 0) + rows.num_rows
    return sink.most


class _Measured(PointTables):
    """Measures what is held between two windows, and after the last."""

    most = 0

    def take(self, window: Window) -> Any:
        self._measure()
        return super().take(window)

    def finish(self) -> Any:
        self._measure()
        return super().finish()

    def _measure(self) -> None:
        held = sum(collector.held_bytes for collector in self.analysis.collectors)
        self.most = max(self.most, held + 500 * len(self.latency.sessions.over))


def test_of_too_many_groups_the_one_that_was_quiet_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MOST_GROUPS", 2)
    groups = embedded.GroupProtocols()
    for name in ("a", "b", "a", "c"):
        groups.learn({"groupId": name, "protocolType": "consumer"}, None)
    known = {name: groups.learn({"groupId": name}, None) for name in ("a", "c", "b")}
    assert known == {"a": {"protocolType": "consumer"}, "c": {"protocolType": "consumer"}, "b": {}}
