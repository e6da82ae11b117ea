"""Keys and values of records as they were decoded, grouped for rules.

In: a capture point whose keys and values were decoded. Out: `Group`s: the keys or values of one topic-partition on one
connection with the same format and schema, in order of time. Of those that do not decode, each offset is a group of its
own, up to `MOST_PLACES`. `records` is read a row group at a time, without keys and values: it may be of any size.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.findings.capture import CaptureFrame, once
from kwire.analyzer.frame import spill
from kwire.analyzer.protocol import api_keys

MOST_PLACES: Final = 20_000
"""Offsets that do not decode and are told apart, of a row group and of all; of more there is no single poison pill."""

_KEYS: Final = (
    "connection",
    "side",
    "topic",
    "topic_id",
    "partition",
    "format",
    "schema_id",
    "kind",
    "place",
    "request",
)
_WANTED: Final = (
    "connection",
    "exchange",
    "reply",
    "side",
    "topic",
    "topic_id",
    "partition",
    "batch",
    "offset",
    "key_format",
    "value_format",
    "key_schema_id",
    "value_schema_id",
    "undecodable",
)
_FINE, _UNDECODABLE, _UNIDENTIFIED = range(3)


@dataclass(frozen=True, slots=True)
class Group:
    """Keys or values that are alike.

    client      number of the client that wrote or fetched them
    link        number of its connection
    written     in Produce requests; else in answers to fetches
    part        `key` or `value`
    topic, partition
    format, schema_id
    reason      why the first is not decoded; None: all are
    format_known  False: the bytes are of no known format
    count       rows: fetched twice is counted twice
    offset      of the first, in the log; None: not known
    row, last_row  the first exchange and the last, as rows of `capture.exchanges`
    first, last times, us
    """

    client: int
    link: int
    written: bool
    part: str
    topic: str
    partition: int
    format: str | None
    schema_id: str | None
    reason: str | None
    format_known: bool
    count: int
    offset: int | None
    row: int
    last_row: int
    first: int
    last: int

    @property
    def is_unknown_id(self) -> bool:
        """Whether no source of schemas has the id that they name, or could be asked for it."""
        return self.reason is not None and self.schema_id is not None and self.format is None


def are_decoded(capture: CaptureFrame) -> bool:
    """Return whether keys and values of a capture point were decoded."""
    return "schema_sources" in capture.entry


@once
def groups(capture: CaptureFrame) -> list[Group]:
    """Return the groups of a capture point, in order of time; none where keys and values were not decoded."""
    if not are_decoded(capture):
        return []
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    places = 0
    for row_group in capture.source.groups("records"):
        if capture.name not in row_group.captures:
            continue
        table = capture.source.read_group("records", row_group, capture.name, _WANTED)
        for part in ("key", "value"):
            for row in _grouped(table, part, places < MOST_PLACES):
                key = (part, *(row[name] for name in _KEYS))
                before = merged.get(key)
                if before is None:
                    merged[key] = row
                    places += row["place"] is not None
                else:
                    before["count"] += row["count"]
                    before["last_exchange"], before["last_reply"] = row["last_exchange"], row["last_reply"]
    return sorted(_known(capture, merged), key=lambda group: (group.first, group.row, group.topic, group.partition))


def _grouped(table: pa.Table, part: str, with_places: bool) -> Iterator[dict[str, Any]]:
    """Yield the groups of some rows, as their columns by name."""
    import pyarrow.compute as pc

    text = {name: table.column(name).cast(pa.string()) for name in ("connection", "side", "topic", "topic_id")}
    format = table.column(f"{part}_format").cast(pa.string())
    schema_id = table.column(f"{part}_schema_id").cast(pa.string())
    reasons = table.column("undecodable").cast(pa.string())
    own = pc.match_substring_regex(reasons, f"(?:^|; ){part}: ").fill_null(False)
    known = pc.or_(pc.is_valid(format), own)
    if not pc.any(known).as_py():
        return
    unidentified = pc.and_(own, pc.and_(pc.is_null(format), pc.is_null(schema_id)))
    kinds = pc.if_else(unidentified, _UNIDENTIFIED, pc.if_else(own, _UNDECODABLE, _FINE))
    apart = pc.and_(own, with_places and (pc.sum(own).as_py() or 0) <= MOST_PLACES)
    of_request = pc.and_(apart, pc.equal(text["side"], "produce"))
    offsets = table.column("offset")
    columns = {
        **text,
        "partition": table.column("partition"),
        "format": format,
        "schema_id": schema_id,
        "kind": kinds,
        "place": pc.if_else(apart, offsets, None),
        "request": pc.if_else(of_request, table.column("exchange"), None),
        "offset": offsets,
        "reason": pc.if_else(own, reasons, None),
        **{name: table.column(name) for name in ("exchange", "reply", "batch")},
    }
    chosen = pa.table(columns).filter(known)
    keep = pc.ScalarAggregateOptions(skip_nulls=False)
    firsts = ("exchange", "reply", "batch", "offset", "reason")
    grouped = chosen.group_by(list(_KEYS), use_threads=False).aggregate(
        [
            *((name, "first", keep) for name in firsts),
            *((name, "last", keep) for name in ("exchange", "reply")),
            ([], "count_all"),
        ]
    )
    for row in grouped.to_pylist():
        yield {
            **{name: row[name] for name in _KEYS},
            **{name: row[f"{name}_first"] for name in firsts},
            "last_exchange": row["exchange_last"],
            "last_reply": row["reply_last"],
            "count": row["count_all"],
        }


def _known(capture: CaptureFrame, merged: dict[tuple[Any, ...], dict[str, Any]]) -> Iterator[Group]:
    """Yield groups of rows whose exchanges are known."""
    links = {name: number for number, name in enumerate(capture.links)}
    exchanges = capture.exchanges
    answers = _Answers(capture)
    for (part, *_), row in merged.items():
        first = _row_of(capture, row["connection"], row["exchange"])
        last = _row_of(capture, row["connection"], row["last_exchange"])
        topic = row["topic"] or capture.topic_names.get(row["topic_id"] or "", row["topic_id"])
        if first is None or topic is None or row["partition"] is None:
            continue
        last = first if last is None else last
        written = row["side"] == "produce"
        times = exchanges.request_time if written else exchanges.response_end
        link, offset = links[row["connection"]], row["offset"]
        if written:
            error, base = answers.of(first, topic, row["partition"])
            if error and row["request"] is not None:
                continue  # refused: it is not in the log
            # A request counts from 0; where it does not, its batches may count as they like.
            offset = None if base is None or offset is None or row["batch"] else base + offset
        yield Group(
            int(capture.client_of[link]),
            link,
            written,
            part,
            topic,
            row["partition"],
            row["format"],
            row["schema_id"],
            None if row["reason"] is None else _own_reason(row["reason"], part),
            row["kind"] != _UNIDENTIFIED,
            row["count"],
            offset,
            first,
            last,
            int(times[first]),
            int(times[last]),
        )


def _row_of(capture: CaptureFrame, connection: str, exchange: int | None) -> int | None:
    return None if exchange is None else capture.row_of(connection, exchange)


def _own_reason(reasons: str, part: str) -> str:
    """Return what the column says of the key or the value; `key: ...; value: ...` where it says something of both."""
    if part == "value":
        return reasons.removeprefix("value: ") if reasons.startswith("value: ") else reasons.partition("; value: ")[2]
    return reasons.removeprefix("key: ").partition("; value: ")[0]


class _Answers:
    """Answers to Produce requests, by exchange, topic and partition."""

    def __init__(self, capture: CaptureFrame) -> None:
        self._capture = capture

    @functools.cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """int32[n]: exchanges in order, and the row of `partitions` of each."""
        chosen = self._capture.parts_of(api_keys.PRODUCE)
        owner = spill.take(self._capture.partitions.owner, chosen)
        order = np.argsort(owner, kind="stable")
        return owner[order], chosen[order]

    def of(self, row: int, topic: str, partition: int) -> tuple[int, int | None]:
        """Return the error code, 0 where there is no answer, and the base offset; None: not known."""
        capture, (owners, rows) = self._capture, self._rows
        begin, end = np.searchsorted(owners, [row, row + 1])
        for part in rows[begin:end].tolist():
            if capture.topic_partitions[capture.partitions.topic_partition[part]] == (topic, partition):
                offset = int(capture.table("partitions")["offset"][part])
                return max(int(capture.partitions.error[part]), 0), offset if offset >= 0 else None
        return 0, None
