"""TCP streams, pathology by pathology: what was captured, packet by packet, and what is handed on, in its order.

`c` and `b` are packets of client and broker, placed by bytes from the start of what each says. At the end the kernels
are compared with a reference implementation, and run interpreted and with bounds checks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.captures import out_of_order, stream_tables, streams
from kwire.captures.flows import Flows
from kwire.captures.streams import Streams
from tests.captures.forge import (
    ACK,
    FIN,
    PSH,
    RST,
    SYN,
    TO_BROKER,
    TO_CLIENT,
    Segment,
    Write,
    converse,
    dropped,
    duplicated,
    merged,
    overlapped,
    reordered,
    resegmented,
    retransmitted,
)
from tests.captures.streaming import (
    BROKER_ISN,
    CLIENT_ISN,
    FIN_SEEN,
    HANDSHAKE,
    MS,
    OVER,
    RST_SEEN,
    START_NS,
    Cut,
    Followed,
    Gap,
    b,
    c,
    follow,
    follow_one,
    packets_of,
    timed,
)
from tests.programs import CHECKED_AND_PLAIN, STRICT, printed

ROOT = Path(__file__).resolve().parent.parent.parent
CLOSE = (c(3, ack=2, flags=FIN | ACK), b(2, ack=4, flags=FIN | ACK), c(4, ack=3))
"""After three bytes of the client and two of the broker."""

CLOSED = [("client", FIN_SEEN), ("broker", FIN_SEEN), ("both", OVER)]
ENDED = [("both", OVER)]


def counted(followed: Followed) -> dict[str, int]:
    """Both ends' counters together, without the zeros and the sizes of everything."""
    client, broker = followed.counters
    both = {name: client[name] + broker[name] for name in client}
    return {name: count for name, count in both.items() if count and name not in ("packets", "captured")}


# ------------------------------------------------------------------------------------------------------------ in order


def test_what_both_say_comes_in_the_order_of_its_bytes() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(0, b"ok", ack=3), *CLOSE])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), *CLOSED]
    assert counted(followed) == {}
    assert followed.counters[0]["packets"] == 5
    assert followed.counters[1]["packets"] == 3
    assert followed.rtt_ns == 2 * MS  # SYN to the first packet that follows its answer
    assert followed.client_opened is True


def test_a_broker_that_speaks_first() -> None:
    followed = follow_one([*HANDSHAKE, b(0, b"hello"), c(0, b"ask", ack=5)])
    assert followed.events == [("broker", b"hello"), ("client", b"ask"), *ENDED]


def test_every_byte_is_known_by_the_packet_it_came_with() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ab"), c(2, b"c"), b(0, b"ok", ack=3)])
    assert followed.origins == [("client", 4), ("client", 4), ("client", 5), ("broker", 6), ("broker", 6)]


# --------------------------------------------------------------------------------------------------------- reordering


def test_reordered_segments_are_put_in_order() -> None:
    followed = follow_one([*HANDSHAKE, c(2, b"cd"), c(4, b"ef"), c(0, b"ab"), b(0, b"ok", ack=6)])
    assert followed.events == [("client", b"abcdef"), ("broker", b"ok"), *ENDED]
    assert followed.origins[:6] == [("client", 6)] * 2 + [("client", 4)] * 2 + [("client", 5)] * 2
    assert counted(followed) == {"out_of_order": 1}


def test_an_answer_captured_before_its_request_comes_after_it() -> None:
    followed = follow_one([*HANDSHAKE, b(0, b"ok", ack=3), c(0, b"ask")])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), *ENDED]


def test_a_whole_dialogue_captured_backwards() -> None:
    dialogue = [c(0, b"a"), b(0, b"1", ack=1), c(1, b"b", ack=1), b(1, b"2", ack=2), c(2, b"c", ack=2)]
    followed = follow_one([*HANDSHAKE, *reversed(dialogue)])
    assert [what for _, what in followed.events] == [b"a", b"1", b"b", b"2", b"c", OVER]


def test_a_handshake_captured_backwards() -> None:
    followed = follow_one([*reversed(HANDSHAKE), c(0, b"ask"), b(0, b"ok", ack=3)])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), *ENDED]
    assert followed.client_opened is True


