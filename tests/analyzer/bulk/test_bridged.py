"""Captures without the content of record batches: all but the records is read as in the whole capture.

(proves: `append` and `bridged` of analyzer/bulk/regions.py, `lacks_records_alone` of partitions.py, HEADER_ALONE of
analyzer/records/batches.py)
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire import analyzer
from tests.analyzer import forging
from tests.analyzer.forging import answering, asking, fetch, fetch_answer, fetched, produce, produce_answer, read, turns
from tests.captures.forge import Record, Segment, Write, converse, cut, pcap, rendered
from tests.shared import KWIRE

HEADER = 61
SMALL, LARGE = forging.batch(2, 30), forging.batch(40, 120)


def contents(stream: bytes) -> list[range]:
    """Return where content of `SMALL` and `LARGE` lies in a direction's bytes."""
    places = []
    for batch in (SMALL, LARGE):
        at = stream.find(batch)
        while at >= 0:
            places.append(range(at + HEADER, at + len(batch)))
            at = stream.find(batch, at + 1)
    return sorted(places, key=lambda place: place.start)


def without_content(segments: Sequence[Segment]) -> list[Record]:
    """Cut each packet where nothing but content of batches follows in it."""
    streams: dict[Any, bytes] = {}
    for segment in segments:
        streams[segment.flow] = streams.get(segment.flow, b"") + segment.payload
    inside = {flow: {i for place in contents(stream) for i in place} for flow, stream in streams.items()}
    at = dict.fromkeys(streams, 0)
    records = []
    for segment, record in zip(segments, rendered(segments), strict=True):
        begin = at[segment.flow]
        end = at[segment.flow] = begin + len(segment.payload)
        last = end
        while last > begin and last - 1 in inside[segment.flow]:
            last -= 1
        size = len(record.data) - (end - last)
        records.append(replace(record, data=record.data[:size], wire_length=len(record.data)))
    return records


def conversation(mss: int) -> list[Segment]:
    """A Produce request and two answers to Fetch; of the second, one partition has an error, two have batches."""
    two = [fetched(0, LARGE + LARGE), fetched(1, None, 6), fetched(2, SMALL + LARGE)]
    writes: list[Write] = [
        *turns([1]),
        asking(produce(2, records=LARGE)),
        answering(produce_answer(2)),
        asking(fetch(3)),
        answering(fetch_answer(3, LARGE)),
        asking(fetch(4)),
        answering(fetch_answer(4, partitions=two)),
        *turns([5]),
    ]
    return converse(writes, mss=mss)


def rows(table: pa.Table, *less: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in less} for row in table.to_pylist()]


@pytest.mark.parametrize("mss", [70, 100, 333, 1448, 9000])
def test_all_but_the_records_is_as_in_the_whole_capture(mss: int, tmp_path: Path) -> None:
    segments = conversation(mss)
    (tmp_path / "cut").mkdir()
    whole, lacking = read(tmp_path, segments), read(tmp_path / "cut", without_content(segments))
    assert lacking.brief() == whole.brief()
    missing = lacking.coverage["snaplen_bytes"]
    assert missing > 10_000
    assert missing + lacking.coverage["payload_bytes"] == whole.coverage["payload_bytes"]
    assert lacking.coverage["incomplete_bytes"] == 0
    assert lacking.connection["snaplen_record_bytes"] == missing
    for name in ("exchanges", "partitions"):
        assert rows(lacking.tables[name], "request_offset", "response_offset") == rows(
            whole.tables[name], "request_offset", "response_offset"
        )
    assert [row["error"] for row in lacking.tables["partitions"].to_pylist()].count("NOT_LEADER_OR_FOLLOWER") == 1


