"""A belt as several streams, one after the other: what is written is begun anew with each, so that nothing grows for
days.

In: a belt. Out: `Stretch`es, each of them the bytes of a pcap file of its own, for `kwire.captures.packets.Reader`; and
`Rotations`, which is the one that is going on. Rules: a stretch that has its length ends where a chunk ends, so no
packet is lost between two; one that is ended from outside (`Rotations.next`) leaves out what it had begun of a chunk.
For one thread at a time.
"""

from __future__ import annotations

from time import monotonic
from typing import BinaryIO, Final, cast

from kwire.captures.live.capture_queue import CaptureQueue
from kwire.captures.live.stream import LiveStream

_LOOK_SECONDS: Final = 0.5


class Rotations:
    """See above. A stretch is over after `most_bytes` or `seconds`, where it has any packet. Read itself, it is the
    stretch that was begun last."""

    def __init__(self, belt: CaptureQueue, most_bytes: int | None = None, seconds: float | None = None) -> None:
        self._queue, self._most, self._seconds = belt, most_bytes, seconds
        self._last: Rotation | None = None

    def next(self) -> BinaryIO:
        """The next stretch; the one before is over."""
        if self._last is not None:
            self._last.over = True
        self._last = Rotation(self._queue, self._most, self._seconds)
        return cast(BinaryIO, self._last)

    @property
    def over(self) -> bool:
        """Nothing follows the one that was begun last, as far as is known now."""
        return self._queue.over

    def readinto1(self, into: memoryview) -> int:
        """See `Stretch`."""
        assert self._last is not None
        return self._last.readinto1(into)

    def waits(self, seconds: float) -> bool:
        """See `Stretch`."""
        assert self._last is not None
        return self._last.waits(seconds)

    @property
    def dropped(self) -> int:
        """See `Stretch`."""
        assert self._last is not None
        return self._last.dropped

    def more(self) -> bool:
        """Whether anything follows: waits until that is known."""
        while not self._queue.over:
            if self._queue.waits(_LOOK_SECONDS):
                return True
        return False


class Rotation(LiveStream):
    """One of them: what a reader asks of stdin."""

    def __init__(self, belt: CaptureQueue, most_bytes: int | None, seconds: float | None) -> None:
        super().__init__(belt)
        self._most = most_bytes
        self._until = None if seconds is None else monotonic() + seconds
        self._before = belt.drops().total
        self._bytes = 0
        self.over = False

    def readinto1(self, into: memoryview) -> int:
        """Some bytes; waits for the first. 0: it is over."""
        return 0 if self.over else super().readinto1(into)

    def _more(self) -> bool:
        if self.over or self._full():
            return False
        if not self._queue.waits(_LOOK_SECONDS):
            return not self._queue.over
        chunk = None if self.over else self._queue.take(0.0)
        if chunk is not None:
            self._rest = memoryview(chunk.data)
            self._bytes += len(chunk.data)
        return True

    def _full(self) -> bool:
        """It has its length."""
        late = self._until is not None and monotonic() >= self._until
        return self._bytes > 0 and (late or (self._most is not None and self._bytes >= self._most))

    def waits(self, seconds: float) -> bool:
        """Whether there is more, or will be within so many seconds."""
        return not self.over and (bool(self._rest) or (not self._full() and super().waits(seconds)))

    @property
    def dropped(self) -> int:
        """Packets lost since it began."""
        return super().dropped - self._before
