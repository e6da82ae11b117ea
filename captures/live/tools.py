"""Another tool that captures: tcpdump, dumpcap or scapy, its standard output read.

In: the tool's name, an interface, a filter. Out: a `Tap`. Rules: the tool is the one that has the rights, and keeps
them when we give up ours, so it is ended by a shell beside it, which waits for us to say so, or to be gone. What it
lost it says when it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Final

from kwire.captures.errors import CaptureError
from kwire.captures.live import interfaces
from kwire.captures.live.taps import (
    BUFFER_BYTES,
    HEADER,
    MICROSECONDS,
    NANOSECONDS,
    NOTHING,
    WAIT_SECONDS,
    Counts,
    PcapRecords,
    no_rights,
)

TOOLS: Final = ("tcpdump", "dumpcap", "scapy")

_SHELL = '"$@" & tool=$!; exec 1>&-; trap "" INT TERM HUP; read -r word; kill -TERM $tool 2>/dev/null; wait $tool'
"""Starts the tool, and ends it when our end of its input closes."""

_PIECE: Final = 1 << 20
_QUIET_SECONDS: Final = 1.5
"""A tool is ended so long after `stop`: what is in its buffer then is lost, and some look there once a second."""

_PATIENCE_SECONDS: Final = 5.0
"""A tool that was told to end and goes on is left behind after so long."""

_LOST = (
    re.compile(r"(\d+) packets? dropped by (kernel|interface)"),
    re.compile(r"received/dropped on interface .*: \d+/(\d+) \((pcap)"),
)


def arguments(tool: str, interface: str, expression: str, snaplen: int) -> list[str]:
    """How a tool is called. Its buffer is as large as ours: their default loses packets."""
    mebibytes = BUFFER_BYTES >> 20
    if tool == "tcpdump":
        head = ["tcpdump", "-i", interface, "-U", "-w", "-", "-s", str(snaplen), "-B", str(mebibytes << 10)]
        return [*head, "--time-stamp-precision=nano", "--", *([expression] if expression else [])]
    if tool == "dumpcap":
        head = ["dumpcap", "-q", "-P", "-w", "-", "-i", interface, "-s", str(snaplen), "-B", str(mebibytes)]
        return [*head, *(["-f", expression] if expression else [])]
    return [sys.executable, "-m", "kwire.captures.live.by_scapy", interface, expression, str(snaplen)]


class Tool:
    """A `Tap`. Raises CaptureError with what the tool said, where it does not begin to capture."""

    def __init__(self, tool: str, interface: str, expression: str, snaplen: int, one_of: int = 1) -> None:
        if tool != "scapy" and shutil.which(tool) is None:
            raise CaptureError(f"--via {tool}: it is not installed", "leave out --via, or name one of tcpdump, dumpcap")
        if interface not in interfaces.names():
            raise interfaces.unknown(interface)
        self.interface, self.expression, self.how, self.one_of = interface, expression, tool, one_of
        self.problem = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        root = str(Path(__file__).absolute().parents[3])  # the folder that holds the package `kwire`
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        # A session of its own: Ctrl-C is ours to hear, and we tell the tool.
        self._process = subprocess.Popen(
            ["sh", "-c", _SHELL, "sh", *arguments(tool, interface, interfaces.sampled(expression, one_of), snaplen)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._rest = b""
        self._counts = Counts(None, None)
        self._until: float | None = None
        self._over = False
        try:
            self.header = self._first()
        except BaseException:
            self.close()
            raise

    def _first(self) -> bytes:
        """The file header. Raises CaptureError where the tool ends instead of giving one."""
        head = b""
        while len(head) < HEADER.size and (more := os.read(self._output, HEADER.size - len(head))):
            head += more
        if len(head) < HEADER.size or HEADER.unpack(head)[0] not in (MICROSECONDS, NANOSECONDS):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._finish()
            lines = self._words()
            if re.search(r"permission|not permitted", " ".join(lines), re.IGNORECASE):
                raise no_rights(self.interface)
            hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
            hint = hints[0] if hints else "does it capture there by itself?"
            raise CaptureError(f"--via {self.how}: {lines[0] if lines else 'it gives no capture'}", hint)
        return head

    def _words(self) -> list[str]:
        """Return the tool's messages, without those that it always prints."""
        self._stderr.seek(0)
        lines = self._stderr.read(1 << 16).decode("utf-8", "replace").splitlines()
        usual = re.compile(r"\s*$|.*listening on|Capturing on|File:|Packets|tcpdump: data link|\d+ packets")
        return [line.strip() for line in lines if not usual.match(line)]

    def read(self) -> PcapRecords | None:
        if self._over:
            return None
        if self._until is not None and monotonic() >= self._until:
            self._close_input()
            self._over = monotonic() >= self._until + _PATIENCE_SECONDS
        if not select.select([self._output], [], [], WAIT_SECONDS)[0]:
            return NOTHING
        more = os.read(self._output, _PIECE)
        if not more:
            self._over = True
            if self._until is None:
                lines = self._words()
                self.problem = f"{self.how} ended" + (f": {lines[0]}" if lines else "")
            self._count()  # before it is over: whoever takes the last packet asks what was lost
            return None
        from kwire.captures.files.layouts import LARGEST_RECORD_BYTES
        from kwire.captures.live import records  # kernels, which are kept for the user whom we are by now

        data = self._rest + more
        end, packets, _ = records.fit(
            records.as_bytes(data), 0, len(data), len(data), records.RECORD_HEADER, LARGEST_RECORD_BYTES
        )
        if end < 0:
            self._over, self.problem = True, f"{self.how} gives no packets any more"
            return None
        self._rest = data[end:]
        return PcapRecords(data[:end], int(packets)) if packets else NOTHING

    def counts(self) -> Counts:
        return self._counts

    def stop(self) -> None:
        if self._until is None:
            self._until = monotonic() + _QUIET_SECONDS

    def close(self) -> None:
        if self._stderr.closed:
            return
        self._count()
        self._stderr.close()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _count(self) -> None:
        """Wait for the tool's end, and read the losses that it reports."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._finish()
        self._stderr.seek(0)
        output = self._stderr.read(1 << 16).decode("utf-8", "replace")
        lost = {who: int(count) for pattern in _LOST for count, who in pattern.findall(output)}
        if lost:
            self._counts = Counts(lost.get("kernel", lost.get("pcap", 0)), lost.get("interface"))

    def _finish(self) -> None:
        self._close_input()
        self._process.wait(_PATIENCE_SECONDS)

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
