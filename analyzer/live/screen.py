"""The screen of `kwire watch`: drawn twice a second, and keys.

In: a `Session`. Out: text on the terminal. Rules: all that was captured is others' text and is escaped; keys are read
from the terminal even where stdin is a pipe; a frozen screen still counts; the terminal is left as it was found.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kwire.analyzer.cli.exchange_lines import Lines
from kwire.analyzer.cli.text import duration, size
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.findings.wording import moment as clock
from kwire.analyzer.live.live_counts import Line, Moment
from kwire.analyzer.live.watch_session import WatchSession
from kwire.analyzer.pipeline.points import parsed
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.errors import KwireError

UPDATE_SECONDS = 0.5
_ROWS_OF_OTHERS = 19
"""Lines of the screen that are not the table's."""

SORTS: dict[str, Callable[[Line], tuple[Any, ...]]] = {
    "rate": lambda line: (-line.rate, line.api, line.broker),
    "errors": lambda line: (-line.error_rate, -line.rate, line.api, line.broker),
    "p99": lambda line: (-(line.p99_us or 0), line.api, line.broker),
    "api": lambda line: (line.api, line.broker),
}
HELP = "q quit  s sort  / filter  space freeze  up/down choose  enter look into it  esc back"
_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    " ": "space",
    "k": "up",
    "j": "down",
    "\x7f": "rubout",
    "\x08": "rubout",
}


class Keyboard:
    """The terminal's keys, one at a time, not echoed; None where there is no terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def key(self, seconds: float) -> str | None:
        """The next key, by name or as it is; None where none was pressed in so long."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return None
        typed = os.read(self._descriptor, 1).decode("utf-8", "replace")
        while typed.startswith("\x1b") and len(typed) < 4 and select.select([self._descriptor], [], [], 0.02)[0]:
            typed += os.read(self._descriptor, 1).decode("utf-8", "replace")
            if typed[-1].isalpha() or typed[-1] == "~":
                break
        return typed


@contextlib.contextmanager
def keyboard() -> Iterator[Keyboard | None]:
    """Keys as they are pressed, until the end."""
    import termios
    import tty

    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        yield None
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        os.close(descriptor)


class Screen:
    """State of the screen: what is shown, as keys changed it."""

    def __init__(
        self, session: WatchSession, name: str, lost: Callable[[], int], console: Console | None = None
    ) -> None:
        self._session, self._name, self._lost = session, name, lost
        self._console = console or Console(highlight=False)
        self.sort = "rate"
        self.frozen: Moment | None = None
        self.typing: str | None = None
        """The filter while it is typed."""
        self.filter = ""
        self.problem = ""
        self.chosen = 0
        self.opened: list[str] | None = None
        self._top = 0

    def run(self, stop: threading.Event) -> None:
        """Until somebody quits, or a signal says so. What ends by itself stays on the screen."""
        self._session.start()
        with (
            keyboard() as keys,
            Live(self.shown(), console=self._console, screen=True, auto_refresh=False, transient=True) as live,
        ):
            while not stop.is_set():
                live.update(self.shown(), refresh=True)
                if self._session.failure is not None:
                    return
                if keys is None:
                    stop.wait(UPDATE_SECONDS)
                elif (typed := keys.key(UPDATE_SECONDS)) is not None and not self.press(typed):
                    return

    # -- keys ----------------------------------------------------------------------------------------------------------
    def press(self, typed: str) -> bool:
        """A key was pressed; False: quit."""
        if self.typing is not None:
            self._type(typed)
            return True
        key = _KEYS.get(typed, typed)
        if key == "q":
            return False
        if key == "s":
            order = list(SORTS)
            self.sort = order[(order.index(self.sort) + 1) % len(order)]
        elif key == "/":
            self.typing = self.filter
        elif key == "space":
            self.frozen = None if self.frozen is not None else self._moment()
        elif key in ("up", "down", "page up", "page down"):
            self._move({"up": -1, "down": 1, "page up": -20, "page down": 20}[key])
        elif key == "enter":
            self._open()
        elif key == "escape":
            self.opened = None
        return True

    def _type(self, typed: str) -> None:
        key = _KEYS.get(typed, typed) if typed not in ("j", "k", " ") else typed
        assert self.typing is not None
        if key == "enter":
            try:
                wanted = parsed(self.typing.strip() or None)
            except KwireError as problem:
                self.problem = problem.message
                return
            with self._session.lock:
                self._session.wanted = wanted
            self.filter, self.typing, self.problem = self.typing.strip(), None, ""
        elif key == "escape":
            self.typing, self.problem = None, ""
        elif key == "rubout":
            self.typing = self.typing[:-1]
        elif len(typed) == 1 and typed.isprintable():
            self.typing += typed

    def _move(self, by: int) -> None:
        if self.opened is not None:
            self._top = max(0, min(self._top + by, len(self.opened) - 1))
        else:
            self.chosen = max(0, min(self.chosen + by, len(self._lines(self._now())) - 1))

    def _open(self) -> None:
        """The tree of one exchange of the chosen line."""
        lines = self._lines(self._now())
        if not lines:
            return
        line = lines[min(self.chosen, len(lines) - 1)]
        key = apis.key(line.api)
        with self._session.lock:
            example = self._session.examples.get((-1 if key is None else key, line.broker))
        self._top = 0
        if example is None:
            self.opened = [f"{line.api} at {line.broker}: none is kept"]
            return
        shown = Lines(time="absolute", width=max(60, self._console.width))
        self.opened = (shown.exchange(example) + shown.tree(example, False)).splitlines()

    # -- what is shown -------------------------------------------------------------------------------------------------
    def _moment(self) -> Moment:
        with self._session.lock:
            return self._session.counts.moment()

    def _now(self) -> Moment:
        return self.frozen if self.frozen is not None else self._moment()

    def _lines(self, now: Moment) -> list[Line]:
        return sorted(now.lines, key=SORTS[self.sort])

    def shown(self) -> Group:
        """The whole screen."""
        height = max(self._console.height, 10)
        if self.opened is not None:
            part = self.opened[self._top : self._top + height - 2]
            foot = f"{self._top + 1} to {self._top + len(part)} of {len(self.opened)}; esc back, up/down"
            texts = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in part]
            return Group(*texts, Text(foot, "dim"))
        now = self._now()
        with self._session.lock:
            findings = list(self._session.findings)
        parts = _parts(now, self._lines(now), findings, self._name, self._lost(), height, self.chosen)
        state = [f"by {self.sort}"]
        state += ["FROZEN"] if self.frozen is not None else []
        state += ["ended"] if self._session.ended.is_set() else []
        state += [f"filter: {self.filter}"] if self.filter and self.typing is None else []
        foot = f"filter: {self.typing}_" if self.typing is not None else f"{', '.join(state)}   {HELP}"
        if self.problem:
            foot += f"   {self.problem}"
        return Group(*parts, Text(printable(foot), "dim", no_wrap=True, overflow="ellipsis"))


