"""Ranges are merged while facts are taken, in order, and errors of tasks reach the caller.

Proves: kwire.reports.spark.merging; `test_ingest` compares the datasets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kwire.analyzer.pipeline.shares import Piece
from kwire.reports.spark.merging import LEAST_BYTES, _ranges_by_task, _side_by_side


class Jobs:
    """A context that does a job's tasks one after the other, in the thread that starts the job."""

    def __init__(self) -> None:
        self.started: list[list[Any]] = []

    def parallelize(self, values: Sequence[Any], slices: int) -> Jobs:
        assert len(values) == slices > 0
        job = Jobs()
        job._values = list(values)
        self.started.append(job._values)
        return job

    def map(self, work: Callable[[Any], Any]) -> Jobs:
        self._work = work
        return self

    def collect(self) -> list[Any]:
        return [self._work(value) for value in self._values]

    _values: list[Any]
    _work: Callable[[Any], Any]


def test_what_is_ready_is_done_while_the_first_task_is_at_work() -> None:
    """The first task ends only when three others are done; the fourth is not ready before that."""
    done = {number: threading.Event() for number in range(4)}
    decided: set[int] = set()

    def take(name: str) -> str:
        for number in range(3):
            decided.add(number)
            assert done[number].wait(60)
        return name

    def merge(number: int) -> int:
        done[number].set()
        return 10 * number

    jobs: Any = Jobs()
    assert _side_by_side(jobs, take, "facts", merge, range(4), decided.__contains__) == ("facts", [0, 10, 20, 30])
    assert jobs.started == [["facts"], [0], [1], [2], [3]]


def test_nothing_to_be_merged() -> None:
    jobs: Any = Jobs()
    assert _side_by_side(jobs, str.upper, "facts", str.lower, "", lambda _: True) == ("FACTS", [])


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_a_task_is_raised(first: bool) -> None:
    def fails(_: Any) -> None:
        raise OSError("no room")

    jobs: Any = Jobs()
    work, each = (fails, str) if first else (str, fails)
    with pytest.raises(OSError, match="no room"):
        _side_by_side(jobs, work, 0, each, [1, 2], lambda _: not first)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (LEAST_BYTES // 4, [4, 6]),  # as few as a task is worth
        (LEAST_BYTES // 4, [3]),  # or one, where all are not
        (LEAST_BYTES // 128, [128, 178]),  # ranges that hold little
        (LEAST_BYTES, [10] * 8),  # as many tasks as there should be
        (LEAST_BYTES, [10] * 8 + [5]),  # what is left over is worth one
        (LEAST_BYTES, [16] * 10),  # as many ranges as one may take
        (LEAST_BYTES, []),
    ],
)
def test_tasks_that_merge_have_enough_to_do(size: int, expected: list[int]) -> None:
    places, sizes = range(sum(expected)), (size // 4, size - size // 4)
    ranges = [[Piece("", 0, part, place, "rows") for part in sizes] for place in places]
    tasks = _ranges_by_task(ranges, 8)
    assert [len(task) for task in tasks] == expected
    assert [pieces for task in tasks for pieces in task] == ranges
