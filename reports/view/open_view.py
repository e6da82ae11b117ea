"""From the arguments of `kwire view` to a view: a dataset as it is, or captures analysed into one that is kept.

In: a DATASET or CAPTUREs and how to read them. Out: a `View`. Rules: what is made lies in the cache folder, for this
user alone (it is customers' data), bounded, and is used again where the same is asked; with `cache` off it goes when
the view does.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from analyzer import __version__
from analyzer.cli.commands import dataset_of, named_dataset, tell_notes
from analyzer.common.errors import UsageError
from analyzer.common.times import rfc3339
from analyzer.dataset import tables
from analyzer.dataset.dataset import MANIFEST, StoredDataset, is_dataset, open_dataset, read_manifest, readable
from analyzer.dataset.locks import DatasetLockedError
from analyzer.pipeline.read_options import ReadOptions
from captures.cache import cache_root
from captures.errors import KwireError
from captures.files import CaptureError, CapturePoint, begins_ns, capture_points, urls
from reports.output import name_of
from reports.view import columns, exchange_pairs
from reports.view.answers import View
from reports.view.current_view import Stage
from reports.view.messages import Messages
from reports.view.notes import Notes
from reports.view.partial_view import Ended, Growing
from reports.view.source_captures import Captures
from reports.view.tables import Tables

if TYPE_CHECKING:
    from analyzer.pipeline.points import Progress

ENDING_SECONDS: Final = 10
"""An analysis that nobody looks at any more is waited for so long: its files are cleared away."""

LOOK_SECONDS: Final = 0.5
"""The first exchanges are looked at so soon, or not soon: the analysis, which takes all processors, waits so long."""

PAINT_SECONDS: Final = 0.2
"""And so long, once they were handed out, for the browser to show them."""

TURN_SECONDS: Final = 0.2
"""Between two looks at whether another view's analysis is done."""

CHECKED_BYTES: Final = 1 << 16
"""Of each capture, to see whether it is one."""

SMALL_BYTES: Final = 16 << 20
"""Captures up to this size are analysed before anybody could look at their first exchanges."""

FEW_ROWS: Final = 200_000
"""Datasets with up to so many exchanges have their columns made before anybody could look at their first ones."""

FIRST_ROWS: Final = 20_000
"""Exchanges that are shown of a larger one, before its columns are made."""

LIMIT_BYTES: Final = 8 << 30
"""Of all views kept: ten million exchanges take some 1.5 GB. The longest unused go first."""


def opened(sources: Sequence[str], options: argparse.Namespace, stack: contextlib.ExitStack) -> View:
    """The view of a dataset or of captures; what is not to stay goes when `stack` does. Raises KwireError."""
    if _is_dataset(sources, options):
        return _made(sources[0], options, stack).view()
    asked = _asked(sources, options, stack)
    if not asked.kept():
        asked.analyse()
    return asked.view()


def begun(
    sources: Sequence[str], options: argparse.Namespace, stack: contextlib.ExitStack, stage: Stage | None = None
) -> Stage:
    """The same; captures that were not analysed yet are so in the background, as are the columns of a large dataset
    that was not viewed yet, and the stage has their first exchanges as soon as there are some: it is not waited for
    where the files begin as captures do. Raises KwireError."""
    stage = stage or Stage()
    work: Callable[[], None]
    if _is_dataset(sources, options):
        made = _made(sources[0], options, stack)
        if made.soon():
            stage.become(made.view(), done=True)
            return stage
        stage.doing = "columns"
        sure, work = True, lambda: _gather(made, stage)
    else:
        asked = _asked(sources, options, stack)
        if asked.kept():
            stage.become(asked.view(), done=True)
            return stage
        sure, work = asked.checked(), lambda: _analyse(asked, stage)
    thread = threading.Thread(target=_behind, args=(stage, work), daemon=True)
    thread.start()

    def end() -> None:
        stage.ended = True
        thread.join(ENDING_SECONDS)

    stack.callback(end)
    if not sure:
        stage.shown()
    return stage


def _behind(stage: Stage, work: Callable[[], None]) -> None:
    """What is done in the background; the stage is told how it ends."""
    try:
        work()
    except Ended:
        pass
    except KwireError as problem:
        stage.fail(problem)
    except Exception as failure:  # a page that waits for ever would hide it
        stage.fail(_broken(stage, failure))


