"""A folder in which another tool rotates captures, read as they are written: file after file, the newest as it grows.

In: a folder. Out: what `kwire.captures.packets.Reader` takes for stdin: the bytes of one file until it has ended, then
those of the next; as `paths`, a `-` for each. Rules: the oldest comes first; a file has ended when all of it was read
and a newer one is there, or when it was cut short to be used again; a file is known by its place on the disk and its
first packet's time, and by its name without `.gz` and `.zst`, so that one that is renamed or packed is not read twice,
and one that is used again is.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import BinaryIO, Final, NamedTuple

from kwire.captures.errors import CaptureError
from kwire.captures.files import layouts, urls
from kwire.captures.files.points import PEEK_BYTES
from kwire.captures.files.sources import Source, place_of, unreadable

_STDIN = "-"
_LOOK_SECONDS = 0.1
_PACKED: Final = re.compile(r"\.(gz|zst)\Z", re.ASCII)


class CaptureFile(NamedTuple):
    """A capture in the folder that holds a packet, in order of reading. `identity`: its place on the disk; behind a
    URL, where there is none, its name."""

    first_ns: int
    name: str
    identity: tuple[int, int]


class Known(NamedTuple):
    """A file that was read, or that is being read: its place on the disk, its first packet's time, its name then."""

    device: int
    inode: int
    first_ns: int
    name: str


def as_read(file: CaptureFile) -> Known:
    """Return the identity that a file is remembered by once it was read."""
    return Known(*file.identity, file.first_ns, file.name)


def unread(files: Iterable[CaptureFile], read: Iterable[Known]) -> list[CaptureFile]:
    """Files that were not read, in order."""
    read = list(read)
    by_place = {earlier[:3] for earlier in read}
    by_name = {(_stem(earlier.name), earlier.first_ns) for earlier in read}
    fresh: dict[tuple[str, int], CaptureFile] = {}
    for file in files:
        name = (_stem(file.name), file.first_ns)
        if (*file.identity, file.first_ns) not in by_place and name not in by_name:
            # While a file is being packed both are there, and the packed one is not whole.
            fresh[name] = min(file, fresh.get(name, file), key=lambda this: len(this.name))
    return list(fresh.values())


def as_now(files: Iterable[CaptureFile], read: Iterable[Known]) -> list[Known | None]:
    """Each file that was read as it is now, renamed or packed; None for one that is gone under any name."""
    there = [as_read(file) for file in files]
    by_place = {file[:3]: file for file in there}
    by_name = {(_stem(file.name), file.first_ns): file for file in there}
    return [by_place.get(earlier[:3]) or by_name.get((_stem(earlier.name), earlier.first_ns)) for earlier in read]


def still_there(files: Iterable[CaptureFile], read: Iterable[Known]) -> list[Known]:
    """Return those files that were read and may appear again."""
    return [file for file in as_now(files, read) if file is not None]


def captures_in(folder: str, read: Iterable[Known] = ()) -> list[CaptureFile]:
    """All captures in a folder, or behind a folder's URL, that hold a packet, in order of reading. Behind a URL those
    of a name that was read are not opened again. Raises CaptureError where the folder cannot be listed."""
    try:
        names = place_of(folder).names() if urls.is_url(folder) else os.listdir(folder)
    except OSError as failure:
        raise unreadable(folder, failure) from failure
    known = (
        {earlier.name: CaptureFile(earlier.first_ns, earlier.name, earlier[:2]) for earlier in read}
        if urls.is_url(folder)
        else {}
    )
    return sorted(file for file in (known.get(name) or _look(folder, name) for name in names) if file is not None)


def path_in(folder: str, name: str) -> str:
    """The path or URL of a file in a folder."""
    return urls.child(folder, name) if urls.is_url(folder) else os.path.join(folder, name)


def _look(folder: str, name: str) -> CaptureFile | None:
    """Return a file's first time and identity; None if it is no capture, or is gone."""
    path = path_in(folder, name)
    try:
        if urls.is_url(folder):
            identity = (-1, zlib.crc32(name.encode()))
        else:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                return None
            identity = (status.st_dev, status.st_ino)
        first_ns = _first_ns(path)
    except (OSError, CaptureError):
        return None
    # One without a packet may not be the next, and what comes before may still grow.
    return None if first_ns is None else CaptureFile(first_ns, name, identity)


