"""Two datasets of the same captures: equal in every table, row and column, and in what the manifest says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kwire import analyzer
from kwire.analyzer.dataset import tables
from tests.captures import forge
from tests.captures.mutants import fragments


def assert_same_dataset(left: Path, right: Path) -> None:
    """Every table row by row, in order; captures, coverage, unrecognised connections and notes."""
    dataset, other = analyzer.open_dataset(left), analyzer.open_dataset(right)
    assert {entry["table"] for entry in dataset.manifest["files"]} == {
        entry["table"] for entry in other.manifest["files"]
    }
    for name in tables.TABLES:
        left_table, right_table = getattr(dataset, name).to_table(), getattr(other, name).to_table()
        assert len(left_table) == len(right_table), name
        different = [column for column in left_table.column_names if not left_table[column].equals(right_table[column])]
        assert not different, f"{name}: {different}"
    known = {key: value for key, value in dataset.manifest.items() if key != "files"}
    assert known == {key: value for key, value in other.manifest.items() if key != "files"}
    assert not [path for path in right.parent.iterdir() if path.name.endswith(".new")]


def rotated(source: Path, folder: Path, files: int) -> list[Path]:
    """The packets of a capture file in so many files, equally many in each."""
    link, records = forge.loaded(source)
    folder.mkdir()
    return _written(records, link, folder, files)


def fragmented(source: Path, folder: Path, files: int) -> list[Path]:
    """Write a capture with every IP packet in fragments of 512 bytes; files begin in the middle of packets."""
    link, records = forge.loaded(source)
    pieces = [
        forge.Record(segment.time_ns, piece, len(piece))
        for number, segment in enumerate(forge.segments_of(records, link))
        for piece in fragments(forge.tcp_ip(segment), number & 0xFFFF, 512)
    ]
    folder.mkdir()
    return _written(pieces, forge.RAW, folder, files)


def _written(records: Sequence[Any], link: int, folder: Path, files: int) -> list[Path]:
    paths = []
    for i in range(files):
        part = records[len(records) * i // files : len(records) * (i + 1) // files]
        paths.append(folder / f"part-{i:02d}.pcap")
        paths[-1].write_bytes(forge.pcap(part, link))
    return paths
