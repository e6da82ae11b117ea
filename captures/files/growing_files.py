"""Read files that still grow, from where reading stopped before.

In: a file, the position where it was left (`FilePosition`), and the one to read up to. Out: a `FileTail`: a source of
the bytes between. Rules: a file that is followed may only grow; one that became shorter is an error. It may be renamed
between two reads, and compressed: then it is decompressed up to where it was left.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.captures.errors import CaptureError
from kwire.captures.files.layouts import Layout
from kwire.captures.files.sources import Source, Stored

_SKIPPED_BYTES: Final = 1 << 20
"""Unpacked at a time of what was read before."""


class FilePosition(NamedTuple):
    """Where a file was left: its bytes before `at` were read, all of them whole records, and have that CRC-32C;
    `layout` says how to read on. `stopped`: nothing behind can be read."""

    at: int
    crc32c: int
    layout: Layout
    stopped: bool


class FileTail(Source):
    """A file's bytes behind those of `left` (None: all), up to its byte `until` (None: to its end). `at`: the offset of
    the byte that comes next. Raises CaptureError, also where the file has become shorter."""

    def __init__(self, path: str, folder: str, left: FilePosition | None, until: int | None) -> None:
        super().__init__(path, None, folder)
        self.at, self.until = 0, until
        if left is None:
            return
        if self.compressed:
            self._skip(left.at)
        else:
            self._expect(left.at, self.size)
            self._handle.seek(left.at)
            self._stored = self._stream = Stored(self._handle, left.at, left.crc32c)
            self.at = left.at

    def _skip(self, count: int) -> None:
        room = memoryview(bytearray(_SKIPPED_BYTES))
        while self.at < count:
            more = super().readinto(room[: count - self.at])
            self.at += more
            if not more:
                self._expect(count, self.at)

    def readinto(self, into: memoryview) -> int:
        """See `Source`; also 0 where `until` was reached."""
        most = len(into) if self.until is None else max(0, self.until - self.at)
        count = super().readinto(into[:most])
        self.at += count
        if most and not count and self.until is not None:
            self._expect(self.until, self.at)
        return count

    def _expect(self, known: int, there: int) -> None:
        if there < known:
            self.close()
            raise CaptureError(
                f"{self.path}: has {there:,} bytes, and had {known:,} before",
                "a file that is followed may only grow: let what rotates captures begin a new file each time",
            )
