"""Compare a capture with its clean copy: every row of every table but for replaced values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kwire import analyzer
from kwire.analyzer.dataset.tables import TABLES

# fmt: off
REPLACED = frozenset([
    "capture", "connection", "client_ip", "broker_ip", "client_id", "group_id", "member_id", "group_instance_id",
    "transactional_id", "topics", "topic", "topic_id", "request_file", "response_file", "request_offset",
    "response_offset", "host", "rack", "node", "client_ids", "key", "value", "headers", "decoded", "principal",
    "refused_principal", "group_ids", "topics_written", "topics_read", "evidence", "trigger_member", "members_before",
    "members_after", "assignment_before", "assignment_after", "stopped", "partitions", "offsets", "fenced_by",
    "proxied_from", "proxied_to", "other_addresses", "who", "what", "text", "advice", "first", "worst", "last",
    "crc", "subscribed", "reason",
    "software_name", "software_version", "broker", "protocol", "tls_version", "tls_cipher", "tls_sni", "tls_alpn",
    "tls_subject",
    "tls_not_after", "tls_server_name", "producer_client", "produced", "reader_client",
])
# fmt: on
"""Columns whose values may be others; all other columns are compared."""

ORDERED_BY_NAME = frozenset(["findings", "readers", "clients", "topic_ids", "brokers", "journeys"])
"""Tables whose order names decide."""


def tables(path: Path | str, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    dataset = analyzer.analyze(str(path), **settings)
    return {name: getattr(dataset, name).to_pylist() for name in TABLES if hasattr(dataset, name)}


def differences(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> list[str]:
    """List the differences, a line each."""
    lines = []
    for name, rows in before.items():
        others = after[name]
        if name == "journeys":  # a batch without an answer is placed by its checksum, of which a clean copy has fewer
            rows, others = ([row for row in some if row["acked"] is not None] for some in (rows, others))
        if len(rows) != len(others):
            lines.append(f"{name}: {len(rows)} rows became {len(others)}")
            continue
        if name in ORDERED_BY_NAME:
            rows, others = (sorted(some, key=_unnamed) for some in (rows, others))
        for column in rows[0] if rows else ():
            if column in REPLACED:
                continue
            wrong = [i for i, (row, other) in enumerate(zip(rows, others)) if row[column] != other[column]]
            if wrong:
                i = wrong[0]
                lines.append(
                    f"{name}.{column}: {len(wrong)} of {len(rows)}, row {i}: "
                    f"{rows[i][column]!r} became {others[i][column]!r}"
                )
    return lines


def _unnamed(row: dict[str, Any]) -> str:
    """A row without what may be replaced."""
    return repr({name: value for name, value in row.items() if name not in REPLACED})


def names(tables: dict[str, list[dict[str, Any]]]) -> list[tuple[str, int, str, str]]:
    """(table, row, column, text) of what names somebody, in order: to be paired with another capture's."""
    wanted = ("client_id", "group_id", "transactional_id", "topic", "client_ip", "broker_ip", "member_id")
    return [
        (name, i, column, row[column])
        for name in ("exchanges", "partitions", "batches", "offsets", "groups", "connections")
        for i, row in enumerate(tables.get(name, ()))
        for column in wanted
        if row.get(column)
    ]
