"""When a live capture, or a replay, ends: Ctrl-C, a signal, or a time that was said.

In: what to do then. Out: a context in which it is done. Rules: the first signal ends it, and all that was captured, or
sent, is worked off; another Ctrl-C interrupts that too. SIGTERM (systemd, containers) and SIGHUP (a terminal that is
closed) end it as Ctrl-C does.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

_FROM_OTHERS = ("SIGTERM", "SIGHUP")
_SIGNALS = ("SIGINT", *_FROM_OTHERS)


@contextlib.contextmanager
def ended_by(stop: Callable[[], None], seconds: float | None = None) -> Iterator[None]:
    """Call `stop` (which may be called twice) at the first signal, and after so many seconds."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = _heard_by(_SIGNALS, on_signal)
    timer = threading.Timer(seconds, stop) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        _heard_as(before)


@contextlib.contextmanager
def interrupted_by_others() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Only the first of them: whoever ends a service may
    send both, and what is then tidied up is not to be interrupted by the second."""
    interrupted = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    before = _heard_by(_FROM_OTHERS, on_signal)
    try:
        yield
    finally:
        _heard_as(before)


def _heard_by(names: Iterable[str], handler: Callable[[int, FrameType | None], None]) -> dict[int, object]:
    """Let this function hear signals, those that are ignored (nohup) excepted; who heard them before."""
    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    return before


def _heard_as(before: dict[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave
