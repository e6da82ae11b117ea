"""Folders where captures rotate as a stream of Spark:
`spark.readStream.format("kafka-capture").option("state", "/shared/state").load("/captures")`.

In: folders, or URLs of folders, and the options of `source.py`; besides `state`, a folder of this stream's own that
every executor reaches; `maxFilesPerTrigger`; `idleSeconds`; `followNewest`; `finish`. Out: rows of one table, each
exactly once for a sink that writes a batch once (files, Delta, `foreachBatch` by its number). Rules

- A folder is a capture point, and a task. An offset counts its files, in the order in which they were met: that order
  is in the state folder, so a batch is read from the same files however often it is tried.
- A file is whole when a later one holds a packet (or was not changed for `idleSeconds`): the newest waits, unless
  `followNewest` takes it as it grows. An offset then has the bytes that it had, too; a record that was not whole there
  is the next batch's. A compressed one waits, for a part of it may not be unpacked.
- What goes on from one file to the next (connections, requests without an answer) is a snapshot in the state folder,
  made by the batch that ends there. One that is missing is made again of an earlier one and the files since.
- Rows are those of one read over all files. Those that are known only when the capture is over (requests without an
  answer, connections that are open, what the traffic means) come with `finish`, which takes the newest file too.
- A file that vanishes before it was read is an error: what a ring overwrites must be larger than the delay.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from kwire.analyzer.checkpoints.authentication import key_of_user
from kwire.analyzer.checkpoints.resumable_reader import ResumableReader
from kwire.analyzer.dataset.locks import DatasetError, WriteLock
from kwire.analyzer.frame.arrow import plain
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.captures.cache import put_at_once
from kwire.captures.errors import CaptureError, KwireError
from kwire.captures.files import CapturePoint, urls
from kwire.captures.files.sources import Source, place_of
from kwire.captures.live.follow import CaptureFile, Known, as_now, as_read, captures_in, path_in, unread

if TYPE_CHECKING:
    from kwire.analyzer.pipeline.read_options import Settings

BATCH_ROWS: Final = 64_000
"""Rows of an Arrow batch handed to Spark."""

LOCK_SECONDS: Final = 10.0
"""How long a query that has just ended may take to leave its state folder."""

_LIST: Final = "files.json"
_SNAPSHOT: Final = re.compile(r"([0-9]+)(?:\+([0-9]+))?\.snapshot", re.ASCII)


class StreamError(KwireError):
    """A stream that cannot go on."""


class _ListedFile(NamedTuple):
    """A file that is part of the stream, and its number in it."""

    number: int
    file: Known


class _Position(NamedTuple):
    """How far a folder was read: `files` are whole, and of the one after them the first so many `bytes` were there."""

    files: int
    bytes: int = 0


class _FileOrder:
    """Which files of a folder are part of the stream, in order; kept in the state folder. What was read and is gone is
    forgotten. `count`: how many are whole; one that is followed has the number after them."""

    def __init__(self, folder: str, state: Path) -> None:
        self.folder = folder
        self._path = state / _LIST
        self.listed: list[_ListedFile] = []
        self.count = 0
        with contextlib.suppress(FileNotFoundError):
            self._take(self._path.read_bytes())

    def _take(self, data: bytes) -> None:
        try:
            stored = json.loads(data)
            self.count = int(stored["count"])
            self.listed = [
                _ListedFile(int(number), Known(int(device), int(inode), int(first_ns), str(name)))
                for number, device, inode, first_ns, name in stored["files"]
            ]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise StreamError(f"{self._path}: not a stream's list of files", _anew()) from None

    def grow(self, newest: bool, idle_seconds: float | None, follow: bool) -> _Position:
        """Take in the files that have become whole; `newest`: the last one too; `follow`: what there is of it."""
        there = self._there()
        growing = [entry for entry in self.listed if entry.number == self.count]
        fresh = unread(there, (entry.file for entry in self.listed))
        known = [*(entry.file for entry in growing), *map(as_read, fresh)]
        if not known:
            return _Position(self.count)
        [last] = as_now(there, known[-1:])
        over = newest or (idle_seconds is not None and last is not None and self._idle(last.name) >= idle_seconds)
        whole = known if over else known[:-1]
        size = self._size(last.name) if follow and not over and last is not None else 0
        listed = known if size else [*known[: len(growing)], *whole[len(growing) :]]
        self.listed += [_ListedFile(self.count + at, file) for at, file in enumerate(listed)][len(growing) :]
        self.count += len(whole)
        if whole or len(listed) > len(growing):
            self._store()
        return _Position(self.count, size)

    def _size(self, name: str) -> int:
        """Bytes of a file that can be followed; 0 of one that waits."""
        try:
            with Source(path_in(self.folder, name)) as source:
                return 0 if source.compressed else source.size
        except CaptureError:
            return 0  # it has just been renamed

    def _idle(self, name: str) -> float:
        """Seconds since a file was changed; 0 where nobody says when that was."""
        path = path_in(self.folder, name)
        try:
            at = place_of(path).mtime_ns() if urls.is_url(path) else os.stat(path).st_mtime_ns
        except OSError:
            return 0.0
        return time() - at / 1e9 if at else 0.0

    def forget(self, before: int) -> None:
        """Drop files below a number that are gone: they do not come again."""
        now = as_now(self._there(), (entry.file for entry in self.listed))
        pairs = zip(self.listed, now, strict=True)
        remaining = [
            _ListedFile(entry.number, new or entry.file) for entry, new in pairs if new or entry.number >= before
        ]
        if remaining != self.listed:
            self.listed = remaining
            self._store()

    def _there(self) -> list[CaptureFile]:
        return captures_in(self.folder, (entry.file for entry in self.listed))

    def _store(self) -> None:
        files = [[entry.number, *entry.file] for entry in self.listed]
        put_at_once(self._path, json.dumps({"count": self.count, "files": files}).encode())

    def until(self, end: _Position) -> tuple[_ListedFile, ...]:
        """The files of a batch that ends there, and those before it that a snapshot may have to be made of."""
        if end.files > self.count:
            raise StreamError(f"{self._path}: the checkpoint knows of files that the state folder does not", _anew())
        return tuple(entry for entry in self.listed if entry.number < end.files + bool(end.bytes))


@dataclass
class _Part(InputPartition):
    """The part that a task reads: from `begin` on, and with `over` the rest of all that is known. `listed` goes back
    further, as far as files are still there."""

    name: str
    folder: str
    state: str
    listed: tuple[_ListedFile, ...]
    begin: _Position
    end: _Position
    over: bool
    key: bytes

    def __post_init__(self) -> None:
        super().__init__(self.name)


class CaptureStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one table of some capture points as they grow."""

    def __init__(
        self,
        folders: list[str],
        state: str,
        table: str,
        columns: list[str],
        settings: Settings,
        choice: AnalysisOptions,
        files: int | None,
        idle_seconds: float | None,
        follow: bool,
        finish: bool,
    ) -> None:
        self._folders = _named(folders)
        self._state = Path(os.path.abspath(urls.local_path(state))) / table
        self._table, self._columns = table, columns
        self._settings, self._choice = settings, choice
        self._files, self._idle, self._follow, self._finish = files, idle_seconds, follow, finish
        self._target: dict[str, Any] | None = None
        self._lock: WriteLock | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For tasks, which need no lock."""
        return {**self.__dict__, "_lock": None}

    # -- on the driver -------------------------------------------------------------------------------------------------
    def initialOffset(self) -> dict[str, Any]:
        return {"files": dict.fromkeys(self._folders, 0), "over": False}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._files is None else ReadMaxFiles(self._files)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._now()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        latest = self._target or self._now()
        begin = self._places(start)
        there = {name: max(place, begin[name]) for name, place in self._places(latest).items()}
        for name, place in self._places(latest).items():
            if place.files == begin[name].files and 0 < place.bytes < begin[name].bytes:
                there_now = f"its newest file has {place.bytes:,} bytes, and had {begin[name].bytes:,} before"
                raise StreamError(f"{name}: {there_now}", _anew())
        if start["over"]:
            if there != begin:
                raise StreamError(f"{self._state}: more files have come after the stream was finished", _anew())
            return start
        end = dict(begin)
        left = limit.max_files if isinstance(limit, ReadMaxFiles) else sum(place.files + 1 for place in there.values())
        while left > 0 and end != there:
            for name in self._folders:  # in turn, so that none has to wait for another
                if left > 0 and end[name] != there[name]:
                    behind = end[name].files < there[name].files
                    end[name] = _Position(end[name].files + 1) if behind else there[name]
                    left -= 1
        return _offset(end, bool(latest["over"]) and end == there)

    def _places(self, offset: dict[str, Any]) -> dict[str, _Position]:
        files, of_next = offset["files"], offset.get("bytes", {})
        return {name: _Position(int(files.get(name, 0)), int(of_next.get(name, 0))) for name in self._folders}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        key = key_of_user()
        parts: list[InputPartition] = []
        begins, ends = self._places(start), self._places(end)
        for name, folder in self._folders.items():
            over = bool(end["over"]) and not start["over"]
            if begins[name] < ends[name] or over:
                state = self._state_of(name)
                listed = _FileOrder(folder, state).until(ends[name])
                parts.append(_Part(name, folder, str(state), listed, begins[name], ends[name], over, key))
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        for name, done in self._places(end).items():
            state = self._state_of(name)
            _FileOrder(self._folders[name], state).forget(done.files)
            known = _snapshots(state)
            for place in known:
                if place < done and done in known:
                    _path_of(state, place).unlink(missing_ok=True)

    def stop(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _now(self) -> dict[str, Any]:
        """All that there is: what has become whole is taken in."""
        self._alone()
        places = {
            name: _FileOrder(folder, self._state_of(name)).grow(self._finish, self._idle, self._follow)
            for name, folder in self._folders.items()
        }
        return _offset(places, self._finish)

    def _alone(self) -> None:
        """Two queries with one state folder would take each other's snapshots away."""
        self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        until = monotonic() + LOCK_SECONDS
        while self._lock is None:
            try:
                self._lock = WriteLock(self._state)
            except DatasetError:
                if monotonic() >= until:
                    raise
                sleep(0.1)

    def _state_of(self, name: str) -> Path:
        state = self._state / quote(name, safe="")
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return state

    # -- in a task -----------------------------------------------------------------------------------------------------
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        part: _Part = partition
        course, place = self._resumed(part)
        for _ in _read(course, part, place, part.begin):
            pass  # rows of an earlier batch
        if part.begin < part.end:
            yield from self._chosen(_read(course, part, part.begin, part.end))
            put_at_once(_path_of(Path(part.state), part.end), course.snapshot())
        if part.over:
            yield from self._chosen(course.finish())

    def _resumed(self, part: _Part) -> tuple[ResumableReader, _Position]:
        """The state before the batch, or a while before it, and its position."""
        state = Path(part.state)
        place = max((position for position in _snapshots(state) if position <= part.begin), default=_Position(0))
        snapshot = None
        if place > _Position(0):
            try:
                snapshot = _path_of(state, place).read_bytes()
            except OSError as failure:
                raise StreamError(f"{_path_of(state, place)}: {failure.strerror}", _anew()) from None
        return ResumableReader(part.name, self._settings, self._choice, snapshot, key=part.key), place

    def _chosen(self, rows: Iterator[tuple[str, pa.Table]]) -> Iterator[pa.RecordBatch]:
        for name, table in rows:
            if name == self._table and len(table):
                chosen = plain(table, name).select(self._columns).combine_chunks()
                yield from chosen.to_batches(max_chunksize=BATCH_ROWS)


