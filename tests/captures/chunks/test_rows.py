"""Packets as rows are put in order by group and become the same columns again, whatever numbers these have.

(proves: captures/chunks/rows.py)
"""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.packet import raw
from scapy.utils import checksum

from kwire.captures import segment_sums as c
from kwire.captures.acknowledgements import LEAST_OPTIONS
from kwire.captures.chunks import rows as r
from kwire.captures.chunks.groups import groups_of, pairs_of
from kwire.captures.kernels import NULL
from kwire.captures.windows import Content, PacketColumns, room_for

U32 = st.sampled_from((0, 1, 2**31 - 1, 2**31, 2**32 - 1)) | st.integers(0, 2**32 - 1)
U64 = st.sampled_from((0, 1, 2**63 - 1, 2**63, 2**64 - 1)) | st.integers(0, 3)
U16 = st.sampled_from((0, 1, 2**15, 2**16 - 1))
TELLING = (
    "interface",
    "src_hi",
    "src_lo",
    "dst_hi",
    "dst_lo",
    "src_port",
    "dst_port",
    "seq",
    "ack",
    "window",
    "flags",
    "payload_length",
    "identity",
)
GROUPS = 5


@st.composite
def packets(draw: st.DrawFn) -> PacketColumns:
    """Some, of few end points, whose bytes lie in order, now and then far apart."""
    count = draw(st.integers(1, 12))
    ends = draw(st.lists(st.tuples(U64, U64, U16), min_size=1, max_size=3))
    columns = room_for(count)
    number, at = draw(st.integers(1, 2**40)), 100
    for i in range(count):
        at += draw(st.sampled_from((0, 1, 60, r.GAP_BYTES, r.GAP_BYTES + 1, 2**33)))
        header, captured = draw(st.integers(20, 60)), draw(st.sampled_from((0, 0, 1, 1460)))
        source, target = draw(st.sampled_from(ends)), draw(st.sampled_from(ends))
        values: dict[str, int] = {
            "number": number,
            "file": 0,
            "record_at": at + 1000 - draw(st.integers(36, 200)),
            "time_ns": 0,
            "interface": draw(st.integers(0, 2)),
            "src_hi": source[0],
            "src_lo": source[1],
            "dst_hi": target[0],
            "dst_lo": target[1],
            "src_port": source[2],
            "dst_port": target[2],
            "seq": draw(U32),
            "ack": draw(U32),
            "window": draw(U16),
            "flags": draw(st.integers(0, 0x1FF)),
            "tcp_at": at,
            "payload_at": at + header,
            "payload_captured": captured,
            "payload_length": draw(U32),
            "identity": draw(U32),
        }
        for name, value in values.items():
            getattr(columns, name)[i] = value
        number += draw(st.sampled_from((1, 7, 2**33)))
        at += header + captured
    return columns


def _sums(count: int) -> np.ndarray:
    """Return checksum results of all kinds."""
    sums = [total << c.SUM_BITS | verdict for total in (0, 7, 0x8000, 0xFFFE) for verdict in (c.SUM_LEFT, c.SUM_RIGHT)]
    return np.resize(np.array([c.SUM_UNKNOWN, *sums], np.int32), count)


def _sorted(columns: PacketColumns, base: int = NULL) -> tuple[Any, ...]:
    """(rows, ways, where each group's rows end, whose packets are)."""
    pairs = pairs_of(
        (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port)
    )
    words = r.as_words(columns)
    whose, counts, sizes = r.grouped(words, pairs, GROUPS)
    ways, way = r.ways_of(words, pairs)
    arrived, rows = np.empty((2, len(pairs), r.WORDS), np.int64)
    ends = np.cumsum(counts)
    assert r.put_rows(words, _sums(len(pairs)), way, base, int(words.number[0]), 0, arrived) == 0
    r.group_rows(arrived, whose, ends - counts, rows)
    assert (whose == groups_of(pairs, GROUPS)).all()
    assert len(ways) == len({tuple(way) for way in ways.tolist()})
    assert sizes.tolist() == [int(_needed(columns)[whose == group].sum()) for group in range(GROUPS)]
    return rows, ways, ends.tolist(), whose


