"""A `Tap` that gives what a test says."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

from kwire.captures.files.write import Record, pcap
from kwire.captures.live.taps import NOTHING, Counts, PcapRecords

HEADER_BYTES = 24


def chunks_of(records: Sequence[Record], each: int) -> list[PcapRecords]:
    """Records as a tap hands them over, so many at a time."""
    return [
        PcapRecords(pcap(records[i : i + each], nanoseconds=True)[HEADER_BYTES:], len(records[i : i + each]))
        for i in range(0, len(records), each)
    ]


def packets_in(data: bytes | memoryview) -> list[bytes]:
    """The records of pcap bytes without a file header, plainly."""
    packets, at = [], 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        packets.append(bytes(data[at : at + 16 + size]))
        at += 16 + size
    assert at == len(data)
    return packets


NO_DROPS = Counts(0, 0)


class ScriptedTap:
    """Gives its chunks, then ends, or waits for `stop` where it is to stay open. `handed`: all were given."""

    interface, expression, how = "script0", "tcp", "a script"

    def __init__(self, chunks: Sequence[PcapRecords], counts: Counts = NO_DROPS, stays: bool = False) -> None:
        self.header = pcap([], nanoseconds=True)
        self.problem = ""
        self.one_of = 1
        self.handed = threading.Event()
        self._chunks = list(chunks)
        self._counts = counts
        self._stopped = threading.Event()
        if not stays:
            self._stopped.set()

    def read(self) -> PcapRecords | None:
        if self._chunks:
            return self._chunks.pop(0)
        self.handed.set()
        return None if self._stopped.wait(0.01) else NOTHING

    def counts(self) -> Counts:
        return self._counts

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.stop()
