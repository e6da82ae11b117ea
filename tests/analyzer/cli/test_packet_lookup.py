"""Which message a packet is part of, where a filter names one that begins none. Proves:
analyzer/cli/packet_lookup.py"""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.analyzer.cli import packet_lookup
from kwire.analyzer.pipeline.read_options import ReadOptions
from tests.analyzer import forging
from tests.captures import forge
from tests.captures.forge import TO_BROKER, TO_CLIENT, Write, converse, interleaved

MSS = 16


def test_a_packet_in_the_middle_of_a_message_finds_it(tmp_path: Path) -> None:
    """Two connections that talk at the same time, in segments of a few bytes: each packet by what was written."""
    conversations = []
    for port in (40000, 40001):
        writes = []
        for number in range(3):
            writes += [
                Write(TO_BROKER, forging.heartbeat(number)),
                Write(TO_CLIENT, forging.heartbeat_answer(number)),
            ]
        conversations.append(converse(writes, client=("10.0.0.1", port), mss=MSS, start_ns=forge.START_NS + port % 7))
    segments = interleaved(*conversations)
    path = tmp_path / "capture.pcap"
    path.write_bytes(forge.pcap(forge.rendered(segments)))
    sizes = len(forging.heartbeat(0)), len(forging.heartbeat_answer(0))
    assert sizes[0] > 2 * MSS, "a request takes several packets"
    sent: dict[tuple[object, object], int] = {}
    first: dict[tuple[object, object, int], int] = {}
    for number, segment in enumerate(segments, 1):
        to_broker = segment.target[1] == 9092
        before = sent.get(segment.flow, 0)
        sent[segment.flow] = before + len(segment.payload)
        [line] = packet_lookup.packet_notes([str(path)], ReadOptions(), f"packet == {number}")
        ends = f"from {segment.source[0]}:{segment.source[1]} to {segment.target[0]}:{segment.target[1]}"
        if not segment.payload:
            assert line == f"packet {number}, {ends}: an acknowledgement or the like, without a byte"
            continue
        exchange = before // sizes[0 if to_broker else 1]
        begun = first.setdefault((*segment.flow, exchange), number)
        client = segment.source if to_broker else segment.target
        assert line == (
            f"packet {number} has bytes of the {'request' if to_broker else 'response'} of exchange {exchange} "
            f"(Heartbeat) of {client[0]}:{client[1]}-10.0.0.2:9092#1, which begins in packet {begun}: "
            f"--filter 'packet == {begun}'"
        )


@pytest.mark.parametrize(
    "expression, notes",
    [
        ("packet == 99", ["packet 99: no TCP packet of that number"]),
        ("packet in (98, 99)", ["packet 98: no TCP packet of that number", "packet 99: no TCP packet of that number"]),
        ("packet > 99", []),
        ("api == Produce", []),
        ("packet is null", []),
    ],
)
def test_what_is_not_there_is_said(expression: str, notes: list[str], tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    writes = [Write(TO_BROKER, forging.heartbeat(1)), Write(TO_CLIENT, forging.heartbeat_answer(1))]
    path.write_bytes(forge.pcap(forge.rendered(converse(writes))))
    assert packet_lookup.packet_notes([str(path)], ReadOptions(), expression) == notes
