"""Where a watch of a folder got, kept for the one that comes after it: what was shown is shown once.

In: the folder, and how it is watched. Out: what is known between two files, as a sealed snapshot; what was told since
(seconds, findings), and the lines that are being written. All of it lies with kwire's cache (`KWIRE_CACHE_DIR`), for
this user alone. Rules

- Lines go out between two writes of `told`: one says which come, one that they came. Whoever is killed between them
  leaves lines of which nobody knows: where stdout is the same file still, its length tells how many of them came; else
  they are written again, and that is said.
- What was told is known by seconds and findings, so it does not matter how old the snapshot is that is taken up: the
  files after it are read again, and what comes of them that was told before is not told again.
- A session that ends in the middle of a second has told its part: the exchanges after it count in the next one.
- One watch keeps a place at a time; another of the same folder and options is told so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire.analyzer.bulk.engine import Settings
from kwire.analyzer.checkpoints.checkpoint import opened_checkpoint, packed_checkpoint, reading_options
from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset.locks import DatasetError, WriteLock
from kwire.analyzer.live.evaluation_windows import FindingKey
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.captures.cache import cache_root, content_of, put

FORGOTTEN_SECONDS: Final = 90 * 86_400
"""Places of folders that nobody watches any more go after so long."""

MOST_FINDINGS: Final = 10_000
"""Findings that are known to have been told: of more, the first may come again."""

_SNAPSHOT, _PROGRESS = "snapshot", "told"
_ANEW: Final = "--from-start begins at the oldest file"


class OutputPosition(NamedTuple):
    """Where a file begins to be written on: its place on the disk, and its length."""

    device: int
    inode: int
    length: int


class FolderWatchedError(UsageError):
    """Another process watches the folder in the same way."""


class FolderCheckpoint:
    """See above. `before`: the snapshot of the session before, opened; `second`: the last that was told; `end`: where
    that session ended in the middle of a file, in exchanges, and what `second` was then; `findings`: those told, and
    when the lap of each began. `way`: what else tells one watch from another. Raises CheckpointError for what cannot be
    taken up, FolderWatchedError where another process has it, OSError where nothing can be kept."""

    def __init__(
        self,
        folder: str,
        name: str,
        settings: Settings,
        choice: AnalysisOptions,
        way: str = "lines",
        anew: bool = False,
    ) -> None:
        self._name = name
        self._about = {**reading_options(name, settings, choice), "way": way}
        self.before: dict[str, Any] | None = None
        self.second = -1
        self.end: tuple[int, int] | None = None
        self.findings: dict[FindingKey, int] = {}
        self._pending = b""
        self._out: OutputPosition | None = None
        self._folder = _checkpoint_folder(folder, self._about)
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock = WriteLock(self._folder)
        except DatasetError as failure:
            who = failure.message.removeprefix(f"{self._folder}: ").removesuffix(" is writing it")
            raise FolderWatchedError(
                f"{folder}: {who} watches it in the same way", "end that one, or add --once"
            ) from None
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            _tidy(self._folder)
            if anew:
                for file_name in (_PROGRESS, _SNAPSHOT):
                    (self._folder / file_name).unlink(missing_ok=True)
            self._read(folder)
        except BaseException:
            self.close()
            raise

    def _read(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            try:
                self._load_progress(json.loads(content_of(self._folder / _PROGRESS)))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise CheckpointError(f"{folder}: what the watch before it told is damaged", _ANEW) from None
        with contextlib.suppress(FileNotFoundError):
            try:
                self.before = opened_checkpoint(content_of(self._folder / _SNAPSHOT), watch=True)
            except CheckpointError as failure:
                raise CheckpointError(f"{folder}: the watch before it left {failure.message}", _ANEW) from None
            self._about["shards"] = self.before["about"]["shards"]
            if self.before["about"] != self._about:  # its name has all that matters
                raise CheckpointError(f"{folder}: the watch before it was another", _ANEW)

    def _load_progress(self, progress: Mapping[str, Any]) -> None:
        self.second = int(progress["second"])
        self.end = None if progress["end"] is None else (int(progress["end"][0]), int(progress["end"][1]))
        self.findings = {(code, *((a, b) for a, b in pairs)): int(since) for code, pairs, since in progress["findings"]}
        self._pending = str(progress["pending"]).encode()
        self._out = None if progress["out"] is None else OutputPosition(*map(int, progress["out"]))

    @property
    def known(self) -> bool:
        """Something was told or read before."""
        return self.before is not None or self.second >= 0

    def close(self) -> None:
        """Another may have it."""
        self._lock.release()

    # -- what is known -------------------------------------------------------------------------------------------------
    def store(self, shards: int, objects: list[Any]) -> None:
        """Store the state of some objects, for the session that goes on from here. Raises CheckpointError."""
        self._write(_SNAPSHOT, packed_checkpoint(self._name, {**self._about, "shards": shards}, objects, watch=True))

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        part = self._folder / f".{name}.{secrets.token_hex(4)}"
        try:
            put(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), str(part), path, content)
        except OSError as failure:
            raise UsageError(
                f"{path}: cannot be written: {failure.strerror}", "free some room there; what was shown is kept there"
            ) from None

    # -- what is told --------------------------------------------------------------------------------------------------
    def recover(self) -> int:
        """Write what may not have been written; how many lines of it may have come before."""
        if not self._pending:
            return 0
        rest, again = self._pending, self._pending.count(b"\n")
        now = _out()
        if now is not None and self._out is not None and now[:2] == self._out[:2]:
            rest = rest[max(0, now.length - self._out.length) :] if now.length >= self._out.length else rest
            again = 0
        _put_out(rest)
        self._pending, self._out = b"", None
        self._say()
        return again

    def tell(
        self, lines: Sequence[str], second: int, findings: Mapping[FindingKey, int], end: tuple[int, int] | None = None
    ) -> None:
        """Write lines to stdout, and know it: those up to a second, those of findings. `end`: the session ends here,
        after so many exchanges, and the last second is told as far as it came."""
        self.second = max(self.second, second)
        for who, since in findings.items():
            self.findings.pop(who, None)
            self.findings[who] = since
        for who in list(self.findings)[: len(self.findings) - MOST_FINDINGS]:
            del self.findings[who]
        self.end = end or self.end
        if lines:
            self._pending, self._out = "".join(line + "\n" for line in lines).encode(), _out()
            self._say()
            _put_out(self._pending)
            self._pending, self._out = b"", None
        if lines or end:
            self._say()

    def _say(self) -> None:
        progress = {
            "second": self.second,
            "end": self.end,
            "findings": [[who[0], list(who[1:]), since] for who, since in self.findings.items()],
            "pending": self._pending.decode(),
            "out": self._out,
        }
        self._write(_PROGRESS, json.dumps(progress).encode())


def _checkpoint_folder(folder: str, about: Mapping[str, Any]) -> Path:
    """Where the place of a folder watched in one way is kept. One that was made anew under its old name is another."""
    whole = os.path.realpath(folder)
    way = {name: value for name, value in about.items() if name != "shards"}
    identity = json.dumps([whole, os.stat(whole).st_ino, way], sort_keys=True)
    return cache_root() / "data" / "watched" / hashlib.sha256(identity.encode()).hexdigest()[:32]


def _tidy(current: Path) -> None:
    """Take away what nobody came back to."""
    oldest = time.time() - FORGOTTEN_SECONDS
    for place in current.parent.iterdir():
        with contextlib.suppress(OSError):
            files = [place / _SNAPSHOT, place / _PROGRESS]
            times = [file.stat().st_mtime for file in files if file.exists()]
            if place != current and place.is_dir() and times and max(times) < oldest:
                for file in files:
                    file.unlink(missing_ok=True)
                place.rmdir()


def _out() -> OutputPosition | None:
    """stdout, where it is a file."""
    try:
        sys.stdout.flush()
        status = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return None
    return OutputPosition(status.st_dev, status.st_ino, status.st_size) if stat.S_ISREG(status.st_mode) else None


def _put_out(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
