"""Other tables of a dataset, with a filter for each row that chooses its exchanges.

In: a view's tables and a query. Out: plain values for JSON, and filters. Rule: `kwire show` accepts the same filters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.common import address_names
from kwire.analyzer.dataset import tables as contract
from kwire.analyzer.dataset.dataset import readable
from kwire.reports import named_ends
from kwire.reports.view.filter_values import filter_time, quoted
from kwire.reports.view.tables import OTHER_ROWS, BadRequestError, Key, Tables

MAX_PARTITIONS: Final = 100
"""Partitions of an exchange that are listed."""

MAX_RESENDS: Final = 100
"""Exchanges with the same batch that a filter names."""


def window(tables: Tables, name: str, sort: str, start: int, count: int) -> dict[str, Any]:
    """Get a window of a table: columns as lists, their descriptions, and a filter per row. `sort`: as for exchanges.
    Raises BadRequestError."""
    if name not in FILTERS:
        raise BadRequestError(f"name={name[:40]}: unknown table", f"one of {', '.join(FILTERS)}")
    rows = tables.other(name)
    plain = [column for column in contract.TABLES[name] if not pa.types.is_nested(column.type)]
    for column, value in COMPUTED.get(name, ()):
        plain.append(column)
        for row in rows:
            row.setdefault(column.name, value(row))
    for named, ip in named_ends.columns(name).items():
        plain.append(contract.Column(named, pa.string(), named_ends.ABOUT[named]))
        rows = [{**row, named: address_names.name_of(row[ip])} for row in rows]
    by = sort.removeprefix("-")
    if sort and by not in {column.name for column in plain}:
        raise BadRequestError(f"sort={sort[:40]}: no column of {name}")
    if sort:
        there = sorted((row for row in rows if row[by] is not None), key=lambda row: row[by], reverse=sort == by)
        rows = [*there, *(row for row in rows if row[by] is None)]
    shown = rows[start : start + count]
    # Several captures may have the same connections, clients or groups.
    several = len({*tables.columns.values["capture"], *(capture["name"] for capture in tables.dataset.captures)}) > 1
    return {
        "total": len(rows),
        "more": len(rows) >= OTHER_ROWS,
        "start": start,
        "about": [
            {
                "name": column.name,
                "kind": kind(column),
                "about": column.about,
                "quiet": _quiet(rows, column.name, several),
            }
            for column in plain
        ],
        "columns": {column.name: [row[column.name] for row in shown] for column in plain},
        "filters": [
            FILTERS[name](row) + (f" and {_equal('capture', row['capture'])}" if several else "") for row in shown
        ],
    }


def _quiet(rows: list[dict[str, Any]], name: str, several: bool) -> bool:
    """Tell whether a column has no information in any row."""
    if name == "capture":
        return not several
    return not any(row[name] or row[name] == "" for row in rows)


def kind(column: contract.Column | pa.Field) -> str:
    """Get the kind of a column's values: time, duration, size or text."""
    if column.type == contract.TIME:
        return "time"
    return "duration" if column.name.endswith("_us") else "size" if column.name.endswith("_bytes") else "text"


def _equal(name: str, value: Any) -> str:
    return f"{name} is null" if value is None else f"{name} == {quoted(str(value))}"


def _between(row: dict[str, Any]) -> str:
    """Write a condition for the time between `began` and `ended`."""
    return "".join(
        f" and request_time {sign} {filter_time(row[name])}"
        for sign, name in ((">=", "began"), ("<=", "ended"))
        if row[name] is not None
    )


def _duration(row: dict[str, Any], since: str, until: str) -> int | None:
    return None if row[since] is None or row[until] is None else row[until] - row[since]


COMPUTED: Final[dict[str, tuple[tuple[contract.Column, Callable[[dict[str, Any]], Any]], ...]]] = {
    "journeys": (
        (
            contract.Column("waited_us", pa.int64(), "From the first record's own time to `sent`: in the producer."),
            lambda row: _duration(row, "created", "sent"),
        ),
        (
            contract.Column("acked_us", pa.int64(), "From `received` to `acked`: at the broker and its followers."),
            lambda row: _duration(row, "received", "acked"),
        ),
        (
            contract.Column("total_us", pa.int64(), "From `sent` to `fetched`."),
            lambda row: _duration(row, "sent", "fetched"),
        ),
    )
}
"""Columns of tables that are shown, but not stored, and how each is computed from a row."""

FILTERS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "connections": lambda row: _equal("connection", row["connection"]),
    "clients": lambda row: f"{_equal('client_id', row['client_id'])} and {_equal('client_ip', row['client_ip'])}",
    "groups": lambda row: _equal("group", row["group_id"]),
    "rebalances": lambda row: _equal("group", row["group_id"]) + _between(row),
    "transactions": lambda row: _equal("transactional_id", row["transactional_id"]) + _between(row),
    "journeys": lambda row: (
        f"{_equal('connection', row['produced']['connection'])} and exchange == {row['produced']['exchange']}"
    ),
}
"""Tables that are shown, and the filter that chooses the exchanges of a row."""


def partitions_of(tables: Tables, key: Key) -> list[str]:
    """List the partitions that an exchange names, as TOPIC-NUMBER."""
    import pyarrow.compute as pc

    capture, connection, number, _ = key
    field = pc.field
    here = (field("capture") == capture) & (field("connection") == connection) & (field("exchange") == number)
    with readable(tables.dataset.path, "partitions"):
        columns = ["topic", "topic_id", "partition"]
        rows = [] if number is None else tables.dataset.partitions.to_table(columns, filter=here).to_pylist()
    named = ((row["topic"] or tables.topic_names.get(row["topic_id"] or "", ""), row["partition"]) for row in rows)
    return [f"{topic}-{place}" for topic, place in dict.fromkeys(named) if topic and place is not None][:MAX_PARTITIONS]


def resend_filter(tables: Tables, key: Key) -> str | None:
    """Make a filter for all exchanges that carry an exchange's first batch: same producer, epoch, sequence, topic and
    partition, on any connection. None if it has no such batch."""
    import pyarrow.compute as pc

    capture, connection, number, _ = key
    batches, field = tables.dataset.batches, pc.field
    names = ["topic", "topic_id", "partition", "producer_id", "producer_epoch", "base_sequence"]
    with readable(tables.dataset.path, "batches"):
        produced = (field("side") == "produce") & (field("producer_id") >= 0) & (field("base_sequence") >= 0)
        here = (field("capture") == capture) & (field("connection") == connection) & (field("exchange") == number)
        first = [] if number is None else batches.to_table(names, filter=here & produced).slice(0, 1).to_pylist()
        if not first:
            return None
        same = produced
        for name, value in first[0].items():
            same &= field(name).is_null() if value is None else field(name) == value
        batches_found = batches.to_table(["connection", "exchange"], filter=same).to_pylist()
    pairs = dict.fromkeys((row["connection"], row["exchange"]) for row in batches_found)
    clauses = [f"connection == {quoted(link)} and exchange == {at}" for link, at in list(pairs)[:MAX_RESENDS]]
    return clauses[0] if len(clauses) == 1 else " or ".join(f"({clause})" for clause in clauses)
