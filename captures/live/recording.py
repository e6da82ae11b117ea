"""Chunks to capture files: one, or a bounded row of them, with what was lost beside each.

In: `PcapRecords`s, the time, drop counters. Out: pcap files (pcapng where the name ends so) of mode 0600, and
FILE.stats.json beside each, which `kwire.captures.files` reads. Rules: every write ends where a record ends, so that a
file is whole whenever the process dies; a full disk cuts off what did not fit and keeps the rest; only files that a
row's name fits are ever deleted or replaced, and what is no capture is never overwritten.

Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kwire.captures.errors import CaptureError
from kwire.captures.files import sidecar
from kwire.captures.files.layouts import (
    ENHANCED_PACKET,
    INTERFACE_DESCRIPTION,
    INTERFACE_STATISTICS,
    LARGEST_RECORD_BYTES,
    SECTION_HEADER,
    is_capture,
)
from kwire.captures.files.write import block_of, option
from kwire.captures.links import ETHERNET
from kwire.captures.live import interfaces, records
from kwire.captures.live.capture_queue import Drops
from kwire.captures.live.payload_cut import PayloadCut
from kwire.captures.live.taps import HEADER, MICROSECONDS, NOTHING, SNAPLEN, PcapRecords, Tap, file_header

STDOUT: Final = "-"
_NUMBERED = "{stem}-{number:05d}-{when}{ending}"
_ORDER: Final = "<"
_NO_DROPS: Final = Drops(None, None, 0)
_CUT: Final = b"the content of record batches is left out (--no-payload)"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: `path` is a file, a folder (of a row of files), or `-` for standard output. A row has a new file after
    `rotate_bytes` or `rotate_seconds`, and keeps the last `keep`."""

    path: str
    rotate_bytes: int | None = None
    rotate_seconds: float | None = None
    keep: int | None = None

    @property
    def folder(self) -> bool:
        return self.path.endswith(os.sep) or os.path.isdir(self.path)

    @property
    def blocks(self) -> bool:
        """Whether its files are pcapng."""
        return self.path.lower().endswith(".pcapng")

    @property
    def row(self) -> bool:
        """Whether it is several files."""
        return self.folder or self.rotate_bytes is not None or self.rotate_seconds is not None


class _Form:
    """Format of a file: pcap as captured, or pcapng."""

    def __init__(self, tap: Tap, blocks: bool, no_payload: bool) -> None:
        magic, _, _, _, _, self._snaplen, self._link = HEADER.unpack(tap.header)
        self._tap, self.blocks, self._no_payload = tap, blocks, no_payload
        self._ticks = 10**6 if magic == MICROSECONDS else 10**9
        self.overhead = records.BLOCK_OVERHEAD if blocks else records.RECORD_HEADER
        self.tail = len(self.statistics(0, 0, _NO_DROPS))
        """Bytes that a file ends with."""

    def begin(self) -> bytes:
        if not self.blocks:
            return self._tap.header
        digits = bytes([6 if self._ticks == 10**6 else 9])
        name = self._tap.interface.encode("utf-8", "surrogateescape")
        options = option(_ORDER, 2, name) + option(_ORDER, 9, digits)
        if self._no_payload:
            options += option(_ORDER, 3, _CUT)
        chosen = interfaces.sampled(self._tap.expression, self._tap.one_of)
        if chosen:
            options += option(_ORDER, 11, b"\0" + chosen.encode("utf-8", "surrogateescape"))
        section = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
        section += option(_ORDER, 4, b"kwire record") + option(_ORDER, 0, b"")
        described = struct.pack("<HHI", self._link, 0, self._snaplen) + options + option(_ORDER, 0, b"")
        return block_of(_ORDER, SECTION_HEADER, section) + block_of(_ORDER, INTERFACE_DESCRIPTION, described)

    def records(self, data: np.ndarray, at: int, end: int, size: int) -> memoryview:
        """Whole records of data[at:end], which take `size` bytes in the file."""
        if not self.blocks:
            return data[at:end].data
        out = np.empty(size, np.uint8)
        records.to_blocks(data, at, end, out, self._ticks)
        return out.data

    def statistics(self, begun_ns: int, received: int, drops: Drops) -> bytes:
        """Return the block with packets received and lost since the file began; empty for a pcap file."""
        if not self.blocks:
            return b""
        ticks = time.time_ns() * self._ticks // 10**9
        began = begun_ns * self._ticks // 10**9
        options = option(_ORDER, 2, struct.pack("<II", began >> 32, began & 0xFFFFFFFF))
        options += option(_ORDER, 4, struct.pack("<Q", received + drops.total))
        options += option(_ORDER, 5, struct.pack("<Q", drops.interface or 0))
        options += option(_ORDER, 7, struct.pack("<Q", (drops.kernel or 0) + drops.queue)) + option(_ORDER, 0, b"")
        return block_of(_ORDER, INTERFACE_STATISTICS, struct.pack("<III", 0, ticks >> 32, ticks & 0xFFFFFFFF) + options)


