"""Cut a capture into files, and read them in one pass or with a `ResumableReader` restored at every border."""

from __future__ import annotations

import gzip
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kwire.analyzer import api
from kwire.analyzer.checkpoints.resumable_reader import ResumableReader
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, concatenated
from kwire.analyzer.pipeline.points import WITHOUT, AnalysisOptions, PointResult, joined
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint, capture_points

_PCAPNG = b"\x0a\x0d\x0d\x0a"
_PACKET_BLOCKS = (2, 3, 6)


def packets(data: bytes) -> tuple[bytes, list[bytes]]:
    """Split a capture into its header and its packets as stored.

    pcapng: one section only; blocks between packets belong to the packet after them."""
    return _blocks(data) if data[:4] == _PCAPNG else _records(data)


def _records(data: bytes) -> tuple[bytes, list[bytes]]:
    order = ">" if data[:2] == b"\xa1\xb2" else "<"
    records, at = [], 24
    while at + 16 <= len(data):
        end = at + 16 + struct.unpack_from(order + "I", data, at + 8)[0]
        records.append(data[at:end])
        at = end
    return data[:24], records


def _blocks(data: bytes) -> tuple[bytes, list[bytes]]:
    order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    head, between = b"", b""
    stored_packets: list[bytes] = []
    at = 0
    while at + 12 <= len(data):
        kind, size = struct.unpack_from(order + "II", data, at)
        block = data[at : at + size]
        at += size
        if kind in _PACKET_BLOCKS:
            stored_packets.append(between + block)
            between = b""
        elif kind in (0x0A0D0D0A, 1):
            head += block
        else:
            between += block
    return head, stored_packets


def content(capture: Path) -> bytes:
    """Read a capture file's bytes, decompressed."""
    data = capture.read_bytes()
    return gzip.decompress(data) if capture.suffix == ".gz" else data


def unpacked(snapshot: bytes) -> bytes:
    """Decompress a snapshot to the bytes that were compressed and sealed."""
    plain: bytes = pa.CompressedInputStream(pa.BufferReader(snapshot), "zstd").read()
    return plain


def cut(capture: Path, places: Sequence[int], folder: Path) -> list[str]:
    """Write a file for the packets between each two positions, and return the paths."""
    head, stored_packets = packets(content(capture))
    edges = [0, *sorted({place for place in places if 0 < place < len(stored_packets)}), len(stored_packets)]
    paths = []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        path = folder / f"part-{number:05d}.pcap"
        path.write_bytes(head + b"".join(stored_packets[begin:end]))
        paths.append(str(path))
    return paths


def resumed(
    paths: Sequence[str], how: ReadOptions, choice: AnalysisOptions, name: str, until: Sequence[int | None] = ()
) -> tuple[Dataset, list[int]]:
    """Read the files one by one, each with a new `ResumableReader` restored from the checkpoint before it.

    Returns the dataset, and the sizes of the checkpoints in bytes. `until`: bytes to read of each file, or null for
    all of them: a file that grows is listed once for each of its sizes."""
    tables_read: dict[str, list[pa.Table]] = {table: [] for table in _table_names(choice)}
    settings = how.settings(choice.keep)
    snapshot: bytes | None = None
    sizes = []
    for path, there in itertools.zip_longest(paths, until):
        course = ResumableReader(name, settings, choice, snapshot)
        for table, rows in course.read(CapturePoint(name, (path,)), there):
            tables_read[table].append(rows)
        snapshot = course.snapshot()
        sizes.append(len(snapshot))
    rest = ResumableReader(name, settings, choice, snapshot).finish()
    while True:
        try:
            table, rows = next(rest)
        except StopIteration as end:
            read: PointResult = end.value
            break
        tables_read[table].append(rows)
    result = joined([read])
    result.tables = {table: concatenated(table, parts) for table, parts in tables_read.items()}
    result.tables["findings"] = api.findings_of(result, result.tables)
    return result, sizes


def _table_names(choice: AnalysisOptions) -> list[str]:
    without = {*tables.RUN_TABLES, *(() if choice.keep_bytes else ("messages",)), *WITHOUT[choice.records]}
    return [table for table in tables.TABLES if table not in without]


def at_once(paths: Sequence[str], how: ReadOptions, choice: AnalysisOptions) -> tuple[Dataset, str]:
    """Read the files in one pass; return the dataset and the capture point's name."""
    [point] = capture_points(list(paths), True)
    return api.decode(point, None, how, choice), point.name


def differences(result: Dataset, expected: Dataset) -> list[str]:
    """List where two results differ: tables, columns, and metadata of the captures."""
    different: list[str] = []
    for name, table in expected.tables.items():
        rows = result.tables[name]
        if len(rows) != len(table):
            different.append(f"{name}: {len(rows)} rows, not {len(table)}")
        else:
            different += [f"{name}.{column}" for column in table.column_names if not _same(rows, table, column)]
    about: tuple[tuple[str, Any, Any], ...] = (
        ("summary", result.summary, expected.summary),
        ("coverage", result.coverage, expected.coverage),
        ("notes", result.notes, expected.notes),
        ("captures", result.captures, expected.captures),
        ("unrecognised", result.unrecognised, expected.unrecognised),
    )
    return [*different, *(name for name, actual, wanted in about if actual != wanted)]


def _same(left: pa.Table, right: pa.Table, column: str) -> bool:
    return bool(left[column].combine_chunks().equals(right[column].combine_chunks()))
