"""Bounded queue of chunks between the capturing thread and the reader; never blocks the former.

In: a `Tap`. Out: its chunks, in order. Rules: a bounded number of bytes waits; a chunk without room is dropped whole
and its packets are counted, or, if there is a spool folder, it waits on disk. Order is kept. The thread ends when the
tap does.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import deque
from time import monotonic
from typing import Final, NamedTuple

from kwire.captures.errors import CaptureError
from kwire.captures.live.taps import PcapRecords, Tap

ROOM_BYTES: Final = 64 << 20
"""What may wait: seconds of a busy broker, as much again as the kernel's own buffer."""


class Drops(NamedTuple):
    """Packets that were lost, by place of the loss; None if it is not counted."""

    kernel: int | None
    interface: int | None
    queue: int
    """For which there was no room between capture and whoever takes them."""

    @property
    def total(self) -> int:
        return (self.kernel or 0) + (self.interface or 0) + self.queue


class Spool:
    """Chunks on disk: a file without a name in `folder`, begun anew whenever all of it was taken."""

    def __init__(self, folder: str) -> None:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (closed in `close`)
        except OSError as failure:
            raise CaptureError(
                f"--spool {folder}: {failure.strerror or failure}", "name a folder that may be written to"
            ) from failure
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._end = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, chunk: PcapRecords) -> bool:
        """Whether there was room on the disk."""
        written = 0
        with contextlib.suppress(OSError):
            self._file.seek(self._end)
            while written < len(chunk.data):
                written += self._file.write(memoryview(chunk.data)[written:]) or 0
        if written < len(chunk.data):
            return False
        self._waiting.append((self._end, written, chunk.packets))
        self._end += written
        return True

    def take(self) -> PcapRecords:
        at, size, packets = self._waiting.popleft()
        self._file.seek(at)
        data = b""
        while len(data) < size:
            more = self._file.read(size - len(data))
            if not more:
                raise CaptureError("the spool was cut while it was read", "leave its folder alone")
            data += more
        if not self._waiting:
            self._file.truncate(0)
            self._end = 0
        return PcapRecords(data, packets)

    def close(self) -> None:
        self._file.close()


class CaptureQueue:
    """Runs a tap in a thread of its own. `take` is for one thread. Use as a context manager, or `stop` and `close`."""

    def __init__(self, tap: Tap, spool: str | None = None, room: int = ROOM_BYTES) -> None:
        self.tap = tap
        self.packets = 0
        """Taken from the tap so far, those that were dropped here among them."""
        self._room, self._used = room, 0
        self._chunks: deque[PcapRecords] = deque()
        self._spool = Spool(spool) if spool is not None else None
        self._dropped = 0
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kwire capture", daemon=True)

    def start(self) -> CaptureQueue:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            while (chunk := self.tap.read()) is not None:
                if chunk.packets:
                    self._put(chunk)
        except BaseException as failure:
            self._failure = failure
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, chunk: PcapRecords) -> None:
        with self._changed:
            self.packets += chunk.packets
            spooling = self._spool is not None and len(self._spool) > 0  # order: what came before waits there
            if not spooling and (self._used + len(chunk.data) <= self._room or not self._chunks):
                self._chunks.append(chunk)
                self._used += len(chunk.data)
            elif self._spool is None or not self._spool.put(chunk):
                self._dropped += chunk.packets
            self._changed.notify_all()

    def take(self, seconds: float) -> PcapRecords | None:
        """The next chunk; None where none came in so many seconds, or ever will (`over`)."""
        with self._changed:
            deadline = monotonic() + seconds
            while not self._chunks:
                if self._spool is not None and len(self._spool):
                    return self._spool.take()
                left = deadline - monotonic()
                if self._ended or left <= 0 or not self._changed.wait(left):
                    if not self._chunks:
                        return None
            chunk = self._chunks.popleft()
            self._used -= len(chunk.data)
            return chunk

    def waits(self, seconds: float) -> bool:
        """Whether a chunk waits, or comes in so many seconds."""
        with self._changed:
            return self._changed.wait_for(self._any, seconds) and (bool(self._chunks) or self._spooled())

    def _spooled(self) -> bool:
        return self._spool is not None and len(self._spool) > 0

    def _any(self) -> bool:
        return bool(self._chunks) or self._spooled() or self._ended

    @property
    def over(self) -> bool:
        """Nothing waits, and nothing will come. Raises what ended the thread, where that was a fault."""
        with self._changed:
            if self._ended and self._failure is not None:
                raise self._failure
            return self._ended and not self._chunks and not self._spooled()

    def drops(self) -> Drops:
        return Drops(*self.tap.counts(), self._dropped)

    def stop(self) -> None:
        """Nothing that comes from now on is wanted; what has come can still be taken."""
        self.tap.stop()

    def close(self) -> None:
        """End it; what was not taken is lost."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self.tap.close()
        if self._spool is not None:
            self._spool.close()

    def __enter__(self) -> CaptureQueue:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()
