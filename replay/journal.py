"""Writes a journal of what a worker does, so that its outcomes survive if it is killed.

In: outcomes as they become known, and what was learned and counted besides. Out: a file of frames: the length (8
bytes, big-endian), then a tuple as `marshal` writes it. The reader takes as many frames as are whole. Rules: rows of
the RUN are made at the end, because that takes longer than sending; a journal entry takes two microseconds an outcome.
The journal survives the process, not the machine (nothing waits for the disk). If it cannot be written, it ends there
and the run goes on without it.
"""

from __future__ import annotations

import contextlib
import marshal
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kwire.replay.outcome import Outcome
from kwire.replay.remap.offsets import Appended
from kwire.replay.remap.remap import Learned

_AT_ONCE: Final = 512
_AT_ONCE_BYTES: Final = 1 << 20
"""Outcomes, and bytes of their frames, that are written without waiting for `write`: encoding them takes half a
millisecond, during which the event loop stands still."""
_LENGTH: Final = 8
_FIELDS: Final = (
    "step",
    "action",
    "verdict",
    "rule",
    "reason",
    "retries",
    "discarded",
    "sent_version",
    "scheduled_ns",
    "planned_ns",
    "ready_ns",
    "first_sent_ns",
    "sent_ns",
    "answered_ns",
    "targets",
    "request",
    "answer",
)
"""Fields of an `Outcome`, without the captured ones, which the reader has."""
_values: Final = operator.attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True)
class Entry:
    """One frame of a journal.

    - `outcomes`: without `row` and `captured_answer`
    - `appended`, `learned`: as `News.take` gives them
    - `own_requests`, `notes`: counts since the beginning, by API and by rule
    - `claims`: (number of a step, how many steps of its session may have been sent from there on), each written before
      the first of them was sent
    """

    outcomes: Sequence[Outcome]
    appended: Sequence[Appended]
    learned: Sequence[Learned]
    own_requests: Mapping[str, int]
    notes: Mapping[str, int]
    claims: Sequence[tuple[int, int]]


class Journal:
    """Writes a journal. At most `_AT_ONCE` outcomes wait in memory for the next `write`."""

    def __init__(self, path: Path) -> None:
        self._waiting: list[Outcome] = []
        self._waiting_bytes = 0
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def add(self, outcome: Outcome) -> None:
        """Add the end of an exchange."""
        self._waiting.append(outcome)
        self._waiting_bytes += len(outcome.request or b"") + len(outcome.answer or b"")
        if len(self._waiting) >= _AT_ONCE or self._waiting_bytes >= _AT_ONCE_BYTES:
            self.write()

    def claim(self, number: int, count: int) -> None:
        """Note that this many steps of a session may be sent from now on, starting with this one."""
        self._put(((), (), (), (), {}, {}, [(number, count)]))

    def write(
        self,
        news: tuple[Sequence[Appended], Sequence[Learned]] = ((), ()),
        own_requests: Mapping[str, int] = {},
        notes: Mapping[str, int] = {},
    ) -> None:
        """Write what waits, and these counts."""
        appended, learned = news
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._descriptor is None or not (waiting or appended or learned or own_requests or notes):
            return
        # A request of the fast path has its length before it, and is recognised by its type.
        has_lengths = [isinstance(outcome.request, bytearray) for outcome in waiting]
        entry = list(map(_values, waiting)), has_lengths, list(appended), list(learned), dict(own_requests), dict(notes)
        self._put((*entry, []))

    def _put(self, entry: tuple[Any, ...]) -> None:
        if self._descriptor is None:
            return
        data = marshal.dumps(entry)
        try:
            left = memoryview(len(data).to_bytes(_LENGTH, "big") + data)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:  # the disk is full: a frame that is not whole is no frame
            self.close()

    def close(self) -> None:
        """Close the file: nothing more is written."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read(path: Path) -> Iterator[Entry]:
    """Read a journal, frame by frame; nothing if there is no file."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        while len(head := file.read(_LENGTH)) == _LENGTH:
            size = int.from_bytes(head, "big")
            data = file.read(size)
            if len(data) < size:
                return  # its writer was killed while it wrote
            values, has_lengths, *besides = marshal.loads(data)
            outcomes = [_outcome(value, has_length) for value, has_length in zip(values, has_lengths, strict=True)]
            yield Entry(outcomes, *besides)


def _outcome(values: tuple[Any, ...], has_length: bool) -> Outcome:
    step, action, verdict, *_ = values
    outcome = Outcome({}, step, action, verdict)
    for name, value in zip(_FIELDS, values, strict=True):
        setattr(outcome, name, value)
    if has_length and outcome.request is not None:
        outcome.request = bytearray(outcome.request)
    return outcome
