"""`kwire analyze FOLDER --follow`: a folder where captures rotate, as a dataset that grows with it.

In: parsed options. Out: a dataset, which after each step is what `kwire analyze` of all files so far would make, and in
the end its summary. Rules

- Exactly once: one step's rows, the list of files that they came of and the snapshot of what goes on in the next file
  become part of the dataset together, when `_kwire.json` is replaced. Whoever is killed goes on from there.
- A file is whole when a later one holds a packet. Its rows stay (`settled` in the list of files). What is only true for
  now is made anew by each step: requests without an answer, connections that are open, what the traffic means, and all
  of the newest file, which may still grow.
- A file is known by its place on the disk and its first packet's time, and by its name without `.gz` and `.zst`: one
  that is renamed or packed after it was read is not read again, one that is used again is.
- The findings are judged again when there are a tenth more exchanges, and at the end.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from kwire.analyzer.api import findings_of, load_extensions
from kwire.analyzer.checkpoints.resumable_reader import ResumableReader
from kwire.analyzer.cli import commands
from kwire.analyzer.dataset.dataset import Dataset, DatasetError, Writer
from kwire.analyzer.frame.buffer_pool import give_back
from kwire.analyzer.live.preparation import say
from kwire.analyzer.live.stop_conditions import ended_by
from kwire.analyzer.pipeline.points import AnalysisOptions, PointResult, joined, manifest
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CaptureError, CapturePoint
from kwire.captures.live.follow import CaptureFile, Follower, Known, as_read, still_there, unread

if TYPE_CHECKING:
    from kwire.analyzer.options.analyze import AnalyzeOptions

LOOK_SECONDS: Final = 1.0
"""How often the folder is looked at."""

FRESH_SECONDS: Final = 10.0
"""How old what is known of the newest file may be, where no other is there: it is read again as a whole."""

STEP_BYTES: Final = 1 << 30
"""Whole files that become part of the dataset at once, so that a long row of them is not begun anew when it is killed;
one at least."""

_LARGE: Final = 1 << 20
"""Bytes of a snapshot from which on memory is looked for that what it was made of has left: for what is only true for
now all of it is made once more."""

_SNAPSHOT: Final = re.compile(r"follow-[0-9a-f]{8}\.snapshot", re.ASCII)


class _Progress(NamedTuple):
    """Progress as the dataset says it: `step`, unique for each step; the files whose rows are in it for good; the
    checkpoint, and the name of its file; how many exchanges there were when findings were evaluated."""

    step: str
    read: tuple[Known, ...]
    snapshot_name: str | None
    snapshot: bytes | None
    judged: int


_NOTHING: Final = _Progress("", (), None, None, -1)


class FolderAnalysis:
    """See above; `step` does one. Raises CaptureError, DatasetError and CheckpointError."""

    def __init__(self, folder: str, out: str, how: ReadOptions, choice: AnalysisOptions, wait: bool = False) -> None:
        load_extensions(choice)
        self.result: Dataset | None = None
        self._name = os.path.basename(os.path.realpath(folder)) or folder
        self._folder, self._out = folder, Path(out)
        self._choice, self._settings = choice, how.settings(choice.keep)
        self._wait = wait
        self._follower = Follower(folder)
        self._secrets: list[bytes] = []
        self._seen: tuple[Any, ...] = ()
        self._looked = -FRESH_SECONDS
        with self._writer() as writer:
            self._known = self._stored(writer)
            self._course(self._known.snapshot)  # what cannot be taken up is told at once

    def _writer(self) -> Writer:
        return Writer(self._out, append=True, wait=self._wait)

    def _course(self, snapshot: bytes | None) -> ResumableReader:
        return ResumableReader(self._name, self._settings, self._choice, snapshot, self._secrets)

    # -- what is there -------------------------------------------------------------------------------------------------
    def _stored(self, writer: Writer) -> _Progress:
        """Read the dataset's progress. Raises DatasetError if --follow did not write it."""
        if writer.old is None:
            return _NOTHING
        progress = writer.old.get("follow")
        another = DatasetError(f"{self._out}: a dataset that --follow did not write", "name another folder")
        if not isinstance(progress, dict):
            raise another
        try:
            read = tuple(Known(int(at), int(inode), int(ns), str(name)) for at, inode, ns, name in progress["read"])
            name = progress["snapshot"]
            step, count = str(progress["step"]), int(progress["judged"])
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise another from None
        if name is None:
            return _Progress(step, read, None, None, count)
        if not isinstance(name, str) or not _SNAPSHOT.fullmatch(name):
            raise another
        try:
            return _Progress(step, read, name, (self._out / name).read_bytes(), count)
        except OSError as failure:
            raise DatasetError(
                f"{self._out / name}: {failure.strerror}", "analyse the captures into a new dataset"
            ) from None

    def _fresh(self) -> list[CaptureFile]:
        """Files that are not in the dataset for good, in order."""
        return unread(self._follower.captures(), self._known.read)

    @property
    def behind(self) -> bool:
        """There are whole files that are not in the dataset."""
        return len(self._fresh()) > 1

    def _path(self, file: CaptureFile) -> str:
        return os.path.join(self._folder, file.name)

    def _size(self, file: CaptureFile) -> int:
        try:
            return os.stat(self._path(file)).st_size
        except OSError:
            return -1

    # -- a step --------------------------------------------------------------------------------------------------------
    def step(self, last: bool = False) -> bool:
        """Bring the dataset up to date, as far as one step goes; whether there was anything to do. `last`: nothing
        follows, so the findings are judged too."""
        fresh = self._fresh()
        whole = fresh[:-1]
        seen = (self._known.step, *((file, self._size(file)) for file in fresh[-1:]))
        waits = not last and not whole and (seen == self._seen or monotonic() - self._looked < FRESH_SECONDS)
        if (not fresh and (not last or self._known is _NOTHING)) or waits:
            return False
        portion = self._portion(whole)
        newest = fresh[-1:] if len(portion) == len(whole) else []
        try:
            self._advance(portion, newest, last)
        except CaptureError:
            if all(self._size(file) >= 0 for file in [*portion, *newest]):
                raise
            return True  # one of them is gone: what is there now is seen next time
        self._seen = (self._known.step, *seen[1:])
        self._looked = monotonic()
        return True

    def _portion(self, whole: Sequence[CaptureFile]) -> list[CaptureFile]:
        """As many files as a step takes."""
        portion: list[CaptureFile] = []
        size = 0
        for file in whole:
            size += self._size(file)
            if portion and size > STEP_BYTES:
                break
            portion.append(file)
        return portion

    def _advance(self, portion: Sequence[CaptureFile], newest: Sequence[CaptureFile], last: bool) -> None:
        with self._writer() as writer:
            if _step(writer.old) != self._known.step:
                raise DatasetError(f"{self._out}: another process has changed it", "let one of them follow")
            before = writer.old
            settled = _settled(before)
            known = self._take(writer, portion)
            writer.settle(settled=True)
            result = joined([self._for_now(writer, known, newest)])
            parts: dict[str, list[Path]] = {}
            for entry in settled:
                parts.setdefault(entry["table"], []).append(self._out / entry["path"])
            for table, paths in writer.settle().items():
                parts.setdefault(table, []).extend(paths)
            count = int(result.summary["exchanges"])
            judge = last or known.judged < 0 or count * 10 > known.judged * 11
            if judge:
                writer.write("findings", findings_of(result, parts))
                known = known._replace(judged=count)
            else:
                settled = [*settled, *_findings(before)]
            settled_paths = {entry["path"] for entry in settled}
            beside: dict[str, bytes | None] = {}
            if known.snapshot_name is not None:
                fresh = known.snapshot_name != self._known.snapshot_name
                beside[known.snapshot_name] = known.snapshot if fresh else None
            content = {**manifest(result), "follow": _progress_entry(known)}
            writer.advance(content, lambda entry: entry["path"] in settled_paths, beside)
        self._known, self.result = known, result

    def _take(self, writer: Writer, portion: Sequence[CaptureFile]) -> _Progress:
        """Whole files: their rows are written, and what is known then."""
        known = self._known._replace(step=secrets.token_hex(4))
        read = still_there(self._follower.captures(), known.read)
        if not portion:
            return known._replace(read=tuple(read))
        course = self._course(known.snapshot)
        for name, rows in course.read(CapturePoint(self._name, tuple(map(self._path, portion)))):
            if len(rows):
                writer.write(name, rows)
        self._secrets = course.secrets
        read += map(as_read, portion)
        snapshot = course.snapshot()
        del course
        if len(snapshot) > _LARGE:
            give_back()
        return known._replace(read=tuple(read), snapshot=snapshot, snapshot_name=f"follow-{known.step}.snapshot")

    def _for_now(self, writer: Writer, known: _Progress, newest: Sequence[CaptureFile]) -> PointResult:
        """All that is true for now: as if the capture ended here."""
        course = self._course(known.snapshot)
        if newest:
            _write(writer, course.read(CapturePoint(self._name, tuple(map(self._path, newest)))))
        rest = course.finish()
        while True:
            try:
                name, rows = next(rest)
            except StopIteration as end:
                read: PointResult = end.value
                return read
            writer.write(name, rows)


