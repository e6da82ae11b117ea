"""kwire in a process of its own while a test sends packets: begun, waited for, ended."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kwire.analyzer.cli import parser
from tests.shared import KWIRE, ROOT

SECONDS = 300
"""A hang is meant: kernels may have to be compiled on a machine that does much else. Then the process is killed."""


class Running:
    """A process that captures. `stderr_lines`: the lines it has written to stderr so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.stderr_lines: list[str] = []

    def wait_for(self, word: str) -> None:
        """Read stderr until a line has this word."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr_lines.append(line)
            if word in line:
                return
        raise AssertionError(f"it ended without {word!r}: {''.join(self.stderr_lines)}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process.stderr is not None
        self.stderr_lines += self.process.stderr.readlines()
        return self.process.wait()


def _as_from_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def running(
    *arguments: object,
    folder: Path | None = None,
    stdout: int | None = subprocess.DEVNULL,
    before: Sequence[str] = (),
    seconds: float = SECONDS,
) -> Iterator[Running]:
    """Run a command with default signal handlers, as from a terminal, and kill it at the end if it still runs.

    `before`: words before the command, of a program that becomes it (`ip netns exec NAME`); `seconds`: after so many
    it is killed.
    Tests may themselves run under nohup, and a process inherits ignored signals."""
    process = subprocess.Popen(
        [*before, *KWIRE, *map(str, arguments)],
        cwd=folder or ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=_as_from_a_terminal,
    )
    bound = threading.Timer(seconds, process.kill)
    bound.start()
    try:
        yield Running(process)
    finally:
        bound.cancel()
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def capturing(
    *arguments: object,
    folder: Path | None = None,
    stdout: int | None = subprocess.DEVNULL,
    before: Sequence[str] = (),
    seconds: float = SECONDS,
) -> Iterator[Running]:
    """Run a command like `running`, and wait until it captures."""
    with running(*arguments, folder=folder, stdout=stdout, before=before, seconds=seconds) as begun:
        begun.wait_for("capturing on")
        yield begun


def refused(
    command: str, arguments: Sequence[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a command fails with exit code 2, one line of error and a hint; `{tmp}` stands for the folder.

    It runs in this process, because that is quick."""
    with pytest.raises(SystemExit) as raised:
        parser.main([command, *(word.format(tmp=folder) for word in arguments)])
    assert raised.value.code == 2
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if "compiling" not in line]
    assert printed.out == ""
    assert lines[0].startswith("kwire: ")
    assert message.format(tmp=folder) in lines[0]
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2
