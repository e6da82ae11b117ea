"""Two runs of one job: of the same job no difference, and of a changed one the change, for whom it changed, and nothing
that did not change. Jobs are drawn with seeds: nothing is measured.

Proves: reports/compare/comparison.py, reports/compare/measures.py, reports/compare/brokers.py,
reports/compare/side.py, reports/compare/change.py
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset.dataset import open_dataset
from kwire.reports.compare.comparison import DIFFERENT, SAME, WORSE, Comparison, beyond, compare
from kwire.reports.compare.side import Side, names_of
from tests.reports.compare.job import Job
from tests.reports.forging import Forged

Compare = Callable[[Job, Job], Comparison]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compares two runs; each is written once."""
    folder = tmp_path_factory.mktemp("jobs")

    @functools.cache
    def written(job: Job) -> Path:
        return job.write(folder / str(len(list(folder.iterdir()))))

    def run(before: Job, after: Job) -> Comparison:
        return compare(Side(open_dataset(written(before)), "before"), Side(open_dataset(written(after)), "after"))

    return run


def what(comparison: Comparison) -> set[tuple[str | None, str, str]]:
    """List who changed, in what, and how bad that is."""
    return {(change.client, change.what, change.severity) for change in comparison.changes}


def test_two_runs_of_one_job_do_not_differ(compared: Compare) -> None:
    runs = [Job(seed=seed, first_port=5000 + 10 * seed) for seed in range(1, 7)]
    for first, second in itertools.pairwise(runs):
        comparison = compared(first, second)
        assert (comparison.verdict, comparison.changes) == (SAME, [])
        assert len(comparison.pairs) == 2
        assert comparison.compared > 20


def test_a_capture_does_not_differ_from_itself(compared: Compare) -> None:
    comparison = compared(Job(seed=1), Job(seed=1))
    assert (comparison.verdict, comparison.changes, comparison.notes) == (SAME, [], [])


def test_what_two_runs_of_before_differ_in_is_no_change(compared: Compare) -> None:
    """A job whose load differs from run to run: of what has changed only the codec is beyond that."""
    before, again = Job(seed=1), Job(seed=2, first_port=6000, records_batch=4.0)
    after = Job(seed=3, first_port=7000, records_batch=4.0, codec="zstd")
    changed, noise = compared(before, after), compared(before, again)
    comparison = beyond(changed, noise)
    assert {change.what for change in changed.changes} > {change.what for change in comparison.changes}
    assert "codec" in {change.what for change in comparison.changes}
    assert "write_records_batch" not in {change.what for change in comparison.changes}
    of_pairs = [change.what for pair in comparison.pairs for change in pair.changes]
    assert sorted(of_pairs) == sorted(change.what for change in comparison.changes)
    assert comparison.notes[-1].endswith("differs from before as much")
    # Runs that do not differ leave everything as it is.
    quiet = compared(before, Job(seed=4, first_port=8000))
    assert beyond(changed, quiet).changes == changed.changes
    assert beyond(changed, changed).verdict == SAME


WRITER, READER = "orders-writer", "billing-1"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"codec": "zstd"}, {(WRITER, "codec", "note"), (WRITER, "write_wire_record", "note"),
                             (WRITER, "write_bytes_batch", "note")}),
        ({"acks": 1, "idempotent": False}, {(WRITER, "acks", "warning"), (WRITER, "idempotence", "warning")}),
        ({"isolation": 1}, {(READER, "isolation", "note")}),
        ({"max_wait_ms": 100}, {(READER, "fetch_max_wait_ms", "note")}),
        ({"linger_ms": 20.0}, {(WRITER, "wait", "note")}),
        ({"produce_version": 11}, {(WRITER, "versions", "note")}),
        ({"version": "4.3.1"}, {(WRITER, "software", "note"), (READER, "software", "note")}),
        ({"tls": True}, {(WRITER, "tls", "note"), (READER, "tls", "note")}),
        ({"metadata_s": 0.2}, {(WRITER, "requests", "warning"), (READER, "requests", "warning")}),
        ({"broker_ms": 30.0}, {(WRITER, "latency_broker", "warning")}),
        ({"refused": 0.2}, {(WRITER, "error", "error")}),
        ({"release": "4.3"}, {(None, "offered", "note")}),
    ],
)  # fmt: skip
def test_a_change_is_named_and_nothing_else(
    compared: Compare, changed: dict[str, Any], expected: set[tuple[str | None, str, str]]
) -> None:
    before = Job(seed=1)
    comparison = compared(before, dataclasses.replace(before, seed=2, first_port=7000, **changed))
    assert what(comparison) == expected
    assert comparison.verdict == (WORSE if any(severity != "note" for *_, severity in expected) else DIFFERENT)


def test_larger_batches_change_requests_and_bytes_a_record(compared: Compare) -> None:
    before = Job(seed=1)
    after = dataclasses.replace(before, seed=2, records_batch=8.0)
    comparison = compared(before, after)
    changes = {change.what: change for change in comparison.changes}
    assert set(changes) == {"write_requests_record", "write_wire_record", "write_records_batch", "write_bytes_batch"}
    change = changes["write_records_batch"]
    assert change.low is not None
    assert change.high is not None
    assert 2 < change.low < 4 < change.high < 8


