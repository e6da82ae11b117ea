"""Timeline: tracks of exchanges over time, with rebalances and transactions.

In: a view's tables and a filter. Out: plain values for JSON, with arrays for values of exchanges. Rules: the longest
exchange of each track and interval is shown, so that no slow one is hidden; everything left out is counted; rows are
read twice, however many tracks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kwire.analyzer.frame.counting import CACHE_BLOCK, blocks, count_before, count_codes
from kwire.reports.view.filter_values import quoted
from kwire.reports.view.tables import BadRequestError, Tables

TRACKS: Final = 50
"""Tracks that are shown; others are counted."""

WIDEST: Final = 4_000
"""Intervals of time: more than a screen has pixels."""

BY: Final = {"connection": "connection", "client": "client_id", "group": "group_id", "member": "member_id"}
"""Kinds of tracks, and the column of each."""

_PLACE: Final = (CACHE_BLOCK - 1).bit_length()
_LONGEST: Final = (1 << 62 - _PLACE) - 1
"""Longest duration, about a year in us, so that a duration and a position in a block fit into one number."""


def timeline(tables: Tables, text: str, by: str, width: int, first: int | None, last: int | None) -> dict[str, Any]:
    """Draw tracks of the chosen exchanges, those with most exchanges first. For each interval a track has the longest
    exchange that begins in it, the last one of equals. Raises BadRequestError."""
    if by not in BY:
        raise BadRequestError(f"by={by[:40]}: unknown kind of track", f"one of {', '.join(BY)}")
    columns, selection = tables.columns, tables.chosen(text)
    rows, every, times = selection.rows, selection.every, columns.integers["request_time"]
    if not columns.has_no_null("request_time"):
        rows, every = rows[times[rows] != np.iinfo(times.dtype).min], False
    # Rows are in order of their requests, so a span of time is a slice.
    start = 0 if first is None else int(count_before(times, rows, np.array([first]))[0])
    stop = len(rows) if last is None else int(count_before(times, rows, np.array([last + 1]))[0])
    rows, codes = rows[start:stop], columns.codes[BY[by]]
    codes = codes[start:stop] if every else codes[rows]
    there = codes >= 0
    if not there.any():
        return {"first": 0, "step": 1, "columns": 0, "links": [], "tracks": [], "others": 0, "bands": []}
    some = slice(int(np.argmax(there)), len(there) - int(np.argmax(there[::-1])))
    rows, codes = rows[some], codes[some]
    first = int(times[rows[0]]) if first is None else first
    span = (int(times[rows[-1]]) if last is None else last) - first + 1
    step = -(-span // min(max(width, 1), WIDEST))
    shown = -(-span // step)
    names = columns.values[BY[by]]
    counts = count_codes(codes, None, len(names))
    chosen = np.argsort(-counts, kind="stable")[:TRACKS]
    chosen = chosen[counts[chosen] > 0]
    track = np.full(len(counts) + 1, len(chosen), np.int8)  # rows without a track have the number after the last
    track[chosen] = np.arange(len(chosen))
    begins = count_before(times, rows, first + step * np.arange(shown + 1))
    causes = columns.values["cause"]
    hold = causes.index("hold") if "hold" in causes else len(causes) + 1
    longest, wrong = _longest(tables, rows, lambda part: track[codes[part]], begins, len(chosen))
    cells, at = np.nonzero(longest >= 0)
    longest_rows = longest[cells, at]
    links, link = tables.links_of(longest_rows)
    held = columns.codes["cause"][longest_rows] == hold
    lasting, exchange, reply = (
        np.maximum(columns.integers[name][longest_rows].astype(np.int64), least)
        for name, least in (("total_us", 0), ("exchange", -1), ("reply", -1))
    )
    waits = _waits(tables, longest_rows)
    tracks = []
    for place, code in enumerate(chosen.tolist()):
        of_track = slice(*np.searchsorted(cells, (place, place + 1)).tolist())
        tracks.append(
            {
                "name": names[code],
                "filter": f"{BY[by]} == {quoted(names[code])}",
                "exchanges": int(counts[code]),
                "column": at[of_track],
                "lasting": lasting[of_track],
                "error": wrong[place, at[of_track]],
                "held": held[of_track],
                **{name: values[of_track] for name, values in waits.items()},
                "link": link[of_track],
                "exchange": exchange[of_track],
                "reply": reply[of_track],
            }
        )
    return {
        "first": first,
        "step": step,
        "columns": shown,
        "links": links,
        "tracks": tracks,
        "others": int(np.count_nonzero(counts)) - len(chosen),
        "bands": _bands(tables, first, first + span),
    }


def _longest(
    tables: Tables, rows: np.ndarray, track: Callable[[slice], np.ndarray], begins: np.ndarray, tracks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the longest exchange of each track and interval: int64[tracks, intervals] rows, -1 if there is none; and
    bool[tracks, intervals] whether any has an error. `track` numbers the tracks of a slice of rows; `begins`: where
    each interval's rows begin, and the last one's end."""
    columns = tables.columns
    total, of, filled = columns.integers["total_us"], columns.errors.of, columns.errors.filled()
    shape = (tracks, len(begins) - 1)
    longest, lasting, wrong = np.full(shape, -1), np.full(shape, -1), np.zeros(shape, np.bool_)
    for part in blocks(len(rows)):
        tracked = track(part)
        places = np.flatnonzero(tracked < tracks)
        if not len(places):
            continue
        some = rows[part][places]
        # The intervals that the block touches, and the interval of each row.
        low, high = (int(np.searchsorted(begins, row, "right")) - 1 for row in (part.start, part.stop - 1))
        inside = np.diff(np.clip(begins[low : high + 2], part.start, part.stop))
        interval = np.repeat(np.arange(high - low + 1), inside)
        cell = tracked[places] * np.int64(high - low + 1) + interval[places]
        here = np.minimum(np.maximum(total[some].astype(np.int64), 0), _LONGEST)
        flat = np.full(tracks * (high - low + 1), -1)
        np.maximum.at(flat, cell, here << _PLACE | places)
        most = flat.reshape(tracks, -1)
        window = np.s_[:, low : high + 1]
        longer = (most >= 0) & (most >> _PLACE >= lasting[window])
        lasting[window][longer] = most[longer] >> _PLACE
        longest[window][longer] = rows[part][most[longer] & (1 << _PLACE) - 1]
        bad = cell[filled[of[some]]]
        wrong[bad // (high - low + 1), low + bad % (high - low + 1)] = True
    return longest, wrong


def _waits(tables: Tables, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Get how long each row's request waited behind others of its connection or for a quota (`queue`), how long the
    broker held its answer, and the bounds of the broker's own time where that cannot be told exactly (acks=all): us,
    -1 where there is none."""
    columns = ("queue_us", "muted_us", "hold_us", "broker_low_us", "broker_high_us")
    integers = tables.columns.integers
    queue, muted, held, low, high = (np.maximum(integers[name][rows].astype(np.int64), -1) for name in columns)
    unsure = (held < 0) & (low >= 0) & (high >= 0)
    return {
        "queue": np.maximum(queue, 0) + np.maximum(muted, 0),
        "hold": held,
        "low": np.where(unsure, low, -1),
        "high": np.where(unsure, high, -1),
    }


def _bands(tables: Tables, first: int, end: int) -> list[dict[str, Any]]:
    """List rebalances and transactions that overlap a span of time."""
    bands = []
    for row in tables.other("rebalances"):
        began, ended = row["began"], row["ended"]
        stopped = max((member["stopped_us"] or 0 for member in row["stopped"] or []), default=0)
        bands.append(
            {
                "kind": "rebalance",
                "name": row["group_id"],
                "began": began,
                "ended": ended,
                "text": f"generation {row['generation']}: {row['trigger']}",
                "stopped": stopped,
            }
        )
    for row in tables.other("transactions"):
        name = row["transactional_id"] or f"producer {row['producer_id']}"
        bands.append(
            {
                "kind": "transaction",
                "name": name,
                "began": row["began"],
                "ended": row["ended"],
                "text": str(row["outcome"]),
                "stopped": 0,
            }
        )
    return [
        band
        for band in bands
        if band["began"] is not None and band["began"] < end and (band["ended"] is None or band["ended"] >= first)
    ]
