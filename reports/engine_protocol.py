"""The protocol of SQL engines, their exceptions, and how a question is ended.

Both engines and whoever asks them meet here; `engines.py` chooses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kwire.captures.errors import KwireError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class UnsupportedSqlError(Exception):
    """Why the embedded engine does not take a query."""


class TranslatorError(KwireError, UnsupportedSqlError):
    """The translator of people's own questions (sqlglot) is not installed, or cannot be used."""


class UnknownColumn(Exception):
    """A query names a column that there is not."""

    def __init__(self, name: str, near: Sequence[str]) -> None:
        super().__init__(name)
        self.name, self.near = name, tuple(near)


class Engine(Protocol):
    """Datasets that can be asked in Spark SQL."""

    @property
    def at_once(self) -> int:
        """How many questions are worth asking at once."""

    def ask(self, query: str, rows: int | None = None, repeated: bool = False) -> tuple[pa.Table, bool]:
        """The answer, and whether there are more than `rows`. `repeated`: kwire asks, and asks the
        same again later. Raises QueryError."""

    def own(self) -> list[str]:
        """Views that queries made."""

    def interrupt(self) -> None:
        """End what is being asked at this moment, in whichever thread."""


def cancel(engine: Engine, futures: Iterable[Future[Any]]) -> None:
    """End what these threads ask. Once is not enough: one of them may only be about to ask."""
    waiting = set(futures)
    while waiting:
        engine.interrupt()
        _, waiting = wait(waiting, 0.2)


def interruptibly(engine: Engine, work: Callable[[], T]) -> T:
    """Run a question in a thread of its own, so that Ctrl-C can end it: Spark's own library, and its JVM's connection
    to a thread, wait for an answer whatever comes."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            cancel(engine, [future])
            raise
