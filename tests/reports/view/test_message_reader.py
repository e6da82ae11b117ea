"""Messages read at their offsets, against those of the whole capture.

Proves: reports/view/message_reader
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.filter.values import micros
from kwire.reports.view import message_reader
from tests.bench import messages as bench
from tests.captures import forge
from tests.captures.forge import Segment
from tests.reports.view.conftest import TXN


def wrapping(segments: Sequence[Segment]) -> list[Segment]:
    """Shift sequence numbers so that they wrap around in the middle of each direction."""
    numbers: dict[Any, list[int]] = {}
    for segment in segments:
        numbers.setdefault(segment.flow, []).append(segment.sequence)
    by = {flow: (1 << 32) - sorted(some)[len(some) // 2] for flow, some in numbers.items()}
    return [
        replace(
            segment,
            sequence=(segment.sequence + by[segment.flow]) % (1 << 32),
            acknowledgement=(segment.acknowledgement + by.get((segment.target, segment.source), 0)) % (1 << 32),
        )
        for segment in segments
    ]


def small(segments: Sequence[Segment], rng: random.Random) -> list[Segment]:
    return forge.resegmented(segments, rng, 60)


HOW: dict[str, tuple[Callable[[list[Segment], random.Random], Sequence[Segment]], float]] = {
    "as it was": (lambda segments, rng: segments, 1.0),
    "small packets": (small, 1.0),
    "several in one": (lambda segments, rng: forge.merged(segments, rng, 0.7), 1.0),
    "overlapping": (lambda segments, rng: forge.overlapped(small(segments, rng), rng, 0.3, 50), 0.9),
    "twice": (lambda segments, rng: forge.duplicated(segments, rng, 0.5), 1.0),
    "sent again": (lambda segments, rng: forge.retransmitted(small(segments, rng), rng, 0.1), 0.9),
    "reordered": (lambda segments, rng: forge.reordered(small(segments, rng), rng, 0.1), 0.7),
    "lossy": (lambda segments, rng: forge.dropped(small(segments, rng), rng, 0.02), 0.7),
    "numbers wrap": (lambda segments, rng: wrapping(small(segments, rng)), 1.0),
}
"""Orders of packets, and the least number of messages that can be read at their offsets."""


def rows(path: Path) -> list[tuple[dict[str, Any], analyzer.Exchange]]:
    """Get exchanges with their columns as in the view: times in us."""
    return [
        (
            {
                name: micros(value) if name.endswith(("_time", "_end")) and value else value
                for name, value in exchange.row.items()
            },
            exchange,
        )
        for exchange in analyzer.exchanges(path)
    ]


@pytest.mark.parametrize("how", HOW)
def test_a_message_of_its_place_is_that_of_the_whole_capture(tmp_path: Path, how: str) -> None:
    link, records = forge.loaded(TXN)
    impaired, share = HOW[how]
    path = tmp_path / "capture.pcap"
    path.write_bytes(forge.pcap(forge.rendered(impaired(forge.segments_of(records, link), random.Random(7)))))
    matches = known = 0
    for row, exchange in rows(path):
        for side, message in (("request", exchange.request_message), ("response", exchange.response_message)):
            if message is None:
                assert row[f"{side}_offset"] is None
                continue
            content = message_reader.read_message(str(path), row, side)
            known += message.complete
            if content is not None:
                assert message.complete
                assert content == message.data
                matches += 1
    assert matches >= share * known > 100


def test_what_is_not_plainly_the_message_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    writes = [
        forge.Write(forge.TO_BROKER, bench.produce_request(7, "app", "orders", 0, b"x" * 5_000)),
        forge.Write(forge.TO_CLIENT, bench.produce_response(7, "orders", 0, 0)),
    ]
    segments = forge.converse(writes, mss=1_000)
    path.write_bytes(forge.pcap(forge.rendered(segments)))
    ((row, exchange),) = rows(path)
    assert exchange.request_message is not None
    whole = exchange.request_message.data
    assert bytes(message_reader.read_message(str(path), row, "request") or b"") == whole
    for name, value in (
        ("request_bytes", row["request_bytes"] + 1),
        ("request_offset", row["request_offset"] + 1),
        ("request_offset", 24),
        ("request_offset", 1 << 40),
        ("request_offset", None),
        ("correlation_id", 8),
        ("request_time", row["request_time"] + 1),
        ("client_ip", "10.9.9.9"),
        ("broker_port", 1),
        ("api_key", 1),
    ):
        assert message_reader.read_message(str(path), {**row, name: value}, "request") is None, (name, value)
    # Nothing behind it is read; it is not there where its last packet is not, or is cut.
    carrying = [number for number, segment in enumerate(segments) if segment.payload in whole and segment.payload]
    records = forge.rendered(segments)
    path.write_bytes(forge.pcap(records[: carrying[-1] + 1]) + b"\xff" * 100)
    assert bytes(message_reader.read_message(str(path), row, "request") or b"") == whole
    path.write_bytes(forge.pcap(records[: carrying[-1]]))
    assert message_reader.read_message(str(path), row, "request") is None
    path.write_bytes(forge.pcap(forge.cut(records, 900)))
    assert message_reader.read_message(str(path), row, "request") is None
    # A packet sent again says what the first one said, or it is not known which of them counts.
    for payload, expected in ((segments[carrying[2]].payload, whole), (b"?" * 1_000, None)):
        again = replace(segments[carrying[2]], payload=payload)
        path.write_bytes(forge.pcap(forge.rendered([*segments[: carrying[3]], again, *segments[carrying[3] :]])))
        assert message_reader.read_message(str(path), row, "request") == expected
