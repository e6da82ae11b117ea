"""A capture that holds every packet twice says the same as the one that holds it once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire import analyzer
from tests.captures import forge
from tests.shared import capture_files, sample_folders

# Where a message lies in the file, and what counts packets and bytes, differs of course.
PLACES = ("request_packet", "response_packet", "request_offset", "response_offset")
DOUBLED = ("client_packets", "broker_packets", "client_bytes", "broker_bytes", "payload_bytes")
DELAY_NS = 10_000


def without(table: pa.Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.drop_columns([name for name in names if name in table.column_names]).to_pylist()
    return rows


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_every_packet_of_a_sample_twice(folder: Path, tmp_path: Path) -> None:
    [path] = capture_files(folder)
    link, records = forge.loaded(path)
    seen = []
    for name, stored in (
        ("once", records),
        (
            "twice",
            [each for record in records for each in (record, replace(record, time_ns=record.time_ns + DELAY_NS))],
        ),
    ):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "capture.pcap"
        file.write_bytes(forge.pcap(stored, link, nanoseconds=True))
        seen.append(analyzer.analyze(file))
    once, twice = seen
    assert once.exchanges.num_rows
    assert without(twice.exchanges, PLACES) == without(once.exchanges, PLACES)
    one_by_one = zip(once.connections.to_pylist(), twice.connections.to_pylist(), strict=True)
    for single, double in one_by_one:
        packets = single["client_packets"] + single["broker_packets"]
        expected = {
            **single,
            **{name: 2 * single[name] for name in DOUBLED},
            "duplicates": packets,
            "duplicate_bytes": single["duplicate_bytes"] + single["payload_bytes"],
            "last_time": double["last_time"],
            "longest_silence_us": double["longest_silence_us"],
        }
        shorter = single["longest_silence_us"] - double["longest_silence_us"]
        assert shorter in (0, DELAY_NS // 1000)  # it begins with the copy
        assert double == expected
        assert single["duplicates"] == single["overlap_conflicts"] == 0
