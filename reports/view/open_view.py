"""Open a view from the arguments of `kwire view`: a dataset, or captures that are analysed into a cached dataset.

In: a DATASET or CAPTUREs and options. Out: a `DataView`. Rules: results are stored in the cache folder, private to the
user (captures hold customers' data), bounded in size, and reused for the same input; with `cache` off they are removed
with the view.
"""

from __future__ import annotations

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

from kwire.analyzer import __version__
from kwire.analyzer.cli.commands import dataset_of, named_dataset, tell_notes
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import MANIFEST, StoredDataset, is_dataset, open_dataset, read_manifest, readable
from kwire.analyzer.dataset.locks import DatasetLockedError
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.cache import cache_root
from kwire.captures.errors import KwireError
from kwire.captures.files import CaptureError, CapturePoint, begins_ns, capture_points, urls
from kwire.reports.output import name_of
from kwire.reports.view import columns, exchange_pairs
from kwire.reports.view.answers import DataView
from kwire.reports.view.current_view import CurrentView
from kwire.reports.view.messages import Messages
from kwire.reports.view.notes import Notes
from kwire.reports.view.partial_view import PartialViews, ViewClosedError
from kwire.reports.view.payload_reader import payload_options
from kwire.reports.view.source_captures import SourceCaptures
from kwire.reports.view.tables import Tables

if TYPE_CHECKING:
    from kwire.analyzer.options.questions import ViewOptions
    from kwire.analyzer.pipeline.points import Progress

ENDING_SECONDS: Final = 10
"""Wait at the end for the analysis to stop and remove its files."""

LOOK_SECONDS: Final = 0.5
"""The analysis, which takes all processors, waits so long for the page to request the first exchanges."""

PAINT_SECONDS: Final = 0.2
"""And then so long for the browser to show them."""

TURN_SECONDS: Final = 0.2
"""Between two checks whether another view's analysis is done."""

CHECKED_BYTES: Final = 1 << 16
"""Bytes of each capture that are read to check that it is one."""

SMALL_BYTES: Final = 16 << 20
"""Captures up to this size are analysed too quickly to show their first exchanges before."""

FEW_ROWS: Final = 200_000
"""Exchanges up to which columns are made too quickly to show the first ones before."""

FIRST_ROWS: Final = 20_000
"""Exchanges of a larger dataset that are shown until its columns are made."""

LIMIT_BYTES: Final = 8 << 30
"""Bytes of all cached views: ten million exchanges take some 1.5 GB. The least recently used are removed first."""


def open_view(sources: Sequence[str], options: ViewOptions, stack: contextlib.ExitStack) -> DataView:
    """Open the view of a dataset or of captures; `stack` removes temporary files. Raises KwireError."""
    if _is_dataset(sources, options):
        return _dataset_source(sources[0], options, stack).view()
    captures = _capture_source(sources, options, stack)
    if not captures.is_cached():
        captures.analyse()
    return captures.view()


def begin_view(
    sources: Sequence[str], options: ViewOptions, stack: contextlib.ExitStack, current: CurrentView | None = None
) -> CurrentView:
    """Open a view in the background, unless it is cached or quickly made.

    The current view has the first exchanges as soon as there are some. The first view is only waited for if it is not
    certain that the files are captures. Raises KwireError."""
    current = current or CurrentView()
    work: Callable[[], None]
    if _is_dataset(sources, options):
        source = _dataset_source(sources[0], options, stack)
        if source.is_quick():
            current.show(source.view(), done=True)
            return current
        current.doing = "columns"
        sure, work = True, lambda: _gather(source, current)
    else:
        captures = _capture_source(sources, options, stack)
        if captures.is_cached():
            current.show(captures.view(), done=True)
            return current
        sure, work = captures.check_beginnings(), lambda: _analyse(captures, current)
    thread = threading.Thread(target=_run_in_background, args=(current, work), daemon=True)
    thread.start()

    def end() -> None:
        current.ended = True
        thread.join(ENDING_SECONDS)

    stack.callback(end)
    if not sure:
        current.first_view()
    return current


