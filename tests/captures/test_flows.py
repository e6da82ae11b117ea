"""Which packets are one connection: four-tuples used once and again, begun before the capture, closed, reset, late.

`c` and `b` are packets of client and broker. A test says which connection each packet is told to belong to (0, 1 ... in
order of their first packets; None: none), and before which packet each ends. A reference implementation with a dict
must agree.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.captures.flows import FORGET_NS, FRESH_PACKETS, LINGER_NS, REMEMBERED, WOKEN_INDEX, WOKEN_SLOT, Flows
from kwire.captures.legs import MOST_LEGS
from tests.captures.forge import ACK, FIN, RST, SYN, End, Segment
from tests.captures.streaming import BROKER, CLIENT, HANDSHAKE, MS, START_NS, b, c, packets_of, timed
from tests.programs import CHECKED_AND_PLAIN, STRICT, printed

ROOT = Path(__file__).resolve().parent.parent.parent
LINGER = LINGER_NS // MS
"""Milliseconds that a closed connection still takes packets."""
FORGET = FORGET_NS // MS

CLOSE = (c(3, flags=FIN | ACK), b(0, ack=4, flags=FIN | ACK), c(4, ack=1))


@dataclass(frozen=True)
class Named:
    """`of`: for each packet its connection, or None. `ends`: (the packet before which it ended, connection). `open`:
    connections that are open at the end, in order of creation. `reuse`: for each connection, its number on its
    four-tuple, from 1."""

    of: list[int | None] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    reuse: list[int] = field(default_factory=list)


def name(
    segments: Sequence[Segment],
    batches: Sequence[int] = (),
    recycle: bool = False,
    remembered: int = REMEMBERED,
    most_legs: int = MOST_LEGS,
) -> Named:
    """Return the connections that `Flows` finds in packets.

    batches: numbers of packets after which a window ends; recycle: slots of ended connections are given back after
    each window, as the engine does."""
    every = timed(segments)
    flows, named = Flows(remembered, most_legs=most_legs), Named()
    cuts = [0, *sorted(batches), len(every)]
    alone: dict[frozenset[End], int] = {}  # four-tuples of which nothing but a SYN was seen so far: which packet
    for begin, end in pairwise(cuts):
        assigned = flows.assign(packets_of(every[begin:end], begin + 1))
        ended = assigned.ends.tolist()
        woken = assigned.woken[:, [WOKEN_INDEX, WOKEN_SLOT]].tolist()
        names: dict[int, int] = {}  # of slots, as they are after the packets seen so far
        for at, (slot, side) in enumerate(zip(assigned.slot.tolist(), assigned.side.tolist(), strict=True)):
            while ended and ended[0][0] <= at:
                _end(flows, named, names, begin, *ended.pop(0))
            if slot < 0:
                if begins_alone(every[begin + at]):
                    alone[frozenset(every[begin + at].flow)] = begin + at
                named.of.append(None)
                continue
            if slot not in names:
                names[slot] = _identity(flows, named, slot, every[begin + at])
            if [at, slot] in woken:
                named.of[alone.pop(frozenset(every[begin + at].flow))] = names[slot]
            named.of.append(names[slot])
            low = min(every[begin + at].flow, key=_sorting)
            assert side == (0 if every[begin + at].source == low else 1), "side 0 is the end point that sorts first"
        for end in ended:
            _end(flows, named, names, begin, *end)
        if recycle and len(assigned.ends):
            flows.recycle(assigned.ends[:, 1])
    named.open.extend(flows.end_points(int(slot))[3] for slot in flows.open_slots())
    assert flows.all_end().ends[:, 1].tolist() == flows.open_slots().tolist()
    return named


def begins_alone(segment: Segment) -> bool:
    """Whether a packet that begins a connection waits for a second one."""
    return segment.flags & (SYN | ACK | FIN | RST) == SYN and not segment.payload


def _sorting(end: End) -> tuple[int, int]:
    address = ipaddress.ip_address(end[0])
    return int(address) | (0xFFFF << 32 if address.version == 4 else 0), end[1]


def _identity(flows: Flows, named: Named, slot: int, segment: Segment) -> int:
    """The connection that a slot stands for: its order of creation."""
    left_end, other, reuse, born = flows.end_points(slot)
    assert sorted([left_end, other]) == sorted(_sorting(end) for end in segment.flow)
    while len(named.reuse) <= born:
        named.reuse.append(0)
    named.reuse[born] = reuse
    return born


def _end(flows: Flows, named: Named, names: dict[int, int], begin: int, at: int, slot: int) -> None:
    born = names.pop(slot, None)
    named.ends.append((begin + at, flows.end_points(slot)[3] if born is None else born))


def at(segments: Sequence[Segment], ms: int) -> list[Segment]:
    """These packets, one a millisecond from `ms` on."""
    return [replace(segment, time_ns=START_NS + (ms + index) * MS) for index, segment in enumerate(segments)]


def using(segments: Sequence[Segment], client: End = CLIENT, broker: End = BROKER, isn: int = 0) -> list[Segment]:
    """Move segments to other ends, with sequence numbers moved by `isn`."""
    ends = {CLIENT: client, BROKER: broker}
    return [
        replace(
            segment,
            source=ends[segment.source],
            target=ends[segment.target],
            sequence=(segment.sequence + isn) % 2**32,
            acknowledgement=(segment.acknowledgement + isn) % 2**32,
        )
        for segment in segments
    ]


# ---------------------------------------------------------------------------------------------------------- beginnings


def test_both_directions_are_one_connection() -> None:
    named = name([*HANDSHAKE, c(0, b"ask"), b(0, b"ok", ack=3), *CLOSE])
    assert named == Named(of=[0] * 8, open=[0], reuse=[1])  # closed, and lingering


def test_every_four_tuple_is_a_connection_of_its_own() -> None:
    """Another port, another address, another broker, and the same by IPv6."""
    others = [
        using(HANDSHAKE, ("10.0.0.1", 40_001)),
        using(HANDSHAKE, ("10.0.0.9", 40_000)),
        using(HANDSHAKE, broker=("10.0.0.2", 9093)),
        using(HANDSHAKE, ("2001:db8::1", 40_000), ("2001:db8::2", 9092)),
    ]
    named = name([segment for each in zip(HANDSHAKE, *others, strict=True) for segment in each])
    assert named.of == [0, 1, 2, 3, 4] * 3
    assert named.reuse == [1] * 5


def test_both_ends_on_one_address_and_port_numbers_swapped() -> None:
    """10.0.0.1:40000 to :9092 on the same host, and :9092 as a client of :40000: the same four-tuple."""
    talk = using([c(0, b"a"), b(0, b"b")], ("10.0.0.1", 40_000), ("10.0.0.1", 9092))
    assert name([*talk, replace(talk[0], source=talk[0].target, target=talk[0].source)]).of == [0, 0, 0]


def test_payload_begins_a_connection_whose_syn_was_not_captured() -> None:
    assert name([b(50, b"ok", ack=9), c(9, b"ask", ack=52)]).of == [0, 0]


@pytest.mark.parametrize("flags", [ACK, FIN | ACK, RST, RST | ACK])
def test_nothing_begins_with_a_packet_that_says_nothing(flags: int) -> None:
    """Acknowledgements, and the ends of connections nobody knows."""
    assert name([c(0, flags=flags), b(0, flags=flags)]) == Named(of=[None, None])


def test_a_syn_with_a_reset_opens_nothing() -> None:
    assert name([c(-1, flags=SYN | RST)]).of == [None]


# ------------------------------------------------------------------------------------------------------ SYN, once more


def test_a_syn_sent_again_is_the_same_connection() -> None:
    assert name([HANDSHAKE[0], *at(HANDSHAKE, 1000), *at([c(0, b"ask")], 2000)]).of == [0] * 5


def test_a_syn_ack_before_its_syn() -> None:
    assert name([HANDSHAKE[1], HANDSHAKE[0], HANDSHAKE[2]]).of == [0, 0, 0]


def test_a_syn_after_the_first_data() -> None:
    """Put out of order by the network: near the data's sequence numbers, and soon."""
    assert name([c(0, b"ask"), *HANDSHAKE]).of == [0] * 4


def test_a_syn_with_other_numbers_after_little_data_is_a_new_connection() -> None:
    named = name([c(0, b"old"), *using(HANDSHAKE, isn=1 << 30)])
    assert named == Named(of=[0, 1, 1, 1], ends=[(1, 0)], open=[1], reuse=[1, 2])


def test_a_syn_after_much_data_is_a_new_connection_whatever_its_numbers() -> None:
    data = [c(place, b"x") for place in range(FRESH_PACKETS + 1)]
    assert name([*data, *HANDSHAKE]).ends == [(len(data), 0)]
    assert name([*data[:-1], *HANDSHAKE]).ends == []


def test_both_ends_open_at_once() -> None:
    """Simultaneous open (RFC 9293, 3.5): two SYNs cross."""
    assert name([HANDSHAKE[0], b(-1, flags=SYN), c(-1, flags=SYN | ACK), b(-1, flags=SYN | ACK)]).of == [0] * 4


def test_an_answer_to_another_syn_is_another_connection() -> None:
    """Only the broker's side of the second use was captured: its SYN-ACK acknowledges another number."""
    named = name([HANDSHAKE[0], replace(HANDSHAKE[1], acknowledgement=77)])
    assert named == Named(of=[None, 1], open=[1], reuse=[0, 2])
    named = name([HANDSHAKE[0], HANDSHAKE[0], replace(HANDSHAKE[1], acknowledgement=77)])
    assert named == Named(of=[0, 0, 1], ends=[(2, 0)], open=[1], reuse=[1, 2])


# ------------------------------------------------------------------------------------------------------ a SYN, no more


def test_a_syn_alone_takes_no_slot() -> None:
    flows = Flows()
    scan = [using(HANDSHAKE[:1], (f"10.1.{number >> 8}.{number & 255}", 40_000))[0] for number in range(5000)]
    assert set(flows.assign(packets_of(timed(scan))).slot.tolist()) == {-1}
    assert (flows.slots, flows.remembered, len(flows.all_end().ends)) == (0, 5000, 0)


def test_a_second_packet_wakes_it_and_brings_what_the_first_one_said() -> None:
    for second in (HANDSHAKE[0], HANDSHAKE[1], c(0, b"ask"), c(0, flags=FIN | ACK)):
        flows = Flows()
        assert flows.assign(packets_of(timed(HANDSHAKE[:1]))).woken.tolist() == []
        assigned = flows.assign(packets_of([replace(second, time_ns=START_NS + MS)], 2))
        ((index, slot, time_ns, numbers, shape, mark),) = assigned.woken.tolist()
        assert (index, slot, time_ns) == (0, assigned.slot[0], START_NS)
        assert numbers == HANDSHAKE[0].sequence | HANDSHAKE[0].acknowledgement << 32
        assert (shape, mark >> 16) == (SYN, 1)
        assert flows.end_points(slot)[2:] == (1, 0)


def test_a_syn_that_is_refused_was_no_connection() -> None:
    named = name([HANDSHAKE[0], b(-1, flags=RST | ACK), c(0, b"ask")])
    assert named == Named(of=[None, None, 1], open=[1], reuse=[0, 2])


def test_a_port_scanned_again_and_again_is_one_row() -> None:
    flows = Flows()
    scan = [using(HANDSHAKE[:1], isn=10_000 * turn)[0] for turn in range(3000)]
    flows.assign(packets_of(timed(scan)))
    assert (flows.slots, flows.remembered) == (0, 1)
    assert name([*scan, HANDSHAKE[1]]).reuse[-1] == 3001


# ----------------------------------------------------------------------------------------------- ends and ports reused


def test_a_port_reused_at_once_is_told_by_its_initial_sequence_number() -> None:
    """No matter whether the first connection was closed."""
    for first in ([*HANDSHAKE, c(0, b"old")], [*HANDSHAKE, c(0, b"old"), *CLOSE]):
        named = name([*first, *using([*HANDSHAKE, c(0, b"new")], isn=1 << 20)])
        assert named.of == [0] * len(first) + [1] * 4
        assert named.ends == [(len(first), 0)]
        assert named.reuse == [1, 2]


def test_a_port_reused_many_times() -> None:
    every = [segment for turn in range(50) for segment in using([*HANDSHAKE, c(0, b"ask")], isn=turn * 10_000_000)]
    named = name(every)
    assert named.of == [turn for turn in range(50) for _ in range(4)]
    assert named.reuse == list(range(1, 51))
    assert named.open == [49]


def test_a_closed_connection_takes_late_packets_for_a_while() -> None:
    late = c(0, b"ask")
    closed = [*HANDSHAKE, late, *CLOSE]
    end = len(closed) - 2  # the second FIN closes it
    assert name([*closed, *at([late], end + LINGER)]).of == [0] * 8
    named = name([*closed, *at([late], end + LINGER + 1)])
    assert named == Named(of=[0, 0, 0, 0, 0, 0, 0, 1], ends=[(7, 0)], open=[1], reuse=[1, 2])


def test_an_acknowledgement_after_that_belongs_to_nobody() -> None:
    named = name([*HANDSHAKE, *CLOSE, *at([c(4, ack=1)], 10 * LINGER)])
    assert named == Named(of=[0] * 6 + [None], ends=[(6, 0)], open=[], reuse=[1])


@pytest.mark.parametrize("last", [RST, RST | ACK])
def test_a_reset_closes_at_once(last: int) -> None:
    other = at(using(HANDSHAKE, ("10.0.0.1", 40_001)), 10 * LINGER)
    named = name([*HANDSHAKE, b(0, ack=0, flags=last), *other])
    assert named == Named(of=[0, 0, 0, 0, 1, 1, 1], ends=[(4, 0)], open=[1], reuse=[1, 1])


def test_half_a_close_closes_nothing() -> None:
    """A FIN of one side: the other may talk for hours."""
    named = name([*HANDSHAKE, CLOSE[0], *at([b(0, b"still", ack=4)], 1000 * LINGER)])
    assert named == Named(of=[0] * 5, open=[0], reuse=[1])


def test_a_silent_connection_stays_open() -> None:
    """Keep-alive probes are hours apart, and may not be captured at all."""
    assert name([*HANDSHAKE, *at([c(0, b"ask")], 10_000_000)]).of == [0] * 4


def test_a_clock_that_steps_back_ends_nothing_early() -> None:
    """Time is the latest that was seen: a connection closed before the step is not kept for ever, nor ended by it."""
    back = [*HANDSHAKE, *CLOSE, *at([c(0, b"late")], -100 * LINGER), *at([c(0, b"late")], 2)]
    assert name(back).of == [0] * 8


def test_connections_end_in_the_order_in_which_they_closed() -> None:
    first, second = using([*HANDSHAKE, *CLOSE], ("10.0.0.1", 41_000)), [*HANDSHAKE, *CLOSE]
    open_first = [*first[:3], *second, *first[3:]]
    other = at(using(HANDSHAKE, ("10.0.0.1", 42_000)), 10 * LINGER)
    assert name([*open_first, *other]).ends == [(12, 1), (12, 0)]


# ---------------------------------------------------------------------------------------------------- many, and bounds


def test_ten_thousand_connections_and_their_slots_used_again() -> None:
    """Tables grow with the connections that are open, not with those that ever were."""
    packets: list[Segment] = []
    for number in range(10_000):
        opened = using([c(0, b"ask")], (f"10.1.{number >> 8}.{number & 255}", 40_000))[0]
        reset = replace(opened, flags=RST, sequence=opened.sequence + 3, payload=b"")
        packets += [replace(segment, time_ns=START_NS + number * 100 * MS) for segment in (opened, reset)]
    flows = Flows()
    for begin in range(0, len(packets), 500):
        ends = flows.assign(packets_of(packets[begin : begin + 500])).ends
        flows.recycle(ends[:, 1])
    assert flows.slots < 500
    assert len(flows.open_slots()) <= LINGER // 100 + 1
    every = name(packets, recycle=True, batches=range(500, 20_000, 500))
    assert every.of == [number for number in range(10_000) for _ in range(2)]


@pytest.mark.parametrize("count", [1 << 10, (1 << 10) + 1, 5000])
def test_all_open_at_once(count: int) -> None:
    """At the end of the capture all of them end, in order of creation."""
    opened = [using(HANDSHAKE[1:2], (f"10.1.{number >> 8}.{number & 255}", 40_000))[0] for number in range(count)]
    again = random.Random(count).sample(opened, count)
    flows = Flows()
    slots = flows.assign(packets_of(timed([*opened, *again]))).slot.tolist()
    assert sorted(slots[:count]) == list(range(count))
    assert [slots[opened.index(segment)] for segment in again[:50]] == slots[count : count + 50]
    ends = flows.all_end().ends.tolist()
    assert [slot for _, slot in ends] == slots[:count]
    assert all(index == 0 for index, _ in ends)


def turns(*clients: tuple[int, int]) -> list[Segment]:
    """Connections opened and reset at once, one a turn: (port of the client, minutes from the start)."""
    out: list[Segment] = []
    for turn, (port, minutes) in enumerate(clients):
        opened = using([c(0, b"ask")], ("10.0.0.1", port), isn=turn * 10_000_000)[0]
        reset = replace(opened, flags=RST, sequence=opened.sequence + 3, payload=b"")
        out += at([opened, reset], minutes * 60_000)
    return out


