"""Ladder diagram: messages between clients and brokers, one by one or counted in bands.

In: a view's tables and a filter. Out: plain values for JSON. Rules: a broker is named by its node id if the dataset
knows it; everything that is left out is counted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kwire.analyzer.common import address_names
from kwire.reports.view.tables import Tables, format_key

ARROWS: Final = 2_000
"""Exchanges of a ladder in one answer."""

ACTORS: Final = 12
"""Clients, and likewise brokers, of a ladder's bands."""

CODES: Final = 1 << 22
"""Largest code that is counted in an array without renumbering."""

TALLEST: Final = 400
"""Intervals of a ladder's bands."""


def ladder(tables: Tables, text: str, start: int, count: int) -> dict[str, Any]:
    """Draw the chosen exchanges from `start` on, in order of their requests: client, broker, both times and the error;
    with changes of their partitions' leaders."""
    selection, numbers = tables.window(text, "", start, min(count, ARROWS))
    names = (
        "client_ip",
        "client_id",
        "broker_ip",
        "broker_port",
        "request_time",
        "response_time",
        "api",
        "errors",
        "topics",
        "status",
    )
    rows = tables.rows_at(numbers, names)
    known = {(row["host"], row["port"]): row["node_id"] for row in tables.other("brokers")}
    actors: dict[str, int] = {}
    arrows: list[list[Any]] = []
    for row in rows:
        client = f"{_host(row['client_ip'])} {row['client_id'] or ''}".strip()
        sender = actors.setdefault(f"client {client}", len(actors))
        broker = actors.setdefault(_broker(row["broker_ip"], row["broker_port"], known), len(actors))
        code = row["errors"][0]["code"] if row["errors"] else 0
        arrows.append([sender, broker, row["request_time"], row["response_time"], row["api"] or "?", code])
    topics = {topic for row in rows for topic in row["topics"]}
    times = [time for row in rows for time in (row["request_time"], row["response_time"]) if time is not None]
    return {
        "total": len(selection.rows),
        "start": start,
        "actors": list(actors),
        "arrows": arrows,
        "keys": list(map(format_key, tables.keys_of(numbers))),
        "leaders": _leaders(tables, topics, times),
    }


def bands(tables: Tables, text: str, height: int) -> dict[str, Any]:
    """Count all chosen exchanges by client, broker and interval of time, and those with errors. `starts`: position of
    each interval's first exchange among the chosen ones. Of more than `ACTORS` clients or brokers the least busy ones
    are counted together."""
    rows = tables.chosen(text).rows
    columns, shown = tables.columns, min(max(height, 1), TALLEST)
    times, there = columns.integer("request_time")
    rows = rows[there[rows]]
    if not len(rows):
        return {"total": 0, "actors": [], "first": 0, "step": 1, "rows": 0, "starts": [], "cells": []}
    first, last = int(times[rows[0]]), int(times[rows[-1]])
    step = -(-(last - first + 1) // shown)
    ids, codes = len(columns.values["client_id"]) + 1, columns.codes
    client_of, clients = _busiest((codes["client_ip"][rows].astype(np.int64) + 1) * ids + codes["client_id"][rows] + 1)
    broker_of, brokers = _busiest(codes["broker"][rows].astype(np.int64) + 1)
    interval = ((times[rows].astype(np.int64) - first) // step).astype(np.int32)
    wrong = columns.errors.filled()[columns.errors.of[rows]]
    shape = (len(clients), len(brokers), -(-(last - first + 1) // step))
    place = np.ravel_multi_index((client_of, broker_of, interval), shape)
    size = int(np.prod(shape))
    counts, errors = np.bincount(place, minlength=size), np.bincount(place[wrong], minlength=size)
    known = {(row["host"], row["port"]): row["node_id"] for row in tables.other("brokers")}
    names = [_client(tables, code, ids) for code in clients]
    places = [None, *columns.values["broker"]]  # codes begin with 1 here
    ends = [
        "other brokers"
        if code is None
        else "?"
        if (place := places[code]) is None
        else _broker(place[0], place[1], known)
        for code in brokers
    ]
    filled = np.flatnonzero(counts)
    client, broker, at = np.unravel_index(filled, shape)
    cells = np.stack([client, broker + len(names), at, counts[filled], errors[filled]], axis=1)
    return {
        "total": len(rows),
        "actors": names + ends,
        "first": first,
        "step": step,
        "rows": shape[2],
        "starts": np.searchsorted(interval, np.arange(shape[2])).tolist(),
        "cells": cells.tolist(),
    }


def _busiest(codes: np.ndarray) -> tuple[np.ndarray, list[int | None]]:
    """Number codes (0 and up) by the most frequent ones: int64[n], and these codes, None for all others."""
    if int(codes.max()) > CODES:
        distinct, codes = np.unique(codes, return_inverse=True)
    else:
        distinct = np.arange(int(codes.max()) + 1)
    counts = np.bincount(codes)
    there = np.flatnonzero(counts)
    most = there if len(there) <= ACTORS else np.sort(there[np.argsort(-counts[there], kind="stable")[: ACTORS - 1]])
    place = np.full(len(distinct), len(most))
    place[most] = np.arange(len(most))
    return place[codes], [*distinct[most].tolist(), *([None] if len(most) < len(there) else [])]


def _client(tables: Tables, code: int | None, ids: int) -> str:
    if code is None:
        return "client others"
    ip, name = code // ids - 1, code % ids - 1
    values = tables.columns.values
    called = values["client_id"][name] if name >= 0 else ""
    return f"client {_host(values['client_ip'][ip]) if ip >= 0 else '?'} {called}".strip()


def _host(ip: str | None) -> str:
    """An address by its name, in one word: what follows is the client id."""
    return "\u00a0".join((address_names.name_of(ip) or str(ip)).split())


def _broker(ip: str | None, port: int | None, known: dict[tuple[str, int], int]) -> str:
    node = known.get((ip or "", port or 0))
    if node is None:  # brokers advertise host names; a port that only one broker has identifies it
        same = [number for (_, of), number in known.items() if of == port]
        node = same[0] if len(same) == 1 else None
    return f"broker {_host(ip)}:{port}" if node is None else f"broker {node}"


def _leaders(tables: Tables, topics: set[str], times: list[int]) -> list[dict[str, Any]]:
    """List changes of leaders of topics' partitions: the last one before the first time, and those until the last."""
    if not times:
        return []
    first, last = min(times), max(times)
    before: dict[tuple[str, int], dict[str, Any]] = {}
    changes = []
    for row in sorted(tables.other("leaders"), key=lambda row: row["time"] or 0):
        topic = row["topic"] or tables.topic_names.get(row["topic_id"] or "", "")
        if topic not in topics or row["time"] is None or row["time"] > last:
            continue
        change = {
            "time": row["time"],
            "topic": topic,
            "partition": row["partition"],
            "leader": row["leader"],
            "epoch": row["leader_epoch"],
        }
        if row["time"] <= first:
            before[topic, row["partition"]] = change
        else:
            changes.append(change)
    return [*before.values(), *changes]