def _broken(stage: Stage, failure: Exception) -> UsageError:
    """What nobody thought of, in words."""
    if stage.doing == "columns":
        return UsageError(f"columns of the dataset cannot be made: {failure!r}", "kwire sql DATASET does without them")
    return UsageError(f"the analysis failed: {failure!r}", "kwire analyze says more")


def _analyse(asked: _Asked, stage: Stage) -> None:
    growing = Growing(stage, asked.folder, asked.captures, partial(asked.named, growing=True), asked.begins())
    if asked.large():
        growing.peek(asked.points[0], ReadOptions.from_arguments(asked.options))
        _let_look(stage)
    asked.analyse(growing.progress, growing.seen)
    stage.become(asked.view(), done=True)


def _gather(made: _Made, stage: Stage) -> None:
    growing = Growing(stage, made.folder, made.captures, partial(made.named, growing=True), made.dataset.captures)
    growing.seen("topic_ids", _topic_ids(made.dataset))
    growing.seen("exchanges", made.begins())
    _let_look(stage)
    stage.become(made.view(growing.progress), done=True)


def _let_look(stage: Stage) -> None:
    """The first rows are looked at before all processors are taken."""
    if stage.view is not None and stage.looked.wait(LOOK_SECONDS):
        time.sleep(PAINT_SECONDS)
    _step_back()


def _step_back() -> None:
    """This thread, and those that it starts, give way to who looks at the page: both take all processors there are."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def _is_dataset(sources: Sequence[str], options: argparse.Namespace) -> bool:
    """Is a dataset to be viewed? Raises UsageError where what is asked does not go together."""
    datasets = [source for source in sources if is_dataset(source)]
    if datasets and len(sources) > 1:
        raise UsageError(f"{datasets[0]}: a dataset is viewed alone", "kwire analyze --append makes one of several")
    if datasets:
        if options.port or options.rotated:
            raise UsageError("--port and --rotated go with a CAPTURE", "kwire analyze makes a DATASET")
        if options.keylog:
            raise UsageError("--keylog goes with a CAPTURE", "kwire analyze --keylog makes a DATASET")
    return bool(datasets)


def _made(source: str, options: argparse.Namespace, stack: contextlib.ExitStack) -> _Made:
    dataset = named_dataset(source)
    manifest = (Path(source) / MANIFEST).read_bytes()
    folder = _folder(options, stack, "dataset", os.path.realpath(source), hashlib.sha256(manifest).hexdigest())
    notes = Notes.kept(_notes(options, os.path.realpath(source)))
    return _Made(source, options, dataset, folder, _captures_of(dataset), notes)


@dataclass(frozen=True)
class _Made:
    """A dataset that is to be viewed, and where the columns that are made of it lie."""

    source: str
    options: argparse.Namespace
    dataset: StoredDataset
    folder: Path
    captures: Captures | None
    notes: Notes

    def soon(self) -> bool:
        """Is its view there sooner than somebody likes to wait for?"""
        rows = sum(entry["rows"] for entry in self._files())
        return rows <= FEW_ROWS or columns.complete(self.folder / "columns")

    def begins(self) -> pa.Table:
        """What its exchanges begin with. (The first rows of a pyarrow dataset take twenty times as long: it reads
        ahead.)"""
        path = next(self.dataset.path / entry["path"] for entry in self._files() if entry["rows"])
        with readable(self.dataset.path, "exchanges"), columns.parquet(path) as file:
            return pa.Table.from_batches([next(file.iter_batches(FIRST_ROWS))])

    def _files(self) -> list[dict[str, Any]]:
        return [entry for entry in self.dataset.manifest["files"] if entry["table"] == "exchanges"]

    def view(self, progress: Progress | None = None) -> View:
        """The view of all; `progress` is told how many columns are made."""
        tables, messages = _tables(self.dataset, self.folder / "columns", self.captures, progress)
        judge = getattr(self.options, "judge", None)
        pairs = exchange_pairs.paired(tables, judge and (lambda: exchange_pairs.Judging(judge, self.source)))
        return replace(self.named(tables, messages), pairing=pairs)

    def named(self, tables: Tables, messages: Messages, growing: bool = False) -> View:
        """A view of this dataset."""
        command = ("kwire", "view", self.source)
        how = self.options.filter or ""
        return View(tables, messages, name_of(self.source), command, how, growing, self.notes)


@dataclass(frozen=True)
class _Asked:
    """Captures that are to be viewed: where what is made of them lies, how to read them. `points`: none where they are
    read once (stdin)."""

    sources: Sequence[str]
    points: Sequence[CapturePoint]
    options: argparse.Namespace
    folder: Path
    captures: Captures | None
    notes: Notes

    @property
    def made(self) -> Path:
        """The dataset."""
        return self.folder / "dataset"

    def kept(self) -> bool:
        """Was it made before? What is to be noted of the captures is said again then."""
        if not is_dataset(self.made):
            return False
        tell_notes(read_manifest(self.made))
        return True

    def large(self) -> bool:
        """Does the analysis take longer than somebody likes to wait for a first look?"""
        return bool(self.points) and any(
            urls.is_url(path) or os.path.getsize(path) > SMALL_BYTES for path in self.points[0].paths
        )

    def checked(self) -> bool:
        """Does each capture begin as captures do? False: that cannot be told without reading it twice. Raises
        CaptureError where one does not."""
        if not self.points or any(urls.is_url(path) for point in self.points for path in point.paths):
            return False
        from captures.packets import Reader

        for point in self.points:
            with Reader(point, window_bytes=CHECKED_BYTES) as reader:
                next(reader, None)
        return True

    def begins(self) -> list[dict[str, Any]]:
        """The captures as a manifest has them, with nothing but when they begin, where that is told by little."""
        if any(urls.is_url(path) for point in self.points for path in point.paths):
            return []
        begun = [(point.name, begins_ns(point)) for point in self.points]
        return [{"name": name, "first_time": None if ns is None else rfc3339(ns // 1000)} for name, ns in begun]

    def analyse(self, progress: Progress | None = None, seen: Callable[[str, pa.Table], None] | None = None) -> None:
        """Make it; where another view is making it, that one's is waited for, and used."""
        asked, told = argparse.Namespace(**{**vars(self.options), "filter": None}), False
        while not (told and is_dataset(self.made)):
            try:
                return dataset_of(self.sources, str(self.made), asked, self.captures is None, progress, seen)
            except DatasetLockedError:
                if not told:
                    told = True
                    sys.stderr.write("kwire: another kwire view is analysing this: waiting for it\n")
                if progress is not None:
                    progress("", 0, 0)  # which says where nobody looks any more
                time.sleep(TURN_SECONDS)

    def view(self) -> View:
        """The view of all."""
        tables, messages = _tables(open_dataset(self.made), self.folder / "columns", self.captures)
        return replace(self.named(tables, messages), pairing=exchange_pairs.paired(tables))

    def named(self, tables: Tables, messages: Messages, growing: bool = False) -> View:
        """A view of these captures."""
        how = ReadOptions.from_arguments(self.options)
        command = (
            "kwire",
            "show",
            *self.sources,
            *(["--rotated"] if how.rotated else []),
            *(word for port in how.ports for word in ("--port", str(port))),
            *(word for path in how.keylogs for word in ("--keylog", os.fspath(path))),
        )
        name = ", ".join(map(name_of, self.sources))
        return View(tables, messages, name, command, self.options.filter or "", growing, self.notes)


