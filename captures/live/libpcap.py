"""libpcap, called through ctypes: no Python a packet, and nothing to build or install besides the library.

In: an interface, a filter. Out: a `Tap`. The callback that libpcap calls for each packet is its own `pcap_dump`,
which writes a record of a pcap file; the file is memory, and is taken and begun anew after each call.

Rules: never wait inside libpcap (on Linux it may wait for a packet for ever): wait for its descriptor, then take what
is there. `pcap_stats` counts in 32 bits: differences are added up.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import select
import sys
import threading
from typing import Any, Final

from captures.live import interfaces
from captures.live.taps import (
    BUFFER_BYTES,
    MOST_PACKETS,
    NOTHING,
    WAIT_SECONDS,
    Chunk,
    Counts,
    Ending,
    no_rights,
)
from captures.problems import CaptureError

_NO_SUCH_DEVICE, _NO_RIGHTS, _NOT_UP, _NO_RIGHTS_PROMISCUOUS = -5, -8, -9, -11
_TEXT_BYTES: Final = 256
_NANO: Final = 1
_COOKED_2: Final = 276
_ANY_NETMASK: Final = 0xFFFFFFFF

_NAMES = {"linux": ("libpcap.so.0.8", "libpcap.so.1"), "darwin": ("/usr/lib/libpcap.dylib",)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("instructions", ctypes.c_void_p))


class _Statistics(ctypes.Structure):
    _fields_ = (("received", ctypes.c_uint), ("dropped", ctypes.c_uint), ("by_interface", ctypes.c_uint))


def library() -> Any | None:
    """libpcap with what we call declared; None where it is not installed, or the C library has no files in memory."""
    for name in (ctypes.util.find_library("pcap"), *_NAMES.get(sys.platform, ())):
        try:
            found = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if found is not None and hasattr(found, "pcap_dump_fopen") and hasattr(ctypes.CDLL(None), "open_memstream"):
            return _declared(found)
    return None


def _declared(lib: Any) -> Any:
    """Give functions their types: pointers are not ints."""
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("pcap_create", handle, (text, text)),
        ("pcap_geterr", text, (handle,)),
        ("pcap_lib_version", text, ()),
        ("pcap_set_snaplen", ctypes.c_int, (handle, ctypes.c_int)),
        ("pcap_set_promisc", ctypes.c_int, (handle, ctypes.c_int)),
        ("pcap_set_timeout", ctypes.c_int, (handle, ctypes.c_int)),
        ("pcap_set_buffer_size", ctypes.c_int, (handle, ctypes.c_int)),
        ("pcap_set_tstamp_precision", ctypes.c_int, (handle, ctypes.c_int)),
        ("pcap_set_datalink", ctypes.c_int, (handle, ctypes.c_int)),
        ("pcap_activate", ctypes.c_int, (handle,)),
        ("pcap_setnonblock", ctypes.c_int, (handle, ctypes.c_int, text)),
        ("pcap_get_selectable_fd", ctypes.c_int, (handle,)),
        ("pcap_compile", ctypes.c_int, (handle, ctypes.POINTER(_Program), text, ctypes.c_int, ctypes.c_uint)),
        ("pcap_setfilter", ctypes.c_int, (handle, ctypes.POINTER(_Program))),
        ("pcap_freecode", None, (ctypes.POINTER(_Program),)),
        ("pcap_dump_fopen", handle, (handle, handle)),
        ("pcap_dispatch", ctypes.c_int, (handle, ctypes.c_int, handle, handle)),
        ("pcap_stats", ctypes.c_int, (handle, ctypes.POINTER(_Statistics))),
        ("pcap_close", None, (handle,)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class _Memory:
    """A C file that is memory: what was written to it since `taken` was called before."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)
        self._c.open_memstream.restype = ctypes.c_void_p
        self._c.open_memstream.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._c.fseeko.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        self._c.fflush.argtypes = self._c.fclose.argtypes = (ctypes.c_void_p,)
        self._at, self._size = ctypes.c_void_p(), ctypes.c_size_t()
        self.file = self._c.open_memstream(ctypes.byref(self._at), ctypes.byref(self._size))
        if not self.file:
            raise MemoryError("open_memstream")

    def taken(self) -> bytes:
        self._c.fflush(self.file)
        data = ctypes.string_at(self._at, self._size.value) if self._size.value else b""
        self._c.fseeko(self.file, 0, 0)
        return data

    def close(self) -> None:
        self._c.fclose(self.file)


class Libpcap:
    """A `Tap`. Raises CaptureError: no rights, no such interface, a filter that says nothing."""

    def __init__(self, lib: Any, interface: str, expression: str, snaplen: int) -> None:
        self.interface, self.expression = interface, expression
        self.how = lib.pcap_lib_version().decode("ascii", "replace").split(" (")[0]
        self.problem = ""
        self._lib = lib
        self._seen = _Statistics()
        self._kernel = self._card = 0
        self._handed = self._received = 0
        self._ending = Ending()
        self._closing = threading.Lock()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        if "\0" in interface or len(interface) > 100:
            raise interfaces.unknown(interface)
        self._handle = lib.pcap_create(interface.encode("utf-8", "surrogateescape"), text)
        if not self._handle:
            raise CaptureError(f"-i {interface}: {_plain(text.value)}", f"there are {', '.join(interfaces.names())}")
        try:
            self._open(snaplen)
            self._filter(expression)
            self._memory = _Memory()
        except BaseException:
            lib.pcap_close(self._handle)
            raise
        self._dumper = lib.pcap_dump_fopen(self._handle, self._memory.file)
        if not self._dumper:
            problem = self._error()
            lib.pcap_close(self._handle)
            raise CaptureError(f"{interface}: {problem}", "does tcpdump capture there?")
        self._write = ctypes.cast(lib.pcap_dump, ctypes.c_void_p)
        self.header = self._memory.taken()

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
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        lib.pcap_setnonblock(handle, 1, text)
        self._descriptor = lib.pcap_get_selectable_fd(handle)

    def _filter(self, expression: str) -> None:
        program = _Program()
        encoded = expression.encode("utf-8", "surrogateescape")
        if b"\0" in encoded or self._lib.pcap_compile(
            self._handle, ctypes.byref(program), encoded, 1, _ANY_NETMASK
        ):
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
        return _plain(self._lib.pcap_geterr(self._handle)) or "libpcap does not say why"

    def read(self) -> Chunk | None:
        if self._ending.full:
            return None
        if self._descriptor >= 0:
            select.select([self._descriptor], [], [], WAIT_SECONDS)
        else:  # where nothing can be waited for, the next look is soon
            threading.Event().wait(WAIT_SECONDS)
        count = self._lib.pcap_dispatch(self._handle, MOST_PACKETS, self._write, self._dumper)
        if count < 0:
            self.problem = self._error()
            return None
        if not count:
            return None if self._ending.over(self._all_there) else NOTHING
        data = self._memory.taken()
        self._handed += count
        self._ending.took(len(data))
        return Chunk(data, count)

    def _all_there(self) -> bool:
        self.counts()
        return self._handed >= self._received - self._kernel

    def counts(self) -> Counts:
        with self._closing:
            now = _Statistics()
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
                self._memory.close()
                self._handle = None


def _plain(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip()
