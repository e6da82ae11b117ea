"""Frames: each message by itself, requests and responses in the order in which they began.

In: a view's tables and what a filter chooses. Out: a window of their frames. Rule: an exchange has a frame for each of
its messages that is in the capture, and is chosen whole.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from analyzer.cli import exchange_lines
from reports.view.tables import Tables, Wrong, key_text

SIDES: Final = ("request", "response")

# fmt: off
ABOUT: Final = {
    "time": ("since", "First byte of the message."), "packet": ("text", "Number of the packet in which it begins."),
    "direction": ("text", "request or response."), "from": ("text", "Who sent it."), "to": ("text", "Who got it."),
    "api": ("text", "API and version."), "correlation_id": ("text", "What pairs a response with its request."),
    "bytes": ("size", "Its size, with its length's four bytes."), "state": ("text", "Whether it was decoded."),
    "client_id": ("text", "Client id of the request."), "file": ("text", "File that has the packet."),
}
# fmt: on


def order(tables: Tables, text: str) -> np.ndarray:
    """uint32: the frames of the chosen exchanges in order of time: twice the row, and one more for a response."""
    chosen = tables.chosen(text)

    def make() -> np.ndarray:
        columns, found, times = tables.columns, [], []
        for side, (ordinal, time) in enumerate((("exchange", "request_time"), ("reply", "response_time"))):
            there = columns.integer(ordinal)[1][chosen.rows] & columns.integer(time)[1][chosen.rows]
            rows = chosen.rows[there]
            found.append(2 * rows + np.uint32(side))
            times.append(columns.integers[time][rows])
        frames: np.ndarray = np.concatenate(found)
        return frames[np.argsort(np.concatenate(times), kind="stable")]

    return tables.made(f"frames {chosen.name}", make)


def window(tables: Tables, text: str, sort: str, start: int, count: int) -> dict[str, Any]:
    """Some frames: columns as lists, what they are, their exchanges and sides. Raises Wrong."""
    if sort:
        raise Wrong(f"sort={sort[:40]}: frames are in order of time")
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
    rows = tables.some(part // 2, names)
    told = [_frame(row, SIDES[side]) for row, side in zip(rows, (part % 2).tolist(), strict=True)]
    values = tables.columns.values
    # What is said of every frame: other windows than this one have columns, too.
    quiet = {"file": len({*values["request_file"], *values["response_file"]}) < 2, "client_id": not values["client_id"]}
    return {
        "total": len(frames),
        "more": False,
        "start": start,
        "about": [
            {"name": name, "kind": kind, "about": about, "sorted": False, "quiet": quiet.get(name, False)}
            for name, (kind, about) in ABOUT.items()
        ],
        "columns": {name: [one[name] for one in told] for name in ABOUT},
        "keys": list(map(key_text, tables.keys_of(part // 2))),
        "sides": [one["direction"] for one in told],
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