def test_a_syn_captured_after_data() -> None:
    followed = follow_one([c(0, b"ask"), HANDSHAKE[0], HANDSHAKE[1], b(0, b"ok", ack=3)])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), *ENDED]


def test_a_fin_captured_before_the_last_data() -> None:
    """It ends its own direction behind the last byte, and says nothing of the other."""
    followed = follow_one([*HANDSHAKE, CLOSE[0], c(0, b"ask"), b(0, b"ok", ack=3), *CLOSE[1:]])
    assert followed.events == [
        ("client", b"ask"),
        ("client", FIN_SEEN),
        ("broker", b"ok"),
        ("broker", FIN_SEEN),
        ("both", OVER),
    ]


def test_a_segment_with_a_newer_acknowledgement_repeats_bytes_that_an_older_one_brings_later() -> None:
    """The broker's second segment repeats its last byte. Captured first, it seems to say that this byte was sent after
    the second request, which in its turn was sent after that byte. The late original shows who came first."""
    followed = follow_one(
        [
            *HANDSHAKE,
            c(0, b"ask"),
            b(1, b"k" + b"later", ack=7),
            c(3, b"more", ack=2),
            b(0, b"ok", ack=3),
        ]
    )
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), ("client", b"more"), ("broker", b"later"), *ENDED]
    assert followed.origins[3:5] == [("broker", 7), ("broker", 5)]  # the first copy of a byte counts, as ever


def test_so_it_is_where_the_older_copy_lies_within_bytes_that_wait() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(0, b"oklater", ack=7), c(3, b"more", ack=2), b(1, b"k", ack=3)])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), ("client", b"more"), ("broker", b"later"), *ENDED]


def test_bytes_before_what_an_older_packet_brings_are_at_least_as_old() -> None:
    """Sent again with a newer acknowledgement while what followed was under way: it follows from what follows."""
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(2, b"rest", ack=3), b(0, b"ok", ack=7), c(3, b"more", ack=6)])
    assert followed.events == [("client", b"ask"), ("broker", b"okrest"), ("client", b"more"), *ENDED]


def test_two_that_wait_for_each_other_without_a_copy_that_tells() -> None:
    """The capture lost the original of what was sent again: the order is found from what the others acknowledge, when
    waiting has taken too long or the capture ends."""
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(0, b"oklater", ack=7), c(3, b"more", ack=2)])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), ("client", b"more"), ("broker", b"later"), *ENDED]


# -------------------------------------------------------------------------------------------- copies of the same bytes


def test_a_retransmission_is_a_duplicate_and_counted() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), c(0, b"ask", ms=300), b(0, b"ok", ack=3)])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), *ENDED]
    assert counted(followed) == {"duplicate": 3, "retransmissions": 1}
    assert followed.origins[:3] == [("client", 4)] * 3


def test_a_retransmission_may_bring_more_than_the_first_one() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ab"), c(0, b"abcd", ms=300)])
    assert followed.sent("client") == b"abcd"
    assert followed.origins == [("client", 4)] * 2 + [("client", 5)] * 2
    assert counted(followed)["duplicate"] == 2


def test_a_retransmission_that_fills_a_hole_late_is_no_reordering() -> None:
    followed = follow_one([*HANDSHAKE, c(2, b"cd"), c(0, b"ab", ms=300)])
    assert followed.sent("client") == b"abcd"
    assert counted(followed) == {"retransmissions": 1}


def test_a_segment_that_spans_waiting_ones_brings_what_lies_between() -> None:
    followed = follow_one([*HANDSHAKE, c(2, b"c"), c(5, b"f"), c(1, b"bcdefg"), c(0, b"a")])
    assert followed.sent("client") == b"abcdefg"
    assert [number for _, number in followed.origins] == [7, 6, 4, 6, 6, 5, 6]
    assert counted(followed)["duplicate"] == 2


def test_overlapping_bytes_that_differ_after_they_were_handed_on() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), c(1, b"EVIL")])
    assert followed.sent("client") == b"askIL"


def test_overlapping_bytes_that_differ_while_they_wait() -> None:
    """Both checksums are right, so the first copy stays; that they differ is counted."""
    followed = follow_one([*HANDSHAKE, c(1, b"sk"), c(1, b"EV"), c(0, b"a")])
    assert followed.sent("client") == b"ask"
    assert counted(followed)["conflicts"] == 2


