"""libpcap, or Npcap where the system is Windows: found, its functions declared, and where its `pcap_dump` writes.

Out: the library with the types of what we call; a `Dump`, which gives what was written to it since; a wait that ends
when packets are there; the names of devices. A dump is a C file in memory where the C library has such files
(`open_memstream`, POSIX), else a file of its own in the folder for temporary files, begun anew before it is large.

Source: pcap/pcap.h of libpcap 1.10 and Npcap's user guide. On Windows, `struct pcap_stat` is longer, there is an event
to wait for in place of a descriptor, and a `FILE *` of our C library would be none of the DLL's: files have names.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
import select
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from kwire.captures.errors import CaptureError
from kwire.captures.live.chunk_memory import ChunkMemory
from kwire.captures.live.taps import HEADER

TEXT_BYTES: Final = 256
"""Of a buffer for what went wrong (PCAP_ERRBUF_SIZE)."""

NAMED_BYTES: Final = 16 << 20
"""A dump that is a named file begins anew behind so much."""

_UTF_8: Final = 1
_NAMES = {"linux": ("libpcap.so.0.8", "libpcap.so.1"), "darwin": ("/usr/lib/libpcap.dylib",)}


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("instructions", ctypes.c_void_p))


class Statistics(ctypes.Structure):
    """`struct pcap_stat`; the last three are Windows' own."""

    _fields_ = (
        ("received", ctypes.c_uint),
        ("dropped", ctypes.c_uint),
        ("by_interface", ctypes.c_uint),
        ("captured", ctypes.c_uint),
        ("sent", ctypes.c_uint),
        ("dropped_by_network", ctypes.c_uint),
    )


class _Device(ctypes.Structure):
    """The beginning of `struct pcap_if`."""


_Device._fields_ = (
    ("next", ctypes.POINTER(_Device)),
    ("name", ctypes.c_char_p),
    ("description", ctypes.c_char_p),
)


# --- the library -----------------------------------------------------------------------------------------------------


def library() -> Any | None:
    """The library with what we call declared; None where it is not installed."""
    for name in _candidates():
        try:
            loaded = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(loaded, "pcap_dump_open" if sys.platform == "win32" else "pcap_dump_fopen"):
            return _declared(loaded)
    return None


def _candidates() -> list[str]:
    if sys.platform == "win32":  # Npcap's own folder first: beside it an old WinPcap may stand in the system's
        system = os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32")
        return [os.path.join(system, "Npcap", "wpcap.dll"), os.path.join(system, "wpcap.dll")]
    name = ctypes.util.find_library("pcap")
    return [*([name] if name else []), *_NAMES.get(sys.platform, ())]


def _declared(lib: Any) -> Any:
    """Give functions their types: pointers are not ints. Those that a system lacks are left out."""
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
        ("pcap_compile", ctypes.c_int, (handle, ctypes.POINTER(Program), text, ctypes.c_int, ctypes.c_uint)),
        ("pcap_setfilter", ctypes.c_int, (handle, ctypes.POINTER(Program))),
        ("pcap_freecode", None, (ctypes.POINTER(Program),)),
        ("pcap_dump_open", handle, (handle, text)),
        ("pcap_dump_flush", ctypes.c_int, (handle,)),
        ("pcap_dump_close", None, (handle,)),
        ("pcap_dispatch", ctypes.c_int, (handle, ctypes.c_int, handle, handle)),
        ("pcap_stats", ctypes.c_int, (handle, ctypes.POINTER(Statistics))),
        ("pcap_findalldevs", ctypes.c_int, (ctypes.POINTER(ctypes.POINTER(_Device)), text)),
        ("pcap_freealldevs", None, (ctypes.POINTER(_Device),)),
        ("pcap_close", None, (handle,)),
        ("pcap_dump_fopen", handle, (handle, handle)),  # from here on: not everywhere
        ("pcap_get_selectable_fd", ctypes.c_int, (handle,)),
        ("pcap_getevent", handle, (handle,)),
        ("pcap_init", ctypes.c_int, (ctypes.c_uint, text)),
    ):
        if hasattr(lib, name):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    if sys.platform == "win32" and hasattr(lib, "pcap_init"):  # else names of files are in the code page of the system
        lib.pcap_init(_UTF_8, ctypes.create_string_buffer(TEXT_BYTES))
    return lib


def plain(text: bytes) -> str:
    """Decode a text of libpcap."""
    return text.decode("utf-8", "replace").strip()


# --- where records go ------------------------------------------------------------------------------------------------


class Dump(Protocol):
    """Target that `pcap_dump` writes to.

    header   of the pcap file, 24 bytes
    dumper   first argument of the callback
    """

    header: bytes
    dumper: Any

    def take(self) -> bytes | memoryview:
        """Return the bytes written since the last call."""
        ...

    def close(self) -> None: ...