def _first_ns(path: str) -> int | None:
    """The time of a file's first packet; None where it has none yet, or is no capture."""
    with Source(path) as source:
        head = bytearray(PEEK_BYTES)
        filled = 0
        for wanted in (4096, PEEK_BYTES):
            filled += source.readinto(memoryview(head)[filled:wanted])
            seen = bytes(head[:filled])
            if not layouts.is_capture(seen):
                return None
            first_ns = layouts.first_time_ns(seen)
            if first_ns is not None or filled < wanted:
                return first_ns
    return None


def _stem(name: str) -> str:
    """A file's name before it was packed."""
    return _PACKED.sub("", name)


class Follower:
    """See above; for one thread but for `stop` and `has_caught_up`. `read`: the files begun so far, and those read
    before, which are left out. Raises CaptureError where the folder cannot be listed."""

    dropped = None

    def __init__(self, folder: str, read: Iterable[Known] = ()) -> None:
        self.folder = folder
        self.read = list(read)
        self._stopped = threading.Event()
        self._file: BinaryIO | None = None
        self.listed()

    # -- files ---------------------------------------------------------------------------------------------------------
    def listed(self) -> list[str]:
        """The folder's captures that were not read yet, in order of reading."""
        return [file.name for file in self.unread()]

    def unread(self) -> list[CaptureFile]:
        """Like `listed`, with identity and first time of each file."""
        return unread(self.captures(), self.read)

    @property
    def stopped(self) -> bool:
        """`stop` was called."""
        return self._stopped.is_set()

    def captures(self) -> list[CaptureFile]:
        """All captures in the folder that hold a packet, in order of reading."""
        return captures_in(self.folder)

    def __iter__(self) -> Iterator[str]:
        """A `-` for each file, once it is there; until `stop`."""
        while not self._stopped.is_set():
            fresh = self.listed()
            if not fresh or not self._begin(fresh[0]):
                self._stopped.wait(_LOOK_SECONDS)
                continue
            yield _STDIN
        self.close()

    def __contains__(self, path: object) -> bool:
        """As of a tuple of paths: what comes is live."""
        return path == _STDIN

    def _begin(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        try:
            first_ns = _first_ns(path)
            file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed when the next is begun)
        except (OSError, CaptureError):
            return False
        if first_ns is None:
            file.close()
            return False
        self.close()
        self._file = file
        status = os.fstat(file.fileno())
        self.read.append(Known(status.st_dev, status.st_ino, first_ns, name))
        return True

    # -- bytes ---------------------------------------------------------------------------------------------------------
    def readinto1(self, into: memoryview) -> int:
        """Some bytes of the file that is read; 0 where it has ended. Waits for more where it may grow."""
        assert self._file is not None
        while True:
            count = self._file.readinto(into) or 0  # type: ignore[attr-defined]
            if count or self._stopped.is_set():
                return count
            if self._cut() or self.listed():
                # What was written before the newer one was begun is there by now.
                return self._file.readinto(into) or 0  # type: ignore[attr-defined]
            self._stopped.wait(_LOOK_SECONDS)

    def _cut(self) -> bool:
        """Whether the file is shorter than what was read of it."""
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size < self._file.tell()

    def waits(self, seconds: float) -> bool:
        """Whether the file has more, or will within so many seconds."""
        assert self._file is not None
        until = monotonic() + seconds
        while True:
            if os.fstat(self._file.fileno()).st_size > self._file.tell():
                return True
            left = until - monotonic()
            if left <= 0 or self._stopped.wait(min(left, _LOOK_SECONDS / 10)):
                return False

    def has_caught_up(self) -> bool:
        """Whether all that is in the folder was read."""
        file = self._file
        with contextlib.suppress(OSError, ValueError):  # the file that was read is closed meanwhile
            return (file is None or os.fstat(file.fileno()).st_size <= file.tell()) and not self.listed()
        return False

    def stop(self) -> None:
        """Nothing that comes from now on is wanted."""
        self._stopped.set()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
