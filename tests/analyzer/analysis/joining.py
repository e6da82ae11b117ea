"""Collectors of the shares of a capture point: each takes its own connections, is pickled, and they are joined."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kwire.analyzer.analysis import ResumableCollector
from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.control_exchanges import APIS, ControlExchanges
from kwire.analyzer.bulk.engine import Engine, Share
from kwire.analyzer.frame.log import Log
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points


def collected(
    capture: Path, make: Callable[[], ResumableCollector], shares: int = 1, window_bytes: int = 16 << 20
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table that collectors make of a capture, its connections in so many shares."""
    [point] = capture_points([str(capture)], False)
    settings = dataclasses.replace(ReadOptions(threads=1).settings(APIS), window_bytes=window_bytes)
    topics, collectors = TopicIds(), []
    for number in range(shares):
        engine = Engine(point, settings, share=Share(number, shares)) if shares > 1 else Engine(point, settings)
        control_exchanges, collector = ControlExchanges(), make()
        for window in engine.windows():
            topics.take(window)
            for piece, control in control_exchanges.pieces(window):
                collector.take(piece, control)
            window.names.release()
        collectors.append(pickle.loads(pickle.dumps(collector)))
    first, *rest = collectors
    for other in rest:
        first.join(other)
    return {name: table.to_pylist() for name, table in first.tables(point.name, topics.name)}


def log_bytes(log: Log) -> int:
    """Return the bytes of memory that a log takes, but for its texts."""
    columns = sum(column.strides[0] * len(column) for part in log._parts for column in part)
    return columns + log._rows.nbytes + len(log._heap)
