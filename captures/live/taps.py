"""Interfaces that are listened to: `Tap`, whichever program or library is behind it.

Out: `PcapRecords`s of whole records as a pcap file holds them, little-endian, behind the file header `Tap.header`.
Rules: `read` is called by one thread, `stop` and `counts` by any; after `stop`, `read` still returns the packets that
the kernel had taken until then, and then None, also if packets keep coming.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Final, NamedTuple, Protocol

from kwire.captures.errors import CaptureError

SNAPLEN: Final = 262_144
"""Bytes kept of a packet, tcpdump's default: cards that join segments hand up "packets" of 64 KiB and more."""

BUFFER_BYTES: Final = 64 << 20
"""What the kernel holds for us. The tools' default of 2 MiB is 20 ms of 100,000 packets a second,
and lost a sixth of them."""

WAIT_SECONDS: Final = 0.05
"""So long the kernel gathers packets before it hands them over, however few."""

QUIET_SECONDS: Final = 2 * WAIT_SECONDS
"""After so long without a packet, what came before `stop` has been handed over, where the kernel's count agrees."""

LATE_SECONDS: Final = 10 * WAIT_SECONDS
"""And after so long, where it does not: what loopback sends is counted twice, and we take it once."""

LONGEST_SECONDS: Final = 5.0
"""After so long it is over, whatever still comes, where time stamps do not say when it was taken: a clock that stands
behind ours. A buffer that was full at `stop` is read in a fraction of that, also where much else runs."""

MOST_PACKETS: Final = 4096
"""Packets of a chunk: so the clock is looked at in time."""

MICROSECONDS, NANOSECONDS = 0xA1B2C3D4, 0xA1B23C4D
HEADER: Final = struct.Struct("<IHHiIII")
"""A pcap file's: magic, version, zone, accuracy, snap length, link type."""

FIRST: Final = struct.Struct("<II")
"""What a record begins with, its time stamp: seconds, and micro- or nanoseconds, as the file's magic says."""


class PcapRecords(NamedTuple):
    """Whole records, as they stand in a pcap file, and how many."""

    data: bytes | memoryview
    packets: int


NOTHING: Final = PcapRecords(b"", 0)


class Counts(NamedTuple):
    """Packets lost before they reached us, since the beginning; None if they are not counted."""

    kernel: int | None
    """Packets for which the buffer had no room."""
    interface: int | None
    """Packets that the network card or its driver lost."""


class Ending:
    """End of a tap that was stopped: the packets that the kernel had taken until then were handed over.

    header: of the pcap file that its chunks go to.

    Packets may come without a pause, so that nothing ever waits to be `over`. What says then that the rest came after
    `stop` is a packet's time stamp: the kernel hands packets over in the order in which it took them. Stamps of several
    processors may be out of order by a little, so one counts that is `QUIET_SECONDS` later than `stop`, and, for a
    clock that is ahead of ours, not before so much time has gone by. For any other clock there are bounds in bytes and
    in time.
    """

    def __init__(self, header: bytes) -> None:
        self._tick_ns = 1000 if HEADER.unpack(header)[0] == MICROSECONDS else 1
        self._stopped_at: float | None = None
        self._last_ns = 0
        self._left = BUFFER_BYTES
        self._late = False

    def tell(self) -> None:
        if self._stopped_at is None:
            self._last_ns = time_ns() + int(QUIET_SECONDS * 1e9)
            self._stopped_at = monotonic()

    def took(self, size: int, data: bytes | memoryview) -> None:
        """So many bytes of the buffer were handed over: these records, or none."""
        if self._stopped_at is None:
            return
        self._left -= size
        waited = monotonic() - self._stopped_at
        self._late = self._left < 0 or waited >= LONGEST_SECONDS
        if data and waited >= QUIET_SECONDS and not self._late:
            seconds, ticks = FIRST.unpack_from(data)
            self._late = seconds * 10**9 + ticks * self._tick_ns >= self._last_ns

    @property
    def late(self) -> bool:
        """Whether the last chunk came after `stop`, as all later ones will."""
        return self._late

    def over(self, all_there: Callable[[], bool]) -> bool:
        """Nothing waits at this moment: will more come? `all_there`: as much was handed over as the kernel counts."""
        if self._stopped_at is None:
            return False
        waited = monotonic() - self._stopped_at
        return waited >= LATE_SECONDS or (waited >= QUIET_SECONDS and all_there())


class Tap(Protocol):
    """An interface that is listened to.

    interface, expression   what was asked for (the filter as it stands)
    how                     what captures, for people
    header                  the 24 bytes that a pcap file of these records begins with
    problem                 why it ended by itself; empty until then
    one_of                  N where one of N connections is captured, else 1 (`interfaces.sampled`)
    """

    interface: str
    expression: str
    how: str
    header: bytes
    problem: str
    one_of: int

    def read(self) -> PcapRecords | None:
        """Return the next chunk; `NOTHING` after a short while without any; None at the end."""
        ...

    def counts(self) -> Counts: ...

    def stop(self) -> None:
        """Nothing that comes from now on is wanted."""
        ...

    def close(self) -> None: ...


def file_header(link: int, snaplen: int) -> bytes:
    """The header of a pcap file in nanoseconds."""
    return HEADER.pack(NANOSECONDS, 2, 4, 0, 0, snaplen, link)


def no_rights(interface: str) -> CaptureError:
    """The error where the system does not let us listen."""
    if sys.platform == "darwin":
        return CaptureError(
            f"{interface}: no right to capture here (/dev/bpf* are root's)",
            "sudo kwire ..., or let Wireshark's ChmodBPF give your user the right",
        )
    return CaptureError(
        f"{interface}: no right to capture here (that takes CAP_NET_RAW)",
        "sudo kwire ..., or as one who may: sudo tcpdump -B 65536 -U -w - -i "
        f"{interface} tcp | kwire analyze - -o DATASET; or --via dumpcap, once you are in its group (wireshark)",
    )