def stream(
    options: Mapping[str, str],
    folders: list[str],
    table: str,
    columns: list[str],
    settings: Settings,
    choice: AnalysisOptions,
) -> CaptureStream:
    """The stream that options ask for. Raises ValueError and CaptureError."""
    if not options.get("state"):
        raise ValueError(
            'a stream needs a folder of its own for what goes on between files: .option("state", "/shared/state")'
        )
    if table == "findings":
        raise ValueError("findings are judged over all traffic: kwire analyze FOLDER --follow keeps them")
    for folder in folders:
        if not urls.is_url(urls.local_path(folder)) and not os.path.isdir(urls.local_path(folder)):
            raise CaptureError(f"{folder}: no such folder", "a stream follows folders where captures rotate")
    files, idle = options.get("maxFilesPerTrigger"), options.get("idleSeconds")
    if files is not None and int(files) < 1:
        raise ValueError("maxFilesPerTrigger is at least 1")
    follow = options.get("followNewest", "false").lower() == "true"
    if follow and (behind := [folder for folder in folders if urls.is_url(urls.local_path(folder))]):
        raise ValueError(f"{urls.shown(behind[0])}: followNewest follows files of a file system, not behind a URL")
    return CaptureStream(
        folders,
        options["state"],
        table,
        columns,
        settings,
        choice,
        None if files is None else int(files),
        None if idle is None else float(idle),
        follow,
        options.get("finish", "false").lower() == "true",
    )