def test_a_copy_that_divides_waiting_bytes_leaves_their_checksum_right() -> None:
    """An older copy divides what waits (see above). Its rest is still known to be right and gives way to nothing."""
    evil = b(2, b"EVIL!", ack=7)
    followed = follow_one(
        [*HANDSHAKE, c(0, b"ask"), b(0, b"oklater", ack=7), b(1, b"k", ack=3), evil, c(3, b"more", ack=2)]
    )
    assert followed.sent("broker") == b"oklater"
    assert counted(followed)["conflicts"] == 5


def test_the_same_packet_seen_twice_is_no_retransmission() -> None:
    """With the same IPv4 identification; `test_copies.py` has the rest."""
    packets, flows, stage = timed([*HANDSHAKE, c(0, b"ask"), b(0, b"ok", ack=3)]), Flows(), Streams()
    for number, packet in enumerate(packets):
        for sighting in range(2):
            batch = packets_of([packet], number)
            stage.advance(batch, flows.assign(batch), 2 * number + sighting, flows.slots)
    both = stage.directions[:2].sum(axis=0)
    assert both[stream_tables.D_DUPLICATE_PACKETS] == len(packets)
    assert both[stream_tables.D_RETRANSMISSIONS] == 0


# ------------------------------------------------------------------------------------------------- keep-alive, windows


def test_a_keep_alive_is_no_retransmission() -> None:
    """RFC 9293, 3.8.4: one byte before the next one, of whatever value."""
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(0, ack=3), c(2, b"\0", ms=60_000), b(0, ack=3), c(3, b"more")])
    assert followed.sent("client") == b"askmore"
    assert counted(followed) == {"duplicate": 1}


def test_a_keep_alive_without_a_byte() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(0, ack=3), c(2, ms=60_000), b(0, ack=3), c(3, b"more")])
    assert followed.sent("client") == b"askmore"
    assert counted(followed) == {}


def test_a_keep_alive_before_anything_was_said() -> None:
    """Its byte has the SYN's place in the stream, and is none of it."""
    followed = follow_one([*HANDSHAKE, c(-1, b"\0", ms=60_000), b(0), c(0, b"ask")])
    assert followed.sent("client") == b"ask"


def test_a_zero_window_is_counted_and_so_is_its_probe() -> None:
    followed = follow_one(
        [*HANDSHAKE, c(0, b"ask"), b(0, ack=3, window=0), c(3, b"m"), b(0, ack=3, window=0), c(3, b"more")]
    )
    assert followed.sent("client") == b"askmore"
    assert counted(followed)["zero_windows"] == 2


# ---------------------------------------------------------------------------------------------- sequence numbers wrap


@pytest.mark.parametrize("before", [1, 2, 3, 500])
def test_sequence_numbers_wrap(before: int) -> None:
    """Both directions pass 2^32, `before` bytes after their first."""
    writes = [Write(TO_BROKER, bytes(range(200)) * 5), Write(TO_CLIENT, bytes(range(100)) * 10)] * 2
    packets = converse(writes, mss=90, client_isn=2**32 - 1 - before, broker_isn=2**32 - 1 - before)
    followed = follow_one(reordered(packets, random.Random(before), 0.3))
    assert followed.sent("client") == bytes(range(200)) * 10
    assert followed.sent("broker") == bytes(range(100)) * 20
    assert set(CLOSED) <= set(followed.events)
    assert followed.gaps("client") == followed.gaps("broker") == []


def test_a_stream_longer_than_all_sequence_numbers() -> None:
    """4.5 GB, most of it lost: the same sequence numbers come again, for other bytes."""
    step, seconds = 1 << 30, 10_000
    packets = [*HANDSHAKE]
    for turn in range(1, 6):
        acks = [b(0, ack=turn * step + 4, ms=turn * 4 * seconds + wait * seconds) for wait in range(1, 4)]
        packets += [c(turn * step, b"here", ms=turn * 4 * seconds), *acks]
    followed = follow_one(packets)
    assert followed.sent("client") == b"here" * 5
    assert followed.gaps("client") == [step] + [step - 4] * 4


# --------------------------------------------------------------------------------------------------------- lost packets


