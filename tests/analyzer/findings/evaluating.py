"""Helpers for tests of findings: datasets of a few rows, and the findings they raise."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kwire.analyzer.dataset.dataset import Dataset, StoredDataset, open_dataset
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.query import Query
from kwire.analyzer.findings.rules import Finding
from kwire.analyzer.frame.parquet import RowGroups
from tests.reports.forging import Forged, at

SEVERE = ("warning", "error")


def judged(dataset: Dataset | StoredDataset | Path | Forged, query: Query = evaluate.USUAL) -> list[Finding]:
    """Findings of a dataset, worst first."""
    if isinstance(dataset, Forged):
        dataset = dataset.write()
    if isinstance(dataset, Path):
        dataset = open_dataset(dataset)
    return [finding for _, finding in evaluate.judged(RowGroups.of(dataset), query)]


def codes(findings: Iterable[Finding], *severities: str) -> dict[str, int]:
    """How many findings of each code; `severities`: of these alone."""
    out: dict[str, int] = {}
    for finding in findings:
        if not severities or finding.severity in severities:
            out[finding.code] = out.get(finding.code, 0) + 1
    return dict(sorted(out.items()))


def link(number: int, broker: str = "10.0.0.9") -> dict[str, Any]:
    """Columns of a connection of its own."""
    port = 5000 + number
    return {"connection": f"10.0.0.1:{port}-{broker}:9092#1", "client_port": port, "broker_ip": broker}


class Traffic(Forged):
    """Rows of exchanges with their topic-partitions and batches; a connection each time one is named first."""

    def ask(
        self,
        api: str,
        second: float = 0,
        latency_ms: float | None = 1,
        error: str | None = None,
        *,
        on: int = 0,
        place: tuple[str, int] | None = None,
        part: dict[str, Any] | None = None,
        batch: dict[str, Any] | None = None,
        **columns: Any,
    ) -> None:
        """An exchange on connection number `on`; `place`: it is about this topic-partition."""
        who = link(on)
        number = len(self.rows["exchanges"])
        super().exchange(api, latency_ms, second, error, **{**who, **columns})
        row = self.rows["exchanges"][number]
        if not any(other["connection"] == row["connection"] for other in self.rows["connections"]):
            self.link(on, **{name: columns[name] for name in ("client_id", "client_ip") if name in columns})
        if place is not None:
            key = {"connection": row["connection"], "exchange": row["exchange"], "reply": row["reply"]}
            where = {**key, "topic": place[0], "partition": place[1]}
            outcome = {"error_code": row["error_code"], "error": error}
            self.add("partitions", **{**where, **outcome, "record_count": 1, **(part or {})})
            if batch is not None:
                self.add(
                    "batches",
                    **{
                        **where,
                        "side": "produce" if api == "Produce" else "fetch",
                        "magic": 2,
                        "codec": "none",
                        "timestamp_type": "CreateTime",
                        "record_count": 1,
                        "batch_bytes": 100,
                        "crc_ok": True,
                        "partial": False,
                        "base_offset": 0,
                        **batch,
                    },
                )

    def missed(self, client: str, server: str, refused: int, second: float = 0) -> None:
        """A client that asked for connections in vain, all within a minute."""
        times = {name: at(second + after).isoformat() for name, after in (("first_time", 0), ("last_time", 10))}
        counts = {"refused": refused, "unanswered": 0, "most_in_a_minute": refused}
        self.attempts.append({"client": client, "server": server, **counts, **times})

    def tells(self, host: str, port: int = 9092, nodes: tuple[int, ...] = (1,), by: str = "10.0.0.9:9092") -> None:
        """An address that a broker sends clients to; `nodes`: those that it is said to be."""
        self.advertised.append({"broker": by, "host": host, "port": port, "nodes": [*nodes], "shared": len(nodes) > 1})
        for node in nodes:
            self.add("brokers", node_id=node, host=host, port=port)

    def link(self, number: int, **columns: Any) -> None:
        """A connection."""
        super().connection(**{**link(number), "payload_bytes": 10_000, "decoded_bytes": 10_000, **columns})