def _named(folders: list[str]) -> dict[str, str]:
    """Capture points by name, as `analyze` names them."""
    local = [urls.local_path(folder) for folder in folders]
    names = [
        urls.base_name(folder) if urls.is_url(folder) else os.path.basename(os.path.realpath(folder)) or folder
        for folder in local
    ]
    named: dict[str, str] = {}
    for folder, name in zip(local, names, strict=True):
        unique = urls.shown(folder) if names.count(name) > 1 else name
        if unique in named:
            raise ValueError(f"{unique} is named twice")
        named[unique] = folder if urls.is_url(folder) else os.path.abspath(folder)
    return named


def _offset(places: Mapping[str, _Position], over: bool) -> dict[str, Any]:
    """As Spark keeps it; `bytes` only where a file is followed."""
    files = {name: place.files for name, place in places.items()}
    of_next = {name: place.bytes for name, place in places.items() if place.bytes}
    return {"files": files, **({"bytes": of_next} if of_next else {}), "over": over}


def _read(course: ResumableReader, part: _Part, begin: _Position, end: _Position) -> Iterator[tuple[str, pa.Table]]:
    """The rows between two places."""
    if begin < end:
        files = CapturePoint(part.name, tuple(_paths(part, begin, end)))
        yield from course.read(files, end.bytes or None)


