"""Packets as rows are put in order by group and become the same columns again, whatever numbers these have.

(proves: captures/chunks/rows.py)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from captures.chunks import rows as r
from captures.chunks.groups import groups_of, pairs_of
from captures.windows import PacketColumns, room_for

U32 = st.sampled_from((0, 1, 2**31 - 1, 2**31, 2**32 - 1)) | st.integers(0, 2**32 - 1)
U64 = st.sampled_from((0, 1, 2**63 - 1, 2**63, 2**64 - 1)) | st.integers(0, 3)
U16 = st.sampled_from((0, 1, 2**15, 2**16 - 1))
TELLING = (
    "interface", "src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port", "seq", "ack", "window", "flags",
    "payload_length", "identity",
)  # fmt: skip
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
        said: dict[str, int] = {
            "number": number, "file": 0, "record_at": at - 70, "time_ns": 0, "interface": draw(st.integers(0, 2)),
            "src_hi": source[0], "src_lo": source[1], "dst_hi": target[0], "dst_lo": target[1],
            "src_port": source[2], "dst_port": target[2], "seq": draw(U32), "ack": draw(U32), "window": draw(U16),
            "flags": draw(st.integers(0, 0x1FF)), "tcp_at": at, "payload_at": at + header,
            "payload_captured": captured, "payload_length": draw(U32), "identity": draw(U32),
        }  # fmt: skip
        for name, value in said.items():
            getattr(columns, name)[i] = value
        number += draw(st.sampled_from((1, 7, 2**33)))
        at += header + captured
    return columns


def _sorted(columns: PacketColumns, base: int = 0) -> tuple[Any, ...]:
    """(rows, ways, where each group's rows end, whose packets are)."""
    pairs = pairs_of(
        (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port)
    )
    words = r.as_words(columns)
    whose, counts, sizes = r.grouped(words, pairs, GROUPS)
    ways, way = r.ways_of(words, pairs)
    rows = np.empty((len(pairs), r.WORDS), np.int64)
    ends = np.cumsum(counts)
    assert r.put_rows(words, whose, way, base, ends - counts, rows) == 0
    assert (whose == groups_of(pairs, GROUPS)).all()
    assert len(ways) == len({tuple(one) for one in ways.tolist()})
    needed = np.where(columns.payload_captured > 0, columns.payload_at - columns.tcp_at + columns.payload_captured, 0)
    assert sizes.tolist() == [int(needed[whose == group].sum()) for group in range(GROUPS)]
    return rows, ways, ends.tolist(), whose


def _blank(count: int) -> PacketColumns:
    columns = room_for(count)
    for column in columns:
        column[:] = 0
    return columns


@given(packets(), st.sets(st.integers(0, GROUPS - 1)), st.sampled_from((0, 5, 2**40)))
def test_columns_come_back(columns: PacketColumns, mine: set[int], base: int) -> None:
    rows, ways, ends, whose = _sorted(columns)
    back = _blank(len(whose))
    for group in range(GROUPS):
        own = rows[ends[group - 1] if group else 0 : ends[group]]
        assert (np.diff(own[:, r.PLACE] & 0xFFFFFFFF) > 0).all()
        r.tell_rows(own, ways, r.as_words(back))
        if group in mine:
            r.place_rows(own, int(columns.number[0]), base, r.as_words(back))
    for name in TELLING:
        assert (getattr(back, name) == getattr(columns, name)).all(), name
    chosen = np.isin(whose, list(mine))
    for name in ("number", "record_at", "payload_captured"):
        assert (getattr(back, name) == np.where(chosen, getattr(columns, name), 0)).all(), name
    assert (back.tcp_at == np.where(chosen, columns.tcp_at + base, 0)).all()
    captured = chosen & (columns.payload_captured > 0)
    assert (back.payload_at[captured] == columns.payload_at[captured] + base).all()


def _stretches(columns: PacketColumns, chosen: np.ndarray) -> list[list[int]]:
    """[begin, end] of each, one packet after the other."""
    found: list[list[int]] = []
    for i in np.flatnonzero(chosen & (columns.payload_captured > 0)).tolist():
        at, end = int(columns.tcp_at[i]), int(columns.payload_at[i] + columns.payload_captured[i])
        if found and at - found[-1][1] <= r.GAP_BYTES:
            found[-1][1] = end
        else:
            found.append([at, end])
    return found


@given(packets(), st.integers(1, 3))
def test_bytes_are_drawn_together_in_stretches(columns: PacketColumns, shares: int) -> None:
    rows, _, ends, whose = _sorted(columns, 1000)
    for share in range(shares):
        chosen = whose % shares == share
        expected = _stretches(columns, chosen)
        own = int((columns.payload_at + columns.payload_captured - columns.tcp_at)[
            chosen & (columns.payload_captured > 0)].sum())  # fmt: skip
        total = sum(end - begin for begin, end in expected)
        assert r.stretch(r.as_words(columns), whose, shares, share, 100) == (len(expected), total, own)
        back = r.as_words(_blank(len(whose)))
        for group in range(share, GROUPS, shares):
            r.place_rows(rows[ends[group - 1] if group else 0 : ends[group]], 1, 0, back)
        begins, lengths = np.empty((2, len(whose)), np.int64)
        count = r.draw_together(back, 50, begins, lengths)
        assert begins[:count].tolist() == [begin + 1000 for begin, _ in expected]
        assert lengths[:count].tolist() == [end - begin for begin, end in expected]
        places = np.cumsum([50, *lengths[:count].tolist()])
        for i in np.flatnonzero(chosen & (columns.payload_captured > 0)).tolist():
            at = int(columns.tcp_at[i])
            which = next(k for k, (begin, end) in enumerate(expected) if begin <= at < end)
            assert back.tcp_at[i] == places[which] + at - expected[which][0]
            assert back.payload_at[i] - back.tcp_at[i] == columns.payload_at[i] - columns.tcp_at[i]


@given(packets(), st.randoms())
def test_bytes_that_do_not_lie_in_order_make_no_stretches(columns: PacketColumns, rng: Any) -> None:
    *_, whose = _sorted(columns)
    held = np.flatnonzero(columns.payload_captured > 0)
    assert r.stretch(r.as_words(columns), whose, 1, 0, 2**60)[0] == (-1 if len(held) else 0)
    if len(held) > 1:
        at = int(rng.choice(held[1:].tolist()))
        before = int(held[np.searchsorted(held, at) - 1])
        columns.payload_at[at] += columns.tcp_at[before] - columns.tcp_at[at]
        columns.tcp_at[at] = columns.tcp_at[before]
        assert r.stretch(r.as_words(columns), whose, 1, 0, 100)[0] == -1


@given(packets())
def test_bytes_are_gathered(columns: PacketColumns) -> None:
    rows, _, _, _ = _sorted(columns)
    rows[:, r.AT] %= 5000  # anywhere in a buffer that is no gigabytes
    buffer = np.arange(8000, dtype=np.int64).astype(np.uint8)
    sizes = (rows[:, r.ORDER] & 0xFF) + (rows[:, r.LENGTHS] & 0xFFFFFFFF)
    expected = [buffer[at : at + size] for at, size in zip(rows[:, r.AT].tolist(), sizes.tolist(), strict=True)]
    into = np.empty(int(sizes.sum()), np.uint8)
    r.gather(buffer, rows, into)
    assert (into == np.concatenate(expected)).all()
    assert rows[:, r.AT].tolist() == (np.cumsum(sizes) - sizes).tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [("seq", 2**32), ("ack", -1), ("payload_length", 2**32), ("identity", 2**33), ("window", 2**16),
     ("flags", 2**16), ("payload_at", 2000), ("number", 0)],
)  # fmt: skip
def test_what_does_not_fit_is_told(name: str, value: int) -> None:
    columns = _blank(2)
    columns.number[:] = 5, 6
    columns.payload_captured[:] = 1
    words = r.as_words(columns)
    whose, counts, _ = r.grouped(words, np.zeros(2, np.uint64), 1)
    _, way = r.ways_of(words, np.zeros(2, np.uint64))
    rows = np.empty((2, r.WORDS), np.int64)
    assert r.put_rows(words, whose, way, 0, counts - counts, rows) == 0
    getattr(columns, name)[1] = value
    assert r.put_rows(words, whose, way, 0, counts - counts, rows) != 0
