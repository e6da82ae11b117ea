"""Datasets: tables in memory, and the folder of Parquet files that `kwire analyze -o` writes.

Rules of the folder (a contract, see DESIGN): every file is listed in `_kwire.json`, and what it does not list does not
count. New files are written to a folder beside the dataset, then moved in; `_kwire.json` is replaced last, in one step.
So an interrupt, a kill or a full disk leaves the old dataset or the new one. One process writes it at a time, and who
reads it keeps the files that it began with (`locks`). A dataset is input as a capture is: where its files are not what
its manifest says, that is told.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.locks import DatasetError, ReadLock, StagingFolder, WriteLock, clear_dead, hidden, unread
from kwire.analyzer.dataset.manifest import MANIFEST, is_dataset, joined_manifests, read_manifest
from kwire.analyzer.dataset.parquet_files import LazyTable, TableFiles, sync

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = [
    "MANIFEST",
    "Dataset",
    "DatasetError",
    "StoredDataset",
    "TableFiles",
    "Writer",
    "concatenated",
    "is_dataset",
    "open_dataset",
    "read_manifest",
    "readable",
]

ABORT_SECONDS = 5
"""How long tasks on other machines may still write into the folder of a dataset that was given up."""


@dataclass(slots=True, repr=False)
class Dataset:
    """Tables in memory (`pyarrow.Table`, plain types), and what is known of the captures they came from."""

    tables: dict[str, pa.Table]
    captures: list[dict[str, Any]] = field(default_factory=list)
    coverage: dict[str, Any] = field(default_factory=dict)
    unrecognised: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> pa.Table:
        try:
            return object.__getattribute__(self, "tables")[name]
        except (KeyError, AttributeError):
            if name in tables.TABLES:
                raise AttributeError(f"{name}: not in memory; open_dataset(PATH) has what was written") from None
            raise AttributeError(f"no table {name!r}; there are {', '.join(tables.TABLES)}") from None

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self.tables})

    def __repr__(self) -> str:
        rows = {name: len(table) for name, table in self.tables.items()}
        return _about("<kwire.Dataset", self.captures, rows or {"tables": "written to a folder"}) + ">"

    def _repr_html_(self) -> str:
        return _about_html("Dataset in memory", self.captures, {name: len(rows) for name, rows in self.tables.items()})


@dataclass(frozen=True, slots=True, repr=False)
class StoredDataset:
    """A dataset on disk. Each table is an attribute: a `pyarrow.dataset.Dataset` over the listed files, not loaded.
    They stay as they are while this object does, whoever replaces the dataset."""

    path: Path
    manifest: dict[str, Any]
    _lease: ReadLock | None = field(default=None, repr=False, compare=False)

    def __getattr__(self, name: str) -> pyarrow.dataset.Dataset:
        if name not in tables.TABLES:
            raise AttributeError(f"no table {name!r}; there are {', '.join(tables.TABLES)}")
        import pyarrow.dataset  # it loads pandas, a third of a second that writing a dataset does not need

        files = [str(self.path / entry["path"]) for entry in self.manifest["files"] if entry["table"] == name]
        schema = tables.described(name)
        if not files:
            return pyarrow.dataset.dataset(schema.empty_table())
        return pyarrow.dataset.dataset(files, schema=schema, format="parquet")

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *tables.TABLES})

    def __repr__(self) -> str:
        return _about(f"<kwire.StoredDataset {str(self.path)!r}", self.captures, self.row_counts()) + ">"

    def _repr_html_(self) -> str:
        return _about_html(f"Dataset {self.path}", self.captures, self.row_counts())

    def row_counts(self) -> dict[str, int]:
        """Count the rows of each table that has a file, by the manifest."""
        rows: dict[str, int] = {}
        for entry in self.manifest["files"]:
            rows[entry["table"]] = rows.get(entry["table"], 0) + entry["rows"]
        return rows

    @property
    def captures(self) -> list[dict[str, Any]]:
        """The capture points read, with their files."""
        return list(self.manifest["captures"])

    @property
    def coverage(self) -> dict[str, Any]:
        """Where the captured bytes went, over all capture points."""
        return dict(self.manifest["coverage"])


NAMED_CAPTURES = 3
"""Capture points that the text of a dataset names; it counts the others."""


def _about(head: str, captures: Sequence[Mapping[str, Any]], rows: Mapping[str, int | str]) -> str:
    """Three lines: the kind of dataset, its capture points, the rows of its tables."""
    names = [printable(str(capture["name"])) for capture in captures]
    more = f" and {len(names) - NAMED_CAPTURES} more" if len(names) > NAMED_CAPTURES else ""
    listed = ", ".join(f"{name} {number:,}" if isinstance(number, int) else f"{name} {number}"
                       for name, number in rows.items() if number)  # fmt: skip
    return f"{head}\n  captures: {', '.join(names[:NAMED_CAPTURES])}{more}\n  rows: {listed or 'none'}"


def _about_html(title: str, captures: Sequence[Mapping[str, Any]], rows: Mapping[str, int]) -> str:
    """A table of tables for a notebook, with the number of rows of each."""
    import html

    names = ", ".join(html.escape(printable(str(capture["name"]))) for capture in captures[:NAMED_CAPTURES])
    body = "".join(
        f"<tr><td>{name}</td><td style='text-align:right'>{number:,}</td>"
        f"<td style='text-align:left'>{html.escape(tables.ABOUT[name])}</td></tr>"
        for name, number in rows.items()
        if number
    )
    more = f" and {len(captures) - NAMED_CAPTURES} more" if len(captures) > NAMED_CAPTURES else ""
    head = "<tr><th>table</th><th>rows</th><th>a row is</th></tr>"
    return f"<b>{html.escape(printable(title))}</b><br>{names}{more}<table>{head}{body}</table>"


def open_dataset(path: str | os.PathLike[str]) -> StoredDataset:
    """Open a dataset; its tables are attributes, not loaded. Raises DatasetError, also where a file is not as long as
    the manifest says or has not as many rows, and where a column has another type than in the contract."""
    lease = ReadLock(Path(path))
    manifest = read_manifest(path)
    for entry in manifest["files"]:
        _compared(Path(path), entry)
    return StoredDataset(Path(path), manifest, lease)


def _compared(path: Path, entry: dict[str, Any]) -> None:
    """Raise DatasetError where a file is not what the manifest says of it."""
    file = path / entry["path"]
    again = "analyse the capture again"
    if not file.is_file():
        raise DatasetError(f"{path}: {entry['path']} is listed and missing", again)
    size = file.stat().st_size
    if size != entry["size"]:
        raise DatasetError(f"{path}: {entry['path']} has {size} bytes, the manifest says {entry['size']}", again)
    with readable(path, entry["path"]):
        metadata = pyarrow.parquet.read_metadata(file)
        stored = metadata.schema.to_arrow_schema()
    rows = metadata.num_rows
    if rows != entry["rows"]:
        raise DatasetError(f"{path}: {entry['path']} has {rows} rows, the manifest says {entry['rows']}", again)
    for column in tables.TABLES[entry["table"]]:  # an older dataset may lack some
        for position in stored.get_all_field_indices(column.name):
            if not tables.is_same_type(stored.field(position).type, column.type):
                kind = printable(str(stored.field(position).type)[:100])
                raise DatasetError(f"{path}: {entry['path']}: column {column.name} is {kind}, not {column.type}", again)


@contextlib.contextmanager
def readable(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Reading files of a dataset within: what Arrow says of damaged ones is raised as DatasetError."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as failure:
        lines = str(getattr(failure, "strerror", None) or failure).splitlines()
        raise DatasetError(
            f"{path}: {what} cannot be read: {lines[0][:200] if lines else type(failure).__name__}",
            "the file is damaged: analyse the capture again",
        ) from None


class Writer:
    """Writes a dataset. Nothing at `path` changes before `commit`; `abort` (or leaving the `with`) takes all away."""

    def __init__(
        self, path: str | os.PathLike[str], append: bool = False, wait: bool = False, writers: int = 1
    ) -> None:
        """`wait`: where another process writes the dataset, wait for it; `writers`: threads that make and store rows.
        Raises DatasetError."""
        self.path = Path(path)
        self._append = append
        self._old: dict[str, Any] | None = None
        self._adopted: list[dict[str, Any]] = []
        self._placed: list[Path] = []  # moved to `path`, and not listed there yet
        self._committed = False
        self._settled = 0
        self._run = os.urandom(4).hex()
        self._writers = writers
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            raise DatasetError(f"{path}: a name that is not UTF-8", "give another folder to -o") from None
        try:
            if self.path.is_symlink() and not self.path.exists():
                raise DatasetError(f"{path}: a link to nothing", "give another folder to -o")
            # Behind a link: moves must stay on one file system, and two names of one dataset are one.
            place = self.path.resolve()
            if place.exists() and not place.is_dir():
                raise DatasetError(f"{path}: exists and is not a folder", "give another folder to -o")
            place.parent.mkdir(parents=True, exist_ok=True)
            self._writing = WriteLock(place, wait)
        except OSError as failure:
            raise DatasetError(
                f"{self.path.parent}: {failure.strerror}", "give a folder to -o that you may write to"
            ) from None
        except RuntimeError:  # of `resolve`
            raise DatasetError(f"{path}: a link to itself", "give another folder to -o") from None
        try:
            self._look()
            clear_dead(place)
            self._beside = StagingFolder(place, self._run)
            self._folder = self._beside.path
            self._parts = TableFiles(self._folder, self._run, writers)
        except OSError as failure:
            self._writing.release()
            raise DatasetError(
                f"{place.parent}: {failure.strerror}", "give a folder to -o that you may write to"
            ) from None
        except BaseException:  # nobody has this writer yet, to abort it
            with contextlib.suppress(OSError):
                hidden(place, f"{self._run}.new").rmdir()
            self._writing.release()
            raise

    def _look(self) -> None:
        """Look at what is at `path`. Raises DatasetError if it must not be replaced."""
        if not self.path.exists():
            return
        if (self.path / MANIFEST).exists():
            self._refuse_links()
            self._old = read_manifest(self.path) if self._append else self._old_files()
        elif any(self.path.iterdir()):
            raise DatasetError(f"{self.path}: not empty, and not a dataset", "give an empty or new folder to -o")

    def _refuse_links(self) -> None:
        """A link in the place of a table's folder would have files elsewhere replaced and taken away."""
        for name in tables.TABLES:
            if (self.path / name).is_symlink():
                raise DatasetError(
                    f"{self.path / name}: a link in the place of a table's folder", "give another folder to -o"
                )

    def _old_files(self) -> dict[str, Any]:
        """List the files of an older dataset, whatever its format: it is going to be replaced."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            manifest = json.loads((self.path / MANIFEST).read_bytes())
            if isinstance(manifest, dict) and isinstance(manifest.get("files"), list):
                return manifest
        return {"files": []}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._committed:
            self.abort()
        self._release()

    @property
    def captures(self) -> list[str]:
        """Names of the capture points that are in the dataset and stay."""
        return [entry["name"] for entry in self._old["captures"]] if self._append and self._old else []

    @property
    def old(self) -> dict[str, Any] | None:
        """The manifest of the dataset that is added to; None: there is none yet."""
        return self._old if self._append else None

    @property
    def folder(self) -> Path:
        """Where others may write `TableFiles` to be adopted. It goes away with `commit` and `abort`."""
        return self._folder

    @property
    def run(self) -> str:
        """Name of this run: unlike any other's; labels of files to be adopted begin with it."""
        return self._run

    def write(self, name: str, rows: LazyTable) -> None:
        """Add rows to a table, as one row group (or several where they are many). Raises DatasetError."""
        try:
            self._parts.write(name, rows)
        except OSError as failure:
            raise self._failed(failure) from None

    def settle(self, **marks: Any) -> dict[str, list[Path]]:
        """Finish the files written so far: where they are, those adopted too, by table. What is worked out of them can
        be written after. `marks`: what their entries in the manifest say besides. Raises DatasetError."""
        try:
            self._adopted += [{**entry, **marks} for entry in self._parts.close()]
        except OSError as failure:
            raise self._failed(failure) from None
        self._settled += 1
        again = str(self._settled) if self._settled > 1 else ""
        self._parts = TableFiles(self._folder, f"{self._run}-after{again}", self._writers)
        paths_of: dict[str, list[Path]] = {}
        for entry in self._adopted:
            paths_of.setdefault(entry["table"], []).append(self._folder / entry["path"])
        return paths_of

    def adopt(self, files: Sequence[dict[str, Any]]) -> None:
        """List files that others wrote to `folder`: what their `TableFiles.close` gave.

        Raises DatasetError where one is not there or of another size.
        """
        for entry in files:
            path = self._folder / entry["path"]
            if not path.is_file() or path.stat().st_size != entry["size"]:
                raise DatasetError(
                    f"{self.path}: {path.name} was written elsewhere and is not here",
                    "give a folder to -o that all machines share",
                )
        self._adopted += files

    def commit(self, manifest: dict[str, Any]) -> None:
        """Make what was written the dataset. `manifest`: all but the list of files. Raises DatasetError."""
        try:
            files = [*self._adopted, *self._parts.close()]
            self._drop_unlisted(files)
            if self._append and self._old is not None:
                manifest = joined_manifests(self._old, manifest)
                files = [*self._old["files"], *files]
            self._publish(manifest, files)
        except OSError as failure:
            raise self._failed(failure) from None

    def amend(self, names: Iterable[str], changes: dict[str, Any]) -> None:
        """In the dataset that is there (`append`), put what was written in the place of these tables, and `changes`
        into its manifest. Raises DatasetError."""
        assert self._append
        assert self._old is not None
        replaced = frozenset(names)
        try:
            entries = [entry for entry in self._old["files"] if entry["table"] not in replaced]
            beside = [path.name for path in self.path.glob("*.snapshot")]
            self._publish({**self._old, **changes}, [*entries, *self._parts.close()], beside)
        except OSError as failure:
            raise self._failed(failure) from None

    def advance(
        self, manifest: dict[str, Any], keeps: Callable[[dict[str, Any]], bool], beside: Mapping[str, bytes | None]
    ) -> None:
        """In the dataset that is there (`append`) or is to be: add what was written, let go of the files whose entries
        are not `kept`, and have this manifest in place of its own. `beside`: what stands beside the tables from then
        on, by name (*.snapshot): its content, or None where it is there already. Raises DatasetError."""
        assert self._append
        try:
            old = [entry for entry in (self._old or {"files": []})["files"] if keeps(entry)]
            files = [*old, *self._adopted, *self._parts.close()]
            for name, content in beside.items():
                if content is None:
                    continue
                path = self._folder / name
                with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as out:
                    out.write(content)
                sync(path)
            self._publish(manifest, files, tuple(beside))
        except OSError as failure:
            raise self._failed(failure) from None

    def _publish(self, manifest: dict[str, Any], files: list[dict[str, Any]], beside: Sequence[str] = ()) -> None:
        """Move the new files to their place, and say in the manifest what the dataset is from now on."""
        listing = self._folder / MANIFEST
        with open(os.open(listing, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
            json.dump({**manifest, "files": files}, out, indent=1)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        # All is written; from here on things only change their place.
        if self._old is None and self._moved_whole():
            self._release()
            return
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._refuse_links()
        for entry in files:
            source = self._folder / entry["path"]
            if source.exists():
                (self.path / entry["table"]).mkdir(mode=0o700, exist_ok=True)
                os.replace(source, self.path / entry["path"])
                self._placed.append(self.path / entry["path"])
        for name in beside:
            if (self._folder / name).exists():
                os.replace(self._folder / name, self.path / name)
                self._placed.append(self.path / name)
        os.replace(listing, self.path / MANIFEST)
        self._committed = True
        with unread(self.path) as nobody:
            # What others still read stays until the next run: it is listed nowhere.
            if nobody is not False:
                self._clean(files, beside)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        """Let others write."""
        self._beside.release()
        self._writing.release()

    def _drop_unlisted(self, files: list[dict[str, Any]]) -> None:
        """Take away what attempts left that were given up."""
        listed = {self._folder / entry["path"] for entry in files}
        for stray in self._folder.glob("*/*"):
            if stray not in listed:
                stray.unlink()

    def _moved_whole(self) -> bool:
        """Where there is nothing yet, the folder beside becomes the dataset in one step. False: it cannot (a link, a
        mount point), and its files have to go one by one."""
        if self.path.is_symlink():
            return False
        with contextlib.suppress(OSError):
            if self.path.exists():
                os.chmod(self._folder, stat.S_IMODE(self.path.stat().st_mode))
            os.rename(self._folder, self.path)  # onto an empty folder too (POSIX)
            self._committed = True
        return self._committed

    def _clean(self, files: list[dict[str, Any]], beside: Sequence[str]) -> None:
        """Take away what the new manifest does not list."""
        for stray in self.path.glob("*.snapshot"):
            if stray.name not in beside:
                with contextlib.suppress(OSError):
                    stray.unlink()
        listed = {entry["path"] for entry in files}
        for entry in (self._old or {}).get("files", []):
            if isinstance(entry, dict) and entry.get("path") not in listed:
                gone = (self.path / str(entry.get("path"))).resolve()
                if self.path.resolve() in gone.parents:  # a manifest is input: it must not name files elsewhere
                    with contextlib.suppress(OSError):
                        gone.unlink()
        for name in tables.TABLES:
            folder = self.path / name
            for stray in folder.glob("part-*.parquet"):
                if f"{name}/{stray.name}" not in listed:
                    with contextlib.suppress(OSError):
                        stray.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()

    def abort(self) -> None:
        """Take away what was written. The dataset at `path` is as it was."""
        self._parts.abandon()
        if (self._folder / MANIFEST).exists():  # else an interrupt came just after the last step: it is committed
            for path in self._placed:
                with contextlib.suppress(OSError):
                    path.unlink()
        until = time.monotonic() + ABORT_SECONDS
        shutil.rmtree(self._folder, ignore_errors=True)
        while self._folder.exists() and time.monotonic() < until:
            time.sleep(0.05)
            shutil.rmtree(self._folder, ignore_errors=True)
        self._release()

    def _failed(self, failure: OSError) -> DatasetError:
        reason = failure.strerror or str(failure)
        return DatasetError(f"{self.path}: cannot be written: {reason}", "free some room, or give another folder to -o")


def concatenated(name: str, parts: Iterable[pa.Table]) -> pa.Table:
    """Tables of one kind as one, with the contract's plain types."""
    schema = tables.schema(name)
    # A cast has a price of its own: a lap of `kwire watch` has hundreds of small parts.
    alike = [pa.concat_tables(same) for _, same in itertools.groupby(parts, key=lambda part: part.schema)]
    plain = [part if part.schema.equals(schema) else tables.cast(part, schema) for part in alike]
    whole = pa.concat_tables(plain) if plain else schema.empty_table()
    return pa.Table.from_batches(whole.to_batches(), schema=tables.described(name))  # `from_arrays` loads pandas
