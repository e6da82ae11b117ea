"""`kwire` run to its end in a process of its own, forked from one that has loaded it: no start has to be paid.

In: arguments, environment, standard input. Out: exit code and what was printed. Rule: what must be true of a start
(what is imported when, an interrupt before that, how long it takes) is tested with a process that begins at the
beginning, `tests.shared.KWIRE`; so is a command whose environment has settings that are read by then.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.shared import KWIRE, ROOT, SAMPLES

READ_AT_START = ("PYTHON", "NUMBA", "OPENBLAS", "LC_", "LANG", "TZ", "HOME", "XDG", "KWIRE_CACHE")
"""How variables begin that an interpreter or a module reads once."""


def run(
    *arguments: object,
    cwd: str | Path = ROOT,
    env: dict[str, str] | None = None,
    stdin: IO[Any] | None = None,
    input: str | bytes | None = None,
    text: bool = True,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[Any]:
    """Run `kwire` as `subprocess.run` would, its output captured."""
    words = [*map(str, arguments)]
    wanted = dict(os.environ) if env is None else env
    with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if input is not None:
            read.write(input.encode() if isinstance(input, str) else input)
            read.seek(0)
        streams = (stdin or read, out, err)
        if _at_start(wanted) != _at_start(dict(os.environ)):
            places: Any = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            code = subprocess.run(
                [*KWIRE, *words], cwd=cwd, env=wanted, timeout=timeout, check=False, **places
            ).returncode
        else:
            code = _template().run({"words": words, "cwd": os.fspath(cwd), "env": wanted}, streams, timeout)
        printed: list[Any] = []
        for stream in (out, err):
            stream.seek(0)
            content = stream.read()
            printed.append(content.decode() if text else content)
    return subprocess.CompletedProcess(["kwire", *words], code, *printed)


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


@cache
def _template() -> Template:
    return Template()


class Template:
    """A process that has loaded kwire, and forks when it is asked. It ends when this one does: its socket is closed."""

    def __init__(self) -> None:
        self.socket, far_end = socket.socketpair()
        with far_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(far_end.fileno())],
                cwd=ROOT,
                pass_fds=[far_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.lines = self.socket.makefile("r")

    def run(self, request: dict[str, Any], streams: tuple[IO[Any], ...], timeout: float | None) -> int:
        """Return the exit code of a run, negative where a signal ended it."""
        socket.send_fds(self.socket, [b"."], [stream.fileno() for stream in streams])
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        process = int(self.lines.readline())
        self.socket.settimeout(timeout)
        try:
            return int(self.lines.readline())
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self.socket.settimeout(None)
            raise subprocess.TimeoutExpired(request["words"], timeout or 0) from None
        finally:
            self.socket.settimeout(None)


def _serve(connection: socket.socket) -> list[str] | None:
    """Fork for each request; return its words in the fork, None at the end."""
    lines = connection.makefile("r")
    while True:
        mark, streams, _, _ = socket.recv_fds(connection, 1, 3)
        if not mark:
            return None
        request = json.loads(lines.readline())
        process = os.fork()
        if not process:
            connection.close()
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return ["kwire", *request["words"]]
        for stream in streams:
            os.close(stream)
        connection.sendall(f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _main() -> None:
    from kwire.analyzer.cli import parser, start

    sample = str(SAMPLES / "txn-librdkafka-4.3" / "capture.pcap")
    for words in (  # load what commands load, and kernels
        ("analyze", "--threads", "1", sample),
        ("show", "--filter", "latency > 1s", "--limit", "1", sample),
        ("findings", "--only", "tiny-batches", sample),
        ("story", "--client", "nobody", sample),
        ("replay", sample, "--to", "h:1", "--dry-run"),
    ):
        ignored = io.StringIO()
        with (
            contextlib.redirect_stdout(ignored),
            contextlib.redirect_stderr(ignored),
            contextlib.suppress(SystemExit),
        ):
            parser.main(words)
    connection = socket.socket(fileno=int(sys.argv[1]))
    request_words = _serve(connection)
    if request_words is not None:
        sys.argv = request_words
        start.command()


if __name__ == "__main__":
    _main()
