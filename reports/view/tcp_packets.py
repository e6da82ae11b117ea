"""Find the packets that are events of TCP: retransmissions, zero windows and resets, of chosen connections.

In: rows of `connections`, and a capture. Out: times, kinds and connections of events. Rules: those that the table's
`retransmissions` and `zero_windows` are counted by (`kwire.captures.streams`): a packet that the capture holds twice is
no event, nor is a keep-alive, nor one that came late by reordering. Resets count where one ended the connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.analyzer.export.selection import Directions
from kwire.analyzer.frame.spill import check_cancelled
from kwire.captures.copies import COPY_NS, UNNAMED_COPY_NS
from kwire.captures.files import CapturePoint
from kwire.captures.packets import Reader
from kwire.captures.windows import PacketColumns

RETRANSMISSION, ZERO_WINDOW, RESET = range(3)

_SYN: Final = 0x02
_RST: Final = 0x04
"""TCP's flags (RFC 9293, 3.1)."""

_REORDERED_NS: Final = 3_000_000
"""Time behind a later segment within which a segment that fills a hole came late, and was not sent again."""

_RECENT: Final = 16
"""Packets of a direction among which a copy is looked for, as `kwire.captures.stream_tables.RECENT`."""

_MOST_HOLES: Final = 1000
"""Holes of a direction that are remembered: bytes of an older one would count as sent again."""

_COLUMNS: Final = ("time_ns", "seq", "ack", "flags", "window", "payload_length", "identity", "interface")
_NEVER: Final = np.iinfo(np.int64).min >> 2

Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Times (ns), kinds, and numbers of connections."""


def events_of(point: CapturePoint, numbers: Sequence[int], rows: Sequence[dict[str, Any]]) -> Iterator[Part]:
    """Read the events of some rows of `connections` from the packets of their capture point."""
    directions = Directions()
    lifetimes: dict[int, list[tuple[int, int, int]]] = {}  # of a direction: first and last time, number of the row
    for number in numbers:
        row = rows[number]
        client, broker = ((row[f"{side}_ip"], row[f"{side}_port"]) for side in ("client", "broker"))
        for sender, receiver in ((client, broker), (broker, client)):
            lifetime = row["first_time"] * 1000, row["last_time"] * 1000 + 999, number
            lifetimes.setdefault(directions.number(sender, receiver), []).append(lifetime)
    for several in lifetimes.values():
        several.sort()
    states: dict[tuple[int, int], _Direction] = {}
    with Reader(point) as reader:
        for packets in reader:
            check_cancelled()
            of = directions.of_packets(packets.columns)
            near = np.flatnonzero(of >= 0)
            near = near[np.argsort(of[near], kind="stable")]
            for part in np.split(near, np.flatnonzero(np.diff(of[near])) + 1) if len(near) else ():
                direction = int(of[part[0]])
                first, last, number = np.array(lifetimes[direction]).T
                times = packets.columns.time_ns[part]
                at = np.maximum(np.searchsorted(first, times, side="right") - 1, 0)
                inside = (times >= first[at]) & (times <= last[at])
                for place in np.unique(at[inside]).tolist():
                    row = rows[number[place]]
                    state = states.setdefault((direction, place), _Direction.of(row))
                    time, kind = state.advance(packets.columns, part[inside & (at == place)])
                    if len(time):
                        yield time, kind, np.full(len(time), number[place])
            packets.release()


@dataclass(slots=True)
class _Direction:
    """State of a direction of a connection.

    high, high_ns  end of the stream so far, and when it came; _NEVER: nothing came yet
    holes          spans below `high` that did not come, in order
    recent         the last packets' columns, to know copies by
    """

    late_ns: int
    is_reset: bool
    high: int = _NEVER
    high_ns: int = _NEVER
    holes: list[tuple[int, int]] = field(default_factory=list)
    recent: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, row: dict[str, Any]) -> _Direction:
        return cls(max(_REORDERED_NS, 1000 * (row["rtt_us"] or 0)), row["closed"] == "rst")

    def advance(self, columns: PacketColumns, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take the packets of a window: int64[k] times and int8[k] kinds of their events."""
        new = {name: np.asarray(getattr(columns, name)[part], np.int64) for name in _COLUMNS}
        both = {name: np.concatenate([self.recent.get(name, new[name][:0]), new[name]]) for name in _COLUMNS}
        before = len(both["seq"]) - len(part)
        self.recent = {name: values[-_RECENT:] for name, values in both.items()}
        flags, length, times = new["flags"], new["payload_length"], new["time_ns"]
        start = new["seq"] + (flags & _SYN != 0)
        reference = int(start[0]) if self.high == _NEVER else self.high
        start = reference + ((start - reference + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        stop, data = start + length, length > 0
        highs = np.maximum.accumulate(np.concatenate([[self.high], np.where(data, stop, _NEVER)]))
        high, rises = highs[:-1], data & (stop > highs[:-1])
        raised = np.maximum.accumulate(np.where(rises, np.arange(len(part)), -1))
        raised = np.concatenate([[-1], raised[:-1]])  # before each packet
        high_ns = np.where(raised >= 0, times[raised], self.high_ns)
        odd = data & (high != _NEVER) & (start != high)
        zero = (new["window"] == 0) & (flags & _RST == 0)
        reset = (flags & _RST != 0) & self.is_reset
        looked_at = np.flatnonzero(odd | zero | reset)
        copies = np.zeros(len(part), np.bool_)
        copies[looked_at] = _are_copies(both, looked_at + before)
        again = [
            place
            for place in np.flatnonzero(odd & ~copies).tolist()
            if self._is_again(int(start[place]), int(stop[place]), int(high[place]), int(times[place] - high_ns[place]))
        ]
        self.high = int(highs[-1])
        if rises.any():
            self.high_ns = int(times[np.flatnonzero(rises)[-1]])
        events = {
            RETRANSMISSION: np.array(again, np.int64),
            ZERO_WINDOW: np.flatnonzero(zero & ~copies),
            RESET: np.flatnonzero(reset & ~copies),
        }
        kinds = np.repeat(np.array(list(events), np.int8), [len(places) for places in events.values()])
        return times[np.concatenate(list(events.values()))], kinds

    def _is_again(self, start: int, stop: int, high: int, behind_ns: int) -> bool:
        """Whether bytes [start, stop) of a packet that is not next in its stream were sent again; notes holes."""
        if start > high:
            self.holes = [*self.holes[-_MOST_HOLES:], (high, start)]
            return False
        following = self.holes[0][0] if self.holes else high
        if stop - start == 1 and start == following - 1:
            return False  # a keep-alive
        fills = stop > high
        holes: list[tuple[int, int]] = []
        for low, end in self.holes:
            if stop <= low or start >= end:
                holes.append((low, end))
                continue
            fills = True
            holes += [(low, start)] * (start > low) + [(stop, end)] * (stop < end)
        self.holes = holes
        if not fills:
            return True
        return max(start, following) < high and behind_ns > self.late_ns


def _are_copies(columns: dict[str, np.ndarray], places: np.ndarray) -> np.ndarray:
    """Whether packets are among the last ones before them, seen again (`captures.copies.same_packet`)."""
    copies = np.zeros(len(places), np.bool_)
    named, checksum = columns["identity"] >> 16 & 0xFFFF, columns["identity"] & 0xFFFF
    for back in range(1, _RECENT + 1):
        other = places - back
        there = np.flatnonzero((other >= 0) & ~copies)
        left, right = places[there], other[there]
        same = np.all(
            [columns[name][left] == columns[name][right] for name in ("seq", "ack", "flags", "payload_length")], 0
        )
        apart = np.abs(columns["time_ns"][left] - columns["time_ns"][right])
        has_name = (named[left] != 0) | (named[right] != 0)
        elsewhere = columns["interface"][left] != columns["interface"][right]
        again = np.where(
            has_name,
            (named[left] == named[right]) & (apart <= COPY_NS),
            (apart <= UNNAMED_COPY_NS) & ((checksum[left] == checksum[right]) | elsewhere),
        )
        copies[there[same & again]] = True
    return copies
