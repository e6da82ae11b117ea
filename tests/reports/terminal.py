"""A command in a terminal of its own, typed at as a person would."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that its Ctrl-C is ours
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass
class Terminal:
    """`process` has the far end of the terminal whose near end is `descriptor`."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: str = ""

    def type(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def wait_for(self, pattern: str, seconds: float = 90) -> str:
        """Wait for a match of `pattern`, and take the text up to it. Raises AssertionError."""
        until = time.monotonic() + seconds
        while (match := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < until, f"{pattern!r} does not come: {self.shown[-2000:]!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.descriptor, 65536).decode("utf-8", "replace")
                except OSError:  # the process has ended (Linux says EIO)
                    assert re.search(pattern, self.shown), f"it ended: {self.shown[-2000:]!r}"
        text, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return text


@contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command in a terminal; it is killed if it still runs at the end."""
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *command],
        stdin=far,
        stdout=far,
        stderr=far,
        env={**environment, "TERM": "dumb"},
    )
    os.close(far)
    try:
        yield Terminal(process, near)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(near)
