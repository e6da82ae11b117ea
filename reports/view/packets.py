"""Export packets of chosen connections as a pcapng file.

In: captures, and connections with their first and last time. Out: a file in pieces, with a section for each file read
(`kwire.analyzer.export`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np

from kwire.analyzer.export.packet_copy import copied_packets
from kwire.analyzer.export.selection import End, Interval, PacketSelection
from kwire.captures.files import CapturePoint
from kwire.captures.files.sources import Source
from kwire.captures.packets import Reader


@dataclass(frozen=True, slots=True)
class ConnectionSpan:
    """A connection and its time span, in ns since 1970, both ends included."""

    client: End
    broker: End
    first_ns: int
    last_ns: int

    def intervals(self) -> Iterator[Interval]:
        """Yield both directions."""
        yield Interval(self.client, self.broker, self.first_ns, self.last_ns)
        yield Interval(self.broker, self.client, self.first_ns, self.last_ns)


def extract_packets(
    point: CapturePoint, spans: Collection[ConnectionSpan], check: Callable[[], None]
) -> Iterator[bytes]:
    """Write the file in pieces; `check` may raise to stop. Raises CaptureError."""
    places: dict[int, list[int]] = {}
    selection = PacketSelection(interval for span in spans for interval in span.intervals())
    with Reader(point) as reader:
        for packets in reader:
            check()
            columns = packets.columns
            chosen = selection.chosen(columns)
            for file in np.unique(columns.file[chosen]).tolist():
                places.setdefault(file, []).extend(columns.record_at[chosen][columns.file[chosen] == file].tolist())
            packets.release()
    for number, path in enumerate(point.paths):
        check()
        if number in places:
            with Source(path, None, point.folder) as source:
                yield from copied_packets(source, set(places[number]))