def _asked(sources: Sequence[str], options: argparse.Namespace, stack: contextlib.ExitStack) -> _Asked:
    how = ReadOptions.from_arguments(options)
    again = "-" not in sources  # stdin is read once
    points = capture_points(list(sources), how.rotated) if again else ()  # what is not there is told at once
    if again and options.cache:
        folder = _folder(options, stack, "captures", *_identity(sources, how))
    else:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-view-")))
    place = _notes(options, *map(os.path.realpath, sources)) if again else None
    return _Asked(sources, points, options, folder, Captures(tuple(sources), how) if again else None, Notes.kept(place))


def _notes(options: argparse.Namespace, *sources: str) -> Path | None:
    """Where the notes about captures or a dataset are kept: in the user's folder for what programs remember."""
    if not options.cache:
        return None
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    name = hashlib.sha256("\0".join(sources).encode(errors="surrogateescape")).hexdigest()[:32]
    return Path(state) / "kwire" / "notes" / f"{name}.json"


def _tables(
    dataset: StoredDataset, folder: Path, captures: Captures | None, progress: Progress | None = None
) -> tuple[Tables, Messages]:
    topics = {row["topic_id"]: row["topic"] for row in _topic_ids(dataset).to_pylist() if row["topic"]}
    shown = Tables(dataset, _columns(dataset, folder, topics, progress), topics)
    messages = Messages(shown, captures)
    if messages.at_hand:
        shown.bodies = messages.matching
    return shown, messages