def _blank(count: int) -> PacketColumns:
    columns = room_for(count)
    for column in columns:
        column[:] = 0
    return columns


def _needed(columns: PacketColumns) -> np.ndarray:
    """Bytes of each packet that are read: of one without payload those of TCP options that may tell of SACK."""
    header = columns.payload_at - columns.tcp_at
    read = (columns.payload_captured > 0) | (header >= 20 + LEAST_OPTIONS)
    return np.where(read, header + columns.payload_captured, 0)


@given(packets(), st.sets(st.integers(0, GROUPS - 1)), st.booleans())
def test_columns_come_back(columns: PacketColumns, chosen_groups: set[int], stay: bool) -> None:
    rows, ways, ends, whose = _sorted(columns, 1000 if stay else NULL)
    back, sums = _blank(len(whose)), np.zeros(len(whose), np.int32)
    for group in range(GROUPS):
        own = rows[ends[group - 1] if group else 0 : ends[group]]
        assert (np.diff(own[:, r.PLACE] & 0x7FFFFF) > 0).all()
        r.tell_rows(own, ways, r.as_words(back))
        if group in chosen_groups:
            r.place_rows(own, int(columns.number[0]), 1050 if stay else 77, stay, r.as_words(back), sums)
            sizes = _needed(columns)[whose == group]
            places = columns.tcp_at[whose == group] - 50 if stay else 77 + np.cumsum(sizes) - sizes
            assert (back.tcp_at[whose == group] == places)[sizes > 0].all()
    for name in TELLING:
        assert (getattr(back, name) == getattr(columns, name)).all(), name
    chosen = np.isin(whose, list(chosen_groups))
    for name in ("number", "record_at", "payload_captured"):
        assert (getattr(back, name) == np.where(chosen, getattr(columns, name), 0)).all(), name
    assert (sums == np.where(chosen, _sums(len(whose)), 0)).all()
    assert ((back.payload_at - back.tcp_at + back.payload_captured)[chosen] == _needed(columns)[chosen]).all()
    if stay:
        assert (back.tcp_at[_needed(columns) == 0] == 0).all()


def _stretches(columns: PacketColumns, chosen: np.ndarray) -> list[list[int]]:
    """[begin, end] of each, one packet after the other."""
    stretches: list[list[int]] = []
    for i in np.flatnonzero(chosen & (_needed(columns) > 0)).tolist():
        at, end = int(columns.tcp_at[i]), int(columns.payload_at[i] + columns.payload_captured[i])
        if stretches and at - stretches[-1][1] <= r.GAP_BYTES:
            stretches[-1][1] = end
        else:
            stretches.append([at, end])
    return stretches


@given(packets(), st.integers(1, 3))
def test_it_is_told_how_bytes_lie(columns: PacketColumns, shares: int) -> None:
    *_, whose = _sorted(columns, 1000)
    everyone = _stretches(columns, whose >= 0)
    begin, end = (everyone[0][0], everyone[-1][1]) if everyone else (0, 0)
    for share in range(shares):
        chosen = whose % shares == share
        total = sum(end - begin for begin, end in _stretches(columns, chosen))
        own = int(_needed(columns)[chosen].sum())
        assert r.extent(r.as_words(columns), whose, shares, share, 100, 1000) == (begin, end, total, own)


@given(packets(), st.randoms())
def test_bytes_that_do_not_lie_in_order_are_told(columns: PacketColumns, rng: Any) -> None:
    *_, whose = _sorted(columns)
    held = np.flatnonzero(_needed(columns) > 0)
    words = r.as_words(columns)

    def total(spare: int) -> int:
        total_bytes: int = r.extent(words, whose, 1, 0, spare, 1000)[2]
        return total_bytes

    assert total(2**60) == (-1 if len(held) else 0)
    if len(held):
        at = int(rng.choice(held.tolist()))
        for apart in (-1, 1 << 16):
            columns.record_at[at] = columns.tcp_at[at] + 1000 - apart
            assert total(100) == -1
        columns.record_at[at] = columns.tcp_at[at] + 1000 - 0xFFFF
        assert total(100) > 0
    if len(held) > 1:
        at = int(rng.choice(held[1:].tolist()))
        before = int(held[np.searchsorted(held, at) - 1])
        less = columns.tcp_at[at] - columns.tcp_at[before]
        for column in (columns.payload_at, columns.record_at, columns.tcp_at):
            column[at] -= less
        assert total(100) == -1