class InMemory:
    """A C file that is memory. Raises CaptureError."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._c = ctypes.CDLL(None)
        self._c.open_memstream.restype = ctypes.c_void_p
        self._c.open_memstream.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._c.fseeko.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        self._c.fflush.argtypes = self._c.fclose.argtypes = (ctypes.c_void_p,)
        self._at, self._size = ctypes.c_void_p(), ctypes.c_size_t()
        self._chunks = ChunkMemory()
        self._file = self._c.open_memstream(ctypes.byref(self._at), ctypes.byref(self._size))
        if not self._file:
            raise MemoryError("open_memstream")
        self.dumper = lib.pcap_dump_fopen(handle, self._file)
        if not self.dumper:
            self.close()
            raise _not_written(lib, handle)
        self.header = bytes(self.take())

    def take(self) -> bytes | memoryview:
        self._c.fflush(self._file)
        data = self._chunks.copied(self._at.value or 0, self._size.value) if self._size.value else b""
        self._c.fseeko(self._file, 0, 0)
        return data

    def close(self) -> None:
        self._c.fclose(self._file)


class Named:
    """A private file as target, begun anew whenever it has become large. Raises CaptureError."""

    def __init__(self, lib: Any, handle: Any, most: int = NAMED_BYTES) -> None:
        self._lib, self._handle, self._most = lib, handle, most
        self._folder = tempfile.mkdtemp(prefix="kwire-live-")
        self.path = os.path.join(self._folder, "packets.pcap")
        try:
            self._begin()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.header = self._read(HEADER.size)

    def _begin(self) -> None:
        lib, encoded = self._lib, self.path.encode("utf-8" if hasattr(self._lib, "pcap_init") else _code_page())
        self.dumper = lib.pcap_dump_open(self._handle, encoded)
        if not self.dumper:
            raise _not_written(lib, self._handle)
        lib.pcap_dump_flush(self.dumper)
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115  (closed with the dump)

    def _read(self, size: int = -1) -> bytes:
        return self._file.read(size) or b""

    def take(self) -> bytes:
        if self._lib.pcap_dump_flush(self.dumper):
            raise CaptureError(f"{self.path}: cannot be written", "is there room on its disk?")
        data = self._read()
        if self._file.tell() > self._most:
            self._end()
            self._begin()
            self._read(HEADER.size)
        return data

    def _end(self) -> None:
        self._lib.pcap_dump_close(self.dumper)
        self._file.close()

    def close(self) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)


def dump(lib: Any, handle: Any) -> Dump:
    """The one that this system has. Raises CaptureError."""
    in_memory = sys.platform != "win32" and hasattr(ctypes.CDLL(None), "open_memstream")
    return InMemory(lib, handle) if in_memory else Named(lib, handle)


def _code_page() -> str:
    return "mbcs" if sys.platform == "win32" else sys.getfilesystemencoding()


def _not_written(lib: Any, handle: Any) -> CaptureError:
    return CaptureError(plain(lib.pcap_geterr(handle)) or "libpcap does not say why", "does tcpdump capture there?")


# --- when packets are there ------------------------------------------------------------------------------------------


def wait_of(lib: Any, handle: Any) -> Callable[[float], object]:
    """Return a function that waits for packets, at most so many seconds."""
    if sys.platform == "win32":
        event, kernel = lib.pcap_getevent(handle), ctypes.CDLL("kernel32")
        kernel.WaitForSingleObject.argtypes = (ctypes.c_void_p, ctypes.c_uint)
        return lambda seconds: kernel.WaitForSingleObject(event, round(seconds * 1000))
    descriptor = lib.pcap_get_selectable_fd(handle)
    if descriptor < 0:  # where nothing can be waited for, the next look is soon
        return threading.Event().wait
    return lambda seconds: select.select([descriptor], [], [], seconds)


# --- devices ---------------------------------------------------------------------------------------------------------


class Device(NamedTuple):
    """An interface as libpcap knows it: what it is opened by, what people call it, what it is; "" where nobody says."""

    name: str
    called: str
    description: str

    def __str__(self) -> str:
        return self.called or self.description or self.name


def devices(lib: Any) -> list[Device]:
    """The interfaces, in the order in which `tcpdump -D` and `dumpcap -D` count them. Raises CaptureError."""
    text, first = ctypes.create_string_buffer(TEXT_BYTES), ctypes.POINTER(_Device)()
    if lib.pcap_findalldevs(ctypes.byref(first), text):
        raise CaptureError(f"-i: {plain(text.value)}", "is Npcap's service running?")
    devices_there, at = [], first
    while at:
        device = at.contents
        name = (device.name or b"").decode("utf-8", "replace")
        devices_there.append(Device(name, _called(name), plain(device.description or b"")))
        at = device.next
    lib.pcap_freealldevs(first)
    return devices_there


def chosen(devices: list[Device], wanted: str) -> Device:
    """The one that is meant by its name, by what people call it, by what it is, or by its number in the list. Raises
    CaptureError."""
    for text in ("name", "called", "description"):
        fitting = [device for device in devices if getattr(device, text).casefold() == wanted.casefold() != ""]
        if len(fitting) == 1:
            return fitting[0]
    if wanted.isascii() and wanted.isdigit() and 0 < int(wanted) <= len(devices):
        return devices[int(wanted) - 1]
    there = ", ".join(f"{number} ({device})" for number, device in enumerate(devices, 1))
    raise CaptureError(f"-i {wanted}: no such interface", f"there are {there}" if there else "Npcap shows none")


def _called(name: str) -> str:
    """Return the name of a device `\\Device\\NPF_{GUID}` in Windows' settings; "" elsewhere."""
    if sys.platform == "win32":
        import winreg

        network = r"SYSTEM\CurrentControlSet\Control\Network\{4D36E972-E325-11CE-BFC1-08002BE10318}"
        with contextlib.suppress(OSError):
            key = rf"{network}\{name.rpartition('NPF_')[2]}\Connection"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                return str(winreg.QueryValueEx(opened, "Name")[0])
    return ""