def _run_in_background(current: CurrentView, work: Callable[[], None]) -> None:
    """Run work in the background, and record its errors in the current view."""
    try:
        work()
    except ViewClosedError:
        pass
    except KwireError as problem:
        current.fail(problem)
    except Exception as failure:  # otherwise the page would wait for ever
        current.fail(_internal_error(current, failure))


def _internal_error(current: CurrentView, failure: Exception) -> UsageError:
    """Describe an unexpected exception."""
    if current.doing == "columns":
        return UsageError(f"columns of the dataset cannot be made: {failure!r}", "kwire sql DATASET does without them")
    return UsageError(f"the analysis failed: {failure!r}", "kwire analyze says more")


def _analyse(captures: _CaptureSource, current: CurrentView) -> None:
    growing = PartialViews(
        current, captures.folder, captures.captures, partial(captures.make_view, growing=True), captures.begins()
    )
    if captures.is_large():
        growing.peek(captures.points[0], ReadOptions.from_arguments(captures.options))
        _let_look(current)
    captures.analyse(growing.progress, growing.take_rows)
    current.show(captures.view(), done=True)


def _gather(source: _DatasetSource, current: CurrentView) -> None:
    growing = PartialViews(
        current, source.folder, source.captures, partial(source.make_view, growing=True), source.dataset.captures
    )
    growing.take_rows("topic_ids", _topic_ids(source.dataset))
    growing.take_rows("exchanges", source.begins())
    _let_look(current)
    current.show(source.view(growing.progress), done=True)


def _let_look(current: CurrentView) -> None:
    """Wait until the page shows the first rows, before all processors are taken."""
    if current.view is not None and current.looked.wait(LOOK_SECONDS):
        time.sleep(PAINT_SECONDS)
    _step_back()