@pytest.mark.parametrize("records", ["batches", "meta", "full"])
@pytest.mark.parametrize("mss", [100, 1448])
def test_headers_of_batches_are_there_and_their_records_are_said_not_to_be(
    mss: int, records: str, tmp_path: Path
) -> None:
    segments = conversation(mss)
    datasets = []
    for name, packets in (("whole", rendered(segments)), ("cut", without_content(segments))):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "capture.pcap"
        path.write_bytes(pcap(packets, nanoseconds=True))
        datasets.append(analyzer.analyze(str(path), records=records))
    differs = ("partial", "reason", "crc_ok", "uncompressed_bytes")
    whole, lacking = (dataset.batches.to_pylist() for dataset in datasets)
    assert len(whole) == len(lacking) == 6
    for row, other in zip(whole, lacking, strict=True):
        assert {name: row[name] for name in row if name not in differs} == {
            name: other[name] for name in other if name not in differs
        }
        if other["partial"]:
            assert (other["reason"], other["crc_ok"]) == (
                f"{row['batch_bytes'] - HEADER} bytes of the records were not captured",
                None,
            )
        else:
            assert other == row
    assert sum(row["partial"] for row in lacking) >= 3
    if records != "batches":
        whole_batches = sum(row["record_count"] for row in lacking if not row["partial"])
        assert len(datasets[1].records) == whole_batches < len(datasets[0].records)


def test_a_frame_that_lacks_more_is_truncated(tmp_path: Path) -> None:
    """Each packet of an answer in turn is cut where it still has other bytes than content: headers of batches, fields
    of a partition."""
    segments = conversation(1448)
    packets = without_content(segments)
    ask, following = (forging.payloads(segments, to_broker=True)[number] for number in (-2, -1))
    answer = [i for i in forging.payloads(segments, to_broker=False) if ask < i < following]
    needed = [i for i in answer[1:] if len(packets[i].data) > 70]
    assert len(needed) == 2
    for i in needed:
        full = rendered(segments)[i].data
        less = replace(packets[i], data=full[:60], wire_length=len(full))
        lacking = read(tmp_path, [*packets[:i], less, *packets[i + 1 :]])
        assert lacking.where(correlation_id=4)["response_state"] == "truncated"
        assert lacking.where(correlation_id=5)["status"] == "answered"


@pytest.mark.parametrize("snaplen", range(90, 400, 7))
def test_any_snap_length_says_what_is_missing_and_loses_no_message(snaplen: int, tmp_path: Path) -> None:
    segments = conversation(1448)
    whole = read(tmp_path, segments)
    lacking = read(tmp_path, cut(rendered(segments), snaplen))
    assert lacking.column("correlation_id") == whole.column("correlation_id")
    for row, other in zip(whole.exchanges, lacking.exchanges, strict=True):
        for side in ("request", "response"):
            if other[f"{side}_state"] == "decoded":
                assert other[f"{side}_bytes"] == row[f"{side}_bytes"]
            else:
                assert other[f"{side}_state"] == "truncated"
    parts = rows(whole.tables["partitions"])
    for row in rows(lacking.tables["partitions"]):
        same = [part for part in parts if (part["exchange"], part["partition"]) == (row["exchange"], row["partition"])]
        [part] = same
        assert all(
            row[name] in (None, part[name]) for name in ("error_code", "high_watermark", "record_count", "batch_count")
        )


def test_a_capture_that_ends_inside_counts_no_zeros(tmp_path: Path) -> None:
    segments = conversation(100)
    packets = without_content(segments)
    missing = [i for i, record in enumerate(packets) if record.wire_length != len(record.data)]
    for end in missing[::9]:
        lacking = read(tmp_path, packets[: end + 1])  # checks the coverage
        assert lacking.coverage["snaplen_bytes"] == sum(
            record.wire_length - len(record.data) for record in packets[: end + 1]
        )


@pytest.mark.parametrize(("snaplen", "severity"), [(None, "note"), (96, "warning")])
def test_the_finding_says_whether_anything_but_content_is_missing(
    snaplen: int | None, severity: str, tmp_path: Path
) -> None:
    segments = conversation(1448)
    packets = without_content(segments) if snaplen is None else cut(rendered(segments), snaplen)
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(packets, nanoseconds=True))
    [row] = [row for row in analyzer.analyze(str(path)).findings.to_pylist() if row["code"] == "capture-snaplen"]
    assert row["severity"] == severity
    assert ("content of record batches" in row["text"]) == (snaplen is None)


def test_show_says_that_what_follows_is_not_captured(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(without_content(conversation(1448)), nanoseconds=True))
    command = [*KWIRE, "show", str(path), "--tree", "--filter", "correlation_id == 2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "      (5.3 kB follow, which are not all in the capture)\n" in done.stdout
