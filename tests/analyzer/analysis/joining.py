"""Listeners as shares of a capture point have them: each hears its own connections, is pickled, and they are joined."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analyzer.analysis import ResumableCollector
from analyzer.analysis.cluster_metadata import TopicIds
from analyzer.analysis.control_exchanges import APIS, ControlExchanges
from analyzer.bulk.engine import Engine, Share
from analyzer.pipeline.read_options import Reading
from captures.files import capture_points


def heard_by(
    capture: Path, make: Callable[[], ResumableCollector], shares: int = 1, window_bytes: int = 16 << 20
) -> dict[str, list[dict[str, Any]]]:
    """Rows of each table that listeners make of a capture, its connections in so many shares."""
    [point] = capture_points([str(capture)], False)
    settings = dataclasses.replace(Reading(threads=1).settings(APIS), window_bytes=window_bytes)
    topics, listeners = TopicIds(), []
    for number in range(shares):
        engine = Engine(point, settings, share=Share(number, shares)) if shares > 1 else Engine(point, settings)
        hearing, listener = ControlExchanges(), make()
        for window in engine.windows():
            topics.take(window)
            for piece, heard in hearing.pieces(window):
                listener.take(piece, heard)
            window.names.release()
        listeners.append(pickle.loads(pickle.dumps(listener)))
    first, *rest = listeners
    for other in rest:
        first.join(other)
    return {name: table.to_pylist() for name, table in first.tables(point.name, topics.name)}