def test_a_lost_packet_is_a_gap_in_its_place() -> None:
    """Acknowledged bytes will not be sent again: the capture lost them."""
    followed = follow_one([*HANDSHAKE, c(0, b"ab"), c(12, b"yz"), b(0, b"ok", ack=14), *[b(2, ack=14)] * 5])
    assert followed.events == [("client", b"ab"), ("client", Gap(10)), ("client", b"yz"), ("broker", b"ok"), *ENDED]
    assert counted(followed) == {"gaps": 1, "gap_bytes": 10}


def test_a_gap_is_known_so_many_packets_after_its_acknowledgement() -> None:
    """One round to see what is acknowledged, and one in which it may come."""
    begin, rounds = [*HANDSHAKE, c(2, b"cd"), b(0, ack=4)], streams.REORDER_PACKETS
    acks = [b(0, ack=4, window=1 + number) for number in range(2 * rounds + 2)]
    assert follow_one([*begin, *acks[:rounds]], ended=False).events == []
    assert follow_one([*begin, *acks], ended=False).events == [("client", Gap(2)), ("client", b"cd")]


def test_a_gap_is_known_so_long_after_its_acknowledgement() -> None:
    """In time, too, if there are few packets."""
    begin, long = [*HANDSHAKE, c(2, b"cd"), b(0, ack=4)], streams.REORDER_NS // MS
    acks = [b(0, ack=4, ms=long), b(0, ack=4, ms=long + 100), b(0, ack=4, ms=2 * long + 200)]
    assert follow_one([*begin, *acks[:2]], ended=False).events == []
    assert follow_one([*begin, *acks], ended=False).events == [("client", Gap(2)), ("client", b"cd")]


def test_bytes_that_nobody_acknowledged_may_still_come() -> None:
    """Lost on the network, not by the capture: TCP sends them again, however late."""
    begin = [*HANDSHAKE, c(0, b"ab"), c(4, b"ef"), b(0, ack=2)]
    waiting = [b(0, ack=2, ms=10_000 + number) for number in range(streams.REORDER_PACKETS + 10)]
    followed = follow_one([*begin, *waiting, c(2, b"cd", ms=20_000), b(0, ack=6)])
    assert followed.events == [("client", b"abcdef"), *ENDED]
    assert counted(followed) == {"retransmissions": 1}


def test_bytes_that_come_after_their_gap_was_declared_are_late() -> None:
    acks = [b(0, ack=4, ms=10_000), b(0, ack=4, ms=20_000)]
    followed = follow_one([*HANDSHAKE, c(2, b"cd"), b(0, ack=4), *acks, c(0, b"ab"), c(4, b"ef")])
    assert followed.events == [("client", Gap(2)), ("client", b"cdef"), *ENDED]
    assert counted(followed) == {"late": 2, "gaps": 1, "gap_bytes": 2, "retransmissions": 1}


def test_lost_bytes_at_the_end_are_a_gap_too() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ab"), b(0, ack=12)])
    assert followed.events == [("client", b"ab"), ("client", Gap(10)), *ENDED]


def test_lost_bytes_before_a_fin() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ab"), c(5, flags=FIN | ACK), b(0, ack=6, flags=FIN | ACK), c(6, ack=1)])
    assert followed.events == [
        ("client", b"ab"),
        ("broker", FIN_SEEN),
        ("client", Gap(3)),
        ("client", FIN_SEEN),
        *ENDED,
    ]


def test_a_capture_of_one_direction_waits_for_no_acknowledgement() -> None:
    """Nobody can say what arrived: what did not come in time is a gap."""
    packets = [c(0, flags=SYN), c(0, b"ab"), c(6, b"gh", ms=100), c(8, b"ij", ms=4000), c(10, b"kl", ms=8000)]
    followed = follow_one([replace(packets[0], sequence=CLIENT_ISN), *packets[1:]], ended=False)
    assert followed.events == [("client", b"ab"), ("client", Gap(4)), ("client", b"ghijkl")]


def test_the_snap_length_cuts_bytes_that_are_known_to_be_missing() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"abcdef"), c(6, b"gh")], snaplen=44)
    assert followed.events == [("client", b"abcd"), ("client", Cut(2)), ("client", b"gh"), *ENDED]
    assert counted(followed) == {"snaplen": 2}


