"""What tasks of Spark say to the driver."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from analyzer.points import PointRead

T = TypeVar("T")
U = TypeVar("U")

_COLLECT_AFTER: Final = 100_000
"""New objects after which the interpreter looks for cycles among them, in a task."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a capture point: the tables it knows, and the files written for those that have rows, in order."""

    read: PointRead
    tables: tuple[str, ...]
    files: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Refused:
    """What is wrong with a task's input: a value, so that Spark does not try it again."""

    message: str
    hint: str


def attempt() -> int:
    """The number of the task's attempt, of all that this application ever made."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.taskAttemptId()) if context is not None else 0


def quietly(work: Callable[[T], U]) -> Callable[[T], U]:
    """The same work, in a task that seldom looks for cycles of objects: there are a hundred thousand of what was
    imported, and to walk them took a twelfth of a task's time."""

    def quiet(thing: T) -> U:
        with _seldom_collecting():
            return work(thing)

    return quiet


@contextlib.contextmanager
def _seldom_collecting() -> Iterator[None]:
    """The worker may do others' work afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
