"""Columns of tables: their class, and those that several tables share.

Out: `Column`s for `tables` and `analysis_tables`, which are the contract.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")
ERRORS = pa.list_(pa.struct([("code", pa.int16()), ("error", pa.string()), ("count", pa.int32())]))
STRINGS = pa.list_(pa.string())


class Column(NamedTuple):
    """One column: name, type, and what it holds."""

    name: str
    type: pa.DataType
    about: str


def columns(*rows: tuple[str, pa.DataType, str]) -> tuple[Column, ...]:
    """Columns by name, type, and what each holds."""
    return tuple(Column(*row) for row in rows)


KEY = columns(
    ("capture", pa.string(), "Name of the capture point."),
    ("connection", pa.string(), "`client_ip:port-broker_ip:port#n`; n counts the uses of that four-tuple."),
)

TOPIC_PARTITION = columns(
    ("topic", pa.string(), "Topic, where the message says its name; null where it says an id."),
    ("topic_id", pa.string(), "Topic id, where the message says it."),
    ("partition", pa.int32(), "Partition index."),
)
