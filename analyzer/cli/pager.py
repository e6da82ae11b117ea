"""Text on a terminal through a pager, as git does it.

In: text, bit by bit. Out: the same on stdout, or in the pager that `PAGER` names. Rules: where stdout is no terminal,
and where `PAGER` is empty or `cat`, there is no pager; what fits on the screen is shown without one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast


@contextlib.contextmanager
def paged(heading: bool = False, live: bool = False) -> Iterator[IO[str]]:
    """stdout, through a pager where it is a terminal that the text does not fit on.

    heading   the first line stays on the screen
    live      what is written is shown at once, so the pager does not wait until the screen is full
    """
    # PAGER= is no pager, as for git.
    pager = os.environ.get("PAGER", "less" if shutil.which("less") else "").strip()
    if not sys.stdout.isatty() or not pager or pager == "cat":
        yield sys.stdout
        return
    out = _PagedOutput(pager, heading)
    if live:
        out.start()
    try:
        yield cast("IO[str]", out)
    except BrokenPipeError:
        pass  # the reader has seen enough
    finally:
        out.close()


_ESCAPES = re.compile("\x1b\\[[0-9;]*m")


class _PagedOutput:
    """Text for a terminal: as it is where the screen holds all of it, else through a pager.

    `less -F` would leave then too, but not where it cuts a line, and other pagers would not."""

    def __init__(self, pager: str, heading: bool) -> None:
        self._pager, self._heading = pager, heading
        size = shutil.get_terminal_size()
        self._columns, self._free_rows = max(1, size.columns), size.lines - 1  # the last one is the prompt's
        self._waiting: list[str] = []
        self._process: Any = None

    def write(self, text: str) -> int:
        """Show a text, sooner or later."""
        if self._process is None:
            self._waiting.append(text)
            self._free_rows -= self._rows(text)
            if self._free_rows < 0:
                self.start()
        else:
            self._process.stdin.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what the pager has not got yet."""
        if self._process is not None:
            self._process.stdin.flush()

    def _rows(self, text: str) -> int:
        """Rows of the screen that a text takes, long lines folded."""
        lines = _ESCAPES.sub("", text).expandtabs().split("\n")
        return sum(1 + max(0, len(line) - 1) // self._columns for line in lines) - 1

    def start(self) -> None:
        """Start the pager with what was written so far."""
        import subprocess

        pager = f"{self._pager} --header=1" if self._heading and _sticky(self._pager) else self._pager
        # -F: leave at once what fits on the screen; -R: colours; -S: long lines are cut, not folded; -X: no clearing.
        environment = {"LESS": "-FRSX", **os.environ}
        self._process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, text=True, env=environment)
        waiting, self._waiting = self._waiting, []
        self._process.stdin.writelines(waiting)

    def close(self) -> None:
        """Wait until the reader leaves the pager; without one, write what fits."""
        if self._process is None:
            sys.stdout.writelines(self._waiting)
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        while True:
            try:
                self._process.wait()
                break
            except KeyboardInterrupt:
                continue  # the pager deals with it


def _sticky(pager: str) -> bool:
    """Whether the pager is a `less` that keeps a heading on the screen: from 600 on."""
    words = shlex.split(pager) or [""]
    if os.path.basename(words[0]) != "less":
        return False
    import subprocess  # a sixtieth of a start, for who has a pager

    with contextlib.suppress(OSError):
        printed = subprocess.run([words[0], "--version"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"less (\d+)", printed)
        return version is not None and int(version[1]) >= 600
    return False
