"""Forget names that nothing uses any more while reading, without changing any row.

(proves: `Summary._cut` of analyzer/analysis/summary.py; `ShardMerger.forget`, `Names.forget` of analyzer/bulk/rows.py;
`without` of analyzer/bulk/symbols.py; `Conversations._number_anew` of analyzer/bulk/shard.py; `PointTables.named` of
analyzer/pipeline/point_tables.py)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kwire.analyzer.analysis import sessions, summary
from kwire.analyzer.api import decode
from kwire.analyzer.bulk import rows, shard
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.bulk.rows import Names
from kwire.analyzer.bulk.shard import Conversations
from kwire.analyzer.bulk.symbols import content, of_all, without
from kwire.analyzer.dataset.dataset import Dataset
from kwire.analyzer.dataset.parquet_files import tables_of
from kwire.analyzer.pipeline import point_result, point_tables
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.drive import drive
from kwire.analyzer.pipeline.point_tables import PointTables
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.analyzer.analysis import read_modes
from tests.analyzer.checkpoints import cutting
from tests.bench import seen
from tests.shared import SAMPLES, capture_files

GONE = "this name was forgotten"


def read(path: Path, options: AnalysisOptions | None = None, window_bytes: int = 10_000, threads: int = 4) -> Dataset:
    [point] = capture_points([str(path)], False)
    return decode(point, None, ReadOptions(threads=threads, window_bytes=window_bytes), options or AnalysisOptions.of())


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make readers forget as often as possible, and return how many strings were free after each time.

    Shards renumber their symbols before each window, rows are made after each, and then all unused names are
    forgotten; looking up one of those all the same returns another text.
    """
    forgotten: list[int] = []
    number_anew, forget = Conversations._number_anew, Names.forget

    def always(self: Conversations) -> None:
        number_anew(self)
        self._most_strings = self._most_lists = -1

    def poisoned(self: Names, used: np.ndarray) -> None:
        forget(self, used)
        forgotten.append(len(self._free_strings))
        for number in self._free_strings:
            self.strings[number] = GONE

    monkeypatch.setattr(shard, "MOST_SYMBOLS", -1)
    monkeypatch.setattr(Conversations, "_number_anew", always)
    monkeypatch.setattr(Names, "forget", poisoned)
    monkeypatch.setattr(Names, "crowded", property(lambda _: True))
    monkeypatch.setattr(point_tables, "ENOUGH_ROWS", 1)
    return forgotten


SAMPLED = ("txn-librdkafka-4.3", "group-kip848-librdkafka-4.3", "old-java-0.8.2", "zookeeper-java-0.8.2")


