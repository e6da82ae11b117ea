"""A capture cut into files, read in one pass and by a `ResumableReader` that is stored and taken up at every border."""

from __future__ import annotations

import gzip
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from analyzer import api
from analyzer.checkpoints.resumable_reader import ResumableReader
from analyzer.dataset import tables
from analyzer.dataset.dataset import Dataset, concatenated
from analyzer.pipeline.points import WITHOUT, AnalysisOptions, PointResult, joined
from analyzer.pipeline.read_options import ReadOptions
from captures.files import CapturePoint, capture_points

_PCAPNG = b"\x0a\x0d\x0d\x0a"
_PACKET_BLOCKS = (2, 3, 6)


def packets(data: bytes) -> tuple[bytes, list[bytes]]:
    """What a capture begins with, and its packets as they are stored (pcapng: of one section, with what stands before
    each)."""
    return _blocks(data) if data[:4] == _PCAPNG else _records(data)


def _records(data: bytes) -> tuple[bytes, list[bytes]]:
    order = ">" if data[:2] == b"\xa1\xb2" else "<"
    found, at = [], 24
    while at + 16 <= len(data):
        end = at + 16 + struct.unpack_from(order + "I", data, at + 8)[0]
        found.append(data[at:end])
        at = end
    return data[:24], found


def _blocks(data: bytes) -> tuple[bytes, list[bytes]]:
    order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    head, between = b"", b""
    found: list[bytes] = []
    at = 0
    while at + 12 <= len(data):
        kind, size = struct.unpack_from(order + "II", data, at)
        block = data[at : at + size]
        at += size
        if kind in _PACKET_BLOCKS:
            found.append(between + block)
            between = b""
        elif kind in (0x0A0D0D0A, 1):
            head += block
        else:
            between += block
    return head, found


def content(capture: Path) -> bytes:
    """Of a capture file, unpacked."""
    data = capture.read_bytes()
    return gzip.decompress(data) if capture.suffix == ".gz" else data


def unpacked(snapshot: bytes) -> bytes:
    """What a snapshot is before it is compressed and sealed, as one row of bytes."""
    plain: bytes = pa.CompressedInputStream(pa.BufferReader(snapshot), "zstd").read()
    return plain


def cut(capture: Path, places: Sequence[int], folder: Path) -> list[str]:
    """Files of the packets between the places."""
    head, found = packets(content(capture))
    edges = [0, *sorted({place for place in places if 0 < place < len(found)}), len(found)]
    paths = []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        path = folder / f"part-{number:05d}.pcap"
        path.write_bytes(head + b"".join(found[begin:end]))
        paths.append(str(path))
    return paths


def resumed(
    paths: Sequence[str], how: ReadOptions, choice: AnalysisOptions, name: str, until: Sequence[int | None] = ()
) -> tuple[Dataset, list[int]]:
    """Read the files one by one, each by a `ResumableReader` that knows of those before what their checkpoint says.

    Returns the dataset, and how large the checkpoints were. `until`: how many bytes there are of each, where it still
    grows and comes again."""
    kept: dict[str, list[pa.Table]] = {table: [] for table in _kept(choice)}
    settings = how.settings(choice.keep)
    snapshot: bytes | None = None
    sizes = []
    for path, there in itertools.zip_longest(paths, until):
        course = ResumableReader(name, settings, choice, snapshot)
        for table, rows in course.read(CapturePoint(name, (path,)), there):
            kept[table].append(rows)
        snapshot = course.snapshot()
        sizes.append(len(snapshot))
    rest = ResumableReader(name, settings, choice, snapshot).finish()
    while True:
        try:
            table, rows = next(rest)
        except StopIteration as end:
            read: PointResult = end.value
            break
        kept[table].append(rows)
    result = joined([read])
    result.tables = {table: concatenated(table, parts) for table, parts in kept.items()}
    result.tables["findings"] = api.findings_of(result, result.tables)
    return result, sizes


def _kept(choice: AnalysisOptions) -> list[str]:
    without = {*tables.RUN_TABLES, *(() if choice.keep_bytes else ("messages",)), *WITHOUT[choice.records]}
    return [table for table in tables.TABLES if table not in without]


def at_once(paths: Sequence[str], how: ReadOptions, choice: AnalysisOptions) -> tuple[Dataset, str]:
    """The same in one pass, and the capture point's name."""
    [point] = capture_points(list(paths), True)
    return api.decode(point, None, how, choice), point.name


def differences(found: Dataset, expected: Dataset) -> list[str]:
    """Where two results differ: tables, columns, what is said of the captures."""
    said: list[str] = []
    for name, table in expected.tables.items():
        rows = found.tables[name]
        if len(rows) != len(table):
            said.append(f"{name}: {len(rows)} rows, not {len(table)}")
        else:
            said += [f"{name}.{column}" for column in table.column_names if not _same(rows, table, column)]
    about: tuple[tuple[str, Any, Any], ...] = (
        ("summary", found.summary, expected.summary),
        ("coverage", found.coverage, expected.coverage),
        ("notes", found.notes, expected.notes),
        ("captures", found.captures, expected.captures),
        ("unrecognised", found.unrecognised, expected.unrecognised),
    )
    return [*said, *(name for name, one, other in about if one != other)]


def _same(left: pa.Table, right: pa.Table, column: str) -> bool:
    return bool(left[column].combine_chunks().equals(right[column].combine_chunks()))