def _step_back() -> None:
    """Lower the priority of this thread and those that it starts, in favour of the page's requests."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def _is_dataset(sources: Sequence[str], options: ViewOptions) -> bool:
    """Tell whether the source is a dataset. Raises UsageError if sources or options do not go together."""
    datasets = [source for source in sources if is_dataset(source)]
    if datasets and len(sources) > 1:
        raise UsageError(f"{datasets[0]}: a dataset is viewed alone", "kwire analyze --append makes one of several")
    if datasets:
        if options.port or options.rotated:
            raise UsageError("--port and --rotated go with a CAPTURE", "kwire analyze makes a DATASET")
        if options.keylog:
            raise UsageError("--keylog goes with a CAPTURE", "kwire analyze --keylog makes a DATASET")
    return bool(datasets)


def _dataset_source(source: str, options: ViewOptions, stack: contextlib.ExitStack) -> _DatasetSource:
    dataset = named_dataset(source)
    manifest = (Path(source) / MANIFEST).read_bytes()
    folder = _folder(options, stack, "dataset", os.path.realpath(source), hashlib.sha256(manifest).hexdigest())
    notes = Notes.read(_notes(options, os.path.realpath(source)))
    return _DatasetSource(source, options, dataset, folder, _captures_of(dataset), notes)


@dataclass(frozen=True)
class _DatasetSource:
    """A dataset to view, and the folder of its columns."""

    source: str
    options: ViewOptions
    dataset: StoredDataset
    folder: Path
    captures: SourceCaptures | None
    notes: Notes

    def is_quick(self) -> bool:
        """Tell whether the view is made too quickly to show some exchanges before."""
        rows = sum(entry["rows"] for entry in self._files())
        return rows <= FEW_ROWS or columns.complete(self.folder / "columns")

    def begins(self) -> pa.Table:
        """Read the first exchanges. (A pyarrow dataset would take twenty times as long, because it reads ahead.)"""
        path = next(self.dataset.path / entry["path"] for entry in self._files() if entry["rows"])
        with readable(self.dataset.path, "exchanges"):
            metadata = pq.read_metadata(path)
            leaves = (metadata.schema.column(number).path for number in range(metadata.num_columns))
            texts = [leaf for leaf in leaves if leaf in columns.TEXTS or leaf.startswith("topics.")]
            with pq.ParquetFile(path, memory_map=True, metadata=metadata, read_dictionary=texts) as file:
                return pa.Table.from_batches([next(file.iter_batches(FIRST_ROWS))])

    def _files(self) -> list[dict[str, Any]]:
        return [entry for entry in self.dataset.manifest["files"] if entry["table"] == "exchanges"]

    def view(self, progress: Progress | None = None) -> DataView:
        """Make the view of all exchanges. `progress` is called with the number of columns made."""
        tables, messages = _tables(self.dataset, self.folder / "columns", self.captures, self.options, progress)
        judge = self.options.judge
        comparison = None if judge is None else partial(exchange_pairs.RunComparison, judge, self.source)
        pairs = exchange_pairs.find_pairs(tables, comparison)
        return replace(self.make_view(tables, messages), pairs=pairs)

    def make_view(self, tables: Tables, messages: Messages, growing: bool = False) -> DataView:
        """Make a view of this dataset."""
        command = ("kwire", "view", self.source, *_names(self.options))
        how = self.options.filter or ""
        return DataView(tables, messages, name_of(self.source), command, how, growing, self.notes)


@dataclass(frozen=True)
class _CaptureSource:
    """Captures to view, how to read them, and the folder of their dataset. `points`: empty if they can only be read
    once (stdin)."""

    sources: Sequence[str]
    points: Sequence[CapturePoint]
    options: ViewOptions
    folder: Path
    captures: SourceCaptures | None
    notes: Notes

    @property
    def dataset_path(self) -> Path:
        """Path of the captures' dataset."""
        return self.folder / "dataset"

    def is_cached(self) -> bool:
        """Tell whether the dataset exists; print its notes then."""
        if not is_dataset(self.dataset_path):
            return False
        tell_notes(read_manifest(self.dataset_path))
        return True

    def is_large(self) -> bool:
        """Tell whether the analysis takes long enough to show some exchanges before."""
        return bool(self.points) and any(
            urls.is_url(path) or os.path.getsize(path) > SMALL_BYTES for path in self.points[0].paths
        )

    def check_beginnings(self) -> bool:
        """Check the beginning of each capture; False if a source can be read only once. Raises CaptureError."""
        if not self.points or any(urls.is_url(path) for point in self.points for path in point.paths):
            return False
        from kwire.captures.packets import Reader

        for point in self.points:
            with Reader(point, window_bytes=CHECKED_BYTES) as reader:
                next(reader, None)
        return True

    def begins(self) -> list[dict[str, Any]]:
        """List the captures as in a manifest, with only their first time, if it is quickly read."""
        if any(urls.is_url(path) for point in self.points for path in point.paths):
            return []
        begun = [(point.name, begins_ns(point)) for point in self.points]
        return [{"name": name, "first_time": None if ns is None else rfc3339(ns // 1000)} for name, ns in begun]

    def analyse(self, progress: Progress | None = None, on_rows: Callable[[str, pa.Table], None] | None = None) -> None:
        """Make the dataset; if another view is making it, wait for that one."""
        options, waiting = replace(self.options, filter=None), False
        while not (waiting and is_dataset(self.dataset_path)):
            try:
                return dataset_of(
                    self.sources, str(self.dataset_path), options, self.captures is None, progress, on_rows
                )
            except DatasetLockedError:
                if not waiting:
                    waiting = True
                    sys.stderr.write("kwire: another kwire view is analysing this: waiting for it\n")
                if progress is not None:
                    progress("", 0, 0)  # raises ViewClosedError if the view was closed
                time.sleep(TURN_SECONDS)

    def view(self) -> DataView:
        """Make the view of all exchanges."""
        dataset = open_dataset(self.dataset_path)
        tables, messages = _tables(dataset, self.folder / "columns", self.captures, self.options)
        return replace(self.make_view(tables, messages), pairs=exchange_pairs.find_pairs(tables))

    def make_view(self, tables: Tables, messages: Messages, growing: bool = False) -> DataView:
        """Make a view of these captures."""
        how = ReadOptions.from_arguments(self.options)
        command = (
            "kwire",
            "show",
            *self.sources,
            *(["--rotated"] if how.rotated else []),
            *(word for port in how.ports for word in ("--port", str(port))),
            *(word for path in how.keylogs for word in ("--keylog", os.fspath(path))),
            *_names(self.options),
        )
        name = ", ".join(map(name_of, self.sources))
        return DataView(tables, messages, name, command, self.options.filter or "", growing, self.notes)


def _capture_source(sources: Sequence[str], options: ViewOptions, stack: contextlib.ExitStack) -> _CaptureSource:
    how = ReadOptions.from_arguments(options)
    again = "-" not in sources  # stdin is read once
    points = capture_points(list(sources), how.rotated) if again else ()  # raises errors for missing files
    if again and options.cache:
        folder = _folder(options, stack, "captures", *_identity(sources, how), *_schemas_identity(options))
    else:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-view-")))
    place = _notes(options, *map(os.path.realpath, sources)) if again else None
    return _CaptureSource(
        sources, points, options, folder, SourceCaptures(tuple(sources), how) if again else None, Notes.read(place)
    )


def _notes(options: ViewOptions, *sources: str) -> Path | None:
    """Get the file of the notes about captures or a dataset, in the user's state folder; None without a cache."""
    if not options.cache:
        return None
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    name = hashlib.sha256("\0".join(sources).encode(errors="surrogateescape")).hexdigest()[:32]
    return Path(state) / "kwire" / "notes" / f"{name}.json"


def _tables(
    dataset: StoredDataset,
    folder: Path,
    captures: SourceCaptures | None,
    options: ViewOptions,
    progress: Progress | None = None,
) -> tuple[Tables, Messages]:
    topics = {row["topic_id"]: row["topic"] for row in _topic_ids(dataset).to_pylist() if row["topic"]}
    shown = Tables(dataset, _columns(dataset, folder, topics, progress), topics)
    messages = Messages(shown, captures, partial(payload_options, dataset, options))
    if messages.available:
        shown.bodies = messages.matching
    return shown, messages


def _topic_ids(dataset: StoredDataset) -> pa.Table:
    """Read the ids of topics. (Loading a pyarrow dataset would take 0.1 s.)"""
    names = ["topic_id", "topic"]
    files = [entry["path"] for entry in dataset.manifest["files"] if entry["table"] == "topic_ids"]
    with readable(dataset.path, "topic_ids"):
        read = (pq.ParquetFile(dataset.path / path).read(names) for path in files)
        return pa.concat_tables([tables.schema("topic_ids").empty_table().select(names), *read])


def _columns(
    dataset: StoredDataset, folder: Path, topics: dict[str, str], progress: Progress | None
) -> columns.Columns:
    """Open the columns of a dataset in a folder, or make them there, atomically."""
    if columns.complete(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: made again
            mapped = columns.open_columns(folder)
            os.utime(folder.parent)  # used now
            return mapped
    beside = folder.with_name(f".columns-{secrets.token_hex(4)}")
    try:
        report = None if progress is None else lambda count: progress(str(dataset.path), count, columns.COUNT)
        columns.write_columns(dataset, lambda topic: topics.get(topic, topic), beside, report)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another view was quicker
            beside.rename(folder)
        return columns.open_columns(folder)
    except OSError as failure:
        raise UsageError(
            f"{folder.parent}: the view's columns cannot be written: {failure.strerror}",
            "KWIRE_CACHE_DIR names another folder; --no-cache uses the one for temporary files (TMPDIR)",
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


# --- the cache --------------------------------------------------------------------------------------------------------


def _identity(sources: Sequence[str], how: ReadOptions) -> list[str]:
    """Identify captures without reading them: other files, other options or another version of kwire give another
    identity."""
    identity = [__version__, repr((how.rotated, sorted(how.ports), how.frame_limit))]
    for point in capture_points(list(sources), how.rotated):
        for path in point.paths:
            identity.append(path if urls.is_url(path) else _file(path))
    for keylog in how.keylogs:
        if not os.path.exists(keylog):
            raise UsageError(f"{keylog}: key log not found", "check its name and permissions")
        identity.append(f"keys {_file(os.fspath(keylog))}")
    return identity


def _schemas_identity(options: ViewOptions) -> list[str]:
    """Identify options about payloads: nothing without any."""
    if PayloadOptions.from_arguments(options) is None:
        return []
    files = sorted(str(path) for path in Path(options.schemas).rglob("*") if path.is_file()) if options.schemas else []
    return [repr((options.schemas, options.registry, options.payloads)), *map(_file, files)]


def _file(path: str) -> str:
    """Identify a file by its path, size and time of modification."""
    status = os.stat(path)
    return json.dumps([os.path.realpath(path), status.st_size, status.st_mtime_ns])


def _folder(options: ViewOptions, stack: contextlib.ExitStack, *identity: str) -> Path:
    """Get the cache folder for an identity, or a temporary one."""
    if not options.cache:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-view-")))
    root = cache_root() / "view"
    folder = root / hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    try:
        for directory in (root.parent, root, folder):
            directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as failure:
        raise UsageError(
            f"{folder}: {failure.strerror}", "KWIRE_CACHE_DIR names another folder; --no-cache stores nothing"
        ) from None
    stack.callback(_limit_cache, root, folder)
    return folder


def _limit_cache(root: Path, used: Path) -> None:
    """Remove the least recently used folders until the rest is within the limit."""
    with contextlib.suppress(OSError):
        unused = sorted(
            (directory for directory in root.iterdir() if directory != used),
            key=lambda directory: directory.stat().st_mtime,
        )
        sizes = {
            directory: sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
            for directory in (*unused, used)
        }
        total = sum(sizes.values())
        for directory in unused:
            if total <= LIMIT_BYTES:
                break
            total -= sizes[directory]
            shutil.rmtree(directory, ignore_errors=True)


def _captures_of(dataset: StoredDataset) -> SourceCaptures | None:
    """Find a dataset's captures beside it or in the current folder, unchanged; None if they are not there."""
    paths: list[str] = []
    for entry in dataset.captures:
        place = next((str(p) for p in _places(dataset.path, entry["name"]) if _same(p, entry["files"])), None)
        if place is None:
            return None
        paths.append(place)
    return SourceCaptures(tuple(paths), ReadOptions()) if paths else None


def _places(dataset: Path, name: str) -> list[Path]:
    """List the paths where a capture may be; none for a name with folders."""
    if os.path.basename(name) != name or name in (".", ".."):
        return []
    return [folder / name for folder in (dataset.resolve().parent, Path.cwd()) if (folder / name).exists()]


def _same(path: Path, files: Sequence[dict[str, object]]) -> bool:
    """Tell whether a capture has the dataset's files, by name and size."""
    try:
        point = capture_points([str(path)])[0]
        there = sorted((os.path.basename(path), os.path.getsize(path)) for path in point.paths)
    except (CaptureError, OSError):
        return False
    return there == sorted((str(entry.get("name")), entry.get("size")) for entry in files)


def _names(options: ViewOptions) -> tuple[str, ...]:
    """Options of a command line that has the same names of addresses."""
    return tuple(word for path in options.names for word in ("--names", path))