def _paths(part: _Part, begin: _Position, end: _Position) -> list[str]:
    """Where the files between two places are now: they may have been renamed or packed since they were met."""
    numbers = range(begin.files, end.files + bool(end.bytes))
    wanted = [entry for entry in part.listed if entry.number in numbers]
    now = as_now(captures_in(part.folder, (entry.file for entry in part.listed)), (entry.file for entry in wanted))
    gone = [entry.file.name for entry, new in zip(wanted, now, strict=True) if new is None]
    if gone or len(wanted) < len(numbers):
        raise StreamError(
            f"{urls.shown(part.folder)}: {gone[0] if gone else 'a file'} is gone before it was read",
            "let the ring keep files for longer than the stream may be behind, and begin anew (state and checkpoint)",
        )
    return [path_in(part.folder, new.name) for new in now if new is not None]


def _anew() -> str:
    return "begin anew: another state folder, and another checkpoint"


def _path_of(state: Path, place: _Position) -> Path:
    return state / (f"{place.files:012d}" + (f"+{place.bytes}" if place.bytes else "") + ".snapshot")


def _snapshots(state: Path) -> list[_Position]:
    """The places at which something is known."""
    names = (_SNAPSHOT.fullmatch(path.name) for path in state.glob("[0-9]*.snapshot"))
    return [_Position(int(name[1]), int(name[2] or 0)) for name in names if name is not None]
