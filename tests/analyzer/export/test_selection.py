"""Packets are chosen by connection, direction and time.

Proves: analyzer/export/selection.py
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kwire.analyzer.export.selection import Directions, Interval, PacketSelection, halves

ENDS = [("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1), ("fe80::1", 1)]
TIMES = st.integers(0, 12)


def columns(packets: list[tuple[int, int, int]]) -> SimpleNamespace:
    """Columns of packets: sender and receiver as numbers in ENDS, and a time."""
    table: dict[str, list[int]] = {
        name: [] for name in ("src_hi", "src_lo", "src_port", "dst_hi", "dst_lo", "dst_port", "time_ns")
    }
    for sender, receiver, time in packets:
        for side, end in (("src", ENDS[sender]), ("dst", ENDS[receiver])):
            table[f"{side}_hi"].append(halves(end[0])[0])
            table[f"{side}_lo"].append(halves(end[0])[1])
            table[f"{side}_port"].append(end[1])
        table["time_ns"].append(time)
    wide = {"time_ns": np.int64, "src_port": np.int32, "dst_port": np.int32}
    return SimpleNamespace(**{name: np.array(values, wide.get(name, np.uint64)) for name, values in table.items()})


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), TIMES, TIMES), max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), TIMES), max_size=20),
)
def test_a_packet_is_chosen_where_an_interval_of_its_direction_holds_its_time(
    intervals: list[tuple[int, int, int, int]], packets: list[tuple[int, int, int]]
) -> None:
    selection = PacketSelection(
        Interval(ENDS[sender], ENDS[receiver], min(first, last), max(first, last))
        for sender, receiver, first, last in intervals
    )
    expected = [
        number
        for number, (sender, receiver, time) in enumerate(packets)
        if any(
            (sender, receiver) == (left, right) and min(first, last) <= time <= max(first, last)
            for left, right, first, last in intervals
        )
    ]
    assert selection.chosen(columns(packets)).tolist() == expected


def test_a_direction_that_is_named_later_has_a_number_too() -> None:
    directions = Directions()
    packets = columns([(0, 2, 1), (2, 0, 1)])
    assert directions.of_packets(packets).tolist() == [-1, -1]
    number = directions.number(ENDS[2], ENDS[0])
    assert directions.of_packets(packets).tolist() == [-1, number]
