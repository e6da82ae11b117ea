"""A worker that is killed: what it did before is in the RUN, once, and the rest is told for what it is.

Proves: replay/send/workers.py, replay/run.py, replay/journal.py, replay/diff/text.py
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.dataset.dataset import Writer
from kwire.replay import journal, sending
from kwire.replay.diff import pairs, text
from kwire.replay.diff.compare import Comparison, compare
from kwire.replay.options import Options
from kwire.replay.outcome import Counts
from kwire.replay.plan import decisions
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.run_writer import Recorder
from kwire.replay.send import link, workers
from tests.bench.replay import Sink
from tests.replay.conversation import Captured
from tests.replay.test_commands import replayed, serving, until

STEPS = 104
"""Of `replayed`: four producers, half of them in each of two workers."""


class Hearing(Sink):
    """Counts the Produce requests that came, by client id."""

    clients: list[bytes]

    def data_received(self, data: bytes) -> None:
        self.clients += re.findall(rb"bench-\d", data)
        super().data_received(data)


@contextlib.contextmanager
def killing(out: Path, when: Callable[[Path], bool]) -> Iterator[list[int]]:
    """Kill the worker that was started first once its journal is so; the steps that it then had."""
    before: list[int] = []

    def kill() -> None:
        def written() -> Path:
            journals = list(out.parent.glob(f".{out.name}.*/workers-*/worker-0.journal"))
            return journals[0] if journals else Path("nowhere")

        if until(multiprocessing.active_children) and until(lambda: when(written())):
            before.extend(steps(written()))
            first = min(multiprocessing.active_children(), key=lambda child: int(child.name.rpartition("-")[2]))
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield before
    finally:
        thread.join()


def steps(path: Path) -> list[int]:
    return [outcome.step for entry in journal.read(path) for outcome in entry.outcomes if outcome.step is not None]


@pytest.mark.parametrize("least", [0, 1, 25])
def test_what_a_killed_worker_did_is_kept(least: int, tmp_path: Path) -> None:
    out, clients = tmp_path / "run", list[bytes]()
    with (
        serving(type("Counting", (Hearing,), {"clients": clients})) as port,
        killing(out, lambda written: len(steps(written)) >= least) as before,
    ):
        Sink.port = port
        result = replayed(port, out, speed=1.0, rate=40.0, processes=2)

    stored = analyzer.open_dataset(out)
    outcomes = stored.outcomes.to_table().to_pylist()
    by_step = {row["step"]: row for row in outcomes}
    assert sorted(by_step) == sorted(row["step"] for row in outcomes) == list(range(STEPS))
    assert {by_step[step]["verdict"] for step in before} <= {"answered"}
    assert len(before) >= least
    verdicts = by_verdict(outcomes)
    answered, unknown, unsent = (
        verdicts.get(key, 0)
        for key in (
            ("sent", "answered", None),
            ("unknown", "not_comparable", "worker_lost"),
            ("not_sent", "not_sent", "aborted"),
        )
    )
    assert answered + unknown + unsent == STEPS
    assert answered >= STEPS // 2 + len(before)
    assert unsent
    # What is called not sent never came, what is called answered did; nobody knows of the rest.
    assert answered <= len(clients) <= answered + unknown

    # The exit code is that of a run that is not valid, and the words say how many are not known.
    assert not result.valid
    assert result.failure is not None
    assert result.failure.message == (
        f"worker 1 of 2 was killed by SIGKILL: what became of {unknown} of its 52 requests is not known"
    )
    # Its counts are those of the rows, the replayed side is there once, with what was learned.
    counts = stored.manifest["replay"]["counts"]
    assert counts["actions"] == {
        key: count for key, count in (("not_sent", unsent), ("sent", answered), ("unknown", unknown)) if count
    }
    exchanges = stored.exchanges.to_table().to_pylist()
    keys = [(row["connection"], row["exchange"]) for row in exchanges if row["capture"] == "replay:bench"]
    assert len(keys) == len(set(keys)) == answered
    assert len(stored.messages.to_table()) == 2 * STEPS + 2 * answered
    learned = [row for row in stored.remaps.to_table().to_pylist() if row["kind"] in ("offset", "producer")]
    assert len(learned) == answered
    assert compare(pairs.from_run(out)).ended
    assert not multiprocessing.active_children()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def by_verdict(outcomes: list[dict[str, Any]]) -> dict[tuple[str, str, str | None], int]:
    counts: dict[tuple[str, str, str | None], int] = {}
    for row in outcomes:
        key = row["action"], row["verdict"], row["rule"]
        counts[key] = counts.get(key, 0) + 1
    return counts


def test_answers_that_nobody_knows_are_not_called_the_same() -> None:
    lost = Comparison(compared=3, same=3, skipped=Counter(worker_lost=1), ended="worker 1 of 2 was killed by SIGKILL")
    assert text.verdict(lost, []) == (
        "the run ended first (worker 1 of 2 was killed by SIGKILL): same answers to what is known, not audited"
    )


def test_a_run_of_several_workers_took_as_long_as_the_longest_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as long as it took to start them and to make rows, for which a target cannot be called slower."""
    done = [
        workers.Done(Counts(), {"Metadata": 1}, {}, False, None, seconds, cpu, busy)
        for seconds, cpu, busy in ((2.0, 1.9, 0.95), (4.0, 1.0, 0.25))
    ]

    async def send(*_: object) -> tuple[list[workers.Done], list[workers.DeadWorker]]:
        return done, []

    monkeypatch.setattr(workers, "send", send)
    sessions = [Captured().session()]
    planned, cluster = decisions.make(sessions, {}, decisions.PlanOptions())
    target = SimpleNamespace(offers={}, topology=Topology())
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        options = Options("h", 1, processes=2)
        whole = asyncio.run(
            sending.from_workers(
                sending.Sending(options, planned, cluster, target, Remap(), recorder, link.tcp(), [], {}, print, None),  # type: ignore[arg-type]
                sessions,
            )
        )
    assert (whole.seconds, whole.cpu_seconds, whole.busy) == (4.0, 2.9, 0.95)
    assert whole.own_requests == {"Metadata": 2}
