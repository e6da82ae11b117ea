"""Lines in order of their keys, however many there are: `show --sort`, and what else is known only at the end.

In: keys and lines, in any order. Out: the lines in order of their keys. Rules: equal keys stay in the order they came
in, and what has no key comes last; at most `held` characters stay in memory, the rest waits in temporary files that
have no name; of what `limit` would cut off nothing is kept.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import marshal
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

from kwire.analyzer.common.errors import UsageError

HELD: Final = 64 << 20
"""Characters kept in memory: some 300,000 lines."""

RUNS: Final = 64
"""Sorted files that may be open at once; then they become one. Processes may have a thousand files open."""

_COST: Final = 200
"""Characters that an entry costs beside its line."""

Key = int | float | str | bool | tuple[Any, ...] | None
_Entry = tuple[tuple[bool, Any], str]


class Sorter:
    """Takes lines with `put`; iterating gives them in order, once. `descending`: largest key first; `limit`: how many
    lines there will be at most."""

    def __init__(self, descending: bool = False, limit: int | None = None, held: int = HELD) -> None:
        self._descending = descending
        self._limit = limit
        self._held = held
        self._waiting: list[_Entry] = []
        self._characters = 0
        self._runs: list[IO[bytes]] = []
        self._last: tuple[bool, Any] | None = None

    def _order(self, key: Key) -> tuple[bool, Any]:
        return (key is not None) is self._descending, key

    def wants(self, key: Key) -> bool:
        """May a line of this key still be among the first? So that others need not be made."""
        if self._last is None:
            return True
        return self._order(key) > self._last if self._descending else self._order(key) < self._last

    def put(self, key: Key, line: str) -> None:
        """One line."""
        self._waiting.append((self._order(key), line))
        self._characters += len(line) + _COST
        full = self._characters > self._held
        if self._limit is not None and (full or len(self._waiting) >= 2 * self._limit + 1024):
            self._sort()
            full = self._characters > self._held // 2
        if full:
            self._spill()

    def _sort(self) -> None:
        self._waiting.sort(key=lambda entry: entry[0], reverse=self._descending)
        if self._limit is not None and len(self._waiting) >= self._limit:
            del self._waiting[self._limit :]
            self._last = self._waiting[-1][0]
        self._characters = sum(len(line) + _COST for _, line in self._waiting)

    def _spill(self) -> None:
        self._sort()
        if len(self._runs) == RUNS:
            self._runs = [self._written(self._merged(self._runs))]
        self._runs.append(self._written(self._waiting))
        self._waiting, self._characters = [], 0

    def _written(self, entries: Iterable[_Entry]) -> IO[bytes]:
        run: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed when it has been read, or forgotten)
        try:
            for entry in itertools.islice(entries, self._limit):
                marshal.dump(entry, run)
            run.seek(0)
        except OSError as failure:
            raise UsageError(
                f"{tempfile.gettempdir()}: cannot hold what is sorted: {failure.strerror}",
                "TMPDIR names another folder; --limit or --filter leave less to sort",
            ) from None
        return run

    def _merged(self, runs: list[IO[bytes]]) -> Iterator[_Entry]:
        entries = [_read(run) for run in runs]
        return heapq.merge(*entries, key=lambda entry: entry[0], reverse=self._descending)

    def __iter__(self) -> Iterator[str]:
        self._sort()
        entries: Iterator[_Entry] = iter(self._waiting)
        if self._runs:
            entries = heapq.merge(
                self._merged(self._runs), self._waiting, key=lambda entry: entry[0], reverse=self._descending
            )
        return (line for _, line in itertools.islice(entries, self._limit))


def _read(run: IO[bytes]) -> Iterator[_Entry]:
    with run, contextlib.suppress(EOFError):
        while True:
            yield marshal.load(run)
