"""Datasets of rows that a test says: only the columns that matter to it, the rest filled in or null."""

from __future__ import annotations

import datetime
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from kwire.analyzer.dataset import dataset, tables
from kwire.analyzer.protocol import schema

START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
API_KEYS = {api.name: api.api_key for api in schema.apis()}


def at(seconds: float) -> datetime.datetime:
    """That many seconds after the capture began."""
    return START + datetime.timedelta(seconds=seconds)


@dataclass
class Forged:
    """Rows of tables, to be written as a dataset of one capture point; `meaning`: its findings are among them; `facts`:
    more of its entry in the manifest."""

    path: Path
    capture: str = "forged.pcap"
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    unrecognised: list[dict[str, Any]] = field(default_factory=list)
    meaning: bool = False
    attempts: list[dict[str, Any]] = field(default_factory=list)
    advertised: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, table: str, **columns: Any) -> None:
        """A row of a table. ValueError: it has no such column."""
        known = {column.name for column in tables.TABLES[table]}
        if unknown := set(columns) - known:
            raise ValueError(f"{table} has no {unknown}")
        defaults = {"capture": self.capture, "connection": "10.0.0.1:5000-10.0.0.9:9092#1"}
        self.rows[table].append({name: value for name, value in defaults.items() if name in known} | columns)

    def exchange(
        self, api: str, latency_ms: float | None = 1, second: float = 0, error: str | None = None, **columns: Any
    ) -> None:
        """An answered exchange (or what `columns` make of it)."""
        code = next((known.code for known in _errors() if known.name == error), 0)
        end = None if latency_ms is None else at(second + latency_ms / 1000)
        self.add(
            "exchanges",
            **{
                "exchange": len(self.rows["exchanges"]),
                "reply": len(self.rows["exchanges"]),
                "client_ip": "10.0.0.1",
                "client_port": 5000,
                "broker_ip": "10.0.0.9",
                "broker_port": 9092,
                "api_key": API_KEYS[api],
                "api": api,
                "api_version": 1,
                "client_id": "app",
                "request_time": at(second),
                "request_end": at(second),
                "response_time": end,
                "response_end": end,
                "latency_us": None if latency_ms is None else round(latency_ms * 1000),
                "request_bytes": 100,
                "response_bytes": 50,
                "status": "answered",
                "request_state": "decoded",
                "response_state": "decoded",
                "error_code": code,
                "error": error,
                "errors": [{"code": code, "error": error, "count": 1}] if error else [],
                **columns,
            },
        )

    def connection(self, **columns: Any) -> None:
        """A connection that opened and closed in order."""
        zeros = {column.name: 0 for column in tables.CONNECTIONS if column.type == pa.int64()}
        self.add(
            "connections",
            **{
                **zeros,
                "client_ip": "10.0.0.1",
                "client_port": 5000,
                "broker_ip": "10.0.0.9",
                "broker_port": 9092,
                "first_time": at(0),
                "last_time": at(60),
                "rtt_us": 250,
                "opened": True,
                "closed": "fin",
                "client_id": "app",
                "tls": False,
                **columns,
            },
        )

    def write(self) -> Path:
        """The dataset, on disk."""
        entry = {
            "name": self.capture,
            "first_time": "2026-01-02T03:04:05.000000Z",
            "last_time": "2026-01-02T03:05:05.000000Z",
            "link_types": ["ETHERNET"],
            "packets": {"packets": 10, "tcp": 10, "dropped_by_capture": 0},
            "files": [{"name": self.capture, "size": 1000}],
            "meaning": self.meaning,
            **({"attempts": self.attempts} if self.attempts else {}),
            **({"advertised": self.advertised} if self.advertised else {}),
            **self.facts,
        }
        with dataset.Writer(self.path) as writer:
            for name, rows in self.rows.items():
                writer.write(name, pa.Table.from_pylist(rows, schema=tables.schema(name)))
            writer.commit(
                {
                    "format_version": tables.FORMAT_VERSION,
                    "kwire_version": "0",
                    "captures": [entry],
                    "coverage": {},
                    "notes": [],
                    "unrecognised": {
                        "connections": len(self.unrecognised),
                        "payload_bytes": 0,
                        "listed": self.unrecognised,
                    },
                }
            )
        return self.path


def _errors() -> list[Any]:
    from kwire.analyzer.protocol import errors

    return list(errors.errors().values())
