"""Capture files as byte streams: what a file is by its magic, and its bytes, decompressed.

In: the path or URL of one file. Out: a `Source`, which gives its decompressed bytes into the caller's buffer. Nothing
here looks inside a packet.

The rule: a file is what its first bytes say, never what its name says. What cannot be read at all is a
`CaptureError`; what ends early is read as far as it goes, and `Source.problem` says why it ended.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from kwire.captures.errors import CaptureError
from kwire.captures.files import sidecar, urls

if TYPE_CHECKING:
    from kwire.captures.files.stores import Location

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CHUNK_BYTES = 1 << 16
"""How much compressed data is read, and how much is decompressed, at a time: enough to make the calls cheap. Where the
data is damaged, what was decompressed up to there in that call is lost, so it is small beside a window."""

_AT_ONCE = 1 << 19
"""Bytes of a file read, and taken into its checksum, at a time: they are in the core's own cache then. Of a gigabyte in
pieces of 16 MiB it took 0.17 s of processor time, in these 0.15."""

ZSTD_PIECE_BYTES = 1 << 11
"""Compressed data that zstd gets at a time. 4 bytes can stand for 128 KiB, so this much is 64 MiB at worst."""

LARGEST_ZSTD_WINDOW_BYTES = 128 << 20
"""zstd frames may ask for a history as large as they like; this is what the zstd tool grants without being asked."""

LIVE_WAIT_SECONDS = 0.2
"""So long after its first byte a window of a pipe is handed on half full, so that live traffic shows up soon: a
deadline, since a pipe with a packet now and then is never silent for as long as that. Each window has a price of its
own, which is half of all where there are 20 a second."""


class FileInfo(NamedTuple):
    """Properties of one capture file, for the list of captures in `_kwire.json`.

    `size` and `crc32c` are of the bytes as stored (compressed ones where `compressed`); `mtime_ns` is 0 for stdin.
    `first_ns` and `last_ns` are the earliest and the latest packet time, None without a timed packet. `packets` counts
    every captured packet, TCP or not. Until a file is read to its end, size, crc32c and the times are those so far.
    """

    name: str
    path: str
    size: int = 0
    mtime_ns: int = 0
    crc32c: int = 0
    compressed: bool = False
    first_ns: int | None = None
    last_ns: int | None = None
    link_types: tuple[str, ...] = ()
    packets: int = 0


@functools.cache
def inflater() -> Any:
    """Return the module that inflates: three times as fast as zlib where there is a wheel for it.

    Few captures need any."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:  # pragma: no cover - depends on the machine
        return zlib


class Stream(Protocol):
    """Bytes in order; `readinto` returns 0 at the end only."""

    problem: str

    def readinto(self, into: memoryview) -> int: ...


class Stored:
    """The bytes of a file as stored: counts them, checksums them, and lets the first ones be looked at. `before`: bytes
    that were read already, with that checksum."""

    def __init__(self, handle: BinaryIO, before: int = 0, crc32c_before: int = 0) -> None:
        from kwire.captures.crc32c_sums import crc32c  # whoever only names files does not wait for it

        self._sum = crc32c
        self._handle = handle
        # Of a file on this machine; behind a URL each read may be a request.
        self._most = _AT_ONCE if isinstance(handle, io.FileIO) else sys.maxsize
        self._head = b""
        # A pipe gives what it has; a full read would wait for bytes that live traffic may take minutes to bring.
        self._read_some = getattr(handle, "readinto1", None) or handle.readinto  # type: ignore[attr-defined]
        self.bytes_read = before
        self.crc32c = crc32c_before
        self.problem = ""

    def _from_handle(self, into: memoryview) -> int:
        count = self._read_some(into[: self._most]) or 0
        if count:
            self.crc32c = self._sum(into[:count], self.crc32c)
            self.bytes_read += count
        return count

    def peek(self, count: int) -> bytes:
        """The next `count` bytes without taking them (fewer at the end)."""
        while len(self._head) < count:
            more = bytearray(count - len(self._head))
            got = self._from_handle(memoryview(more))
            if not got:
                break
            self._head += bytes(more[:got])
        return self._head[:count]

    def readinto(self, into: memoryview) -> int:
        if self._head:
            count = min(len(self._head), len(into))
            into[:count] = self._head[:count]
            self._head = self._head[count:]
            return count
        return self._from_handle(into)

    def read(self, count: int = -1) -> bytes:
        """Like a file's `read`, which decompressors ask for; at most one chunk at a time."""
        chunk = bytearray(min(count, CHUNK_BYTES) if count >= 0 else CHUNK_BYTES)
        return bytes(chunk[: self.readinto(memoryview(chunk))])


