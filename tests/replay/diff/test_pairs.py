"""Pairs of a RUN, read from disk one by one, against the same RUN read into dictionaries as a whole.

Proves: replay/diff/pairs.py, replay/diff/stored_run.py, replay/diff/partition_rows.py, replay/diff/topic_texts.py,
replay/diff/learning.py, replay/diff/equality.py, replay/diff/offsets.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.dataset import dataset
from kwire.analyzer.dataset.dataset import DatasetError
from kwire.replay.diff import pairs, stored_run
from kwire.replay.diff.compare import Comparison, compare
from kwire.replay.diff.differences import grouped
from kwire.replay.diff.steadiness import Steadiness
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
    requests = {
        _key(message): message["bytes"][4:]
        for message in messages
        if message["direction"] == "request" and message["complete"]
    }
    answered = {
        replies[message["capture"], message["connection"], message["reply"]]: message["bytes"][4:]
        for message in messages
        if message["direction"] == "response"
        and message["complete"]
        and (message["capture"], message["connection"], message["reply"]) in replies
    }
    outcomes = {
        _key(row): row
        for row in run.outcomes.to_table().to_pylist()
        if row["exchange"] is not None and row["api_key"] is not None
    }
    return outcomes, rows, requests, answered


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
        outcomes, rows, requests, answered = whole(path)
        run = pairs.from_run(path)
        keys = [_key(pair.row) for pair in run]
        assert keys == sorted(outcomes, key=lambda key: (rows[key]["request_time"], key[1], key[2]))
        for place, (key, pair) in enumerate(zip(keys, run, strict=True)):
            own = f"replay:{key[0]}", key[1], key[2]
            assert pair.row == {**{name: rows[key][name] for name in stored_run.ROW}, "place": place}
            assert (pair.left.request, pair.left.answer) == (requests.get(key), answered.get(key))
            assert (pair.right.request, pair.right.answer) == (requests.get(own), answered.get(own))
            outcome = outcomes[key]
            assert (pair.right.rule, pair.right.version, pair.right.latency_us, pair.right.retries) == (
                outcome["rule"],
                outcome["sent_version"],
                outcome["latency_us"],
                tuple(outcome["retries"]),
            )


def _summary(comparison: Comparison) -> Any:
    figures = (
        comparison.total,
        comparison.compared,
        comparison.same,
        comparison.expected,
        comparison.unexpected,
        comparison.skipped,
        comparison.noise,
    )
    return (
        figures,
        [(group.path, group.kind, group.rule, group.count) for group in grouped(comparison.differences)],
        {api: [sorted(side) for side in both] for api, both in comparison.latencies.items()},
    )


def test_pairs_in_memory_compare_as_pairs_on_disk_do(runs: list[Path]) -> None:
    for path in runs:
        run = pairs.from_run(path)
        assert_the_same(run)
        # Only a RUN says what its answers were before they were kept.
        run.runs = tuple(dataclasses.replace(facts, steadiness=Steadiness()) for facts in run.runs)
        assert _summary(compare(run)) == _summary(compare(list(run)))


def test_two_runs_are_paired_by_exchange(runs: list[Path]) -> None:
    again = runs[1].parent / "again"
    first, other = pairs.from_run(runs[1]), pairs.from_run(again)
    both = pairs.from_runs(runs[1], again)
    assert [pair.row for pair in both] == [pair.row for pair in first]
    for pair, left, right in zip(both, first, other, strict=True):
        assert (pair.left.request, pair.left.answer) == (left.right.request, left.right.answer)
        assert (pair.right.request, pair.right.answer) == (right.right.request, right.right.answer)
        assert pair.in_capture is not None
        assert pair.in_capture() == left.left


def test_two_runs_of_different_captures_are_refused(runs: list[Path]) -> None:
    with pytest.raises(DatasetError, match=r"not replays of the same capture \(\d+ of their exchanges"):
        pairs.from_runs(runs[0], runs[1])


def test_a_forged_run_differs_in_nothing(runs: list[Path]) -> None:
    run = compare(pairs.from_run(runs[2]))
    assert (run.total, run.same, list(run.differences)) == (500, 500, [])


def test_a_run_whose_outcomes_are_of_other_exchanges_is_refused(runs: list[Path], tmp_path: Path) -> None:
    run, other = (analyzer.open_dataset(path) for path in (runs[0], runs[2]))
    with dataset.Writer(tmp_path / "mixed") as writer:
        writer.write("exchanges", other.exchanges.to_table())
        writer.write("outcomes", run.outcomes.to_table())
        writer.commit({**other.manifest})
    with pytest.raises(DatasetError, match="has outcomes of exchanges that it lacks"):
        pairs.from_run(tmp_path / "mixed")


def test_a_dataset_is_no_run(tmp_path: Path) -> None:
    analyzer.analyze(SAMPLES / "client-kafkajs-3.9" / "capture.pcap", tmp_path / "data")
    with pytest.raises(DatasetError, match="not a RUN"):
        pairs.from_run(tmp_path / "data")