def test_the_snap_length_cuts_bytes_that_wait() -> None:
    followed = follow_one([*HANDSHAKE, c(2, b"cdefgh"), c(0, b"ab")], snaplen=44)
    assert followed.events == [("client", b"abcdef"), ("client", Cut(2)), *ENDED]


# ---------------------------------------------------------------------------------------------- beginnings and endings


def test_a_capture_that_begins_in_the_middle() -> None:
    """After a few packets the lowest byte seen is where the stream begins."""
    followed = follow_one([c(700, b"gh", ack=50), c(698, b"ef", ack=50), b(50, b"ok", ack=702), c(702, b"ij", ack=52)])
    assert followed.events == [("client", b"efgh"), ("broker", b"ok"), ("client", b"ij"), *ENDED]
    assert followed.client_opened is None
    assert followed.gaps("client") == []


def test_a_capture_that_begins_with_acknowledgements_only() -> None:
    """Pure ACKs of a connection nobody knows make no connection; data does."""
    assert follow([c(5, ack=9), b(9, ack=5)]) == []
    followed = follow_one([c(5, ack=9), b(9, b"ok", ack=5)])
    assert followed.events == [("broker", b"ok"), *ENDED]


def test_what_lies_before_the_beginning_is_late() -> None:
    """Once the beginning was fixed, bytes before it are duplicates of what the capture never had."""
    packets = [c(700 + 2 * number, b"ab", ack=9) for number in range(streams.HOLD_PACKETS)]
    followed = follow_one([*packets, b(9, ack=716), c(690, b"older")])
    assert followed.sent("client") == b"ab" * streams.HOLD_PACKETS
    assert counted(followed) == {"duplicate": 5, "retransmissions": 1}


def test_a_connection_that_is_half_open_only_asks() -> None:
    """A SYN that nobody answers: no bytes, one packet each time it is sent."""
    followed = follow_one([HANDSHAKE[0], replace(HANDSHAKE[0], time_ns=START_NS + 1000 * MS)])
    assert followed.events == ENDED
    assert followed.counters[0]["packets"] == 2
    assert followed.client_opened is True
    assert followed.rtt_ns == -1


def test_a_connection_that_is_refused() -> None:
    """It never was one; sent again and refused it is."""
    refusal = b(-1, flags=RST | ACK)
    assert follow([HANDSHAKE[0], refusal]) == []
    followed = follow_one([HANDSHAKE[0], replace(HANDSHAKE[0], time_ns=START_NS + 1000 * MS), refusal])
    assert followed.events == [("broker", RST_SEEN), *ENDED]


def test_half_a_close_lets_the_other_side_go_on() -> None:
    """A FIN ends one direction."""
    followed = follow_one(
        [*HANDSHAKE, c(0, b"ask"), c(3, flags=FIN | ACK), b(0, b"long", ack=4), b(4, b" answer", ack=4)]
    )
    assert followed.events == [("client", b"ask"), ("client", FIN_SEEN), ("broker", b"long answer"), *ENDED]


def test_a_fin_with_data_and_a_fin_sent_again() -> None:
    fin = c(0, b"bye", flags=FIN | PSH | ACK)
    followed = follow_one([*HANDSHAKE, fin, replace(fin, time_ns=START_NS + 900 * MS), b(0, ack=4, flags=FIN | ACK)])
    assert followed.events == [("client", b"bye"), *CLOSED]
    assert counted(followed) == {"duplicate": 3, "retransmissions": 1}


def test_a_reset_ends_at_once() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), b(0, ack=3, flags=RST | ACK)])
    assert followed.events == [("client", b"ask"), ("broker", RST_SEEN), *ENDED]


def test_a_reset_waits_for_what_it_acknowledges() -> None:
    """Captured before the last request, which it acknowledges."""
    followed = follow_one([*HANDSHAKE, b(0, b"ok", ack=3, flags=RST | ACK), c(0, b"ask")])
    assert followed.events == [("client", b"ask"), ("broker", b"ok"), ("broker", RST_SEEN), *ENDED]


def test_a_reset_with_a_number_from_nowhere_is_taken_to_mean_now() -> None:
    followed = follow_one([*HANDSHAKE, c(0, b"ask"), replace(b(0, flags=RST), sequence=BROKER_ISN + (1 << 30))])
    assert followed.events == [("client", b"ask"), ("broker", RST_SEEN), *ENDED]
    assert followed.gaps("broker") == []


def test_bytes_after_a_reset_are_still_handed_on() -> None:
    """They were under way."""
    followed = follow_one([*HANDSHAKE, b(0, flags=RST), c(0, b"ask")])
    assert followed.events == [("broker", RST_SEEN), ("client", b"ask"), *ENDED]


def test_a_port_used_again_is_another_stream() -> None:
    """Same four-tuple, other initial sequence numbers; the first connection never closed."""
    again = [replace(c(-1, flags=SYN), sequence=77), replace(b(-1, flags=SYN | ACK), sequence=88, acknowledgement=78)]
    again += [replace(c(0, b"new"), sequence=78, acknowledgement=89)]
    first, second = follow([*HANDSHAKE, c(0, b"old"), c(9, b"waits"), *again])
    assert first.events == [("client", b"old"), ("client", Gap(6)), ("client", b"waits"), *ENDED]
    assert second.events == [("client", b"new"), *ENDED]


def test_connections_do_not_touch_each_other() -> None:
    """One loses packets, the other does not."""
    other = [
        replace(segment, **{end: ("10.0.0.1", 41_000)})  # type: ignore[arg-type]
        for segment in (*HANDSHAKE, c(0, b"ask"), b(0, b"ok", ack=3))
        for end in ("source" if segment.source[0] == "10.0.0.1" else "target",)
    ]
    lossy = [*HANDSHAKE, c(3, b"def"), b(0, b"no", ack=6)]
    mixed = [segment for pair in zip(lossy, other, strict=True) for segment in pair]
    first, second = follow(mixed)
    assert first.events == [("client", Gap(3)), ("client", b"def"), ("broker", b"no"), *ENDED]
    assert second.events == [("client", b"ask"), ("broker", b"ok"), *ENDED]


# ------------------------------------------------------------------------------------------------------------- bounds


def test_so_many_segments_may_wait_for_a_hole() -> None:
    """Beyond them the hole is a gap, even if nobody acknowledged it."""
    segments = [c(2 * number, b"x", ms=1) for number in range(1, out_of_order.WAITING_SEGMENTS + 2)]
    few = follow_one([*HANDSHAKE, *segments[: out_of_order.WAITING_SEGMENTS - 1]], ended=False)
    assert few.events == []
    many = follow_one([*HANDSHAKE, *segments], ended=False)
    assert many.sent("client") != b""
    assert set(many.gaps("client")) <= {1, 2}


def test_so_many_bytes_may_wait() -> None:
    """Beyond them the connection at hand is flushed: its holes are gaps."""
    begin = [*HANDSHAKE, c(1000, b"x" * 1000), c(3000, b"y" * 1000)]
    assert follow_one(begin, ended=False, waiting_bytes=2000).events == []
    assert follow_one([*begin, c(5000, b"z")], ended=False, waiting_bytes=2000).events == [
        ("client", Gap(1000)),
        ("client", b"x" * 1000),
        ("client", Gap(1000)),
        ("client", b"y" * 1000),
        ("client", Gap(1000)),
        ("client", b"z"),
    ]


def test_memory_of_bytes_that_waited_is_used_again() -> None:
    """A thousand holes, each filled: the store of waiting bytes does not grow with the stream."""
    flows, stage, block = Flows(), Streams(), bytes(50_000)
    packets = timed(HANDSHAKE)
    for turn in range(100):
        at = turn * 100_000
        packets += [c(at + 50_000, block), c(at, block)]
    for base, segment in enumerate(timed(packets)):
        batch = packets_of([segment])
        stage.advance(batch, flows.assign(batch), base, flows.slots)
        assert stage.waiting <= len(block)
    assert len(stage._tables.held) <= 1 << 22
    assert stage.directions[0, stream_tables.D_CAPTURED] == 10_000_000


