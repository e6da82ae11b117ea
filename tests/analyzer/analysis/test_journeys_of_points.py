"""Journeys over capture points of one clock (`--same-clock`), against one capture of everything.

(proves: analyzer/analysis/journeys_of_points.py)
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import dpkt
import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.captures.files.write import pcap
from tests.analyzer.analysis.test_journeys import SECOND, batch, fetching, producing
from tests.captures.forge import Write, converse, interleaved, rendered
from tests.shared import SAMPLES, capture_files

Row = dict[str, Any]


def rows_of(*captures: Path, same_clock: bool = True, **options: Any) -> list[Row]:
    """Rows of journeys in order of time, without the capture's name."""
    rows: list[Row] = analyzer.analyze(list(captures), same_clock=same_clock, **options).tables["journeys"].to_pylist()
    return sorted(({**row, "capture": None} for row in rows), key=repr)


def divided(path: Path, folder: Path, kinds: tuple[str, ...]) -> list[Path]:
    """Write a sample's packets as two captures: those of connections that Produce, and the others, which have the
    packets of connections that do any of `kinds` too."""
    exchanges = analyzer.analyze(path).tables["exchanges"].to_pylist()
    apis: dict[int, set[str]] = {}
    for row in exchanges:
        apis.setdefault(row["client_port"], set()).add(row["api"])
    producing_ports = {port for port, those in apis.items() if "Produce" in those}
    both = {port for port in producing_ports if apis[port] & {*kinds}}
    reader = dpkt.pcap.Reader(io.BytesIO(gzip.decompress(path.read_bytes())))
    parts: list[list[tuple[float, bytes]]] = [[], []]
    for time, packet in reader:
        tcp = dpkt.ethernet.Ethernet(packet).data.data
        ports = {tcp.sport, tcp.dport}
        if ports & producing_ports:
            parts[0].append((time, packet))
        if not ports & producing_ports or ports & both:
            parts[1].append((time, packet))
    paths = [folder / "brokers-1.pcap", folder / "brokers-2.pcap"]
    for part, target in zip(parts, paths, strict=True):
        with target.open("wb") as file:
            writer = dpkt.pcap.Writer(file, linktype=reader.datalink())
            for time, packet in part:
                writer.writepkt(packet, time)
    return paths


@pytest.mark.parametrize("kinds", [(), ("Produce",)])
def test_two_points_of_one_clock_are_as_one_capture(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Also where both saw the producers' connections: each of their batches is one row."""
    [path] = capture_files(SAMPLES / "group-kip848-librdkafka-4.3")
    points = divided(path, tmp_path, kinds)
    whole = rows_of(path)
    assert sum(row["group_id"] is not None for row in whole) > 100
    assert rows_of(*points) == whole
    apart = rows_of(*points, same_clock=False)
    assert {row["group_id"] for row in apart if row["fetched"] is not None} <= (
        {row["group_id"] for row in whole} if kinds else {None}
    )


def written(folder: Path, name: str, *conversations: list[list[Write]], first: int = 0) -> Path:
    """Write a capture of a conversation a connection."""
    packets = [
        converse([write for part in parts for write in part], client=("10.0.0.1", 40_000 + first + n), acks=False)
        for n, parts in enumerate(conversations)
    ]
    path = folder / name
    path.write_bytes(pcap(rendered(interleaved(*packets)), nanoseconds=True))
    return path


def places(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["base_offset"], row["reader_client"], row["fetches"], row["reason"]) for row in rows]


def test_a_batch_read_at_another_point(tmp_path: Path) -> None:
    produced = written(tmp_path, "a.pcap", [producing(1, 10, 2, SECOND)])
    fetched = written(tmp_path, "b.pcap", [fetching(1, 10, batch(2, 10), 2 * SECOND)], first=1)
    for captures in ([produced, fetched], [fetched, produced]):
        tables = analyzer.analyze(captures, same_clock=True).tables
        [row] = tables["journeys"].to_pylist()
        assert (row["capture"], *places([row])[0]) == ("a.pcap", 10, "c", 1, None)
        assert row["fetched"] > row["acked"]
    apart = rows_of(produced, fetched, same_clock=False)
    assert places(apart) == [(10, None, None, "not read")]


def test_an_answer_that_two_points_saw_counts_once_and_another_one_twice(tmp_path: Path) -> None:
    produced = written(tmp_path, "a.pcap", [producing(1, 10, 2, SECOND)], [fetching(1, 10, batch(2, 10), 2 * SECOND)])
    seen_again = written(tmp_path, "b.pcap", [fetching(1, 10, batch(2, 10), 2 * SECOND + 5000)], first=1)
    assert places(rows_of(produced, seen_again)) == [(10, "c", 1, None)]
    later = written(tmp_path, "c.pcap", [fetching(1, 10, batch(2, 10), 9 * SECOND)], first=1)
    assert places(rows_of(produced, later)) == [(10, "c", 2, None)]
    elsewhere = written(tmp_path, "d.pcap", [fetching(1, 10, batch(2, 10), 2 * SECOND)], first=7)
    assert places(rows_of(produced, elsewhere)) == [(10, "c", 2, None)]


def test_a_batch_seen_on_both_sides_of_an_address_translation_is_one(tmp_path: Path) -> None:
    inside = written(tmp_path, "a.pcap", [producing(1, 10, 2, SECOND)])
    outside = written(
        tmp_path, "b.pcap", [producing(1, 10, 2, SECOND + 3000)], [fetching(1, 10, batch(2, 10), 2 * SECOND)], first=9
    )
    assert places(rows_of(inside, outside)) == [(10, "c", 1, None)]


def test_points_without_anything_produced(tmp_path: Path) -> None:
    alone = written(tmp_path, "b.pcap", [fetching(1, 10, batch(2, 10), 2 * SECOND)], first=1)
    other = written(tmp_path, "c.pcap", [fetching(1, 10, batch(2, 10), 3 * SECOND)], first=2)
    assert rows_of(alone, other) == []


def test_a_dataset_has_the_same_rows(tmp_path: Path) -> None:
    produced = written(tmp_path, "a.pcap", [producing(1, 10, 2, SECOND)])
    fetched = written(tmp_path, "b.pcap", [fetching(1, 10, batch(2, 10), 2 * SECOND)], first=1)
    dataset = tmp_path / "dataset"
    parser.main(["analyze", str(produced), str(fetched), "--same-clock", "-o", str(dataset)])
    stored = analyzer.open_dataset(dataset).journeys.to_table().to_pylist()
    assert sorted(({**row, "capture": None} for row in stored), key=repr) == rows_of(produced, fetched)


OTHERS = ["--no-journeys", "--engine spark", "--filter api==Fetch"]


@pytest.mark.parametrize("other", OTHERS)
def test_options_that_make_no_journeys_of_several_points(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    [path] = capture_files(SAMPLES / "group-kip848-librdkafka-4.3")
    with pytest.raises(SystemExit) as ended:
        parser.main(["analyze", str(path), "--same-clock", *other.split(" ", 1)])
    assert ended.value.code == 2
    assert f"--same-clock does not go with {other.removesuffix(' api==Fetch')}" in capsys.readouterr().err