def _write(writer: Writer, rows: Iterator[tuple[str, pa.Table]]) -> None:
    for name, table in rows:
        writer.write(name, table)


def _step(before: dict[str, Any] | None) -> str:
    progress = (before or {}).get("follow")
    return str(progress.get("step")) if isinstance(progress, dict) else ""


def _settled(before: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [entry for entry in (before or {"files": []})["files"] if entry.get("settled") is True]


def _findings(before: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [entry for entry in (before or {"files": []})["files"] if entry["table"] == "findings"]


def _progress_entry(known: _Progress) -> dict[str, Any]:
    """For `_kwire.json`."""
    return {
        "step": known.step,
        "read": [list(known_file) for known_file in known.read],
        "snapshot": known.snapshot_name,
        "judged": known.judged,
    }


def follow(options: AnalyzeOptions) -> int:
    """`kwire analyze --follow`."""
    commands.check_analysis(options)
    [folder] = options.captures
    following = FolderAnalysis(
        folder, options.out, ReadOptions.from_arguments(options), AnalysisOptions.from_arguments(options), options.wait
    )
    over = threading.Event()
    say(f"kwire: following {folder}; Ctrl-C ends it")
    with ended_by(over.set, options.duration):
        while not over.is_set():
            if not following.step():
                over.wait(LOOK_SECONDS)
    while following.behind:
        following.step()
    following.step(last=True)
    if following.result is None:
        raise CaptureError(f"{folder}: no capture in this folder", "do the captures lie there?")
    commands.print_analysis(following.result, options)
    sys.stdout.flush()
    return 0
