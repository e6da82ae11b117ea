"""`kwire view`: start the server, and open the page.

In: parsed options. Out: the page's address on stdout, progress on stderr. It runs until it is interrupted.
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

from kwire.analyzer.common.errors import UsageError
from kwire.captures.errors import KwireError
from kwire.captures.extras import install
from kwire.reports.view.current_view import CurrentView

if TYPE_CHECKING:
    import uvicorn

    from kwire.analyzer.options.questions import ViewOptions

SWITCH_SECONDS: Final = 0.001
"""Switch interval of Python's threads: a thread that computes yields after this time."""

ENDING_SECONDS: Final = 10
"""Wait at the end for opening to stop and remove its files."""

LOADED_SECONDS: Final = 5
"""Longest wait for the first rows, after which the parser and the decoders are loaded in the background; a tenth of it
is left for the browser to show the rows."""

LEAST_TOKEN: Final = 16
"""Characters of a token in a file: shorter ones could be guessed."""


def view(options: ViewOptions) -> int:
    """Run `kwire view`."""
    host, port = _address(options.listen)
    token = _token(options.token_file)
    local = _is_local(host)
    if not local and token is None:
        raise UsageError(
            f"--listen {options.listen}: others could reach the page there, and it shows the capture's content",
            "--token-file FILE restricts access to those who have the secret in the file",
        )
    try:
        import uvicorn

        from kwire.reports.view.server import Access, application
    except ModuleNotFoundError as missing:
        if missing.name not in ("uvicorn", "starlette", "anyio"):
            raise
        raise UsageError("kwire view needs Starlette and uvicorn", install("view")) from None
    listening = _listening(host, port, options.listen)
    port = listening.getsockname()[1]
    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        stack.callback(
            signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end)
        )  # so that temporary files are removed
        _have_own_views(options, stack)
        opening = _ViewOpener(options)
        stack.callback(opening.end)
        if not has_plain_input(options.sources, options):
            opening.open()  # report errors before the address
        door = Access(token or secrets.token_urlsafe(32), token is not None, _names(host, port), port)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/" + ("" if token is not None else f"?token={door.token}")
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
        if token is not None:
            sys.stderr.write(
                f"kwire: {address}?token=SECRET opens it, with the secret in {options.token_file}; or type it\n"
            )
        if not local:
            sys.stderr.write("note: the connection to the page is not encrypted; use a tunnel (ssh -L)\n")
        if options.open and token is None:
            _open(address)
        config = uvicorn.Config(
            application(opening.current, door),
            log_level="critical",
            lifespan="off",
            server_header=False,
            access_log=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        # The page loads while the first exchanges are read; the analysis must not delay its answers.
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_SECONDS)
        server = uvicorn.Server(config)
        opening.begin()
        threading.Thread(target=_announce, args=(opening.current, server), daemon=True).start()
        server.run(sockets=[listening])
        opening.raise_failure()
    return 0


def _have_own_views(options: ViewOptions, stack: contextlib.ExitStack) -> None:
    """Have the user's questions and zones until the view ends. Raises KwireError."""
    if options.views is not None:  # what checks them takes longer to load than the page
        from kwire.reports import own_views

        stack.enter_context(own_views.opened(options.views))
    if options.zones is not None:
        from kwire.reports import zones

        stack.enter_context(zones.opened(options.zones))


class _ViewOpener:
    """Opens the view, in the background if possible: its imports take longer than starting the server and loading the
    page."""

    def __init__(self, options: ViewOptions) -> None:
        self.current = CurrentView()
        self._options = options
        self._stack = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._opened = False
        self._broken: BaseException | None = None

    def open(self) -> None:
        """Open the view in this thread. Raises KwireError."""
        from kwire.reports.view import open_view as opening

        self._opened = True
        opening.begin_view(self._options.sources, self._options, self._stack, self.current)

    def begin(self) -> None:
        """Open the view in the background, unless it is open."""
        if not self._opened:
            self._thread = threading.Thread(target=self._open, daemon=True)
            self._thread.start()

    def _open(self) -> None:
        try:
            self.open()
        except KwireError as problem:
            self.current.fail(problem)
        except BaseException as broken:  # raised where somebody sees it
            self._broken = broken
            self.current.fail(UsageError("the view cannot be opened"))

    def raise_failure(self) -> None:
        """Raise the error that prevented a view, if there was one."""
        if self._broken is not None:
            raise self._broken
        if self.current.view is None and self.current.failure is not None:
            raise self.current.failure

    def end(self) -> None:
        """Stop opening, and remove temporary files."""
        self.current.ended = True
        if self._thread is not None:
            self._thread.join(ENDING_SECONDS)
        self._stack.close()


