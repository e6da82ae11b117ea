"""End a command at SIGTERM and SIGHUP as at Ctrl-C.

In: signals of a service manager, a container or a terminal that is closed. Out: `EndedBySignal`, a KeyboardInterrupt
that knows its signal. Rule: a signal that is ignored (nohup) stays ignored.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final

FROM_OTHERS: Final = ("SIGTERM", "SIGHUP")


class EndedBySignal(KeyboardInterrupt):
    """An interrupt by another signal than Ctrl-C's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@contextlib.contextmanager
def interrupted_by_others() -> Iterator[None]:
    """SIGTERM and SIGHUP raise EndedBySignal. Only the first of them: whoever ends a service may send both, and what is
    then tidied up is not to be interrupted by the second."""
    interrupted = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise EndedBySignal(signal.Signals(number).name)

    before = heard_by(FROM_OTHERS, on_signal)
    try:
        yield
    finally:
        heard_as(before)


def heard_by(names: Iterable[str], handler: Callable[[int, FrameType | None], None]) -> dict[int, object]:
    """Let this function hear signals, those that are ignored (nohup) excepted; who heard them before."""
    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    return before


def heard_as(before: dict[int, object]) -> None:
    """Undo `heard_by`."""
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave
