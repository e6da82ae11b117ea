"""Which four-tuples are legs of one connection, whose packets count, and what looks alike and is not.

(proves: captures/legs.py)

`c` and `b` are packets of client and broker. `under` shows them once more as another capture point of the host sees
them: under other addresses, a few microseconds later (what goes to the client: sooner).
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.captures import flow_tables, legs, streams
from kwire.captures.chunks.marks import together
from kwire.captures.flows import Flows
from tests.captures.forge import ACK, FIN, RST, SYN, End, Segment
from tests.captures.streaming import (
    BROKER,
    CLIENT,
    HANDSHAKE,
    MS,
    Event,
    Followed,
    Gap,
    b,
    c,
    follow,
    follow_one,
    packets_of,
    timed,
)

US = 1000
OUTSIDE, INSIDE = BROKER, ("172.17.0.2", 9092)
GATEWAY = ("172.17.0.1", 50_123)

TALK = (
    *HANDSHAKE,
    c(0, b"ask"),
    b(0, b"answer", ack=3),
    c(3, b"more", ack=6),
    b(6, b"so be it", ack=7),
    c(7, ack=14, flags=FIN | ACK),
    b(14, ack=8, flags=FIN | ACK),
    c(8, ack=15),
)


Ends = set[tuple[int, int]]


def moved(segment: Segment, client: End = CLIENT, broker: End = BROKER, delay_ns: int = 0) -> Segment:
    """Show a packet under other addresses, later."""
    ends = {CLIENT: client, BROKER: broker}
    target = ends[segment.target]
    return replace(segment, source=ends[segment.source], target=target, time_ns=segment.time_ns + delay_ns)


def under(
    segments: Sequence[Segment], client: End = CLIENT, broker: End = INSIDE, delay_ns: int = 5 * US
) -> list[Segment]:
    """All packets twice: what the client sends comes under its own addresses first, what it is sent last."""
    out = []
    for segment in timed(segments):
        later = delay_ns if segment.source == CLIENT else -delay_ns
        out += [segment, moved(segment, client, broker, later)]
    return sorted(out, key=lambda segment: segment.time_ns)


def names(
    segments: Sequence[Segment], batches: Sequence[int] = (), advertised: Sequence[End] = (), interface: int = 0
) -> list[tuple[Ends, list[Ends], int]]:
    """Of each open connection: addresses and ports of its name, of its other legs, and its number."""
    every = timed(segments)
    flows = Flows(advertised=lambda: map(number, advertised))
    for begin, end in pairwise([0, *sorted(batches), len(every)]):
        packets = packets_of(every[begin:end], begin + 1)
        inner = [INSIDE in segment.flow for segment in every[begin:end]]
        packets.columns.interface[:] = np.where(inner, interface, 0)
        flows.assign(packets)
    out = []
    for slot in flows.open_slots().tolist():
        left, right, reuse, _ = flows.end_points(slot)
        out.append(({left, right}, [set(leg) for leg in flows.other_end_points(np.array([slot])).get(slot, [])], reuse))
    return out


def handed_on(followed: Followed) -> list[tuple[str, Event]]:
    """Return what was handed on, whichever leg the connection has its sides from."""
    roles = {"client": "broker", "broker": "client"} if followed.client_opened is False else {}
    return [(roles.get(who, who), what) for who, what in followed.events]


def number(end: End) -> tuple[int, int]:
    return int(ipaddress.ip_address(end[0])) | 0xFFFF << 32, end[1]


@pytest.mark.parametrize(
    ("client", "broker"),
    [
        (CLIENT, INSIDE),  # DNAT
        (CLIENT, ("10.0.0.2", 19_092)),  # its port alone
        (GATEWAY, BROKER),  # SNAT
        (("10.0.0.7", 40_000), ("10.0.0.0", 9092)),  # both, ports stay, ends sort the other way round
        (GATEWAY, ("172.17.0.2", 31_092)),  # both, and both ports
    ],
    ids=["DNAT", "port", "SNAT", "both", "all"],
)
def test_another_leg_is_the_same_connection(client: End, broker: End) -> None:
    both = under(TALK, client, broker)
    once, twice = follow_one(TALK), follow_one(both)
    assert handed_on(twice) == handed_on(once)
    assert twice.rtt_ns == once.rtt_ns
    payload = sum(len(segment.payload) for segment in TALK)
    assert sum(side["duplicate_packets"] for side in twice.counters) == len(TALK)
    assert sum(side["duplicate"] for side in twice.counters) == payload
    assert sum(side["retransmissions"] + side["out_of_order"] for side in twice.counters) == 0
    assert names(both) == [({number(CLIENT), number(BROKER)}, [{number(client), number(broker)}], 1)]


def test_its_own_leg_tells_when_bytes_came() -> None:
    """The answer is seen under the container's address first; the client has it when it left the host."""
    both = under(TALK)
    followed = follow_one(both)
    own = [index + 1 for index, segment in enumerate(both) if segment.flow in ((CLIENT, BROKER), (BROKER, CLIENT))]
    assert {origin for _, origin in followed.origins} <= set(own)


@pytest.mark.parametrize("cut", range(3, len(TALK)))
def test_legs_of_a_connection_that_began_before_the_capture(cut: int) -> None:
    """Wherever the capture begins, also between a packet and its copy."""
    both = under(TALK)
    for first in (2 * cut, 2 * cut + 1):
        alone = follow(TALK[cut:])
        followed = follow(both[first:])
        if not alone:
            continue
        assert len(followed) == 1, first
        assert followed[0].sent("client") == alone[0].sent("client")
        assert followed[0].sent("broker") == alone[0].sent("broker")


def test_midway_the_leg_of_the_first_request_names_the_connection() -> None:
    assert names(under(TALK[3:7]))[0][0] == {number(CLIENT), number(OUTSIDE)}
    assert names(under(TALK[4:7]))[0][0] == {number(CLIENT), number(OUTSIDE)}, "it ends at the client last"


@pytest.mark.parametrize("packets", [TALK, TALK[3:7], TALK[4:7]])
def test_of_two_legs_on_one_interface_the_advertised_one_names_the_connection(packets: Sequence[Segment]) -> None:
    both = under(packets)
    outer, inner = {number(CLIENT), number(OUTSIDE)}, {number(CLIENT), number(INSIDE)}
    assert names(both, advertised=[INSIDE])[0][:2] == (inner, [outer])
    assert names(both, advertised=[OUTSIDE])[0][:2] == (outer, [inner])
    assert names(both, advertised=[INSIDE, OUTSIDE])[0][:2] == (outer, [inner])
    assert names(both, advertised=[INSIDE], interface=1)[0][:2] == (outer, [inner])
    for batches in ([1], [2], range(1, len(both))):
        assert names(both, list(batches), [INSIDE])[0][:2] == (inner, [outer])


def test_the_copies_of_a_leg_are_copies_too() -> None:
    """`-i any` shows the inner one twice: at the bridge, and at the container's end of it."""
    both = under(TALK)
    inner = [replace(segment, time_ns=segment.time_ns + 1) for segment in both if INSIDE in segment.flow]
    every = sorted([*both, *inner], key=lambda segment: segment.time_ns)
    followed = follow_one(every)
    assert handed_on(followed) == handed_on(follow_one(TALK))
    assert sum(side["duplicate_packets"] for side in followed.counters) == 2 * len(TALK)


def test_three_legs() -> None:
    """A node's port, the service's address, the container's."""
    third = [moved(segment, GATEWAY, ("10.1.1.1", 9092), 9 * US if segment.source == CLIENT else -9 * US)
             for segment in timed(TALK)]  # fmt: skip
    every = sorted([*under(TALK), *third], key=lambda segment: segment.time_ns)
    assert handed_on(follow_one(every)) == handed_on(follow_one(TALK))
    assert len(names(every)[0][1]) == 2


def test_bytes_that_its_own_leg_lacks_come_from_another() -> None:
    both = under(TALK)
    lost = [segment for segment in both if not (segment.payload in (b"answer", b"more") and INSIDE not in segment.flow)]
    followed = follow_one(lost)
    assert followed.sent("broker") == b"answerso be it"
    assert followed.sent("client") == b"askmore"
    assert not any(isinstance(what, Gap) for _, what in followed.events)


def test_legs_that_cut_the_bytes_otherwise() -> None:
    """Offloading puts segments together on one side only."""
    whole = [*HANDSHAKE, c(0, b"ask"), b(0, b"0123456789", ack=3), c(3, ack=10)]
    parts = [*HANDSHAKE, c(0, b"ask"), b(0, b"0123", ack=3), b(4, b"456789", ack=3), c(3, ack=10)]
    for own, other in ((whole, parts), (parts, whole)):
        left = timed([replace(segment, time_ns=-1) for segment in own])
        right = [
            moved(segment, CLIENT, INSIDE, 5 * US if segment.source == CLIENT else -5 * US)
            for segment in timed([replace(segment, time_ns=-1) for segment in other])
        ]
        every = sorted([*left, *right], key=lambda segment: segment.time_ns)
        followed = follow_one(every)
        assert followed.sent("broker") == b"0123456789"
        assert sum(side["duplicate"] for side in followed.counters) == 13


# ----------------------------------------------------------------------------------------------------------- redirects

PROXY = ("127.0.0.1", 15_001)


def redirected(segments: Sequence[Segment]) -> list[Segment]:
    """Requests go to the sidecar's port; answers come from the broker's address."""
    return [moved(segment, broker=PROXY) if segment.source == CLIENT else segment for segment in timed(segments)]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 5])
def test_requests_to_one_address_and_answers_from_another(first: int) -> None:
    followed = follow_one(redirected(TALK[first:]))
    once = follow_one(TALK[first:])
    assert (followed.sent("client"), followed.sent("broker")) == (once.sent("client"), once.sent("broker"))
    assert sum(side["duplicate_packets"] for side in followed.counters) == 0
    assert names(redirected(TALK[first:]))[0][:2] == (
        {number(CLIENT), number(BROKER)},
        [{number(CLIENT), number(PROXY)}],
    )


def test_a_redirect_that_begins_with_its_answer() -> None:
    packets = redirected(TALK)
    followed = follow_one([packets[1], packets[0], *packets[2:]])
    assert followed.sent("client") == b"askmore"


# --------------------------------------------------------------------------------------------------------- near misses


def other_numbers(segments: Sequence[Segment], isn: int = 1 << 30) -> list[Segment]:
    return [
        replace(
            segment,
            sequence=(segment.sequence + isn) % 2**32,
            acknowledgement=(segment.acknowledgement + isn) % 2**32,
        )
        for segment in segments
    ]


@pytest.mark.parametrize("from_start", [True, False])
def test_the_same_ports_with_other_numbers_are_two(from_start: bool) -> None:
    """A proxy's two connections, or two of one client: equal payload, moments apart."""
    talk = timed(TALK if from_start else TALK[3:7])
    every = sorted(
        [*talk, *(moved(segment, GATEWAY, INSIDE, 5 * US) for segment in other_numbers(talk))],
        key=lambda segment: segment.time_ns,
    )
    assert len(follow(every)) == 2


def test_two_ports_of_a_client_are_two_whatever_their_numbers() -> None:
    """As forged captures have them: each begins at the same number."""
    talk = timed(TALK)
    every = [*talk, *(moved(segment, (CLIENT[0], 40_001), BROKER, 5 * US) for segment in talk)]
    assert len(follow(sorted(every, key=lambda segment: segment.time_ns))) == 2


@pytest.mark.parametrize("delay_ns", [0, MS])
def test_the_same_numbers_at_the_same_time_or_later_are_two(delay_ns: int) -> None:
    """Without an identification in common. Copies take a moment, and no longer."""
    talk = timed(TALK)
    every = [*talk, *(moved(segment, GATEWAY, BROKER, delay_ns) for segment in talk)]
    assert len(follow(sorted(every, key=lambda segment: segment.time_ns))) == 2


def test_requests_to_one_address_and_answers_from_another_with_other_numbers() -> None:
    packets = redirected(TALK)
    strange = [packet if packet.source == CLIENT else other_numbers([packet])[0] for packet in packets]
    assert len(follow(strange)) == 2


def test_a_four_tuple_that_was_a_leg_is_used_again() -> None:
    """The gateway's port goes to another client, later."""
    again = [
        replace(segment, time_ns=segment.time_ns + 10_000 * MS)
        for segment in timed([moved(segment, GATEWAY, INSIDE) for segment in timed(other_numbers(TALK))])
    ]
    followed = follow([*under(TALK, GATEWAY, INSIDE), *again])
    assert [connection.sent("client") for connection in followed] == [b"askmore", b"askmore"]


def test_a_leg_that_begins_anew_leaves_the_connection_alone() -> None:
    """The first one goes on under its own addresses."""
    begun = under(TALK[:5], GATEWAY, INSIDE)
    anew = [
        replace(moved(segment, GATEWAY, INSIDE), time_ns=begun[-1].time_ns + (index + 1) * MS)
        for index, segment in enumerate(other_numbers([*HANDSHAKE, c(0, b"new")]))
    ]
    rest = [replace(segment, time_ns=anew[-1].time_ns + (index + 1) * MS) for index, segment in enumerate(TALK[5:7])]
    first, second = follow([*begun, *anew, *rest])
    assert (first.sent("client"), second.sent("client")) == (b"askmore", b"new")


# ---------------------------------------------------------------------------------------------------- whatever windows


@pytest.mark.parametrize("shards", [1, 3])
def test_no_window_and_no_shard_changes_anything(shards: int) -> None:
    for every in (under(TALK), under(TALK[3:]), redirected(TALK), under(TALK, GATEWAY, INSIDE)[1:]):
        whole = follow(every)
        for batches in (range(1, len(every)), [1], [3], [len(every) // 2]):
            assert follow(every, batches=list(batches), shards=shards) == whole
            assert names(every, list(batches)) == names(every)


def tangled(rng: random.Random) -> list[Segment]:
    """Legs that lose, repeat and mix packets."""
    talk = [*TALK[: rng.choice([3, 5, 7, 10])]]
    packets = under(talk[rng.choice([0, 0, 0, 1, 2, 3]) :], *rng.choice([(CLIENT, INSIDE), (GATEWAY, INSIDE)]))
    if rng.random() < 0.3:
        packets = redirected(talk)
    packets = [packet for packet in packets if rng.random() > 0.15]
    packets += [
        replace(packet, time_ns=packet.time_ns + rng.choice([1, 300 * MS])) for packet in packets if rng.random() < 0.2
    ]
    packets += [
        replace(packet, flags=rng.choice([RST, SYN, SYN | ACK, FIN | ACK])) for packet in packets if rng.random() < 0.05
    ]
    return sorted(packets, key=lambda packet: packet.time_ns + rng.choice([0, 0, 10 * US]))


@settings(max_examples=200)
@given(seed=st.integers(0, 1 << 30), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_windows_change_nothing_of_what_is_tangled(seed: int, cuts: list[int]) -> None:
    """And what was captured is handed on, a duplicate, or late (`follow` checks it)."""
    every = tangled(random.Random(seed))
    batches = [min(cut, len(every)) for cut in cuts]
    assert follow(every, batches=batches) == follow(every)
    assert names(every, batches) == names(every)


def test_a_name_changes_only_while_nothing_is_handed_on() -> None:
    assert legs.RENAMED_WITHIN <= streams.HOLD_PACKETS
    assert flow_tables.LEG_BITS & 0x1FFF == 0


def test_many_connections_with_legs_take_memory_for_those_that_are_open() -> None:
    flows = Flows()
    for turn in range(300):
        start = [replace(segment, time_ns=segment.time_ns + turn * 10_000 * MS) for segment in timed(TALK)]
        shifted = [moved(s, (CLIENT[0], 10_000 + turn), BROKER) for s in other_numbers(start, 1000 * turn)]
        inner = [replace(s, source=INSIDE if s.source == BROKER else s.source, time_ns=s.time_ns + 5 * US,
                         target=INSIDE if s.target == BROKER else s.target) for s in shifted]  # fmt: skip
        every = sorted([*shifted, *inner], key=lambda segment: segment.time_ns)
        assigned = flows.assign(packets_of(every, 1))
        flows.recycle(assigned.ends[:, 1])
    assert flows.slots <= 3
    assert len(flows.tables.legs) == len(Flows().tables.legs)


def test_groups_stay_together_for_what_only_legs_have_in_common() -> None:
    """A client may use a port for several brokers at once: that alone joins a group of requests and one of answers."""
    copy, asks, answers = 4, 1, 2
    one_port_two_brokers = [(7, 0, asks), (7, 0, answers), (7, 1, asks), (7, 1, answers)]
    one_way_captures = [(8, 0, asks), (8, 2, asks)]
    redirect = [(9, 3, asks), (9, 4, asks), (9, 5, answers)]
    legs = [(10, 6, copy), (10, 8, copy)]
    marks = [np.array(rows, np.int64) for rows in (one_port_two_brokers, [*one_way_captures, *redirect], legs)]
    assert together(marks, 9).tolist() == [0, 1, 2, 3, 3, 3, 6, 7, 6]
    assert together([marks[0][:2], marks[0][2:]], 2).tolist() == [0, 1]
    assert together([], 3).tolist() == [0, 1, 2]
