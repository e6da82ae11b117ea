"""Traffic for live capture: a network interface of the tests' own, whose packets are exactly those that a test sends.

A TAP device (`/dev/net/tun`): what is written to it is received on an interface that nobody else uses. That takes root;
where it is not to be had, tests are skipped, and the run ends with a section that says so.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kwire.captures.files.write import Record
from tests.captures import forge
from tests.shared import SAMPLES

SAMPLE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"

missing: list[str] = []
"""Why tests were skipped, for the end of the run."""

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFMTU = 0x8913, 0x8914, 0x8922
_IFF_UP = 0x1
_SO_TIMESTAMPNS = 35
_LARGEST_MTU = 65_521


class Wire:
    """An interface, up while this is open. Raises OSError where the system has none for us."""

    def __init__(self) -> None:
        import fcntl

        self.descriptor = os.open("/dev/net/tun", os.O_RDWR)
        try:
            request = struct.pack("16sH22x", b"kwiretest%d", _IFF_TAP | _IFF_NO_PI)
            given = fcntl.ioctl(self.descriptor, _TUNSETIFF, request)
            self.name = given[:16].rstrip(b"\0").decode()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                named = self.name.encode()
                fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", named, _LARGEST_MTU))
                (flags,) = struct.unpack_from("h", fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("40s", named)), 16)
                fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", named, flags | _IFF_UP))
        except OSError:
            os.close(self.descriptor)
            raise
        # With one such socket Linux stamps packets when they come, and all who capture see the same time.
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stamping.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def send(self, frames: Iterable[bytes]) -> None:
        """Each is received on the interface before this returns."""
        for frame in frames:
            os.write(self.descriptor, frame)

    def remove(self) -> None:
        """The interface goes away."""
        os.close(self.descriptor)
        self.descriptor = -1

    def close(self) -> None:
        self._stamping.close()
        if self.descriptor >= 0:
            self.remove()


def sample_records(path: Path = SAMPLE) -> list[Record]:
    """The packets of a sample."""
    link, records = forge.loaded(path)
    assert link == 1
    return records


@contextmanager
def a_wire() -> Iterator[Wire]:
    """A `Wire`, or a skip that is told at the end of the run."""
    try:
        if sys.platform != "linux":
            raise OSError("only Linux has TAP devices")
        wire = Wire()
    except OSError as failure:
        missing.append(f"live capture: no interface of one's own ({failure}): root is needed, and /dev/net/tun")
        pytest.skip(missing[-1])
    with closing(wire):
        yield wire
