"""Journeys of captures that lack packets, bytes or their beginning: what is missing is null, the rest is as it was.

(proves: analyzer/analysis/journeys.py, journey_rows.py)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.captures.files.write import Record, pcap
from tests.live import sample_records
from tests.shared import SAMPLES

Row = dict[str, Any]
NAME = "txn-librdkafka-4.3"
PRODUCED = ("created", "sent", "received", "acked", "records", "last_offset")


def cut(records: list[Record]) -> list[Record]:
    """Keep 96 bytes of each packet."""
    return [Record(record.time_ns, record.data[:96], record.wire_length) for record in records]


def midstream(records: list[Record]) -> list[Record]:
    """Begin in the middle."""
    return records[len(records) // 2 :]


def lossy(records: list[Record]) -> list[Record]:
    """Lose one packet in twelve."""
    random_ = random.Random(7)
    return [record for record in records if random_.randrange(12)]


def journeys(path: Path) -> list[Row]:
    rows: list[Row] = analyzer.analyze(path).journeys.to_pylist()
    return rows


@pytest.mark.parametrize("broken", [cut, midstream, lossy])
def test_what_is_missing_is_null_and_the_rest_is_as_it_was(
    broken: Callable[[list[Record]], list[Record]], tmp_path: Path
) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(broken(sample_records(SAMPLES / NAME / "capture.pcap")), nanoseconds=True))
    whole: dict[tuple[Any, ...], list[Row]] = {}
    for row in journeys(SAMPLES / NAME / "capture.pcap"):
        whole.setdefault((row["partition"], row["base_offset"], row["producer_client"]), []).append(row)
    rows = journeys(path)
    placed = 0
    for row in rows:
        assert row["sent"] is not None
        if row["base_offset"] is None or row["fetched"] is None:
            assert row["reason"], row
        if row["base_offset"] is None:
            continue
        same = whole[row["partition"], row["base_offset"], row["producer_client"]]
        placed += 1
        assert any(all(row[name] in (None, other[name]) for name in PRODUCED) for other in same)
        if row["fetched"] is not None:
            assert row["fetched"] in {other["fetched"] for other in same}
    assert placed or broken is cut
