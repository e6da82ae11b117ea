"""libpcap, called through ctypes: no Python a packet, and nothing to build or install besides the library.

In: an interface, a filter. Out: a `Tap`. The callback that libpcap calls for each packet is its own `pcap_dump`,
which writes a record of a pcap file; where that file is, and what is taken of it, `pcap_library` says.

Rules: never wait inside libpcap (on Linux it may wait for a packet for ever): wait for its descriptor, or its event on
Windows, then take what is there. `pcap_stats` counts in 32 bits: differences are added up.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final

from kwire.captures.errors import CaptureError
from kwire.captures.live import interfaces
from kwire.captures.live.chunk_memory import CHUNK_BYTES
from kwire.captures.live.pcap_library import TEXT_BYTES, Dump, Program, Statistics, dump, plain, wait_of
from kwire.captures.live.taps import (
    BUFFER_BYTES,
    MOST_PACKETS,
    NOTHING,
    WAIT_SECONDS,
    Counts,
    Ending,
    PcapRecords,
    no_rights,
)

_NO_SUCH_DEVICE, _NO_RIGHTS, _NOT_UP, _NO_RIGHTS_PROMISCUOUS = -5, -8, -9, -11
_NANO: Final = 1
_COOKED_2: Final = 276
_ANY_NETMASK: Final = 0xFFFFFFFF


class Libpcap:
    """A `Tap`. `device`: what libpcap calls the interface, where that is not its name. Raises CaptureError: no rights,
    no such interface, a filter that says nothing."""

    def __init__(
        self, lib: Any, interface: str, expression: str, snaplen: int, device: str | None = None, one_of: int = 1
    ) -> None:
        self.interface, self.expression, self.one_of = interface, expression, one_of
        self.how = lib.pcap_lib_version().decode("ascii", "replace").split(" (")[0]
        self.problem = ""
        self._lib = lib
        self._seen = Statistics()
        self._kernel = self._card = 0
        self._handed = self._received = 0
        self._most = MOST_PACKETS
        """Packets of the next chunk: as many as `CHUNK_BYTES` held of those of the last."""
        self._closing = threading.Lock()
        text = ctypes.create_string_buffer(TEXT_BYTES)
        if "\0" in interface or len(interface) > 100:
            raise interfaces.unknown(interface)
        self._handle = lib.pcap_create((device or interface).encode("utf-8", "surrogateescape"), text)
        if not self._handle:
            raise CaptureError(f"-i {interface}: {plain(text.value)}", f"there are {', '.join(interfaces.names())}")
        try:
            self._open(snaplen)
            self._filter(expression)
            if one_of != 1:  # after the user's own, whose faults are told in its words
                self._filter(interfaces.sampled(expression, one_of))
            self._dump: Dump = dump(lib, self._handle)
        except BaseException:
            lib.pcap_close(self._handle)
            raise
        self._write = ctypes.cast(lib.pcap_dump, ctypes.c_void_p)
        self.header = self._dump.header
        self._ending = Ending(self.header)

    def _open(self, snaplen: int) -> None:
        lib, handle = self._lib, self._handle
        lib.pcap_set_snaplen(handle, snaplen)
        lib.pcap_set_promisc(handle, 1)
        lib.pcap_set_timeout(handle, int(WAIT_SECONDS * 1000))
        lib.pcap_set_buffer_size(handle, BUFFER_BYTES)
        lib.pcap_set_tstamp_precision(handle, _NANO)
        status = lib.pcap_activate(handle)
        if status in (_NO_RIGHTS, _NO_RIGHTS_PROMISCUOUS):
            raise no_rights(self.interface)
        if status == _NO_SUCH_DEVICE:
            raise interfaces.unknown(self.interface)
        if status < 0:
            why = "it is not up" if status == _NOT_UP else self._error()
            raise CaptureError(f"-i {self.interface}: {why}", f"there are {', '.join(interfaces.names())}")
        if self.interface == interfaces.ANY:
            lib.pcap_set_datalink(handle, _COOKED_2)  # says which interface; an older libpcap stays with the other
        text = ctypes.create_string_buffer(TEXT_BYTES)
        lib.pcap_setnonblock(handle, 1, text)
        self._wait = wait_of(lib, handle)

    def _filter(self, expression: str) -> None:
        program = Program()
        encoded = expression.encode("utf-8", "surrogateescape")
        if b"\0" in encoded or self._lib.pcap_compile(self._handle, ctypes.byref(program), encoded, 1, _ANY_NETMASK):
            raise CaptureError(
                f"-f {expression!r}: {self._error()}",
                "it is tcpdump's language, as -f 'tcp port 9092': man pcap-filter",
            )
        status = self._lib.pcap_setfilter(self._handle, ctypes.byref(program))
        problem = self._error() if status else ""
        self._lib.pcap_freecode(ctypes.byref(program))
        if status:
            raise CaptureError(f"-f {expression!r}: {problem}", "a shorter filter may do")

    def _error(self) -> str:
        return plain(self._lib.pcap_geterr(self._handle)) or "libpcap does not say why"

    def read(self) -> PcapRecords | None:
        if self._ending.late:
            return None
        self._wait(WAIT_SECONDS)
        count = self._lib.pcap_dispatch(self._handle, self._most, self._write, self._dump.dumper)
        if count < 0:
            self.problem = self._error()
            return None
        if not count:
            return None if self._ending.over(self._all_there) else NOTHING
        data = self._dump.take()
        self._most = max(1, min(MOST_PACKETS, CHUNK_BYTES * count // len(data)))
        self._handed += count
        self._ending.took(len(data), data)
        return PcapRecords(data, count)

    def _all_there(self) -> bool:
        self.counts()
        return self._handed >= self._received - self._kernel

    def counts(self) -> Counts:
        with self._closing:
            now = Statistics()
            if self._handle and self._lib.pcap_stats(self._handle, ctypes.byref(now)) == 0:
                self._received += (now.received - self._seen.received) % (1 << 32)
                self._kernel += (now.dropped - self._seen.dropped) % (1 << 32)
                self._card += (now.by_interface - self._seen.by_interface) % (1 << 32)
                self._seen = now
            return Counts(self._kernel, self._card)

    def stop(self) -> None:
        self._ending.tell()

    def close(self) -> None:
        self.counts()
        with self._closing:
            if self._handle:
                self._lib.pcap_close(self._handle)
                self._dump.close()
                self._handle = None
