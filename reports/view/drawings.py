"""What is drawn over time: a ladder of messages between clients and brokers, and a timeline of tracks.

In: a view's tables and what a filter chooses. Out: plain values for JSON. Rules: a broker has its node id wherever the
dataset knows it; of a pixel the longest exchange is told, so that none that matters is hidden; what is left out is
counted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from reports.view.naming import quoted
from reports.view.tables import Tables, Wrong, key_text

ARROWS: Final = 2_000
"""Exchanges of a ladder at once."""

TRACKS: Final = 50
"""Tracks of a timeline; the rest is counted."""

WIDEST: Final = 4_000
"""Intervals of a timeline: more than a screen has pixels."""

BY: Final = {"connection": "connection", "client": "client_id", "group": "group_id", "member": "member_id"}
"""What may be a track of a timeline, by the column that tells it."""


def ladder(tables: Tables, text: str, start: int, count: int) -> dict[str, Any]:
    """The chosen exchanges from the `start` on, in order of their requests: who asked whom, when, and when what came
    back; and who led the partitions of their topics meanwhile."""
    selection, numbers = tables.window(text, "", start, min(count, ARROWS))
    names = ("client_ip", "client_id", "broker_ip", "broker_port", "request_time", "response_time", "api", "errors",
             "topics", "status")  # fmt: skip
    rows = tables.some(numbers, names)
    known = {(row["host"], row["port"]): row["node_id"] for row in tables.other("brokers")}
    actors: dict[str, int] = {}
    arrows: list[list[Any]] = []
    for row in rows:
        client = f"{row['client_ip']} {row['client_id'] or ''}".strip()
        asked = actors.setdefault(f"client {client}", len(actors))
        broker = actors.setdefault(_broker(row["broker_ip"], row["broker_port"], known), len(actors))
        code = row["errors"][0]["code"] if row["errors"] else 0
        arrows.append([asked, broker, row["request_time"], row["response_time"], row["api"] or "?", code])
    topics = {topic for row in rows for topic in row["topics"]}
    times = [time for row in rows for time in (row["request_time"], row["response_time"]) if time is not None]
    return {
        "total": len(selection.rows), "start": start, "actors": list(actors), "arrows": arrows,
        "keys": list(map(key_text, tables.keys_of(numbers))), "leaders": _leaders(tables, topics, times),
    }  # fmt: skip


def _broker(ip: str | None, port: int | None, known: dict[tuple[str, int], int]) -> str:
    node = known.get((ip or "", port or 0))
    if node is None:  # brokers advertise names; a port that one broker alone has tells it as well
        same = [number for (_, of), number in known.items() if of == port]
        node = same[0] if len(same) == 1 else None
    return f"broker {ip}:{port}" if node is None else f"broker {node}"


def _leaders(tables: Tables, topics: set[str], times: list[int]) -> list[dict[str, Any]]:
    """Changes of leaders of some topics' partitions: the last one before the first time, and those up to the last."""
    if not times:
        return []
    first, last = min(times), max(times)
    before: dict[tuple[str, int], dict[str, Any]] = {}
    found = []
    for row in sorted(tables.other("leaders"), key=lambda row: row["time"] or 0):
        topic = row["topic"] or tables.topic_names.get(row["topic_id"] or "", "")
        if topic not in topics or row["time"] is None or row["time"] > last:
            continue
        told = {"time": row["time"], "topic": topic, "partition": row["partition"], "leader": row["leader"],
                "epoch": row["leader_epoch"]}  # fmt: skip
        if row["time"] <= first:
            before[topic, row["partition"]] = told
        else:
            found.append(told)
    return [*before.values(), *found]


def timeline(tables: Tables, text: str, by: str, width: int, first: int | None, last: int | None) -> dict[str, Any]:
    """Tracks of the chosen exchanges, most exchanges first: of each interval of time that begins one, the longest; and
    what groups and transactions did meanwhile. Raises Wrong."""
    if by not in BY:
        raise Wrong(f"by={by[:40]}: nothing that makes tracks", f"one of {', '.join(BY)}")
    columns = tables.columns
    rows = tables.chosen(text).rows
    times = columns.integers["request_time"][rows]
    codes = columns.codes[BY[by]][rows]
    there = (codes >= 0) & (times != np.iinfo(times.dtype).min)
    if first is not None:
        there &= times >= first
    if last is not None:
        there &= times <= last
    rows, times, codes = rows[there], times[there], codes[there].astype(np.int64)
    if not len(rows):
        return {"first": 0, "step": 1, "columns": 0, "tracks": [], "others": 0, "bands": []}
    first = int(times[0]) if first is None else first
    span = (int(times[-1]) if last is None else last) - first + 1
    step = -(-span // min(max(width, 1), WIDEST))
    counts = np.bincount(codes)
    chosen = [code for code in np.argsort(-counts, kind="stable")[:TRACKS].tolist() if counts[code]]
    values = columns.values[BY[by]]
    lasting = columns.integers["total_us"][rows].astype(np.int64)
    lasting[lasting < 0] = 0
    wrong = columns.errors.filled()[columns.errors.of[rows]]
    tracks = []
    for code in chosen:
        mine = np.flatnonzero(codes == code)
        column = (times[mine] - first) // step
        order = np.lexsort((lasting[mine], column))
        ends = np.append(np.flatnonzero(np.diff(column[order])), len(order) - 1)
        longest = mine[order[ends]]
        bad = np.zeros(int(column.max()) + 1, np.bool_)
        np.logical_or.at(bad, column, wrong[mine])
        tracks.append({
            "name": values[code], "filter": f"{BY[by]} == {quoted(values[code])}", "exchanges": int(counts[code]),
            "column": column[order[ends]].tolist(), "lasting": lasting[longest].tolist(),
            "error": bad[column[order[ends]]].tolist(),
            "keys": list(map(key_text, tables.keys_of(rows[longest]))),
        })  # fmt: skip
    end = first + span
    return {
        "first": first, "step": step, "columns": -(-span // step), "tracks": tracks,
        "others": int(np.count_nonzero(counts)) - len(chosen), "bands": _bands(tables, first, end),
    }  # fmt: skip


def _bands(tables: Tables, first: int, end: int) -> list[dict[str, Any]]:
    """Rebalances (stopped from `began` to `ended`, then a generation) and transactions that overlap a span of time."""
    found = []
    for row in tables.other("rebalances"):
        began, ended = row["began"], row["ended"]
        stopped = max((one["stopped_us"] or 0 for one in row["stopped"] or []), default=0)
        found.append({"kind": "rebalance", "name": row["group_id"], "began": began, "ended": ended,
                      "text": f"generation {row['generation']}: {row['trigger']}", "stopped": stopped})  # fmt: skip
    for row in tables.other("transactions"):
        name = row["transactional_id"] or f"producer {row['producer_id']}"
        found.append({"kind": "transaction", "name": name, "began": row["began"], "ended": row["ended"],
                      "text": str(row["outcome"]), "stopped": 0})  # fmt: skip
    return [
        one for one in found
        if one["began"] is not None and one["began"] < end and (one["ended"] is None or one["ended"] >= first)
    ]  # fmt: skip
