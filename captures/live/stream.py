"""Give a capture queue as the bytes of one endless pcap file, for `kwire.captures.packets.Reader`.

In: a `CaptureQueue`. Out: what a reader asks of stdin: `readinto1` (0 bytes: the capture ended), whether more waits,
how many packets were lost so far, and which share of the connections is captured.
"""

from __future__ import annotations

from kwire.captures.live.capture_queue import CaptureQueue

_PATIENCE_SECONDS = 3600.0
"""Looked at again after so long; what comes wakes us."""


class LiveStream:
    """See above. For one thread."""

    def __init__(self, queue: CaptureQueue) -> None:
        self._queue = queue
        self._rest = memoryview(queue.tap.header)

    def readinto1(self, into: memoryview) -> int:
        """Some bytes; waits for the first. 0: it is over."""
        while not self._rest:
            if not self._more():
                return 0
        count = min(len(into), len(self._rest))
        into[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _more(self) -> bool:
        """Take what comes next, if it comes; False: nothing will."""
        chunk = self._queue.take(_PATIENCE_SECONDS)
        if chunk is not None:
            self._rest = memoryview(chunk.data)
        return chunk is not None or not self._queue.over

    def waits(self, seconds: float) -> bool:
        """Whether there is more, or will be within so many seconds."""
        return bool(self._rest) or self._queue.waits(seconds)

    @property
    def dropped(self) -> int:
        """Packets lost since the beginning."""
        return self._queue.drops().total

    @property
    def one_of(self) -> int:
        """N where one of N connections is captured; else 1."""
        return self._queue.tap.one_of