_CAPTURES: Final = (b"\xa1\xb2\xc3\xd4", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1", b"\n\r\r\n")
"""First bytes of uncompressed captures: pcap's magic numbers, pcapng's first block."""


def has_plain_input(sources: Sequence[str], options: ViewOptions) -> bool:
    """Tell, without loading anything, that the sources exist and look right, so that the address can be printed
    first."""
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


def _announce(current: CurrentView, server: uvicorn.Server) -> None:
    """Report the first view as soon as it is ready; stop the server if there will be none."""
    try:
        view = current.first_view()
    except KwireError:
        server.should_exit = True
        return
    more = "" if current.done else " (the first; more are being read)"
    sys.stderr.write(f"kwire: {view.tables.columns.n:,} exchanges{more} at the address above; Ctrl-C ends\n")
    current.looked.wait(LOADED_SECONDS)
    time.sleep(LOADED_SECONDS / 10)  # the browser shows them, and requests the rows around them
    view.tables.parse("api == Fetch")  # the first filter would wait for the grammar
    view.messages.warm_up()  # and the first message for what reads it


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _address(text: str | None) -> tuple[str, int]:
    """Read HOST and PORT of `--listen`; port 0 is any free port."""
    if text is None:
        return _own_loopback(), 0
    match = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]+)):)?([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"--listen {text}: not [HOST:]PORT", "as --listen 8080, or --listen 127.0.0.1:8080")
    return match[1] or match[2] or "127.0.0.1", int(match[3])


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names(host: str, port: int) -> frozenset[str]:
    """List the names that browsers may use for the server: other names that resolve to it are DNS rebinding. Empty if
    it listens on every address."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return frozenset()
    named = f"[{host}]" if ":" in host else host
    local = ("127.0.0.1", "localhost", "[::1]") if _is_local(host) else ()
    return frozenset(f"{name}:{port}" for name in (named, *local))


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{path}: others may read this file, and so the token", f"chmod 600 {path}")
        with open(path, encoding="ascii") as file:
            token = file.read(4096).strip()
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", "--token-file needs a readable file with a secret") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not plain text", "a token is letters, digits, - and _") from None
    if not re.fullmatch(rf"[A-Za-z0-9_\-.~]{{{LEAST_TOKEN},}}", token):
        raise UsageError(
            f"{path}: a token has {LEAST_TOKEN} or more letters, digits, - and _",
            "python3 -c 'import secrets; print(secrets.token_urlsafe())' makes one",
        )
    return token


def _listening(host: str, port: int, option: str | None) -> socket.socket:
    """Open a listening socket. Raises UsageError if that fails."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as failure:
        raise UsageError(
            f"--listen {option or host}: {failure.strerror}", "another port may be free; without --listen one is chosen"
        ) from None


def _has_display() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return not sys.platform.startswith("linux") or any(map(os.environ.get, names))


def _own_loopback() -> str:
    """Choose a loopback address that no other server uses, because browsers send cookies to all ports of an address.
    Without a display the browser is elsewhere, behind a tunnel to the usual one; other systems have only that."""
    if not sys.platform.startswith("linux") or not _has_display():
        return "127.0.0.1"
    host = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
    with contextlib.suppress(OSError), socket.create_server((host, 0)):
        return host
    return "127.0.0.1"


def _open(address: str) -> None:
    """Open the page in the user's browser, if there is a display."""
    import webbrowser

    if not _has_display():
        return
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(address)
