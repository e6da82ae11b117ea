"""Starts a target by a command of the user's, waits until it answers, and ends it.

In: a command for the shell, and the address at which the target will answer. Out: a running target, whose output is in
a file. Rules: the command stays in the foreground, as `docker run --rm` does; it is ended by SIGTERM to its process
group, as Ctrl-C in a terminal would reach it, and by SIGKILL if it does not end in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from kwire.captures.errors import KwireError
from kwire.replay.send import link
from kwire.replay.send import target as targets

ENDING: Final = 30.0
"""Seconds for a target to end before it is killed."""
_PAUSE: Final = 0.5
_ANSWER: Final = 5.0


class NotStartedError(KwireError):
    """A target that was to be started does not answer."""


async def answers(host: str, port: int, dial: link.Dial) -> str:
    """Ask whether a Kafka broker answers; return why not, empty if one does."""
    try:
        target = await targets.ask(host, port, dial, _ANSWER)
    except link.LinkError as failure:
        return failure.message
    target.close()
    await asyncio.sleep(0)  # let the loop close what was opened
    return ""


class StartedTarget:
    """A target that runs as long as this is entered. `option`: that named the command; `log`: takes its output."""

    def __init__(self, option: str, command: str, log: Path) -> None:
        self._option, self._command, self._log = option, command, log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, host: str, port: int, dial: link.Dial, within: float) -> None:
        """Start it, and wait until it answers at its address. Raises NotStartedError."""
        if not await answers(host, port, dial):
            raise NotStartedError(
                f"{self._option}: something answers at {host}:{port} already",
                "end that one, or leave the option out to rehearse at it",
            )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + within
        why = ""
        while time.monotonic() < deadline:
            why = await answers(host, port, dial)
            if not why:
                return
            self._check(host, port)
            await asyncio.sleep(_PAUSE)
        self._check(host, port)
        raise NotStartedError(
            f"{self._option}: nothing answered within {within:g} s: {why}",
            f"{self._log} has what it printed; --start-within waits longer",
        )

    def _check(self, host: str, port: int) -> None:
        """Raise NotStartedError if its command failed."""
        code = self._process.poll() if self._process is not None else None
        if code:
            raise NotStartedError(
                f"{self._option}: ended with exit code {code} before {host}:{port} answered",
                f"{self._log} has what it printed",
            )

    def end(self) -> str:
        """End it; return what could not be done, empty if all was."""
        process, self._process = self._process, None
        if process is None:
            return ""
        code = process.poll()
        if code is not None and not _is_there(process.pid):
            if code:
                return ""
            return f"{self._option}: its command had ended by itself; what it started in the background is not ended"
        _signal(process.pid, signal.SIGTERM)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            _signal(process.pid, signal.SIGKILL)
            process.wait()
            return f"{self._option}: did not end within {ENDING:g} s of SIGTERM, and was killed"
        deadline = time.monotonic() + ENDING
        while _is_there(process.pid) and time.monotonic() < deadline:
            time.sleep(_PAUSE / 5)
        _signal(process.pid, signal.SIGKILL)
        return ""


def _is_there(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