@given(st.lists(st.sampled_from(("right", "wrong", "left", "cut", "empty")), min_size=1, max_size=8), st.randoms())
def test_bytes_are_summed_up(kinds: list[str], rng: Any) -> None:
    """By scapy's checksums, of a buffer where packets begin anywhere."""
    columns = room_for(len(kinds))
    content = b""
    for i, kind in enumerate(kinds):
        payload = b"" if kind == "empty" else rng.randbytes(rng.randint(1, 40))
        packet = IP(src="10.0.0.1", dst="192.168.7.9") / TCP(sport=rng.randint(1, 65535), options=[("NOP", None)] * 4)
        segment = bytearray(raw(IP(raw(packet / payload))[TCP]))
        if kind == "left":
            segment[16:18] = bytes(2)
        elif kind == "wrong":
            segment[4] ^= 1 + rng.randrange(255)  # of its sequence number
        columns.tcp_at[i] = len(content) + rng.randint(0, 9)
        columns.payload_at[i] = columns.tcp_at[i] + 24
        columns.payload_length[i] = len(payload)
        columns.payload_captured[i] = len(payload) - (kind == "cut")
        content = content.ljust(int(columns.tcp_at[i])) + segment
    for name, address in (("src", "10.0.0.1"), ("dst", "192.168.7.9")):
        getattr(columns, f"{name}_hi")[:] = 0
        getattr(columns, f"{name}_lo")[:] = 0xFFFF << 32 | int(ipaddress.IPv4Address(address))
    buffer = np.frombuffer(bytearray(content), np.uint8)
    sums = np.full(len(kinds), 99, np.int32)
    r.sum_up(Content(buffer, buffer[: len(buffer) & ~7].view(np.uint64), sums[:0]), columns, sums)
    for i, kind in enumerate(kinds):
        payload = content[columns.payload_at[i] :][: columns.payload_length[i]]
        total = (~checksum(payload) & 0xFFFF) % 0xFFFF
        verdict = {"right": c.SUM_RIGHT, "left": c.SUM_LEFT}.get(kind)
        assert sums[i] == (c.SUM_UNKNOWN if verdict is None else total << c.SUM_BITS | verdict)


@given(packets())
def test_bytes_are_gathered(columns: PacketColumns) -> None:
    rows, *_ = _sorted(columns)
    columns.payload_at[:] -= columns.tcp_at
    columns.tcp_at[:] %= 5000  # anywhere in a buffer that is no gigabytes
    columns.payload_at[:] += columns.tcp_at
    buffer = np.arange(8000, dtype=np.int64).astype(np.uint8)
    order = (rows[:, r.PLACE] & 0x7FFFFF).tolist()
    sizes = _needed(columns)
    expected = [buffer[columns.tcp_at[row] : columns.tcp_at[row] + sizes[row]] for row in order]
    into = np.empty(int(sizes.sum()), np.uint8)
    r.gather(buffer, r.as_words(columns), rows, into)
    assert (into == np.concatenate(expected)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seq", 2**32),
        ("ack", -1),
        ("payload_length", 2**32),
        ("identity", 2**33),
        ("window", 2**16),
        ("flags", 2**16),
        ("payload_at", 2000),
        ("number", 0),
        ("record_at", 8),
        ("record_at", -(1 << 16)),
    ],
)
def test_what_does_not_fit_is_told(name: str, value: int) -> None:
    columns = _blank(2)
    columns.number[:] = 5, 6
    columns.payload_captured[:] = 1
    words = r.as_words(columns)
    _, way = r.ways_of(words, np.zeros(2, np.uint64))
    rows, sums = np.empty((2, r.WORDS), np.int64), np.zeros(2, np.int32)
    words.tcp_at[:] = words.record_at[:] = 7
    words.payload_at[:] = 27
    assert r.put_rows(words, sums, way, 0, 5, 0, rows) == 0
    getattr(columns, name)[1] = value
    assert r.put_rows(words, sums, way, 0, 5, 0, rows) != 0
