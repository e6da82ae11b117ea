"""`kwire view`: the server is started, and the page opened.

In: parsed options. Out: the page's address on stdout; what is going on on stderr. It runs until it is interrupted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from analyzer.common.errors import UsageError
from captures.errors import KwireError
from reports.view.current_view import Stage

if TYPE_CHECKING:
    import uvicorn

    from analyzer.options.questions import ViewOptions

SWITCH_SECONDS: Final = 0.001
"""A thread that computes lets another one in after this time."""

ENDING_SECONDS: Final = 10
"""Opening that nobody waits for any more is waited for so long: its files are cleared away."""

LOADED_SECONDS: Final = 5
"""What the first filter and the first message need is loaded behind the first rows: they are waited for so long, and a
tenth of it for the browser to show them. Whoever is quicker waits for it."""

LEAST_TOKEN: Final = 16
"""Characters of a token in a file: fewer could be guessed."""


def view(options: ViewOptions) -> int:
    """`kwire view`."""
    host, port = _address(options.listen)
    token = _token(options.token_file)
    local = _is_local(host)
    if not local and token is None:
        raise UsageError(
            f"--listen {options.listen}: others could reach the page there, and it shows what is in the capture",
            "--token-file FILE, with a secret of your own in it, lets in who has that",
        )
    try:
        import uvicorn

        from reports.view.server import Door, application
    except ModuleNotFoundError as missing:
        if missing.name not in ("uvicorn", "starlette", "anyio"):
            raise
        raise UsageError("kwire view needs Starlette and uvicorn", "pip install 'kwire[view]'") from None
    listening = _listening(host, port, options.listen)
    port = listening.getsockname()[1]
    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end))  # what is to go goes
        opening = _Opening(options)
        stack.callback(opening.end)
        if not sure(options.sources, options):
            opening.open()  # what is wrong is told before there is an address
        door = Door(token or secrets.token_urlsafe(32), token is not None, _names(host, port), port)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/" + ("" if token is not None else f"?token={door.token}")
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
        if not local:
            sys.stderr.write("note: the page is not encrypted on its way; a tunnel (ssh -L) is\n")
        if options.open and token is None:
            _open(address)
        config = uvicorn.Config(
            application(opening.stage, door),
            log_level="critical",
            lifespan="off",
            server_header=False,
            access_log=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        # The page comes while the first exchanges are looked for; the analysis must not hold back its answers.
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_SECONDS)
        server = uvicorn.Server(config)
        opening.begin()
        threading.Thread(target=_said, args=(opening.stage, server), daemon=True).start()
        server.run(sockets=[listening])
        opening.judge()
    return 0


class _Opening:
    """What is to be looked at becomes a stage; what that is made with is loaded here, which takes longer than the
    server's start and the page's way to the browser."""

    def __init__(self, options: ViewOptions) -> None:
        self.stage = Stage()
        self._options = options
        self._stack = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._opened = False
        self._broken: BaseException | None = None

    def open(self) -> None:
        """Open it, here and now. Raises KwireError."""
        from reports.view import open_view as opening

        self._opened = True
        opening.begun(self._options.sources, self._options, self._stack, self.stage)

    def begin(self) -> None:
        """Open it, if it is not open, while other things are done."""
        if not self._opened:
            self._thread = threading.Thread(target=self._open, daemon=True)
            self._thread.start()

    def _open(self) -> None:
        try:
            self.open()
        except KwireError as problem:
            self.stage.fail(problem)
        except BaseException as broken:  # raised where somebody sees it
            self._broken = broken
            self.stage.fail(UsageError("what is to be looked at cannot be opened"))

    def judge(self) -> None:
        """Raise why there was nothing to look at."""
        if self._broken is not None:
            raise self._broken
        if self.stage.view is None and self.stage.failure is not None:
            raise self.stage.failure

    def end(self) -> None:
        """Nobody looks any more."""
        self.stage.ended = True
        if self._thread is not None:
            self._thread.join(ENDING_SECONDS)
        self._stack.close()


_CAPTURES: Final = (b"\xa1\xb2\xc3\xd4", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1", b"\n\r\r\n")
"""How plain captures begin: pcap's numbers, pcapng's block."""


def sure(sources: Sequence[str], options: ViewOptions) -> bool:
    """Is it plain that there is something to look at, without anything being loaded? It need not be told otherwise
    before there is an address."""
    if options.rotated or options.keylog:
        return False
    try:
        if len(sources) == 1 and os.path.isfile(os.path.join(sources[0], "_kwire.json")):
            return not options.port
        return all(os.path.isfile(source) and _begins(source) for source in sources)
    except (OSError, ValueError):
        return False


def _begins(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(24)
    return len(head) == 24 and head.startswith(_CAPTURES)


def _said(stage: Stage, server: uvicorn.Server) -> None:
    """Say what is there as soon as it is; where nothing will be, the server ends."""
    try:
        view = stage.shown()
    except KwireError:
        server.should_exit = True
        return
    more = "" if stage.done else " (the first; more are being read)"
    sys.stderr.write(f"kwire: {view.tables.columns.n:,} exchanges{more} at the address above; Ctrl-C ends\n")
    stage.looked.wait(LOADED_SECONDS)
    time.sleep(LOADED_SECONDS / 10)  # the browser shows them, and asks what stands around them
    view.tables.parse("api == Fetch")  # the first filter would wait for the grammar
    view.messages.ready()  # and the first message for what reads it


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _address(text: str | None) -> tuple[str, int]:
    """HOST and PORT of `--listen`; 0 is any free port."""
    if text is None:
        return "127.0.0.1", 0
    found = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]+)):)?([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise UsageError(f"--listen {text}: not [HOST:]PORT", "as --listen 8080, or --listen 127.0.0.1:8080")
    return found[1] or found[2] or "127.0.0.1", int(found[3])


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names(host: str, port: int) -> frozenset[str]:
    """What browsers may call the server; another name that leads here is another site's trick (DNS rebinding). None
    are known where it listens on every address."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return frozenset()
    named = f"[{host}]" if ":" in host else host
    local = ("127.0.0.1", "localhost", "[::1]") if _is_local(host) else ()
    return frozenset(f"{one}:{port}" for one in (named, *local))


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{path}: others may read this file, and so the token", f"chmod 600 {path}")
        with open(path, encoding="ascii") as file:
            token = file.read(4096).strip()
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", "give a file with a secret to --token-file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not plain text", "a token is letters, digits, - and _") from None
    if not re.fullmatch(rf"[A-Za-z0-9_\-.~]{{{LEAST_TOKEN},}}", token):
        raise UsageError(
            f"{path}: a token has {LEAST_TOKEN} or more letters, digits, - and _",
            "python3 -c 'import secrets; print(secrets.token_urlsafe())' makes one",
        )
    return token


def _listening(host: str, port: int, asked: str | None) -> socket.socket:
    """A socket that listens. Raises UsageError where it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as failure:
        raise UsageError(
            f"--listen {asked or host}: {failure.strerror}", "another port may be free; without --listen one is chosen"
        ) from None


def _open(address: str) -> None:
    """Open the page in the user's browser, where there is a screen for one."""
    import webbrowser

    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(address)