def _parts(
    now: Moment, lines: list[Line], findings: list[dict[str, Any]], name: str, lost: int, height: int, chosen: int
) -> list[Any]:
    """The screen from top to bottom, but for its last line."""
    head = Text.assemble(
        (printable(name), "bold"),
        f"  {clock(now.time_ns // 1000)}  last {now.seconds:,.0f} s: {now.exchanges:,.1f} exchanges/s  ",
        (f"{now.errors:,.1f} errors/s", "red" if now.errors else ""),
        f"  {size(int(now.bytes))}/s  ",
        (f"{lost:,} packets lost", "bold red" if lost else ""),
        no_wrap=True,
        overflow="ellipsis",
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for title, side in (
        ("api", "left"),
        ("broker", "left"),
        ("/s", "right"),
        ("errors/s", "right"),
        ("p50", "right"),
        ("p99", "right"),
        ("held", "right"),
    ):
        table.add_column(title, justify=side, no_wrap=True)  # type: ignore[arg-type]
    room = max(3, height - _ROWS_OF_OTHERS)
    top = max(0, min(chosen - room + 1, len(lines) - room)) if chosen >= room else 0
    for i, line in enumerate(lines[top : top + room], top):
        style = "reverse" if i == chosen else "red" if line.error_rate else ""
        cells = (
            line.api,
            line.broker,
            f"{line.rate:,.1f}",
            f"{line.error_rate:,.1f}" if line.error_rate else "",
            duration(line.p50_us),
            duration(line.p99_us),
            duration(line.held_p50_us),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    more = len(lines) - room
    clients = ", ".join(
        f"{client or '(no client id)'} {rate:,.1f}/s" + (f" ({bad:,.1f} errors/s)" if bad else "")
        for client, rate, bad in now.clients[:8]
    )
    groups = ", ".join(f"{group} since {clock(since // 1000)}" for group, since in now.rebalancing[:6])
    parts: list[Any] = [head, table]
    parts += [Text(f"and {more} more", "dim")] if more > 0 else []
    parts.append(_line(f"{now.client_count} clients", clients))
    for entry in now.open[:4]:
        text = f"{entry.requests:,} without an answer"
        text += f", {entry.waiting:,} of them overdue, the oldest {duration(entry.oldest_us)}" if entry.waiting else ""
        text += f"; no answer for {duration(entry.silent_us)}" if entry.is_stalled else ""
        parts.append(_line(entry.broker, text, "bold red" if entry.is_stalled else ""))
    parts.append(_line("groups in rebalance", groups or "none", "yellow" if groups else ""))
    for behind in now.readers[:5]:
        text = f"{duration(behind.lag_us)} behind ({behind.lag:,} records)" if behind.lag_us else "has all"
        text += f"; {behind.batches:,} batches, p99 {duration(behind.p99_us)} from producer" if behind.batches else ""
        reader = behind.client_id or "(no client id)" if behind.group is None else f"group {behind.group}"
        parts.append(_line(f"{reader}, {behind.topic}", text))
    for row in reversed(findings[-5:]):
        style = {"error": "red", "warning": "yellow"}.get(row["severity"], "")
        when = clock(row["since"]) + " " if row["since"] is not None else ""
        parts.append(_line(f"{when}{row['severity']} {row['code']}", row["text"], style))
    return parts


def _line(title: str, text: str, style: str = "") -> Text:
    line = Text.assemble((printable(title) + ": ", "dim"), (printable(text), style))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def printed(now: Moment, findings: list[dict[str, Any]], name: str, lost: int) -> None:
    """One screen, and that is all."""
    console = Console(highlight=False, file=sys.stdout)
    for part in _parts(now, now.lines, findings, name, lost, 10**6, -1):
        console.print(part)
