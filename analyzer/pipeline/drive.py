"""Drive a capture point: the one loop that hands each window to every sink and passes on what they have.

In: an engine, and sinks. Out: what the sinks yield: rows of tables, exchanges, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar

import numpy as np

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.bulk.rows import Window

T = TypeVar("T")


class Sink(Generic[T]):
    """Takes the windows of a capture point in order."""

    settled = False
    """True while no row of the windows so far waits: then names that nothing means any more are forgotten."""

    def take(self, window: Window) -> Iterable[T]:
        """Take the next window, and return what is known for good with it."""
        raise NotImplementedError

    def finish(self) -> Iterable[T]:
        """Return what is left when the capture has ended."""
        return ()

    def named(self) -> Iterable[np.ndarray]:
        """Return the numbers of strings that the sink still means while it is `settled`."""
        return ()


def _no_progress(_: int) -> None:
    pass


def drive(
    engine: Engine, sinks: Sequence[Sink[T]], progress: Callable[[int], None] = _no_progress, over: bool = True
) -> Iterator[T]:
    """Read to the end of the files, and yield what the sinks have.

    progress: called with the bytes read so far after each window
    over: the capture ends there: connections end, and sinks finish

    Raises CaptureError.
    """
    for window in engine.windows(progress, over):
        for sink in sinks:
            yield from sink.take(window)
        if engine.merging.names.crowded and all(sink.settled for sink in sinks):
            engine.merging.forget(chain.from_iterable(sink.named() for sink in sinks))
    if over:
        for sink in sinks:
            yield from sink.finish()


class EachWindow(Sink[Window]):
    """Hands windows on. `change`: what each becomes."""

    def __init__(self, change: Callable[[Window], Window] = lambda window: window) -> None:
        self._change = change

    def take(self, window: Window) -> Iterable[Window]:
        """Return the window, changed."""
        return (self._change(window),)


class TopicNames(Sink[None]):
    """Learns the names of topic ids, and nothing else."""

    def __init__(self) -> None:
        self.topics = TopicIds()

    def take(self, window: Window) -> Iterable[None]:
        """Learn from the next window."""
        self.topics.take(window)
        window.names.release()
        return ()


def topic_names(engine: Engine) -> dict[str, str]:
    """Read a capture to its end for the names of topic ids: name by id. Raises CaptureError."""
    sink = TopicNames()
    for _ in drive(engine, [sink]):
        pass
    return sink.topics.names
