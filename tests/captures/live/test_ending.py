"""A capture that is told to stop ends while packets keep coming, and nothing is lost that was taken before.

Packets come at every read, of a libpcap and of a ring that are played; the clock is the test's, and so is the time
that a read takes.

(proves: captures/live/taps.py, and how libpcap.py and ring.py ask it)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kwire.captures.files.write import Record, pcap
from kwire.captures.live import libpcap, taps
from kwire.captures.live.libpcap import Libpcap
from kwire.captures.live.ring import Ring
from kwire.captures.live.taps import BUFFER_BYTES, LONGEST_SECONDS, NOTHING, QUIET_SECONDS, Ending, Tap
from tests.captures.live.scripted import HEADER_BYTES

BEGUN = 1_700_000_000 * 10**9
HEADERS = {1: pcap([], nanoseconds=True), 1000: pcap([], nanoseconds=False)}
QUIET_NS = int(QUIET_SECONDS * 1e9)


class World:
    """A clock, and an interface on which a packet is taken each `every_ns`; the kernel keeps what nobody read, of which
    `first` is the oldest. Each packet says when it was taken; its time stamp is of a clock that is `ahead_ns` of
    ours, in ticks of `tick_ns`."""

    def __init__(self, every_ns: int, read_ns: int, ahead_ns: int = 0, tick_ns: int = 1) -> None:
        self.now_ns = self.first = BEGUN
        self.every_ns, self.read_ns, self.ahead_ns, self.tick_ns = every_ns, read_ns, ahead_ns, tick_ns

    def read(self, most: int) -> tuple[bytes, int]:
        """Return waiting records of a pcap file, at most so many, and their number."""
        self.now_ns += self.read_ns
        records: list[Record] = []
        while self.first < self.now_ns and len(records) < most:
            records.append(Record(self.first + self.ahead_ns, self.first.to_bytes(8, "big"), 8))
            self.first += self.every_ns
        return pcap(records, nanoseconds=self.tick_ns == 1)[HEADER_BYTES:], len(records)


class PlayedLibrary:
    """As much of libpcap as a tap calls, and what `pcap_dump` writes to."""

    pcap_dump = ctypes.CFUNCTYPE(None)(lambda: None)
    dumper = None

    def __init__(self, world: World) -> None:
        self.world, self.header = world, HEADERS[world.tick_ns]
        self.written = b""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *given: 0

    def pcap_lib_version(self) -> bytes:
        return b"played"

    def pcap_create(self, device: bytes, text: object) -> int:
        return 1

    def pcap_dispatch(self, handle: int, most: int, write: object, dumper: object) -> int:
        self.written, count = self.world.read(min(most, 8))
        return count

    def take(self) -> bytes:
        return self.written


class AlwaysFilled:
    """The status of a ring's blocks where each is ready."""

    def __getitem__(self, at: int) -> int:
        return 1

    def __setitem__(self, at: int, value: int) -> None:
        pass


def by_libpcap(world: World, patch: pytest.MonkeyPatch) -> Tap:
    library = PlayedLibrary(world)
    patch.setattr(libpcap, "dump", lambda lib, handle: lib)
    patch.setattr(libpcap, "wait_of", lambda lib, handle: lambda seconds: None)
    return Libpcap(library, "played0", "", 262_144)


def by_ring(world: World, patch: pytest.MonkeyPatch) -> Tap:
    def opened(self: Ring, index: int, program: bytes) -> None:
        self._block, self._blocks = 0, 64
        self._out = np.empty(1 << 20, np.uint8)
        self._bytes = np.empty(0, np.uint8)
        self._status = AlwaysFilled()  # type: ignore[assignment]

    def from_ring(block: object, at: int, size: int, out: Any, snaplen: int, cooked: int) -> tuple[int, int]:
        data, count = world.read(20)
        out[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data), count

    system = SimpleNamespace(AF_PACKET=0, SOCK_DGRAM=0, socket=lambda *given: None)
    patch.setattr("kwire.captures.live.ring.socket", system)
    patch.setattr(Ring, "_open", opened)
    patch.setattr("kwire.captures.live.records.from_ring", from_ring)
    return Ring("any", "", None, 262_144)


WAYS = {"libpcap": by_libpcap, "ring": by_ring}


def told_to_stop(world: World, tap: Tap, patch: pytest.MonkeyPatch) -> list[int]:
    """When each packet was taken that it gives after `stop`, until it ends."""
    patch.setattr(taps, "time_ns", lambda: world.now_ns)
    patch.setattr(taps, "monotonic", lambda: (world.now_ns - BEGUN) / 1e9)
    tap.stop()
    given: list[int] = []
    reads = 0
    while (chunk := tap.read()) is not None:
        reads += 1
        assert reads < 100_000, "it does not end"
        if chunk is not NOTHING:
            size = 16 + 8
            given += [int.from_bytes(chunk.data[at + 16 : at + size], "big") for at in range(0, len(chunk.data), size)]
    return given


@pytest.mark.parametrize(("way", "tick_ns"), [("libpcap", 1), ("libpcap", 1000), ("ring", 1)])
def test_it_ends_though_packets_come_without_a_pause(way: str, tick_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet each millisecond, and never a read without one."""
    world = World(every_ns=10**6, read_ns=5 * 10**6, tick_ns=tick_ns)
    given = told_to_stop(world, WAYS[way](world, monkeypatch), monkeypatch)
    assert QUIET_NS <= world.now_ns - BEGUN < 2 * QUIET_NS
    assert given == list(range(BEGUN, world.first, 10**6))


@pytest.mark.parametrize("way", WAYS)
def test_what_was_taken_before_is_given_however_long_that_takes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second's packets wait, and it takes longer to read them, while others come."""
    world = World(every_ns=10**6, read_ns=24 * 10**6)
    stopped = world.now_ns = BEGUN + 10**9
    given = told_to_stop(world, WAYS[way](world, monkeypatch), monkeypatch)
    assert world.now_ns - stopped > 10**9
    assert given == list(range(BEGUN, world.first, 10**6))
    assert stopped + QUIET_NS <= given[-1] < stopped + 2 * QUIET_NS


@pytest.mark.parametrize("way", WAYS)
def test_a_clock_that_stands_behind_is_waited_for_only_so_long(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """(A ring's blocks have all been read before.)"""
    world = World(every_ns=10**6, read_ns=5 * 10**6, ahead_ns=-3600 * 10**9)
    given = told_to_stop(world, WAYS[way](world, monkeypatch), monkeypatch)
    assert world.now_ns - BEGUN < (LONGEST_SECONDS + 0.01) * 1e9
    assert given == list(range(BEGUN, world.first, 10**6))


@pytest.mark.parametrize("way", WAYS)
def test_a_clock_that_is_ahead_ends_nothing_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what waits is read for as long as where the interface is quiet."""
    world = World(every_ns=10**6, read_ns=4 * 10**6, ahead_ns=3600 * 10**9)
    stopped = world.now_ns = BEGUN + 10**8
    given = told_to_stop(world, WAYS[way](world, monkeypatch), monkeypatch)
    assert given[:100] == list(range(BEGUN, stopped, 10**6))
    assert QUIET_NS <= world.now_ns - stopped < 2 * QUIET_NS


def test_more_than_the_buffer_holds_came_after_it() -> None:
    ending = Ending(HEADERS[1])
    ending.took(BUFFER_BYTES + 1, b"")
    ending.tell()
    ending.took(BUFFER_BYTES, b"")
    assert not ending.late
    ending.took(1, b"")
    assert ending.late
