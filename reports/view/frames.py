"""Frames: requests and responses as separate rows, ordered by their first byte.

In: a view's tables and a filter. Out: a window of frames. Rule: an exchange has a frame for each of its messages in the
capture; a filter chooses both or none.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kwire.analyzer.cli import exchange_lines
from kwire.reports.view.tables import BadRequestError, Tables, format_key

SIDES: Final = ("request", "response")

# fmt: off
ABOUT: Final = {
    "time": ("time", "First byte of the message."), "packet": ("text", "Number of the packet in which it begins."),
    "direction": ("text", "request or response."), "from": ("text", "Sender."), "to": ("text", "Receiver."),
    "api": ("text", "API and version."), "correlation_id": ("text", "Number that pairs a response with its request."),
    "bytes": ("size", "Its size, with the four bytes of its length."), "state": ("text", "Whether it was decoded."),
    "client_id": ("text", "Client id of the request."), "file": ("text", "File that has the packet."),
}
# fmt: on


def order(tables: Tables, text: str) -> np.ndarray:
    """Sort the frames of the chosen exchanges by time: uint32, twice the row, plus one for a response."""
    chosen = tables.chosen(text)

    def make() -> np.ndarray:
        columns, frames_by_side, times = tables.columns, [], []
        for side, (ordinal, time) in enumerate((("exchange", "request_time"), ("reply", "response_time"))):
            there = columns.integer(ordinal)[1][chosen.rows] & columns.integer(time)[1][chosen.rows]
            rows = chosen.rows[there]
            frames_by_side.append(2 * rows + np.uint32(side))
            times.append(columns.integers[time][rows])
        frames: np.ndarray = np.concatenate(frames_by_side)
        return frames[np.argsort(np.concatenate(times), kind="stable")]

    return tables.cached(f"frames {chosen.name}", make)


def window(tables: Tables, text: str, sort: str, start: int, count: int) -> dict[str, Any]:
    """Get a window of the frames: columns as lists, their descriptions, exchanges and sides. Raises BadRequestError."""
    if sort:
        raise BadRequestError(f"sort={sort[:40]}: frames are in order of time")
    frames = order(tables, text)
    part = frames[start : start + count]
    names = (
        "client_ip",
        "client_port",
        "broker_ip",
        "broker_port",
        "api",
        "api_key",
        "api_version",
        "correlation_id",
        "client_id",
        *(
            f"{side}_{what}"
            for side in ("request", "response")
            for what in ("time", "packet", "bytes", "state", "file")
        ),
    )
    rows = tables.rows_at(part // 2, names)
    frame_rows = [_frame(row, SIDES[side]) for row, side in zip(rows, (part % 2).tolist(), strict=True)]
    values = tables.columns.values
    # Of all frames, because other windows have the same columns.
    quiet = {"file": len({*values["request_file"], *values["response_file"]}) < 2, "client_id": not values["client_id"]}
    return {
        "total": len(frames),
        "more": False,
        "start": start,
        "about": [
            {"name": name, "kind": kind, "about": about, "sorted": False, "quiet": quiet.get(name, False)}
            for name, (kind, about) in ABOUT.items()
        ],
        "columns": {name: [frame[name] for frame in frame_rows] for name in ABOUT},
        "keys": list(map(format_key, tables.keys_of(part // 2))),
        "sides": [frame["direction"] for frame in frame_rows],
    }


def _frame(row: dict[str, Any], side: str) -> dict[str, Any]:
    ends = [exchange_lines.end(row[f"{end}_ip"], row[f"{end}_port"]) for end in ("client", "broker")]
    here, there = ends if side == "request" else reversed(ends)
    return {
        "time": row[f"{side}_time"],
        "packet": row[f"{side}_packet"],
        "direction": side,
        "from": here,
        "to": there,
        "api": exchange_lines.api(row),
        "correlation_id": row["correlation_id"],
        "bytes": row[f"{side}_bytes"],
        "state": row[f"{side}_state"],
        "client_id": row["client_id"],
        "file": row[f"{side}_file"],
    }
