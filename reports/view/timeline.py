"""A timeline: tracks of exchanges over time, and what groups and transactions did meanwhile.

In: a view's tables and what a filter chooses. Out: plain values for JSON, those of many exchanges as arrays. Rules: of
each track and interval the longest exchange is told, so that none that matters is hidden; what is left out is counted;
every row is looked at twice, however many tracks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from reports.view.filter_values import quoted
from reports.view.tables import Tables, Wrong
from reports.view.value_counts import BLOCK, before, blocks, tally

TRACKS: Final = 50
"""Tracks; the rest is counted."""

WIDEST: Final = 4_000
"""Intervals of time: more than a screen has pixels."""

BY: Final = {"connection": "connection", "client": "client_id", "group": "group_id", "member": "member_id"}
"""What may be a track, by the column that tells it."""

_PLACE: Final = (BLOCK - 1).bit_length()
_LONGEST: Final = (1 << 62 - _PLACE) - 1
"""us, a year: what takes longer counts as this long, so that a time and a place in a block fit in one number."""


def timeline(tables: Tables, text: str, by: str, width: int, first: int | None, last: int | None) -> dict[str, Any]:
    """Tracks of the chosen exchanges, most exchanges first: of each interval of time that begins one, the longest (the
    last of those that are as long); and what groups and transactions did meanwhile. Raises Wrong."""
    if by not in BY:
        raise Wrong(f"by={by[:40]}: nothing that makes tracks", f"one of {', '.join(BY)}")
    columns, selection = tables.columns, tables.chosen(text)
    rows, every, times = selection.rows, selection.every, columns.integers["request_time"]
    if not columns.whole("request_time"):
        rows, every = rows[times[rows] != np.iinfo(times.dtype).min], False
    # Rows are in order of their requests, so a span of time is a run of them.
    start = 0 if first is None else int(before(times, rows, np.array([first]))[0])
    stop = len(rows) if last is None else int(before(times, rows, np.array([last + 1]))[0])
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
    values = columns.values[BY[by]]
    counts = tally(codes, None, len(values))
    chosen = np.argsort(-counts, kind="stable")[:TRACKS]
    chosen = chosen[counts[chosen] > 0]
    track = np.full(len(counts) + 1, len(chosen), np.int8)  # of those that have none: one behind the last
    track[chosen] = np.arange(len(chosen))
    begins = before(times, rows, first + step * np.arange(shown + 1))
    longest, wrong = _longest(tables, rows, lambda part: track[codes[part]], begins, len(chosen))
    cells, at = np.nonzero(longest >= 0)
    found = longest[cells, at]
    links, link = _links(tables, found)
    lasting, exchange, reply = (
        np.maximum(columns.integers[name][found].astype(np.int64), least)
        for name, least in (("total_us", 0), ("exchange", -1), ("reply", -1))
    )
    tracks = []
    for place, code in enumerate(chosen.tolist()):
        mine = slice(*np.searchsorted(cells, (place, place + 1)).tolist())
        tracks.append(
            {
                "name": values[code],
                "filter": f"{BY[by]} == {quoted(values[code])}",
                "exchanges": int(counts[code]),
                "column": at[mine],
                "lasting": lasting[mine],
                "error": wrong[place, at[mine]],
                "link": link[mine],
                "exchange": exchange[mine],
                "reply": reply[mine],
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
    """int64[tracks, intervals]: the row that lasts longest, -1: there is none; bool[tracks, intervals]: has one of them
    an error? `track` says of a part of the rows which each is in; `begins`: where each interval's rows begin, and the
    last one's end."""
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
        # The intervals that the block has rows of, and of each of its rows the one.
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


def _links(tables: Tables, rows: np.ndarray) -> tuple[list[list[str]], np.ndarray]:
    """Captures and connections of some rows, each once, and which of them each row has."""
    columns = tables.columns
    capture, connection = (columns.codes[name][rows].astype(np.int64) for name in ("capture", "connection"))
    many = len(columns.values["connection"])
    both, link = np.unique(capture * many + connection, return_inverse=True)
    names = columns.values["capture"], columns.values["connection"]
    return [[names[0][one // many], names[1][one % many]] for one in both.tolist()], link


def _bands(tables: Tables, first: int, end: int) -> list[dict[str, Any]]:
    """Rebalances (stopped from `began` to `ended`, then a generation) and transactions that overlap a span of time."""
    found = []
    for row in tables.other("rebalances"):
        began, ended = row["began"], row["ended"]
        stopped = max((one["stopped_us"] or 0 for one in row["stopped"] or []), default=0)
        found.append(
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
        found.append(
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
        one
        for one in found
        if one["began"] is not None and one["began"] < end and (one["ended"] is None or one["ended"] >= first)
    ]