def _topic_ids(dataset: StoredDataset) -> pa.Table:
    """Which topic has which id. (A pyarrow dataset, for so little, is a tenth of a second to load.)"""
    names = ["topic_id", "topic"]
    files = [entry["path"] for entry in dataset.manifest["files"] if entry["table"] == "topic_ids"]
    with readable(dataset.path, "topic_ids"):
        read = (pq.ParquetFile(dataset.path / path).read(names) for path in files)
        return pa.concat_tables([tables.schema("topic_ids").empty_table().select(names), *read])


def _columns(
    dataset: StoredDataset, folder: Path, topics: dict[str, str], progress: Progress | None
) -> columns.Columns:
    """The mapped columns of a dataset: those in the folder, or made there in one step."""
    if columns.complete(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: made again
            found = columns.opened(folder)
            os.utime(folder.parent)  # used now
            return found
    beside = folder.with_name(f".columns-{secrets.token_hex(4)}")
    try:
        told = None if progress is None else lambda made: progress(str(dataset.path), made, columns.COUNT)
        columns.make(dataset, lambda topic: topics.get(topic, topic), beside, told)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another view was quicker
            beside.rename(folder)
        return columns.opened(folder)
    except OSError as failure:
        raise UsageError(
            f"{folder.parent}: the view's columns cannot be written: {failure.strerror}",
            "KWIRE_CACHE_DIR names another folder; --no-cache uses the one for temporary files (TMPDIR)",
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


# --- what is kept -----------------------------------------------------------------------------------------------------


def _identity(sources: Sequence[str], how: ReadOptions) -> list[str]:
    """What captures are, as far as it can be told without reading them: other files, other options, another kwire make
    another dataset."""
    said = [__version__, repr((how.rotated, sorted(how.ports), how.frame_limit))]
    for point in capture_points(list(sources), how.rotated):
        for path in point.paths:
            said.append(path if urls.is_url(path) else _file(path))
    for keylog in how.keylogs:
        if not os.path.exists(keylog):
            raise UsageError(
                f"{keylog}: key log cannot be read: it is not there", "check the name, and who may read it"
            )
        said.append(f"keys {_file(os.fspath(keylog))}")
    return said


def _file(path: str) -> str:
    """What a file is, as far as can be told without reading it."""
    status = os.stat(path)
    return json.dumps([os.path.realpath(path), status.st_size, status.st_mtime_ns])


def _folder(options: argparse.Namespace, stack: contextlib.ExitStack, *identity: str) -> Path:
    """Where what is made of something is kept."""
    if not options.cache:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-view-")))
    root = cache_root() / "view"
    folder = root / hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    try:
        for one in (root.parent, root, folder):
            one.mkdir(mode=0o700, exist_ok=True)
    except OSError as failure:
        raise UsageError(
            f"{folder}: {failure.strerror}", "KWIRE_CACHE_DIR names another folder; --no-cache keeps nothing"
        ) from None
    stack.callback(_bound, root, folder)
    return folder


def _bound(root: Path, used: Path) -> None:
    """Take away what was not used for longest, until the rest is within the limit."""
    with contextlib.suppress(OSError):
        kept = sorted((one for one in root.iterdir() if one != used), key=lambda one: one.stat().st_mtime)
        sizes = {one: sum(file.stat().st_size for file in one.rglob("*") if file.is_file()) for one in (*kept, used)}
        total = sum(sizes.values())
        for one in kept:
            if total <= LIMIT_BYTES:
                break
            total -= sizes[one]
            shutil.rmtree(one, ignore_errors=True)


def _captures_of(dataset: StoredDataset) -> Captures | None:
    """The captures of a dataset, where they still lie beside it or in the current folder as they were; else None."""
    found: list[str] = []
    for entry in dataset.captures:
        place = next((str(p) for p in _places(dataset.path, entry["name"]) if _same(p, entry["files"])), None)
        if place is None:
            return None
        found.append(place)
    return Captures(tuple(found), ReadOptions()) if found else None


def _places(dataset: Path, name: str) -> list[Path]:
    """Where a capture may lie; a name that leads elsewhere is none."""
    if os.path.basename(name) != name or name in (".", ".."):
        return []
    return [folder / name for folder in (dataset.resolve().parent, Path.cwd()) if (folder / name).exists()]


def _same(path: Path, files: Sequence[dict[str, object]]) -> bool:
    """Does a capture have the files that the dataset was made of, by name and size?"""
    try:
        point = capture_points([str(path)])[0]
        there = sorted((os.path.basename(one), os.path.getsize(one)) for one in point.paths)
    except (CaptureError, OSError):
        return False
    return there == sorted((str(one.get("name")), one.get("size")) for one in files)