def test_bytes_that_wait_stay_right_while_their_memory_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    pieces = [rng.randbytes(40_000) for _ in range(150)]
    late = sorted(range(len(pieces)), key=lambda number: number + 30 * rng.random())
    packed: list[bool] = []

    def watched(waiting: np.ndarray, order: np.ndarray, held: np.ndarray) -> int:
        assert (np.diff(waiting[order, stream_tables.W_AT]) > 0).all(), "none moves to where another's bytes are"
        packed.append(bool((np.diff(order) < 0).any()))
        return int(out_of_order.compact(waiting, order, held))

    monkeypatch.setattr(streams, "compact", watched)
    segments = [*HANDSHAKE, *(c(40_000 * number, pieces[number]) for number in late)]
    (followed,) = follow(segments, batches=range(1, len(segments)))
    assert followed.sent("client") == b"".join(pieces)
    assert len(packed) >= 2
    assert any(packed), "rows are not in the order of their bytes"


def test_memory_is_kept_while_bytes_wait_again_and_again() -> None:
    flows, stage, block = Flows(), Streams(), bytes(50_000)
    at, sizes, base = 0, [], 0

    def take(*segments: Segment) -> None:
        nonlocal base
        batch = packets_of(timed(segments), base + 1)
        stage.advance(batch, flows.assign(batch), base, flows.slots)
        base += len(segments)
        sizes.append(len(stage._tables.held))

    take(*HANDSHAKE)
    for _ in range(4):  # 40 MB wait for what comes first, and then nothing does
        take(*(c(at + 50_000 * number, block) for number in range(1, 800)))
        take(c(at, block))
        at += 40_000_000
    after = len(sizes)
    for _ in range(40):
        take(c(at, b"x"))
        at += 1
    assert len(set(sizes[1:after])) == 1
    assert sizes[after] == sizes[1] >= 40_000_000
    assert sizes[-1] == 1 << 20


# ------------------------------------------------------------ the reference implementation, and the kernels another way


class Reference:
    """One direction as a map from place to packet: the first captured copy of a byte counts."""

    def __init__(self, segments: Sequence[Segment], source: str, isn: int) -> None:
        self.first: dict[int, int] = {}
        self.value: dict[int, int] = {}
        self.stop = 0
        fin = None
        for number, segment in enumerate(segments, 1):
            if segment.source[0] == source:
                at = (segment.sequence - isn - 1 + 2**31) % 2**32 - 2**31
                for place, byte in enumerate(segment.payload, at):
                    self.first.setdefault(place, number)
                    self.value.setdefault(place, byte)
                if segment.payload:
                    self.stop = max(self.stop, at + len(segment.payload))
                if segment.flags & (FIN | RST):
                    fin = at + len(segment.payload)
        acknowledged = max(
            (
                (segment.acknowledgement - isn - 1) % 2**32
                for segment in segments
                if segment.source[0] != source and segment.flags & ACK and not segment.flags & RST
            ),
            default=0,
        )
        if fin is not None:
            acknowledged = min(acknowledged, fin)
        self.stop = max(self.stop, acknowledged, fin or 0)

    @property
    def sent(self) -> bytes:
        return bytes(self.value[place] for place in range(self.stop) if place in self.value)

    @property
    def origins(self) -> list[int]:
        return [self.first[place] for place in range(self.stop) if place in self.first]

    @property
    def gaps(self) -> list[int]:
        runs = [0]
        for place in range(self.stop):
            if place in self.first:
                runs.append(0)
            else:
                runs[-1] += 1
        return [run for run in runs if run]


@st.composite
def dialogues(draw: st.DrawFn) -> list[Write]:
    """Draw the writes of two applications in turns; every byte tells its place."""
    sizes = draw(st.lists(st.tuples(st.booleans(), st.sampled_from([1, 4, 30, 200])), min_size=1, max_size=8))
    counts = {True: 0, False: 0}
    out = []
    for to_broker, size in sizes:
        out.append(Write(to_broker, bytes((counts[to_broker] + place) % 251 for place in range(size))))
        counts[to_broker] += size
    return out


def treated(segments: list[Segment], rng: random.Random) -> list[Segment]:
    """Cut, joined, overlapping, sent again, out of order, seen twice; the handshake stays where it is."""
    shaken, rest = segments[:3], segments[3:]
    rest = resegmented(rest, rng, rng.choice([1448, 60, 9]))
    rest = merged(rest, rng, rng.choice([0, 0.5]))
    rest = overlapped(rest, rng, rng.choice([0, 0.3]))
    rest = retransmitted(rest, rng, rng.choice([0, 0.2]), within=20)
    rest = reordered(rest, rng, rng.choice([0, 0.2, 0.6]), within=rng.choice([1, 4, 32]))
    return shaken + duplicated(rest, rng, rng.choice([0, 0.2]))


