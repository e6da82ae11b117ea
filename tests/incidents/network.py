"""A network between clients and brokers whose faults a test decides, packet by packet.

In: a function that says of a packet whether it passes. Out: a namespace that clients are started in (`before`), and the
interface on the brokers' side. Packets go through two TUN devices and this process, so no kernel module is needed that
loses or delays them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

BROKERS: Final = "10.88.0.1"
"""Address of brokers that clients reach through a `Network`."""

CLIENTS: Final = "10.88.0.2"

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet on its way: its length in bytes, whether it goes to a broker, the broker's and the client's port, and
    how long its connection had been idle, s."""

    length: int
    to_broker: bool
    broker_port: int
    client_port: int
    idle: float


Passes = Callable[[Packet], bool]


def isolate() -> None:
    """Put this process and all that it starts into a network namespace of its own, with a loopback and `BROKERS`."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace of our own; root is needed")
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{BROKERS}/32", "dev", "lo")


class Network:
    """A way from the namespace of clients to `BROKERS`, of this process's namespace. `passes` can be changed."""

    def __init__(self) -> None:
        self.passes: Passes = lambda packet: True
        name = uuid.uuid4().hex[:6]
        self.namespace, self.interface = f"kwire-{name}", f"kwb{name}"
        self.before = ("ip", "netns", "exec", self.namespace)
        _ip("netns", "add", self.namespace)
        self._brokers, self._clients = _tun(self.interface), _tun(f"kwc{name}")
        inside = ("-n", self.namespace)
        _ip("link", "set", f"kwc{name}", "netns", self.namespace)
        _ip("link", "set", self.interface, "up")
        _ip("route", "add", CLIENTS, "dev", self.interface, "src", BROKERS)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "link", "set", f"kwc{name}", "up")
        _ip(*inside, "address", "add", f"{CLIENTS}/24", "dev", f"kwc{name}")
        self._client_interface = f"kwc{name}"
        self._last: dict[tuple[int, int], float] = {}
        self._ended = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    @property
    def client_interface(self) -> str:
        """The interface on the clients' side, in their namespace."""
        return self._client_interface

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        os.close(self._brokers)
        os.close(self._clients)
        _ip("netns", "delete", self.namespace)

    def _carry(self) -> None:
        other = {self._brokers: self._clients, self._clients: self._brokers}
        while not self._ended:
            for side in select.select(list(other), [], [], 0.1)[0]:
                packet = os.read(side, 70_000)
                if packet[0] >> 4 == 4 and self._passes(packet, side == self._clients):
                    with contextlib.suppress(OSError):  # its interface is not up yet, or its queue is full
                        os.write(other[side], packet)

    def _passes(self, packet: bytes, to_broker: bool) -> bool:
        """Whether a packet passes; without a rule of TCP's ports (ICMP, say) it does."""
        header = (packet[0] & 15) * 4
        if packet[9] != 6:
            return True
        source, destination = struct.unpack_from(">HH", packet, header)
        broker, client = (destination, source) if to_broker else (source, destination)
        now = time.monotonic()
        idle = now - self._last.get((broker, client), now)
        passed = self.passes(Packet(len(packet), to_broker, broker, client, idle))
        if passed:
            self._last[broker, client] = now
        return passed


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network for as long as it is needed."""
    opened = Network()
    try:
        yield opened
    finally:
        opened.close()


def _tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
