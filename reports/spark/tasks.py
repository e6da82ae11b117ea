"""Results that tasks of Spark return to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kwire.analyzer.pipeline.points import PointResult


@dataclass(frozen=True, slots=True)
class WrittenPoint:
    """The result of a capture point: the tables it has, and the files written for those with rows, in order."""

    read: PointResult
    tables: tuple[str, ...]
    files: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of a task's input: a value, so that Spark does not try it again."""

    message: str
    hint: str


def attempt() -> int:
    """The number of the task's attempt, of all that this application ever made."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.taskAttemptId()) if context is not None else 0