class Recording:
    """Capture files being written; use as a context manager. `packets` and `bytes` are of all files so far.

    no_payload: leave out the content of record batches (`PayloadCut`); a packet may then be several.
    Raises CaptureError for what cannot be written to.
    """

    def __init__(self, tap: Tap, target: Target, no_payload: bool = False) -> None:
        self.packets = self.bytes = self.files = 0
        self.path = ""
        self._tap, self._target = tap, target
        folder, name = (target.path, "capture.pcap") if target.folder else os.path.split(target.path)
        self._folder = folder or os.curdir
        self._stem, self._ending = os.path.splitext(name)
        self._form = _Form(tap, target.blocks, no_payload)
        self._payload_cut = PayloadCut(tap.header) if no_payload else None
        self._left_out_before = 0
        self._descriptor = -1
        self._size = self._file_packets = 0
        self._begun_ns = 0
        self._begun = 0.0
        self._before = self._latest_drops = _NO_DROPS
        if target.folder:
            self._guard(lambda: os.makedirs(self._folder, mode=0o700, exist_ok=True), self._folder)
        self._row = re.compile(
            re.escape(self._stem) + r"-(\d{5,})-\d{8}T\d{6}" + re.escape(self._ending) + r"\Z", re.ASCII
        )
        sidecar.clear_dead(self._folder, self._stem)
        self._next()

    @property
    def left_out_bytes(self) -> int:
        """Bytes of record batches that were left out so far."""
        return self._payload_cut.left_out if self._payload_cut is not None else 0

    # -- files ---------------------------------------------------------------------------------------------------------
    def _guard(self, do: Callable[[], None], path: str) -> None:
        try:
            do()
        except OSError as failure:
            raise CaptureError(f"{path}: cannot be written: {failure.strerror or failure}", _hint(failure)) from failure

    def _earlier(self) -> list[tuple[int, str]]:
        """The files of the row that are there, oldest first."""
        with contextlib.suppress(OSError):
            matches = ((self._row.match(name), name) for name in os.listdir(self._folder))
            return sorted((int(match[1]), name) for match, name in matches if match)
        return []

    def _next(self) -> None:
        """Begin a file."""
        if self._target.path == STDOUT:
            self._descriptor = 1
        else:
            self._guard(self._create, self._target.path)
            self._tidy()
        self.files += 1
        self._size = self._file_packets = 0
        self._begun_ns = time.time_ns()
        self._begun = time.monotonic()
        self._put(memoryview(self._form.begin()), 0)
        self._write_statistics(ended=False)

    def _create(self) -> None:
        if self._target.row:
            earlier = self._earlier()
            when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            number = earlier[-1][0] + 1 if earlier else 1
            name = _NUMBERED.format(stem=self._stem, number=number, when=when, ending=self._ending)
            self.path = os.path.join(self._folder, name)
        else:
            self.path = self._target.path
            self._make_way()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for system in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"):
            flags |= getattr(os, system, 0)
        self._descriptor = os.open(self.path, flags, 0o600)

    def _make_way(self) -> None:
        """Remove a capture that this one replaces."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return
        head = b""
        if stat.S_ISREG(status.st_mode):
            with open(self.path, "rb") as file:
                head = file.read(4)
        if not stat.S_ISREG(status.st_mode) or (status.st_size and not is_capture(head)):
            raise CaptureError(f"{self.path}: is there already, and is no capture", "name another file")
        os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.unlink(sidecar.path_of(self.path))

    def _tidy(self) -> None:
        """Delete the oldest of the row."""
        if self._target.keep is None:
            return
        for _, name in self._earlier()[: -self._target.keep]:
            for path in (os.path.join(self._folder, name), sidecar.path_of(os.path.join(self._folder, name))):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _put(self, data: memoryview, packets: int) -> None:
        """Append whole records. Where there is no room, what does not fit is cut off."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except BrokenPipeError:
            raise
        except OSError as failure:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size + self._whole(data, written))
            packets_kept = f"; {self.packets:,} packets are kept" if self.packets else ""
            raise CaptureError(
                f"{self.path or 'stdout'}: cannot be written: {failure.strerror or failure}{packets_kept}",
                _hint(failure),
            ) from failure
        self._size += written
        self.bytes += written
        self._file_packets += packets
        self.packets += packets

    def _whole(self, data: memoryview, written: int) -> int:
        """How much of what was written is whole records; they count."""
        at = 0
        while not self._form.blocks and written - at >= records.RECORD_HEADER:
            size = records.RECORD_HEADER + struct.unpack_from("<I", data, at + 8)[0]
            if written - at < size:
                break
            at += size
            self.packets += 1
        while self._form.blocks and written - at >= 12:
            kind, size = struct.unpack_from("<II", data, at)
            if written - at < size:
                break
            at += size
            self.packets += kind == ENHANCED_PACKET
        return at

    # -- what comes ----------------------------------------------------------------------------------------------------
    def take(self, chunk: PcapRecords) -> None:
        """Write a chunk, in several files where one is full."""
        if self._payload_cut is not None:
            chunk = self._payload_cut.cut(chunk)
        data = records.as_bytes(chunk.data)
        at, most = 0, self._target.rotate_bytes
        while at < len(data):
            if most is None and not self._form.blocks:
                end, packets, size = len(data), chunk.packets, len(data)
            else:
                room = most - self._size - self._form.tail if most is not None else 1 << 62
                end, packets, size = self._fitting(data, at, room)
                if not packets:
                    if self._file_packets:
                        self.rotate()
                        continue
                    end, packets, size = self._first_of(data, at)  # larger than a file may be: it gets one of its own
            self._put(self._form.records(data, at, end, size), packets)
            at = end

    def _fitting(self, data: np.ndarray, at: int, room: int) -> tuple[int, int, int]:
        end, packets, size = records.fit(data, at, len(data), room, self._form.overhead, LARGEST_RECORD_BYTES)
        if end < 0:
            raise CaptureError(f"{self._tap.interface}: gives records that cannot be", "please report it")
        return int(end), int(packets), int(size)

    def _first_of(self, data: np.ndarray, at: int) -> tuple[int, int, int]:
        captured = struct.unpack_from("<I", data.data, at + 8)[0]
        end = at + records.RECORD_HEADER + captured
        return self._fitting(data[:end], at, 1 << 62)

    def rotate(self) -> None:
        """Begin the next file of the row."""
        self._finish()
        self._next()

    def tick(self, drops: Drops) -> None:
        """A second has gone by: say what was lost, and begin another file where it is time to. Any number of calls a
        second will do."""
        self._latest_drops = drops
        due = self._target.rotate_seconds
        if due is not None and self._file_packets and time.monotonic() - self._begun >= due:
            self.rotate()
        else:
            self._write_statistics(ended=False)

    def _of_file(self) -> Drops:
        """Packets lost since the file began."""
        pairs = zip(self._latest_drops, self._before, strict=True)
        since = [None if now is None else now - (before or 0) for now, before in pairs]
        return Drops(since[0], since[1], since[2] or 0)

    def _left_out_of_file(self) -> dict[str, object]:
        """Return what the sidecar says of bytes left out since the file began.

        They are counted when a chunk comes, so those of a chunk that goes to two files are the first one's."""
        if self._payload_cut is None:
            return {}
        return {"no_payload": True, "left_out_bytes": self.left_out_bytes - self._left_out_before}

    def _write_statistics(self, ended: bool) -> None:
        if self._target.path == STDOUT:
            return
        drops = self._of_file()
        statistics = {
            "interface": self._tap.interface,
            "captured_by": self._tap.how,
            "filter": self._tap.expression,
            **({"sample": f"1/{self._tap.one_of}"} if self._tap.one_of != 1 else {}),
            **self._left_out_of_file(),
            "begun": _rfc3339(self._begun_ns),
            "until": _rfc3339(time.time_ns()),
            "ended": ended,
            "packets": self._file_packets,
            "bytes": self._size,
            "dropped_by_kernel": drops.kernel,
            "dropped_by_interface": drops.interface,
            "dropped_by_kwire": drops.queue,
            "dropped": drops.total,
        }
        with contextlib.suppress(OSError):  # a full disk is told by the capture itself
            sidecar.write(self.path, json.dumps(statistics, indent=1).encode() + b"\n")

    def _finish(self) -> None:
        """End a file."""
        if self._descriptor < 0:
            return
        try:
            self._put(memoryview(self._form.statistics(self._begun_ns, self._file_packets, self._of_file())), 0)
        finally:
            self._write_statistics(ended=True)
            if self._target.path != STDOUT:
                os.close(self._descriptor)
            self._descriptor = -1
            self._before = self._latest_drops
            self._left_out_before = self.left_out_bytes

    def close(self, drops: Drops | None = None) -> None:
        """End the last file; `drops` as known at the very end."""
        if drops is not None:
            self._latest_drops = drops
        self._finish()


@functools.cache
def prepare(target: Target, no_payload: bool) -> None:
    """Load the kernels that a recording calls, which may have to be compiled first: that takes seconds."""
    nothing = records.as_bytes(b"")
    if target.blocks or target.rotate_bytes is not None:
        records.fit(nothing, 0, 0, 0, 0, 0)
    if target.blocks:
        records.to_blocks(nothing, 0, 0, np.empty(0, np.uint8), 1)
    if no_payload:
        PayloadCut(file_header(ETHERNET, SNAPLEN), directions=8).cut(NOTHING)


def _hint(failure: OSError) -> str:
    if isinstance(failure, PermissionError):
        return "name a file where the user may write (with sudo, kwire writes as the user who called it)"
    if failure.errno in _FULL:
        return "free some space; --rotate-bytes with --keep bounds what is used"
    if failure.errno == errno.EIO:
        return "its disk fails: name a file on another"
    return "name a file in a folder that is there, and where files can be made"


def _rfc3339(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:06d}Z"
