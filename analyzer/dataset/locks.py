"""Locks of a dataset: one process writes, any number read.

In: the folder of a dataset. Out: `WriteLock`, held by the one process that writes it, and `ReadLock`, held by any
number that read it. Both are locks of the system (`flock`): they end with the process that holds them, however it ends.

Rules
- A writer locks `.NAME.lock` beside the dataset from before it reads the old manifest until its last file is in place;
  another is told whose turn it is, or waits. The file goes when the writer does.
- A reader shares a lock on the dataset's folder. A writer that replaces the dataset leaves files that the new manifest
  does not list while anybody reads; the next one takes them away.
- Where a file system cannot lock, everything goes on as if nobody else were there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kwire.captures.errors import KwireError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NOW, _IN_TURN, _SHARED = (
    (fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX, fcntl.LOCK_SH) if fcntl is not None else (0, 0, 0)
)

_LONGEST_NAME: Final = 180
"""Of a dataset, in bytes, that hidden names beside it repeat whole: file systems take 255, some encrypted ones 143."""

_HOLDER: Final = re.compile(rb"(\d{1,10}) ([\w.-]{1,100})\n")

HOLDER_SECONDS: Final = 1.0
"""How long another may take to write who it is, once it has the lock."""


class DatasetError(KwireError):
    """A dataset that cannot be read or written."""


class DatasetLockedError(DatasetError):
    """A dataset that another process is writing."""


def hidden(dataset: Path, ending: str) -> Path:
    """A hidden name beside a dataset (a whole path, no link)."""
    name = dataset.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return dataset.parent / f".{name}.{ending}"


def _locked(descriptor: int, operation: int) -> bool | None:
    """Lock an open file. False: somebody else has it, and we were not to wait; None: this file system cannot."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class WriteLock:
    """Hold the right to write one dataset.

    Raises DatasetLockedError if another process has it and the caller does not `wait`, OSError if the folder that
    holds the dataset cannot be written."""

    def __init__(self, dataset: Path, wait: bool = False) -> None:
        self._path = hidden(dataset, "lock")
        self._descriptor: int | None = None
        announced = False
        while self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if _locked(descriptor, _NOW) is False:
                    who = _holder(descriptor)
                    if not wait:
                        raise DatasetLockedError(
                            f"{dataset}: {who} is writing it", "wait for that, or let --wait do so"
                        )
                    if not announced:
                        announced = True
                        sys.stderr.write(f"kwire: {who} is writing {str(dataset)!a}: waiting\n")
                    _locked(descriptor, _IN_TURN)
                # Who had it may have taken the file away: then it is nobody's any more, and no lock.
                if _same(descriptor, self._path):
                    with contextlib.suppress(OSError):  # a full disk: we remain unnamed
                        os.ftruncate(descriptor, 0)
                        os.pwrite(descriptor, f"{os.getpid()} {_host()}\n".encode(), 0)
                    self._descriptor, descriptor = descriptor, -1
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def release(self) -> None:
        """Let others write."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)[:100] or "localhost"


def _holder(descriptor: int) -> str:
    """Read from its file which process holds a lock."""
    until = time.monotonic() + HOLDER_SECONDS
    while True:
        match = _HOLDER.fullmatch(os.pread(descriptor, 200, 0))
        if match is not None:
            host = match[2].decode("ascii", "replace")
            return f"process {int(match[1])}" + (f" on {host}" if host != _host() else "")
        if time.monotonic() > until:
            return "another process"
        time.sleep(0.01)


class ReadLock:
    """Files of a dataset stay while this does. Nothing is raised: who cannot lock reads all the same."""

    def __init__(self, dataset: Path) -> None:
        self._descriptor: int | None = None
        if fcntl is not None:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(dataset, os.O_RDONLY | os.O_DIRECTORY)
                _locked(self._descriptor, _SHARED)

    def close(self) -> None:
        """Files may go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def unread(dataset: Path) -> Iterator[bool | None]:
    """Whether nobody reads a dataset; nobody begins to within. None: that cannot be known."""
    if fcntl is None:
        yield None
        return
    try:
        descriptor = os.open(dataset, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _locked(descriptor, _NOW)
    finally:
        os.close(descriptor)


class StagingFolder:
    """The folder beside a dataset into which a run writes, held as long as the run lives. Raises OSError."""

    def __init__(self, dataset: Path, run: str) -> None:
        self.path = hidden(dataset, f"{run}.new")
        self.path.mkdir(mode=0o700)
        self._descriptor: int | None = None
        if fcntl is not None:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                _locked(self._descriptor, _SHARED)

    def release(self) -> None:
        """The run is over."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def clear_dead(dataset: Path) -> None:
    """Take away the folders beside a dataset into which runs were writing when they were killed. To be called with the
    right to write it; a folder whose run lives (on a file system that cannot lock nobody knows) stays."""
    names = re.compile(re.escape(hidden(dataset, "").name) + r"[0-9a-f]{8}\.new")
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(dataset.parent)):
            if names.fullmatch(entry.name) and stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
                with unread(Path(entry.path)) as dead:
                    if dead is True:
                        shutil.rmtree(entry.path, ignore_errors=True)
