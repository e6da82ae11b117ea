"""Connections that never were: who asked whom, how often, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kwire.captures.attempts import MOST, PAUSE_NS, WAITED_NS, Attempt, attempts, unmet
from kwire.captures.flows import OTHERS, Flows
from tests.captures.forge import ACK, RST, SYN, End, Segment
from tests.captures.streaming import HANDSHAKE, MS, START_NS, b, c, packets_of, timed
from tests.captures.test_flows import using

ADDRESS = {"10.0.0.1": 0xFFFF_0A00_0001, "10.0.0.2": 0xFFFF_0A00_0002}
SECOND = 1000


def of(segments: Sequence[Segment], *cuts: int) -> list[Attempt]:
    """Return the failed attempts that `Flows` sees in packets by time; `cuts`: ends of windows."""
    every = sorted(timed(segments), key=lambda packet: packet.time_ns)
    flows, begin = Flows(), 0
    for end in (*cuts, len(every)):
        flows.assign(packets_of(every[begin:end], begin + 1))
        begin = end
    return attempts([unmet(flows)])


def turn(number: int, *segments: Segment, every_ms: int = 1000, client: str = "10.0.0.1") -> list[Segment]:
    """A client's try from a port of its own, `every_ms` after the one before."""
    end: End = (client, 41_000 + number)
    start = START_NS + number * every_ms * MS
    return [replace(segment, time_ns=start + at * MS) for at, segment in enumerate(using(segments, end))]


REFUSAL = (HANDSHAKE[0], b(-1, flags=RST | ACK))
LATER = [c(0, b"x", ms=200 * SECOND)]
"""Something else, so that the capture lasts."""


def test_refusals_are_counted_by_client_and_server() -> None:
    tries = [packet for number in range(3) for packet in turn(number, *REFUSAL)]
    client, server = ADDRESS["10.0.0.1"], ADDRESS["10.0.0.2"]
    last = START_NS + 2 * SECOND * MS
    assert of(tries) == [Attempt(client, server, 9092, 3, 0, 3, START_NS, last)]
    assert of(tries, 1, 2, 3, 4, 5) == of(tries)


def test_a_syn_sent_again_and_then_refused_is_one_refusal() -> None:
    tries = [packet for number in range(2) for packet in turn(number, HANDSHAKE[0], *REFUSAL)]
    assert [(attempt.refused, attempt.unanswered) for attempt in of(tries)] == [(2, 0)]


def test_silence_counts_once_whatever_tcp_sends_again() -> None:
    tries = [
        packet for number in range(4) for packet in turn(number, *[HANDSHAKE[0]] * (1 + number), every_ms=25 * SECOND)
    ]
    (attempt,) = of([*tries, *LATER])
    assert (attempt.refused, attempt.unanswered, attempt.most) == (0, 4, 3)  # at 0, 25 and 50 s


def test_after_a_pause_it_is_another_matter() -> None:
    tries = [packet for number in range(4) for packet in turn(number, *REFUSAL)]
    later = [replace(packet, time_ns=packet.time_ns + PAUSE_NS + 1) for packet in tries[4:]]
    assert [(attempt.refused, attempt.first_ns) for attempt in of([*tries[:4], *later])] == [
        (2, START_NS),
        (2, START_NS + 2 * SECOND * MS + PAUSE_NS + 1),
    ]


def test_a_syn_at_the_end_of_the_capture_may_be_answered_yet() -> None:
    wait = WAITED_NS // MS
    tries = [packet for number in range(3) for packet in turn(number, HANDSHAKE[0])]
    assert [attempt.unanswered for attempt in of([*tries, c(0, b"x", ms=wait + 1000)])] == [2]
    assert of([*tries, c(0, b"x", ms=wait)]) == []  # one alone says nothing


def test_what_was_answered_is_no_attempt() -> None:
    """Also where the answer was not captured, where it was reset later, and where nothing of the beginning was seen."""
    reset = b(0, flags=RST)
    for ways in ([*HANDSHAKE], [*HANDSHAKE, reset], [HANDSHAKE[0], c(0, b"ask")], [c(0, b"ask"), reset]):
        tries = [packet for number in range(3) for packet in turn(number, *ways)]
        assert of([*tries, *LATER]) == []


def test_a_client_that_gives_up_by_a_reset_was_not_refused() -> None:
    tries = [packet for number in range(3) for packet in turn(number, HANDSHAKE[0], c(0, flags=RST))]
    assert [(attempt.refused, attempt.unanswered) for attempt in of([*tries, *LATER])] == [(0, 3)]


def test_the_server_may_sort_first() -> None:
    """The side that sent the SYN is the client, whichever address is smaller."""
    client: End = ("10.0.0.9", 100)
    tries = [
        replace(packet, time_ns=START_NS + number * MS)
        for number in range(2)
        for packet in using(REFUSAL, (client[0], client[1] + number))
    ]
    (attempt,) = of(tries)
    assert (attempt.client & 0xFF, attempt.server, attempt.port) == (9, ADDRESS["10.0.0.2"], 9092)


def test_a_scan_makes_no_rows_and_hides_nobody() -> None:
    """Twenty thousand end points asked once each, and one of them twice more by another."""
    flows = Flows()
    ends = [(f"10.1.{number >> 8}.{number & 255}", 9092) for number in range(20_000)]
    scan = [using(HANDSHAKE[:1], broker=end)[0] for end in ends]
    real = [packet for number in range(3) for packet in turn(number, *REFUSAL, client="10.9.9.9")]
    flows.assign(packets_of(timed([*[replace(packet, time_ns=START_NS) for packet in scan], *real, *LATER])))
    assert flows.slots == 1
    assert [(attempt.refused, attempt.unanswered) for attempt in attempts([unmet(flows)])] == [(3, 0)]


def test_of_very_many_pairs_the_most_frequent_are_kept() -> None:
    flows = Flows()
    count = MOST + 10
    ends = [(f"10.1.{number >> 8}.{number & 255}", 40_000 + again) for number in range(count) for again in (0, 1)]
    twice = [using(HANDSHAKE[:1], end)[0] for end in ends]
    thrice = turn(7, HANDSHAKE[0], client="10.1.39.20")
    flows.assign(packets_of(timed([*[replace(packet, time_ns=START_NS) for packet in twice], *thrice, *LATER])))
    results = attempts([unmet(flows)])
    assert len(results) == MOST
    assert (results[0].unanswered, results[0].client & 0xFFFF) == (3, 39 << 8 | 20)
    assert np.all(np.diff([attempt.unanswered for attempt in results]) <= 0)


def test_who_had_shares_of_the_packets_says_the_same_together() -> None:
    tries = [packet for number in range(7) for packet in turn(number, *(REFUSAL if number % 3 else HANDSHAKE[:1]))]
    every = [*tries, *LATER]
    shares = []
    for share in range(2):
        flows = Flows(alone=True)
        packets = packets_of(every)
        is_other_share = np.maximum(packets.columns.src_port, packets.columns.dst_port) % 2 != share
        packets.columns.number[is_other_share] = OTHERS
        flows.assign(packets)
        shares.append(unmet(flows))
    assert all(len(unmet_syns.time_ns) > 1 for unmet_syns in shares)
    assert attempts(shares) == of(every) != []


def test_nothing_of_nothing() -> None:
    assert attempts([unmet(Flows())]) == []
    assert of([c(-1, flags=SYN)]) == []