def test_what_a_reader_needs_for_a_record_is_its_own_only_if_the_same_is_written(compared: Compare) -> None:
    before = Job(seed=1)
    fewer = dataclasses.replace(before, seed=2, reads_s=2.0)
    of_reader = {(client, name) for client, name, _ in what(compared(before, fewer)) if client == before.reader}
    assert (before.reader, "read_requests_record") in of_reader
    written_otherwise = compared(before, dataclasses.replace(fewer, records_batch=8.0))
    assert "read_requests_record" not in {change.what for change in written_otherwise.changes}
    assert any("of readers left out" in note for note in written_otherwise.notes)
    another_setting = compared(before, dataclasses.replace(fewer, records_batch=8.0, max_wait_ms=2000))
    assert "read_requests_record" in {change.what for change in another_setting.changes}


def test_a_weaker_promise_is_worse_and_a_stronger_one_is_not(compared: Compare) -> None:
    weak, strong = Job(seed=1, acks=0, tls=False), Job(seed=2, acks=-1, tls=True)
    assert {severity for *_, severity in what(compared(weak, strong))} == {"note"}
    assert {severity for *_, severity in what(compared(strong, weak))} == {"warning"}


def test_rates_are_divided_by_the_time_that_is_there(compared: Compare) -> None:
    """Captures of ten times the length, and one that begins an hour later."""
    before = Job(seed=1, seconds=20)
    for start in (0.0, 3600.0):
        after = dataclasses.replace(before, seed=2, seconds=200, start=start)
        assert compared(before, after).changes == []


def test_what_is_too_little_is_told_and_no_change(compared: Compare) -> None:
    before = Job(seed=1, seconds=3)
    comparison = compared(before, dataclasses.replace(before, seed=2, metadata_s=0.7))
    assert comparison.verdict == SAME
    assert any("Metadata requests a minute" in line for pair in comparison.pairs for line in pair.unjudged)
    assert any("3.0 s of traffic" in note for note in comparison.notes)


def test_everything_slower_alike_is_one_line(compared: Compare) -> None:
    before = Job(seed=1, broker_ms=20)
    comparison = compared(before, dataclasses.replace(before, seed=2, slower_all=1.6))
    assert what(comparison) == {(None, "load", "note")}
    assert "nearly all answers take longer" in comparison.changes[0].text


def test_clients_are_paired_by_what_they_do_and_not_by_their_name(compared: Compare) -> None:
    before = Job(seed=1)
    after = dataclasses.replace(before, seed=2, writer="kafka-client-7", address="10.1.1.1", first_port=9000)
    comparison = compared(before, after)
    assert comparison.changes == []
    assert {pair.name for pair in comparison.pairs} == {READER, "orders-writer, then kafka-client-7"}


def test_a_client_on_one_side_only_is_told(compared: Compare) -> None:
    before = Job(seed=1)
    comparison = compared(before, dataclasses.replace(before, seed=2, reads=False))
    assert what(comparison) == {(READER, "only_before", "warning")}
    assert "reads orders, in group billing" in comparison.changes[0].text


def test_without_batches_their_sizes_are_compared_and_codecs_are_not(compared: Compare) -> None:
    before = Job(seed=1, batches_kept=False)
    comparison = compared(before, dataclasses.replace(before, seed=2, records_batch=8.0, codec="zstd"))
    assert "write_records_batch" in {change.what for change in comparison.changes}
    assert "codec" not in {change.what for change in comparison.changes}
    assert any("--records none" in note for note in comparison.notes)


def test_a_side_without_kafka_is_refused(tmp_path: Path) -> None:
    empty = Side(open_dataset(Forged(tmp_path / "empty").write()), "empty.pcap")
    full = Side(open_dataset(Job().write(tmp_path / "full")), "full.pcap")
    for sides in ((empty, full), (full, empty), (empty, empty)):
        with pytest.raises(UsageError, match=r"empty\.pcap: no exchange of Kafka"):
            compare(*sides)


def test_sides_are_named_by_what_tells_them_apart() -> None:
    assert names_of("/a/before.pcap", "/a/after.pcap") == ("before.pcap", "after.pcap")
    assert names_of("/x/a/b/c.pcap", "/x/d/b/c.pcap") == ("a/b/c.pcap", "d/b/c.pcap")
    assert names_of("c.pcap", "c.pcap") == ("c.pcap", "c.pcap")


def test_json_is_whole(compared: Compare) -> None:
    before = Job(seed=1)
    row = compared(before, dataclasses.replace(before, seed=2, codec="zstd", refused=0.2)).as_dict()
    assert row["verdict"] == WORSE
    assert {role["name"] for role in row["roles"]} == {WRITER, READER}
    (error,) = (change for change in row["changes"] if change["what"] == "error")
    assert (error["low"], error["high"], error["before"]) == (None, None, "0.0 %")
    figures = {(figure["what"], figure["about"]) for figure in row["roles"][0]["figures"]}
    assert ("write_wire_record", None) in figures
    assert ("latency_broker", "Produce") in figures