def test_a_four_tuple_that_ended_an_hour_ago_is_forgotten_where_there_are_too_many() -> None:
    """It ends at the packet after it lingered: at minute 1 here. What comes after it is forgotten has a number above
    its own, itself included, so that no name is given twice."""
    first = turns((1, 0), (1, 1), (1, 2), (2, 3))
    assert name(first, remembered=0).reuse == [1, 2, 3, 1]
    within = [*first, *turns((3, 62), (1, 63))]
    assert name(within, remembered=0).reuse == [1, 2, 3, 1, 1, 4]
    beyond = [*first, *turns((3, 64), (1, 65), (2, 66), (4, 67))]
    assert name(beyond, remembered=0).reuse == [1, 2, 3, 1, 4, 4, 2, 4]
    assert name(beyond, remembered=10).reuse == [1, 2, 3, 1, 1, 4, 2, 1]


def test_four_tuples_that_are_forgotten_leave_their_room_to_others() -> None:
    """Twelve days of a client that takes a new port every two minutes, which the tables do not grow with."""
    packets = turns(*((1 + turn % 60_000, 2 * turn) for turn in range(9000)))
    flows = Flows(remembered=20)
    for begin in range(0, len(packets), 500):
        flows.recycle(flows.assign(packets_of(packets[begin : begin + 500])).ends[:, 1])
    assert 20 < flows.remembered < 60
    assert len(flows.tables.flows) == len(Flows().tables.flows)
    assert len(flows.tables.past) == len(Flows().tables.past)