def conversation(writes: list[Write], close: str | None, rng: random.Random) -> tuple[list[Segment], int, int]:
    isns = rng.choice([7, 2**32 - 50]), rng.choice([9, 2**32 - 70])
    return converse(writes, close=close, client_isn=isns[0], broker_isn=isns[1]), *isns  # type: ignore[arg-type]


closes = st.sampled_from(["fin", "rst", None])
seeds = st.integers(0, 1 << 30)


@settings(max_examples=150)
@given(writes=dialogues(), close=closes, seed=seeds)
def test_where_nothing_is_lost_all_is_handed_on_in_the_order_in_which_it_was_said(
    writes: list[Write], close: str | None, seed: int
) -> None:
    """Nobody answers before he was asked: what a write followed on comes before it."""
    rng = random.Random(seed)
    segments, _, _ = conversation(writes, close, rng)
    followed = follow_one(treated(segments, rng))
    assert followed.gaps("client") == followed.gaps("broker") == []
    expected, handed_on = Followed(), Followed()
    for write in writes:
        expected.add("client" if write.to_broker else "broker", write.data)
    for who, what in followed.events:
        if isinstance(what, bytes):
            handed_on.add(who, what)
    assert handed_on.events == expected.events
    if close == "fin":
        assert set(CLOSED) <= set(followed.events)
    elif close == "rst":
        assert followed.events[-2:] == [("client", RST_SEEN), *ENDED]


@settings(max_examples=150)
@given(writes=dialogues(), close=closes, seed=seeds)
def test_where_packets_are_lost_gaps_are_in_their_places(writes: list[Write], close: str | None, seed: int) -> None:
    rng = random.Random(seed)
    segments, client_isn, broker_isn = conversation(writes, close, rng)
    captured = treated(segments, rng)
    captured = captured[:3] + dropped(captured[3:], rng, rng.choice([0.02, 0.2, 0.5]))
    followed = follow_one(captured)
    for who, source, isn in (("client", "10.0.0.1", client_isn), ("broker", "10.0.0.2", broker_isn)):
        reference = Reference(captured, source, isn)
        assert followed.sent(who) == reference.sent
        assert [number for end, number in followed.origins if end == who] == reference.origins
        assert followed.gaps(who) == reference.gaps


@settings(max_examples=60)
@given(writes=dialogues(), seed=seeds, cuts=st.lists(st.integers(0, 60), max_size=5), shards=st.integers(1, 3))
def test_windows_and_shards_change_nothing(writes: list[Write], seed: int, cuts: list[int], shards: int) -> None:
    rng = random.Random(seed)
    captured = dropped(treated(conversation(writes, "fin", rng)[0], rng), rng, 0.05)
    whole = follow(captured)
    assert follow(captured, batches=[min(cut, len(captured)) for cut in cuts], shards=shards) == whole


def few() -> str:
    """Describe sixty captures and their bytes; equal in each run."""
    out = []
    for seed in range(60):
        rng = random.Random(seed)
        writes = [Write(rng.random() < 0.5, rng.randbytes(rng.choice([1, 40, 300]))) for _ in range(6)]
        captured = dropped(treated(conversation(writes, rng.choice(["fin", "rst", None]), rng)[0], rng), rng, 0.1)
        spoiled = [
            replace(segment, payload=bytes(len(segment.payload))) if rng.random() < 0.1 else segment
            for segment in captured
        ]
        out.append(repr(follow(spoiled, snaplen=rng.choice([100, 1 << 20]), waiting_bytes=rng.choice([100, 1 << 20]))))
    return "\n".join(out)


@CHECKED_AND_PLAIN
def test_the_same_with_bounds_checks_and_without_compiling(variable: str, value: str) -> None:
    """A read past an array raises, and integers that wrap where they should not show (a hash wraps on purpose)."""
    code = "import tests.captures.test_streams as t; print(t.few())"
    assert printed(code, *STRICT, **{variable: value}) == few() + "\n"