class _Gzip:
    """gzip data, one member or several after each other (RFC 1952)."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._input = b""
        self._member = inflater().decompressobj(31)
        self._output = memoryview(b"")
        self.problem = ""

    def readinto(self, into: memoryview) -> int:
        if not self._output:
            self._output = memoryview(self._next())
        count = min(len(into), len(self._output))
        into[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _next(self) -> bytes:
        """The next piece, b"" at the end. Its size is always the same, so that what a damaged file still gives does not
        depend on how much the reader asks for."""
        while not self.problem:
            data = self._input or self._stored.read()
            try:
                out: bytes = self._member.decompress(data, CHUNK_BYTES)
            except (zlib.error, inflater().error) as failure:
                self.problem = f"its gzip data is damaged ({failure})"
                break
            if self._member.eof:
                self._input = self._member.unused_data or self._stored.read()
                if self._input.startswith(GZIP_MAGIC):
                    self._member = inflater().decompressobj(31)
                elif not out:
                    # Padding of zeros after the last member is ordinary (tapes, block devices).
                    if self._input.strip(b"\0"):
                        self.problem = "what follows its gzip data is no gzip data"
                    break
            else:
                self._input = self._member.unconsumed_tail
                if not data and not out:
                    self.problem = "its gzip data is cut off"
                    break
            if out:
                return out
        return b""


class _Zstd:
    """zstd data, one frame or several after each other (RFC 8878)."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        import zstandard  # few captures need it

        # One decompressor for each source: it must not be shared between threads.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_ZSTD_WINDOW_BYTES)
        self._error = zstandard.ZstdError
        self._frame = self._decompressor.decompressobj()
        self._inside = False  # whether a frame has begun and not ended
        self._input = b""
        self._at = 0
        self._output = memoryview(b"")
        self.problem = ""

    def readinto(self, into: memoryview) -> int:
        while not self._output and not self.problem and self._fill():
            piece = self._input[self._at : self._at + ZSTD_PIECE_BYTES]
            self._at += len(piece)
            self._inside = True
            try:
                self._output = memoryview(self._frame.decompress(piece))
            except self._error as failure:
                self.problem = f"its zstd data is damaged ({failure})"
                break
            if self._frame.eof:
                self._at -= len(self._frame.unused_data)
                self._frame = self._decompressor.decompressobj()
                self._inside = False
        count = min(len(self._output), len(into))
        into[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _fill(self) -> bool:
        """Have input at hand: some of a frame, or the beginning of one."""
        while len(self._input) - self._at < (1 if self._inside else 4):
            more = self._stored.read()
            if not more:
                break
            self._input = self._input[self._at :] + more
            self._at = 0
        head = self._input[self._at : self._at + 4]
        if self._inside:
            if not head:
                self.problem = "its zstd data is cut off"
        elif head.strip(b"\0") and not is_zstd(head):
            self.problem = "what follows its zstd data is no zstd data"
        return bool(head) and not self.problem and (self._inside or is_zstd(head))


class Source:
    """One capture file, open for reading: `readinto` gives its decompressed bytes. A relative path starts at `folder`;
    `path` is how the file may be called to anybody.

    Raises CaptureError where the file cannot be opened or read. Use as a context manager, or `close` it.
    """

    def __init__(self, path: str, stdin: BinaryIO | None = None, folder: str = "") -> None:
        self.path = urls.shown(path)
        self.name = "stdin" if path == "-" else _base_name(path)
        self._beside = ""
        self._waits: Callable[[float], bool] | None = None
        if path == "-":
            self._handle: BinaryIO = sys.stdin.buffer if stdin is None else stdin
            self.size = self.mtime_ns = 0
            self._find_pipe()
        elif urls.is_url(path):
            self._handle, self.size, self.mtime_ns = _open_url(path)
        else:
            self._handle = _open(path, folder)
            self._beside = os.path.join(folder, path)
            status = os.fstat(self._handle.fileno())
            self.size, self.mtime_ns = status.st_size, status.st_mtime_ns
        self._stored = Stored(self._handle)
        head = self._guarded_peek()
        self.compressed = True
        self._stream: Stream
        if head.startswith(GZIP_MAGIC):
            self._stream = _Gzip(self._stored)
        elif is_zstd(head):
            self._stream = _Zstd(self._stored)
        else:
            self._stream = self._stored
            self.compressed = False

    def _find_pipe(self) -> None:
        """Whether the bytes come as they are made, and how one waits for more: what an interface gives says itself."""
        self._waits = getattr(self._handle, "waits", None)
        if self._waits is not None:
            return
        try:
            descriptor = self._handle.fileno()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._waits = lambda seconds: bool(select.select([descriptor], [], [], seconds)[0])
        except (OSError, ValueError, AttributeError):
            pass

    def statistics(self) -> sidecar.CaptureStatistics:
        """Return the facts about the capture outside its bytes: from a sidecar, or from a live tap."""
        if self._beside:
            return sidecar.statistics(self._beside)
        return sidecar.CaptureStatistics(getattr(self._handle, "dropped", None), getattr(self._handle, "one_of", 1))

    def _guarded_peek(self) -> bytes:
        try:
            return self._stored.peek(4)
        except OSError as failure:
            self.close()
            raise unreadable(self.path, failure) from failure

    @property
    def problem(self) -> str:
        """Why the bytes ended before their end, or an empty string."""
        return self._stream.problem

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the file as stored."""
        return self._stored.bytes_read

    @property
    def crc32c(self) -> int:
        """CRC-32C of the bytes taken from the file as stored."""
        return self._stored.crc32c

    def readinto(self, into: memoryview) -> int:
        """Fill `into` as far as the file goes; a pipe may leave it half full, `LIVE_WAIT_SECONDS` after the first byte.
        0 means the end."""
        filled = 0
        deadline = 0.0
        try:
            while filled < len(into):
                count = self._stream.readinto(into[filled:])
                if not count:
                    break
                if self._waits is not None and not filled:
                    deadline = monotonic() + LIVE_WAIT_SECONDS
                filled += count
                if self._waits is not None:
                    left = deadline - monotonic()
                    if left <= 0 or not self._waits(left):
                        break
        except OSError as failure:
            raise unreadable(self.path, failure) from failure
        return filled

    def drain(self) -> None:
        """Read the rest of the file as stored, so that size and checksum are the file's. A pipe is left alone."""
        if self.path == "-":
            return
        try:
            while self._stored.read():
                pass
        except OSError as failure:
            raise unreadable(self.path, failure) from failure

    def close(self) -> None:
        if self.path != "-":
            self._handle.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_compressed(head: bytes) -> bool:
    """Whether a file that begins with `head` (4 bytes) is decompressed while it is read."""
    return head.startswith(GZIP_MAGIC) or is_zstd(head)


def is_zstd(head: bytes) -> bool:
    """Whether a zstd frame begins with `head` (4 bytes): data, or to be skipped, as parallel compressors write."""
    return head == ZSTD_MAGIC or (len(head) == 4 and head[1:] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)


def _open(path: str, folder: str) -> BinaryIO:
    try:
        return cast(BinaryIO, open(os.path.join(folder, path), "rb", buffering=0))
    except FileNotFoundError as failure:
        raise CaptureError(
            f"{path}: no such file", "check the path; a pattern such as 'captures/*.pcap' needs quotes"
        ) from failure
    except OSError as failure:
        raise unreadable(path, failure) from failure


def place_of(url: str) -> Location:
    from kwire.captures.files import stores  # few need it

    return stores.place(url)


def _open_url(url: str) -> tuple[BinaryIO, int, int]:
    """The file's bytes, how many there are, and when it was changed."""
    place = place_of(url)
    try:
        return cast(BinaryIO, place.open()), place.size(), place.mtime_ns()
    except OSError as failure:
        raise unreadable(url, failure) from failure


def _base_name(path: str) -> str:
    return utf8(urls.base_name(path) if urls.is_url(path) else os.path.basename(path))


def utf8(name: str) -> str:
    """A file's name as all may store and print it: bytes that are no UTF-8 stand as `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def unreadable(path: str, failure: OSError) -> CaptureError:
    reason = failure.strerror or str(failure)
    if urls.is_url(path):
        what = "no such file" if isinstance(failure, FileNotFoundError) else f"cannot be read: {reason}"
        return CaptureError(f"{urls.shown(path)}: {what}", "check the URL, and how one logs in there")
    return CaptureError(f"{path}: cannot be read: {reason}", "check its permissions and the disk it lies on")


def not_a_capture(path: str, head: bytes) -> CaptureError:
    """The error for a file that is no capture; `head` are its first bytes, where they are at hand."""
    begins = f" (it begins with {head[:8].hex(' ')})" if head else ""
    if _HEX_DUMP.match(head):
        hint = "this looks like packets as text (hexadecimal); convert it with: text2pcap FILE NEW"
        return CaptureError(f"{path}: not a pcap or pcapng capture{begins}", hint)
    return CaptureError(
        f"{path}: not a pcap or pcapng capture{begins}",
        "kwire reads pcap and pcapng, also as .gz or .zst; convert others with: editcap -F pcapng FILE NEW",
    )


_HEX_DUMP = re.compile(
    rb"\s*(?:(?:0x)?[0-9A-Fa-f]{3,8}:?[ \t]+[0-9A-Fa-f]{2}(?:[0-9A-Fa-f]{2})?[ \t]"
    rb"|(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d+ )"
)
"""How text begins that `xxd`, `od`, Wireshark or `tcpdump -x` print of packets: an offset and bytes, or a time."""
