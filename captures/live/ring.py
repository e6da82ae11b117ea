"""Linux's own packet ring (AF_PACKET, TPACKET_V3), where libpcap is not installed.

In: an interface. Out: a `Tap`. The kernel fills blocks of memory that we see too; a kernel of ours turns each into
records. Rules: there is nobody here to compile a filter: TCP without one's own ssh session is a program written by
hand, and any other filter needs libpcap. Interfaces that are not Ethernet give their packets cooked (LINUX_SLL2).

Sources: packet(7), Documentation/networking/packet_mmap.rst, Documentation/networking/filter.rst of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import socket
import struct
from typing import Final

import numpy as np

from kwire.captures.errors import CaptureError
from kwire.captures.live import interfaces
from kwire.captures.live.chunk_memory import ChunkMemory
from kwire.captures.live.interfaces import SshConnection
from kwire.captures.live.taps import (
    BUFFER_BYTES,
    NOTHING,
    WAIT_SECONDS,
    Counts,
    Ending,
    PcapRecords,
    file_header,
    no_rights,
)

_SOL_PACKET, _SO_ATTACH_FILTER = 263, 26
_ADD_MEMBERSHIP, _RX_RING, _STATISTICS, _VERSION = 1, 5, 6, 10
_TPACKET_V3, _PROMISCUOUS, _EVERY_PROTOCOL = 2, 1, 3
_ETHERNET, _LOOPBACK = 1, 772
_LINK_ETHERNET, _LINK_COOKED = 1, 276
_BLOCK: Final = 1 << 20
_FRAME: Final = 1 << 11
_STATUS_AT: Final = 8

# Classic BPF: what an instruction does, where in a packet (its network header; what the kernel knows of it).
_LOAD_HALF, _LOAD_BYTE, _LOAD_HALF_AT, _HEADER_LENGTH, _SET_INDEX = 0x28, 0x30, 0x48, 0xB1, 0x01
_IF_EQUAL, _IF_BITS, _RETURN = 0x15, 0x45, 0x06
_STORE, _LOAD_INDEX, _ADD_INDEX, _MULTIPLY, _DIVIDE, _MODULO = 0x02, 0x61, 0x0C, 0x24, 0x34, 0x94
_NETWORK, _PROTOCOL = 0xFFF00000, 0xFFFFF000
_IPV4, _IPV6, _TCP, _FRAGMENT_OFFSET, _IPV6_HEADER = 0x800, 0x86DD, 6, 0x1FFF, 40


def tcp_program(session: SshConnection | None, one_of: int = 1, others: bool = False) -> bytes:
    """Classic BPF that lets through TCP over IPv4 and IPv6, save packets between the two ports of a session.

    one_of: of so many connections, as `interfaces.sampled` chooses; others: also what is not TCP."""
    other = "all" if others else "drop"
    lines: list[tuple[int, int | str, int | str, int]] = []
    labels: dict[str, int] = {}

    def add(code: int, k: int, yes: str = "", no: str = "") -> None:
        lines.append((code, yes, no, k))

    def label(name: str) -> None:
        labels[name] = len(lines)

    add(_LOAD_HALF, _PROTOCOL)
    add(_IF_EQUAL, _IPV4, "four")
    add(_IF_EQUAL, _IPV6, "", other)
    add(_LOAD_BYTE, _NETWORK + 6)
    add(_IF_EQUAL, _TCP, "", other)
    add(_SET_INDEX, _IPV6_HEADER)
    add(_IF_EQUAL, _TCP, "ports", "ports")
    label("four")
    add(_LOAD_BYTE, _NETWORK + 9)
    add(_IF_EQUAL, _TCP, "", other)
    add(_LOAD_HALF, _NETWORK + 6)
    add(_IF_BITS, _FRAGMENT_OFFSET, "all")
    add(_HEADER_LENGTH, _NETWORK)
    label("ports")
    if session is not None:
        add(_LOAD_HALF_AT, _NETWORK)
        add(_IF_EQUAL, session.client_port, "from client")
        add(_IF_EQUAL, session.server_port, "", "keep")
        add(_LOAD_HALF_AT, _NETWORK + 2)
        add(_IF_EQUAL, session.client_port, "drop", "keep")
        label("from client")
        add(_LOAD_HALF_AT, _NETWORK + 2)
        add(_IF_EQUAL, session.server_port, "drop", "keep")
    label("keep")
    if one_of != 1:
        add(_LOAD_HALF_AT, _NETWORK)
        add(_STORE, 0)
        add(_LOAD_HALF_AT, _NETWORK + 2)
        add(_LOAD_INDEX, 0)
        add(_ADD_INDEX, 0)
        add(_MULTIPLY, interfaces.SPREAD)
        add(_DIVIDE, 1 << 16)
        add(_MODULO, one_of)
        add(_IF_EQUAL, 0, "", "drop")
    label("all")
    add(_RETURN, 0xFFFFFFFF)
    label("drop")
    add(_RETURN, 0)

    def jump(to: int | str, here: int) -> int:
        return labels[to] - here - 1 if isinstance(to, str) and to else 0

    return b"".join(
        struct.pack("=HBBI", code, jump(yes, i), jump(no, i), k) for i, (code, yes, no, k) in enumerate(lines)
    )


class Ring:
    """A `Tap`. `session`: what the default filter leaves out; `expression` is "" for everything, else the default."""

    def __init__(
        self, interface: str, expression: str, session: SshConnection | None, snaplen: int, one_of: int = 1
    ) -> None:
        self.interface, self.expression, self.one_of = interface, expression, one_of
        self.how = "AF_PACKET"
        self.problem = ""
        self._snaplen = snaplen
        self._lost = 0
        self._chunks = ChunkMemory()
        self._packets_out = self._received = 0
        index = 0
        if interface != interfaces.ANY:
            try:
                index = socket.if_nametoindex(interface)
            except (OSError, ValueError) as failure:
                raise interfaces.unknown(interface) from failure
        self._cooked = index == 0 or _kind_of(interface) not in (_ETHERNET, _LOOPBACK)
        self.header = file_header(_LINK_COOKED if self._cooked else _LINK_ETHERNET, snaplen)
        self._ending = Ending(self.header)
        try:
            # Of no protocol until all is set up: no packet comes before the filter.
            kind = socket.SOCK_DGRAM if self._cooked else socket.SOCK_RAW
            self._socket = socket.socket(socket.AF_PACKET, kind, 0)
        except PermissionError as failure:
            raise no_rights(interface) from failure
        try:
            self._open(index, tcp_program(session, one_of, not expression) if expression or one_of != 1 else b"")
        except OSError as failure:
            self._socket.close()
            if failure.errno == errno.ENODEV:
                raise interfaces.unknown(interface) from failure
            raise CaptureError(f"-i {interface}: {failure.strerror}", "--via dumpcap asks another tool") from failure

    def _open(self, index: int, program: bytes) -> None:
        count = BUFFER_BYTES // _BLOCK
        if program:
            code = ctypes.create_string_buffer(program, len(program))
            described = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
        self._socket.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
        wait = int(WAIT_SECONDS * 1000)
        ring = struct.pack("IIIIIII", _BLOCK, count, _FRAME, _BLOCK // _FRAME * count, wait, 0, 0)
        self._socket.setsockopt(_SOL_PACKET, _RX_RING, ring)
        self._memory = mmap.mmap(self._socket.fileno(), BUFFER_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._status = self._bytes.view(np.uint32)
        self._block, self._blocks = 0, count
        self._out = np.empty(2 * _BLOCK, np.uint8)
        # Not by Python's `bind`, which knows no address of all interfaces.
        address = struct.pack("=H", socket.AF_PACKET) + struct.pack(">H", _EVERY_PROTOCOL)
        address += struct.pack("=iHBB8s", index, 0, 0, 0, b"")
        c = ctypes.CDLL(None, use_errno=True)
        if c.bind(self._socket.fileno(), address, len(address)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if index:
            wanted = struct.pack("iHH8s", index, _PROMISCUOUS, 0, b"")
            self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, wanted)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def read(self) -> PcapRecords | None:
        if self._ending.late:
            return None
        at = self._block * _BLOCK
        status = (at + _STATUS_AT) // 4
        if not self._status[status] & 1:
            if self._ending.over(self._all_there):
                return None
            events = self._poll.poll(WAIT_SECONDS * 1000)
            if any(event & select.POLLERR for _, event in events):
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                self.problem = {errno.ENETDOWN: "the interface went down"}.get(code, errno.errorcode.get(code, ""))
                return None if self.problem else NOTHING
            return NOTHING
        from kwire.captures.live import records  # kernels, which are kept for the user whom we are by now

        filled, packets = records.from_ring(self._bytes, at, _BLOCK, self._out, self._snaplen, int(self._cooked))
        data = self._chunks.copied(self._out.ctypes.data, int(filled))
        self._status[status] = 0
        self._block = (self._block + 1) % self._blocks
        self._packets_out += int(packets)
        self._ending.took(_BLOCK, data)
        return PcapRecords(data, int(packets)) if packets else NOTHING

    def _all_there(self) -> bool:
        self.counts()
        return self._packets_out >= self._received - self._lost

    def counts(self) -> Counts:
        if self._socket.fileno() >= 0:
            received, lost, _ = struct.unpack("III", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
            self._received += received
            self._lost += lost  # the kernel counts anew after each question
        return Counts(self._lost, None)

    def stop(self) -> None:
        self._ending.tell()

    def close(self) -> None:
        self.counts()
        self._status = self._bytes = np.empty(0, np.uint32)
        self._memory.close()
        self._socket.close()


def _kind_of(interface: str) -> int:
    """The kind of hardware (ARPHRD_...)."""
    try:
        with open(f"/sys/class/net/{interface}/type", encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
