"""Compare the same job of real clients at real brokers, captured before and after one change: the change is named, and
of the same job twice nothing.

Two pairs are files, for their clients are old: 9 seconds of a writer, and of a reader in a group, with librdkafka 1.5.0
and 2.16.0 at a broker of 3.9.2, and with kafka-python 2.0.2 and 3.0.12 at one of 4.3.1.

Proves: reports/compare/comparison.py, reports/compare/roles.py
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kwire
from kwire.reports.compare.comparison import DIFFERENT, SAME, Comparison, beyond, compare
from kwire.reports.compare.side import Side
from tests import live
from tests.brokers import jars
from tests.brokers.cluster import Spec
from tests.brokers.fixtures import Start
from tests.incidents.lab import Lab, sleep

PAIRS = Path(__file__).parent / "pairs"
SECONDS = 6.0
WRITER, READER = "orders-writer", "billing"

Run = Callable[..., Path]


@pytest.fixture(scope="module")
def run(shared_brokers: Start, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Captures a writer and a reader: `run(version, settings of the writer)`; each is made once, or so often again."""
    if os.geteuid():
        live.missing.append("pairs of compare: root is needed to capture on the loopback")
        pytest.skip(live.missing[-1])
    folder, numbers = tmp_path_factory.mktemp("pairs"), itertools.count(1)

    @functools.cache
    def captured(version: str, *settings: tuple[str, object], again: bool = False) -> Path:
        name = "-".join((version, *(str(value) for _, value in settings), *("again",) * again))
        lab = Lab(shared_brokers(Spec(version)), folder / f"{name}.pcap", name=f"pairs-{next(numbers)}")
        topic = lab.topic("orders")
        with lab.capture():
            lab.read(READER, READER, topic)
            lab.write(WRITER, topic, rate=150, config={"linger.ms": 0, **dict(settings)})
            sleep(SECONDS)
        dataset = folder / name
        kwire.analyze(lab.capture_path, dataset)
        return dataset

    return captured


def compared(run: Run, before: tuple[object, ...], after: tuple[object, ...]) -> Comparison:
    """Compare beyond what two runs of before differ in."""
    first, again, second = (
        Side(kwire.open_dataset(path), str(name))
        for name, path in enumerate((run(*before), run(*before, again=True), run(*after)))
    )
    return beyond(compare(first, second), compare(first, again))


def changed(comparison: Comparison) -> dict[str | None, set[str]]:
    """List what has changed, by client."""
    result: dict[str | None, set[str]] = {}
    for change in comparison.changes:
        result.setdefault(change.client, set()).add(change.what)
    return result


NEW = (jars.NEWEST,)


def test_the_same_job_twice_is_the_same(run: Run) -> None:
    first, again = (Side(kwire.open_dataset(run(*NEW, again=again)), str(again)) for again in (False, True))
    comparison = compare(first, again)
    assert (changed(comparison), comparison.verdict) == ({}, SAME)
    assert len(comparison.pairs) >= 2
    assert comparison.compared > 20


def test_a_linger_is_named(run: Run) -> None:
    changes = changed(compared(run, NEW, (*NEW, ("linger.ms", 20))))
    assert set(changes) == {WRITER}
    assert {"wait", "write_records_batch", "write_requests_record"} <= changes[WRITER]


def test_a_codec_is_named(run: Run) -> None:
    changes = changed(compared(run, NEW, (*NEW, ("compression.type", "zstd"))))
    assert set(changes) == {WRITER}
    assert "codec" in changes[WRITER]


def test_a_broker_s_release_is_named(run: Run) -> None:
    changes = changed(compared(run, NEW, (jars.LAST_OF_3,)))
    assert "offered" in changes[None]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("librdkafka-1", "librdkafka-2", {WRITER: {"software", "versions"}, READER: {"software", "versions"}}),
        (
            "kafka-python-2",
            "kafka-python-3",
            {
                # The new release is idempotent by default, and asks for a producer id.
                WRITER: {"software", "versions", "idempotence", "apis_after"},
                READER: {"software", "versions", "session_timeout_ms"},
            },
        ),
    ],
)
def test_a_client_s_release_is_named_and_nothing_else(
    before: str, after: str, expected: dict[str | None, set[str]], tmp_path: Path
) -> None:
    for name in (before, after):
        kwire.analyze(PAIRS / f"{name}.pcap.gz", tmp_path / name)
    comparison = compare(*(Side(kwire.open_dataset(tmp_path / name), name) for name in (before, after)))
    assert changed(comparison) == expected
    assert comparison.verdict == DIFFERENT
    assert comparison.compared > 80
