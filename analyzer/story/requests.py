"""Events of the requests of one client or one connection, only for stories about it.

In: the tables `exchanges` and `partitions`. Out: events. Rule: what repeats is one event.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.common import compute
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.columns import encode
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import OrdinalIndex
from kwire.analyzer.story.events import Event, Row, some, who, within
from kwire.analyzer.story.sources import EXCHANGE_COLUMNS, Source

_LAST = np.iinfo(np.int64).max
"""Position of exchanges without a request: after all others."""

_LOOKING = {
    "Metadata": "asked who leads {}",
    "FindCoordinator": "asked for the coordinator of {}",
    "ListOffsets": "asked where to begin in {}",
    "OffsetFetch": "asked for the committed offsets of {}",
}


def lookups(source: Source, client: str) -> Iterator[Event]:
    """Events of a client's lookups: the first of each kind and subject, and the offsets in its answer."""
    wanted = pc.field("api").isin(list(_LOOKING)) & ~pc.is_valid(pc.field("error")) & (pc.field("client_id") == client)
    exchanges = source.table("exchanges", EXCHANGE_COLUMNS, wanted)
    answers = _offsets_told(source, exchanges)
    following, parts_of = next(answers, (-1, []))
    seen: set[tuple[Any, ...]] = set()
    for number, row in enumerate(source.each("exchanges", exchanges)):
        parts: list[Row] = []
        if number == following:
            parts = parts_of
            following, parts_of = next(answers, (-1, []))
        subject = row["topics"] or ([f"group {row['group_id']}"] if row["group_id"] else [])
        if row["api"] == "FindCoordinator":
            subject = [f"group {row['group_id']}"] if row["group_id"] else ["what it names"]
        key = row["client_ip"], row["api"], tuple(subject), tuple(part["partition"] for part in parts)
        if key in seen or row["response_end"] is None:
            continue
        seen.add(key)
        text = _LOOKING[row["api"]].format(some(subject) if subject else "all topics")
        if parts and row["api"] != "Metadata":
            offsets = [f"{part['topic']}-{part['partition']} at {part['offset']:,}" for part in parts]
            text += f": {some(offsets)}"
        yield Event(
            row["response_end"],
            "asked",
            who(row["client_id"], row["client_ip"]),
            text,
            topics=tuple(row["topics"] or ()),
            group_id=row["group_id"],
            client_id=row["client_id"],
            connection=row["connection"],
            exchange=row["exchange"],
            reply=row["reply"],
        )


def _offsets_told(source: Source, exchanges: pa.Table) -> Iterator[tuple[int, list[Row]]]:
    """Yield the number of each exchange with offsets in its answer, and its partitions."""
    if not len(exchanges):
        return
    known: dict[str, int] = {}
    links = encode(exchanges["connection"].combine_chunks(), known)
    listed = source.table(
        "partitions",
        ("connection", "exchange", "topic", "topic_id", "partition", "offset", "offset_kind"),
        pc.field("offset_kind").isin(["listed", "committed"])
        & (pc.field("offset") >= 0)
        & pc.field("connection").isin(list(known)),
    )
    exchange, of = (arrow.numbers(table["exchange"].combine_chunks(), NULL) for table in (exchanges, listed))
    rows = np.flatnonzero(exchange != NULL)
    owner = np.full(len(listed), -1, np.int32)
    link = encode(listed["connection"].combine_chunks(), known)
    OrdinalIndex(links[rows], exchange[rows], len(known), rows).join(owner, link, of, of != NULL)
    order = np.argsort(owner, kind="stable")
    order = order[np.count_nonzero(owner < 0) :]
    whose = zip(map(int, owner[order]), source.each("partitions", listed, order), strict=True)
    for number, parts in itertools.groupby(whose, lambda pair: pair[0]):
        yield number, [part for _, part in parts]


def dialogue(source: Source, connection: str) -> Iterator[Event]:
    """Events of all requests on a connection, repeated ones as one event. Computed by columns, because a consumer sends
    millions."""
    table = source.table("exchanges", EXCHANGE_COLUMNS, pc.field("connection") == connection)
    order = np.argsort(arrow.numbers(table["exchange"].combine_chunks(), _LAST), kind="stable")
    begins = _begins(source, compute.take(table.select(["api", "error", "status", "topics"]), order))
    counts = np.diff(begins, append=len(order))
    lasts = source.each("exchanges", table, order[(begins + counts - 1)[counts > 1]])
    for first, many in zip(source.each("exchanges", table, order[begins]), counts.tolist(), strict=True):
        last = next(lasts) if many > 1 else first
        if first["error"] is not None or first["status"] == "unanswered":
            continue  # told with what came next
        times = f" {many:,} times{within(_begun(first), _time(last))}" if many > 1 else ""
        about = f" of {some(first['topics'])}" if first["topics"] else ""
        text = f"asked {first['api'] or 'something unknown'}{about}{times}"
        yield Event(
            _begun(first),
            "asked",
            who(first["client_id"], first["client_ip"]),
            text,
            client_id=first["client_id"],
            connection=connection,
            exchange=first["exchange"],
            reply=first["reply"],
            topics=tuple(first["topics"] or ()),
            group_id=first["group_id"],
            transactional_id=first["transactional_id"],
        )


def _begins(source: Source, table: pa.Table) -> np.ndarray:
    """int64: the first row of each run of rows with the same request."""
    change = np.ones(len(table), np.bool_)
    topics = table["topics"].combine_chunks()
    change[1:] = _other_than_before(topics, source.topics)
    for name in ("api", "error", "status"):
        codes = encode(table[name].combine_chunks(), {})
        change[1:] |= codes[1:] != codes[:-1]
    return np.flatnonzero(change)


def _other_than_before(lists: pa.ListArray, names: Mapping[str, str]) -> np.ndarray:
    """bool[n - 1]: whether each list of topics differs from the previous one, ids replaced by their `names`."""
    raw: dict[str, int] = {}
    codes = encode(lists.flatten(), raw)
    called: dict[str, int] = {}
    anew = np.array([-1, *(called.setdefault(names.get(topic, topic), len(called)) for topic in raw)], np.int32)
    codes = anew[codes + 1]
    sizes = np.where(arrow.absent(lists), -1, np.diff(arrow.stored(lists.offsets)))
    other: np.ndarray = sizes[1:] != sizes[:-1]
    # Where two are as long, the one's topics stand so many places behind the other's.
    own = np.repeat(np.where(other, 0, np.maximum(sizes[:-1], 0)), np.maximum(sizes[:-1], 0))
    which = np.repeat(np.arange(len(other)), np.maximum(sizes[:-1], 0))
    alike = codes[: len(own)] == codes[np.arange(len(own)) + own]
    other[which[~alike]] = True
    return other


def _time(row: Row) -> datetime.datetime:
    time: datetime.datetime = row["response_end"] or row["request_time"]
    return time


def _begun(row: Row) -> datetime.datetime:
    time: datetime.datetime = row["request_time"] or row["response_end"]
    return time