def test_a_four_tuple_used_again_and_again_takes_no_more_room() -> None:
    packets = turns(*((1 + turn % 3, turn) for turn in range(4000)))
    flows = Flows()
    flows.assign(packets_of(packets))
    assert flows.remembered == 3
    assert len(flows.tables.past) == len(Flows().tables.past)
    assert name(packets).reuse == [1 + turn // 3 for turn in range(4000)]


def test_no_two_connections_have_one_name_whatever_is_forgotten() -> None:
    rng = random.Random(7)
    clients = [(rng.randint(1, 400), 3 * turn) for turn in range(3000)]
    for remembered in (0, 5, 50):
        named = name(turns(*clients), remembered=remembered)
        names = [(port, number) for (port, _), number in zip(clients, named.reuse, strict=True)]
        assert len(set(names)) == len(names) == 3000
        again = name(turns(*clients), batches=sorted(rng.sample(range(6000), 9)), recycle=True, remembered=remembered)
        assert again.reuse == named.reuse


# ------------------------------------------------------------ the reference implementation, and the kernels another way


class Reference:
    """The rules of `flows`' docstring over a dict, one packet after the other."""

    def __init__(self, remembered: int) -> None:
        self.found = Named()
        self.remembered = remembered
        self.forgotten = 0
        self.past: dict[frozenset[End], int] = {}
        self.open: dict[frozenset[End], dict[str, Any]] = {}
        self.uses: dict[frozenset[End], int] = {}
        self.closed: list[dict[str, Any]] = []
        self.clock = -1

    def take(self, number: int, segment: Segment) -> None:
        self.clock = max(self.clock, segment.time_ns)
        while self.closed and self.clock - self.closed[0]["closed"] > LINGER_NS:
            self._end(number, self.closed[0])
        key = frozenset(segment.flow)
        opens = bool(segment.flags & SYN) and not segment.flags & RST
        known = self.open.get(key)
        if known is not None and known["alone"] is not None:
            if segment.flags & RST and not segment.payload:
                del self.open[key]
                self.past[key] = self.clock
                self.found.of.append(None)
                return
            if opens and self._replaces(known, segment):
                del self.open[key]
                known = None
            else:
                self.found.of[known["alone"]] = known["born"]
                self.found.reuse[known["born"]] = self.uses[key]
                known["alone"] = None
        elif known is not None and opens and self._replaces(known, segment):
            self._end(number, known)
            known = None
        if known is None:
            if not opens and not segment.payload:
                self.found.of.append(None)
                return
            if key not in self.uses:
                while len(self.past) > self.remembered and self.clock - min(self.past.values()) > FORGET_NS:
                    old = next(iter(self.past))
                    del self.past[old]
                    self.forgotten = max(self.forgotten, self.uses.pop(old))
                self.uses[key] = self.forgotten
            self.past.pop(key, None)
            self.uses[key] += 1
            known = self.open[key] = {
                "key": key,
                "born": len(self.found.reuse),
                "isn": {},
                "first": {},
                "packets": 0,
                "fins": set(),
                "closed": None,
                "opener": None,
                "alone": None,
            }
            if begins_alone(segment):
                known["alone"] = number
            self.found.reuse.append(0 if begins_alone(segment) else self.uses[key])
        self.found.of.append(known["born"] if known["alone"] is None else None)
        known["packets"] += 1
        if opens:
            known["isn"][segment.source] = segment.sequence
            if known["opener"] is None:
                known["opener"] = segment.target if segment.flags & ACK else segment.source
        known["first"].setdefault(segment.source, segment.sequence)
        if segment.flags & (FIN | RST):
            known["fins"].add("RST" if segment.flags & RST else segment.source)
            if known["closed"] is None and ("RST" in known["fins"] or len(known["fins"]) == 2):
                known["closed"] = self.clock
                self.closed.append(known)

    def _replaces(self, known: dict[str, Any], segment: Segment) -> bool:
        if segment.source in known["isn"]:
            return bool(known["isn"][segment.source] != segment.sequence)
        if segment.flags & ACK and segment.target in known["isn"]:
            return bool((known["isn"][segment.target] + 1) % 2**32 != segment.acknowledgement)
        if known["opener"] == segment.target and not segment.flags & ACK:
            return False
        if known["packets"] > FRESH_PACKETS:
            return True
        first = known["first"].get(segment.source)
        if first is None:
            return False
        distance = (first - segment.sequence) % 2**32
        return not (distance < 1 << 20 or distance > 2**32 - (1 << 20))

    def _end(self, number: int, connection: dict[str, Any]) -> None:
        self.found.ends.append((number, connection["born"]))
        del self.open[connection["key"]]
        self.past[connection["key"]] = self.clock
        if connection in self.closed:
            self.closed.remove(connection)


def by_reference(segments: Sequence[Segment], remembered: int = REMEMBERED) -> Named:
    every, tracker = timed(segments), Reference(remembered)
    for number, segment in enumerate(every):
        tracker.take(number, segment)
    tracker.found.open.extend(sorted(known["born"] for known in tracker.open.values() if known["alone"] is None))
    while tracker.found.reuse and tracker.found.reuse[-1] == 0:
        tracker.found.reuse.pop()
    return tracker.found


def tangled(rng: random.Random) -> list[Segment]:
    """Packets of few four-tuples without much sense, so that every rule meets every other."""
    out = []
    time_ns = START_NS
    for _ in range(rng.randint(1, 60)):
        time_ns += rng.choice([0, MS, 100 * MS, LINGER_NS // 2, LINGER_NS, LINGER_NS + 1, -MS, FORGET_NS])
        client = ("10.0.0.1", rng.choice([40_000, 40_001, 40_002]))
        isn = rng.choice([5, 5, 2**32 - 3, 1 << 30])
        at = rng.choice([-1, -1, 0, 3, 1 << 19, 1 << 21])
        flags = rng.choice([SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, RST, SYN | RST, SYN | FIN, 0])
        data = rng.choice([b"", b"x"])
        ack = (rng.choice([5, 2**32 - 3, 1 << 30]) + 1) % 2**32
        ends = rng.choice([(client, BROKER), (BROKER, client)])
        out.append(Segment(time_ns, *ends, (isn + 1 + at) % 2**32, ack, flags, data))
    return out


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 30), remembered=st.sampled_from([0, 1, 2, REMEMBERED]))
def test_the_kernel_does_what_the_plain_twin_does(seed: int, remembered: int) -> None:
    packets = tangled(random.Random(seed))
    assert name(packets, remembered=remembered, most_legs=0) == by_reference(packets, remembered)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1 << 30),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    recycle=st.booleans(),
    remembered=st.integers(0, 2),
)
def test_windows_and_recycled_slots_change_nothing(seed: int, cuts: list[int], recycle: bool, remembered: int) -> None:
    packets = tangled(random.Random(seed))
    cut = name(packets, [min(cut, len(packets)) for cut in cuts], recycle, remembered, 0)
    assert cut == name(packets, remembered=remembered, most_legs=0)


def few() -> str:
    """Describe a few captures and their connections; equal in each run."""
    return "\n".join(repr(name(tangled(random.Random(seed)), remembered=seed % 3, most_legs=0)) for seed in range(100))


@CHECKED_AND_PLAIN
def test_the_same_with_bounds_checks_and_without_compiling(variable: str, value: str) -> None:
    """A read past an array raises, and integers that wrap where they should not show (a hash wraps on purpose)."""
    code = "import tests.captures.test_flows as t; print(t.few())"
    assert printed(code, *STRICT, **{variable: value}) == few() + "\n"