@pytest.mark.parametrize("sample", SAMPLED)
def test_no_row_is_another_where_names_are_forgotten(
    sample: str, forgetful: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = capture_files(SAMPLES / sample)
    options = AnalysisOptions.of(keep_bytes=True, records="meta")
    forgetting = read(path, options, threads=6)
    assert len(forgetful) > 1
    monkeypatch.undo()
    assert cutting.differences(forgetting, read(path, options, threads=6)) == []


@pytest.mark.parametrize("sample", SAMPLED[:2])
def test_no_row_is_another_where_it_was_stored_in_between(
    sample: str, forgetful: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [path] = capture_files(SAMPLES / sample)
    count = len(cutting.packets(cutting.content(path))[1])
    paths = cutting.cut(path, [count // 3, count // 2], tmp_path)
    how = ReadOptions(threads=4, window_bytes=10_000)
    point = cutting.at_once(paths, how, AnalysisOptions.of())[1]
    forgetting, _ = cutting.resumed(paths, how, AnalysisOptions.of(), point)
    assert forgetful
    monkeypatch.undo()
    assert cutting.differences(forgetting, cutting.at_once(paths, how, AnalysisOptions.of())[0]) == []


def test_shares_of_a_capture_forget_too(forgetful: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [path] = capture_files(SAMPLES / "group-kip848-librdkafka-4.3")
    names = ("clients", "readers", "groups", "rebalances", "offsets", "leaders", "brokers", "topic_ids", "connections")
    forgetting = read_modes.rows(read_modes.shared_out(path, tmp_path), names)
    assert max(forgetful) > 0
    monkeypatch.undo()
    assert forgetting == read_modes.rows(read(path).tables, names)


@pytest.mark.parametrize("kind", ["clients", "groups", "offsets", "transactions", "topics"])
def test_no_row_is_another_where_ever_more_is_seen(
    kind: str, forgetful: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "seen.pcap"
    count = 2000 if kind == "topics" else 300
    seen.capture(path, kind, count, count // 10)
    monkeypatch.setattr(sessions, "MAX_KNOWN", 20)
    forgetting = read(path)
    assert max(forgetful) > 0
    monkeypatch.undo()
    monkeypatch.setattr(sessions, "MAX_KNOWN", 20)
    assert cutting.differences(forgetting, read(path)) == []


@pytest.mark.parametrize(
    "kind, count",
    [("clients", 6000), ("topics", 3000), ("groups", 3000), ("transactions", 3000)],  # enough to reach a steady state
)
def test_names_are_those_in_use(kind: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shard, "MOST_SYMBOLS", 50)
    monkeypatch.setattr(rows, "MOST_NAMES", 100)
    monkeypatch.setattr(sessions, "MAX_KNOWN", 20)
    few, many = (most_names(tmp_path / "seen.pcap", kind, some) for some in (count, 2 * count))
    assert many < 1.2 * few


def most_names(path: Path, kind: str, count: int) -> int:
    """Return the largest number of names known at once for `count` things, ten on each connection."""
    seen.capture(path, kind, count, count // 10)
    [point] = capture_points([str(path)], False)
    engine = Engine(point, Settings(shards=2, window_bytes=10_000))
    sink = PointTables(engine.merging.names, AnalysisOptions.of(), enough_rows=0)
    most, exchanges = 0, 0
    for name, table in tables_of(drive(engine, [sink])):
        exchanges += table.num_rows if name == "exchanges" else 0
        most = max(most, len(engine.merging.names.strings) + len(engine.merging.names.lists))
    assert exchanges >= count
    return most


def test_the_summary_names_those_with_the_most_exchanges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = [tmp_path / "topics.pcap", tmp_path / "clients.pcap"]
    seen.capture(paths[0], "topics", 500, 50)
    seen.capture(paths[1], "clients", 503, 100)  # five or six on each connection
    whole = [read(path) for path in paths]
    monkeypatch.setattr(summary, "MOST_COUNTED", 30)
    cut = [read(path) for path in paths]
    for complete, shortened in zip(whole, cut, strict=True):
        assert cutting.differences(shortened, complete) == ["summary", "notes"]
        assert shortened.notes == [*complete.notes, point_result.CUT]
        assert not complete.summary.keys() & {"other_topics", "other_clients"}
    (topics, clients), (few_topics, few_clients) = (
        [dataset.summary for dataset in datasets] for datasets in (whole, cut)
    )
    assert len(few_topics["topics"]) == len(few_clients["clients"]) == 30
    named = sum(topic["exchanges"] for topic in few_topics["topics"])
    assert sum(topic["exchanges"] for topic in topics["topics"]) == 1000
    assert named + few_topics["other_topics"]["exchanges"] == 1000
    assert [client["requests"] for client in few_clients["clients"][:4]] == [6, 6, 6, 5]
    for name in ("connections", "requests", "errors"):
        listed = sum(client[name] for client in few_clients["clients"])
        assert listed + few_clients["other_clients"][name] == sum(client[name] for client in clients["clients"])


def test_symbols_that_stay_are_what_they_were() -> None:
    texts = [f"{number}-{'x' * (number % 7)}".encode() for number in range(3000)] + [b""]
    symbols, numbers = of_all([*texts, *texts[:10]])
    assert numbers.tolist() == [*range(3001), *range(10)]
    wanted = np.random.default_rng(17).random(3001) < 0.3
    left, becomes = without(symbols, wanted)
    remaining = [text for text, here in zip(texts, wanted.tolist(), strict=True) if here]
    assert content(left, 0) == remaining
    assert (becomes >= 0).tolist() == wanted.tolist()
    assert becomes[wanted].tolist() == list(range(len(remaining)))
    none, _ = without(left, np.zeros(len(remaining), bool))
    assert content(none, 0) == []


def test_a_string_that_was_forgotten_gets_a_number_again() -> None:
    names = Names("capture")
    numbers = {text: names.string(text) for text in "abcde"}
    listed = names.list_of((numbers["a"], numbers["b"]))
    before, lists = names.strings, names.lists
    names.forget(np.array([numbers["b"], numbers["d"]]))
    assert (before, lists) == ([*"abcde"], [(numbers["a"], numbers["b"])])  # later look-ups still see these
    assert [names.string(text) for text in "bd"] == [numbers["b"], numbers["d"]]
    fresh = [names.string(text) for text in "xyzw"]
    assert sorted(fresh) == sorted([numbers["a"], numbers["c"], numbers["e"], 5])
    assert [names.strings[number] for number in fresh] == [*"xyzw"]
    assert names.list_of((7, 8)) == listed
