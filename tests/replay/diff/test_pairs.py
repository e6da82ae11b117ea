"""Pairs of a RUN, read from disk one by one, against the same RUN read into dictionaries as a whole.

Proves: replay/diff/pairs.py, replay/diff/stored_run.py, replay/diff/partition_rows.py, replay/diff/topic_texts.py,
replay/diff/learning.py, replay/diff/equality.py, replay/diff/offsets.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import analyzer
from analyzer.dataset import dataset
from analyzer.dataset.dataset import DatasetError
from replay.diff import pairs, stored_run
from replay.diff.compare import Comparison, compare
from replay.diff.differences import grouped
from tests.bench import diff as bench
from tests.replay.diff.both_ways import assert_the_same
from tests.replay.replaying import replayed_at
from tests.replay.test_commands import CAPTURE, replayed, sinking
from tests.shared import SAMPLES

Key = tuple[Any, ...]


def whole(path: Path) -> tuple[dict[Key, Any], dict[Key, Any], dict[Key, bytes], dict[Key, bytes]]:
    """(outcomes, rows of exchanges, requests, answers), each by (capture, connection, exchange)."""
    run = analyzer.open_dataset(path)
    rows = {_key(row): row for row in run.exchanges.to_table().to_pylist() if row["exchange"] is not None}
    replies = {(row["capture"], row["connection"], row["reply"]): key for key, row in rows.items()}
    messages = run.messages.to_table().to_pylist()
    asked = {_key(one): one["bytes"][4:] for one in messages if one["direction"] == "request" and one["complete"]}
    answered = {
        replies[one["capture"], one["connection"], one["reply"]]: one["bytes"][4:]
        for one in messages
        if one["direction"] == "response"
        and one["complete"]
        and (one["capture"], one["connection"], one["reply"]) in replies
    }
    outcomes = {
        _key(row): row
        for row in run.outcomes.to_table().to_pylist()
        if row["exchange"] is not None and row["api_key"] is not None
    }
    return outcomes, rows, asked, answered


def _key(row: dict[str, Any]) -> Key:
    return row["capture"], row["connection"], row["exchange"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One of made requests, one of a real capture most of which the sink does not offer, one forged."""
    folder = tmp_path_factory.mktemp("runs")
    with sinking() as port:
        replayed(port, folder / "made")
        for name in ("real", "again"):
            replayed_at(CAPTURE, port, folder / name)
    bench.forge(folder / "forged", 500)
    return [folder / name for name in ("made", "real", "forged")]


def test_every_pair_has_the_rows_and_frames_that_the_tables_have(runs: list[Path]) -> None:
    for path in runs:
        outcomes, rows, asked, answered = whole(path)
        found = pairs.from_run(path)
        keys = [_key(pair.row) for pair in found]
        assert keys == sorted(outcomes, key=lambda key: (rows[key]["request_time"], key[1], key[2]))
        for place, (key, pair) in enumerate(zip(keys, found, strict=True)):
            own = f"replay:{key[0]}", key[1], key[2]
            assert pair.row == {**{name: rows[key][name] for name in stored_run.ROW}, "place": place}
            assert (pair.left.request, pair.left.answer) == (asked.get(key), answered.get(key))
            assert (pair.right.request, pair.right.answer) == (asked.get(own), answered.get(own))
            outcome = outcomes[key]
            assert (pair.right.rule, pair.right.version, pair.right.latency_us, pair.right.retries) == (
                outcome["rule"],
                outcome["sent_version"],
                outcome["latency_us"],
                tuple(outcome["retries"]),
            )


def _told(found: Comparison) -> Any:
    figures = (found.total, found.compared, found.same, found.expected, found.unexpected, found.skipped, found.noise)
    return (
        figures,
        [(one.path, one.kind, one.rule, one.count) for one in grouped(found.differences)],
        {api: [sorted(side) for side in both] for api, both in found.latencies.items()},
    )


def test_pairs_in_memory_compare_as_pairs_on_disk_do(runs: list[Path]) -> None:
    for path in runs:
        found = pairs.from_run(path)
        assert_the_same(found)
        assert _told(compare(found)) == _told(compare(list(found)))


def test_two_runs_are_paired_by_exchange(runs: list[Path]) -> None:
    again = runs[1].parent / "again"
    one, other = pairs.from_run(runs[1]), pairs.from_run(again)
    both = pairs.from_runs(runs[1], again)
    assert [pair.row for pair in both] == [pair.row for pair in one]
    for pair, left, right in zip(both, one, other, strict=True):
        assert (pair.left.request, pair.left.answer) == (left.right.request, left.right.answer)
        assert (pair.right.request, pair.right.answer) == (right.right.request, right.right.answer)
        assert pair.in_capture is not None
        assert pair.in_capture() == left.left


def test_two_runs_of_different_captures_are_refused(runs: list[Path]) -> None:
    with pytest.raises(DatasetError, match=r"not replays of the same capture \(\d+ of their exchanges"):
        pairs.from_runs(runs[0], runs[1])


def test_a_forged_run_differs_in_nothing(runs: list[Path]) -> None:
    found = compare(pairs.from_run(runs[2]))
    assert (found.total, found.same, list(found.differences)) == (500, 500, [])


def test_a_run_whose_outcomes_are_of_other_exchanges_is_refused(runs: list[Path], tmp_path: Path) -> None:
    made, other = (analyzer.open_dataset(path) for path in (runs[0], runs[2]))
    with dataset.Writer(tmp_path / "mixed") as writer:
        writer.write("exchanges", other.exchanges.to_table())
        writer.write("outcomes", made.outcomes.to_table())
        writer.commit({**other.manifest})
    with pytest.raises(DatasetError, match="has outcomes of exchanges that it lacks"):
        pairs.from_run(tmp_path / "mixed")


def test_a_dataset_is_no_run(tmp_path: Path) -> None:
    analyzer.analyze(SAMPLES / "client-kafkajs-3.9" / "capture.pcap", tmp_path / "data")
    with pytest.raises(DatasetError, match="not a RUN"):
        pairs.from_run(tmp_path / "data")
