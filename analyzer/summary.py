"""What a capture holds, at a glance: the summary that `kwire analyze` prints, gathered while the rows go by.

In: windows of exchanges and the rows of connections. Out: a dictionary (`--json`), and text for people. Latency
quantiles come from a histogram whose buckets are 1.6 % wide, so they cost no memory and add up over captures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer import errors as kafka_errors
from analyzer import schema as definitions
from analyzer import state as s
from analyzer.columns import STATUSES, Columns, Coverage, Rows, distinct
from analyzer.engine import Engine
from analyzer.log_reading import LogRead
from analyzer.record_tables import RecordCounts
from captures.files import CapturePoint

_FINE_BITS = 6
"""Bits after the leading one that tell buckets apart: 2**-6 is 1.6 %."""

LISTED = 20
"""Topics and clients shown to people; `--json` has all."""


def _buckets(micros: np.ndarray) -> np.ndarray:
    """The bucket of each latency: exact below 128 us, then 64 for each doubling."""
    values = np.maximum(micros, 1).astype(np.int64)
    exponent = np.frexp(values.astype(np.float64))[1] - 1
    shift = np.maximum(exponent - _FINE_BITS, 0)
    buckets: np.ndarray = (shift << _FINE_BITS) + (values >> shift)
    return buckets


def _lowest(bucket: int) -> int:
    """The smallest latency of a bucket."""
    shift = max((bucket >> _FINE_BITS) - 1, 0)
    return (bucket - (shift << _FINE_BITS)) << shift


@dataclass(slots=True)
class _Api:
    exchanges: int = 0
    errors: int = 0
    statuses: list[int] = field(default_factory=lambda: [0] * len(STATUSES))
    latencies: Counter[int] = field(default_factory=Counter)
    max_us: int | None = None
    undecoded: int = 0

    def join(self, other: _Api) -> None:
        """Take in another part of the same API's exchanges."""
        self.exchanges += other.exchanges
        self.errors += other.errors
        self.undecoded += other.undecoded
        self.statuses = [a + b for a, b in zip(self.statuses, other.statuses, strict=True)]
        self.latencies.update(other.latencies)
        if other.max_us is not None:
            self.max_us = max(self.max_us or 0, other.max_us)

    def quantile(self, q: float) -> int | None:
        """A latency in us that a share `q` of the exchanges does not exceed."""
        total = sum(self.latencies.values())
        if not total or self.max_us is None:
            return None
        rank = math.ceil(q * total)
        seen = 0
        for bucket in sorted(self.latencies):
            seen += self.latencies[bucket]
            if seen >= rank:
                return min((_lowest(bucket) + _lowest(bucket + 1)) // 2, self.max_us)
        return self.max_us


@dataclass(slots=True)
class Summary:
    """Gathered over all capture points of one `analyze`."""

    coverage: Coverage = field(default_factory=Coverage)
    records: RecordCounts = field(default_factory=RecordCounts)
    _apis: dict[int, _Api] = field(default_factory=dict)
    _error_codes: Counter[int] = field(default_factory=Counter)
    _topics: Counter[str] = field(default_factory=Counter)
    _clients: dict[tuple[str | None, str | None, str | None], list[int]] = field(default_factory=dict)
    _captures: list[dict[str, Any]] = field(default_factory=list)
    _odd: Counter[str] = field(default_factory=Counter)
    _unrecognised: list[dict[str, Any]] = field(default_factory=list)
    _unrecognised_total: list[int] = field(default_factory=lambda: [0, 0])
    _lists: Counter[int] = field(default_factory=Counter)
    _connections: int = 0

    def add(self, rows: Rows, columns: Columns) -> None:
        """One window's exchanges."""
        x = rows.x
        if not x.shape[1]:
            return
        keys = x[s.X_API_KEY]
        error = (x[s.X_ERROR] != s.NULL) & (x[s.X_ERROR] != 0)
        latency = np.where(
            (x[s.X_RESPONSE_FIRST_NS] == s.NULL) | (x[s.X_REQUEST_LAST_NS] == s.NULL),
            -1,
            x[s.X_RESPONSE_FIRST_NS] // 1000 - x[s.X_REQUEST_LAST_NS] // 1000,
        )
        for key in distinct(keys).tolist():
            here = keys == key
            api = self._apis.setdefault(key, _Api())
            api.exchanges += int(here.sum())
            api.errors += int((here & error).sum())
            for status, count in zip(*np.unique(x[s.X_STATUS][here], return_counts=True), strict=True):
                api.statuses[int(status)] += int(count)
            api.undecoded += int(
                (here & ((x[s.X_REQUEST_STATE] > 0) | (x[s.X_RESPONSE_STATE] > 0))).sum()
            )
            timed = latency[here & (latency >= 0)]
            if len(timed):
                for bucket, count in zip(*np.unique(_buckets(timed), return_counts=True), strict=True):
                    api.latencies[int(bucket)] += int(count)
                api.max_us = max(api.max_us or 0, int(timed.max()))
        for code, count in zip(*np.unique(x[s.X_ERROR][error], return_counts=True), strict=True):
            self._error_codes[int(code)] += int(count)
        named = x[s.X_TOPICS][x[s.X_TOPICS] != s.NULL]
        for number, count in zip(*np.unique(named, return_counts=True), strict=True):
            self._lists[int(number)] += int(count)
        self._odd["responses captured before their requests"] += int(
            ((x[s.X_RESPONSE_FIRST_NS] != s.NULL) & (x[s.X_REQUEST_LAST_NS] != s.NULL) & (latency < 0)).sum()
        )

    def add_connections(self, table: pa.Table) -> None:
        """Connections that have ended: rows of the table `connections`."""
        self._connections += len(table)
        names = ("client_id", "software_name", "software_version", "requests", "errors")
        for *client, requests, errors in zip(*(table[name].to_pylist() for name in names), strict=True):
            counts = self._clients.setdefault(tuple(client), [0, 0, 0])
            counts[0] += 1
            counts[1] += requests
            counts[2] += errors
        for name in ("retransmissions", "duplicates", "out_of_order", "overlap_conflicts", "zero_windows", "gaps"):
            self._odd[name.replace("_", " ")] += int(table[name].to_numpy().sum())

    def join(self, other: Summary) -> None:
        """Take in the summary of further capture points, all of them finished."""
        self.coverage.add(other.coverage)
        self.records.join(other.records)
        for key, theirs in other._apis.items():
            self._apis.setdefault(key, _Api()).join(theirs)
        self._error_codes.update(other._error_codes)
        self._topics.update(other._topics)
        self._odd.update(other._odd)
        for client, counts in other._clients.items():
            known = self._clients.setdefault(client, [0, 0, 0])
            known[:] = [a + b for a, b in zip(known, counts, strict=True)]
        self._captures += other._captures
        self._unrecognised += other._unrecognised
        self._unrecognised_total = [
            a + b for a, b in zip(self._unrecognised_total, other._unrecognised_total, strict=True)
        ]
        self._connections += other._connections

    def finish_log(self, read: LogRead) -> None:
        """A partition's log segments have been read."""
        self.records.join(read.counts)
        files = read.capture["files"]
        self._captures.append(
            {
                "name": read.capture["name"],
                "log": True,
                "files": len(files),
                "bytes": sum(one["size"] for one in files),
                "packets": 0,
                "tcp_packets": 0,
                "link_types": [],
                "first_time": None,
                "last_time": None,
            }
        )

    def name_topics(self, lists: list[list[str]], name: Callable[[str], str]) -> None:
        """All exchanges have been added: count their topics by the names that `name` gives for ids."""
        for number, count in self._lists.items():
            for topic in lists[number]:
                self._topics[name(topic)] += count
        self._lists.clear()

    def rename_topics(self, name: Callable[[str], str]) -> None:
        """Count topics by the names that `name` gives for those they are counted by."""
        counted, self._topics = self._topics, Counter()
        for topic, count in counted.items():
            self._topics[name(topic)] += count

    def finish(self, point: CapturePoint, engine: Engine, columns: Columns) -> None:
        """A capture point has been read."""
        self.coverage.add(columns.coverage)
        names = columns.topic_names
        self.name_topics(columns.topic_lists(), lambda topic: names.get(topic, topic))
        files = engine.reader.files
        first = [info.first_ns for info in files if info.first_ns is not None]
        last = [info.last_ns for info in files if info.last_ns is not None]
        counts = engine.reader.counts
        if counts["dropped_by_capture"]:
            self._odd["packets the capture itself lost"] += counts["dropped_by_capture"]
        if counts["fragment"]:
            self._odd["IP fragments that never became whole"] += counts["fragment"]
        self._captures.append(
            {
                "name": point.name,
                "files": len(files),
                "bytes": sum(info.size for info in files),
                "packets": counts["packets"],
                "tcp_packets": counts["tcp"],
                "link_types": sorted({link for info in files for link in info.link_types}),
                "first_time": min(first) // 1000 if first else None,
                "last_time": max(last) // 1000 if last else None,
            }
        )
        self._unrecognised_total[0] += columns.unrecognised_connections
        self._unrecognised_total[1] += columns.unrecognised_bytes
        self._unrecognised += [
            {
                "capture": point.name,
                "connection": one.connection,
                "payload_bytes": one.payload_bytes,
                "looks_like": one.looks_like,
            }
            for one in columns.unrecognised
        ]

    def unrecognised(self) -> dict[str, Any]:
        """Connections in which no Kafka was found."""
        return {
            "connections": self._unrecognised_total[0],
            "payload_bytes": self._unrecognised_total[1],
            "listed": self._unrecognised,
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it, for `--json`."""
        from analyzer.reading import rfc3339

        names = {api.api_key: api.name for api in definitions.apis()}
        apis = []
        for key, api in sorted(self._apis.items(), key=lambda item: (-item[1].exchanges, item[0])):
            apis.append(
                {
                    "api_key": None if key == s.NULL else key,
                    "api": names.get(key),
                    "exchanges": api.exchanges,
                    "errors": api.errors,
                    "not_decoded": api.undecoded,
                    **dict(zip(STATUSES, api.statuses, strict=True)),
                    "latency_us": {
                        "p50": api.quantile(0.5), "p95": api.quantile(0.95), "p99": api.quantile(0.99),
                        "max": api.max_us,
                    },
                }
            )  # fmt: skip
        captures = [
            {**one, **{name: rfc3339(one[name]) for name in ("first_time", "last_time") if one[name] is not None}}
            for one in self._captures
        ]
        return {
            "captures": captures,
            "connections": self._connections,
            "exchanges": sum(api.exchanges for api in self._apis.values()),
            "apis": apis,
            "errors": [
                {"error_code": code, "error": kafka_errors.name(code), "exchanges": count}
                for code, count in sorted(self._error_codes.items(), key=lambda item: (-item[1], item[0]))
            ],
            "topics": [
                {"topic": topic, "exchanges": count}
                for topic, count in sorted(self._topics.items(), key=lambda item: (-item[1], item[0]))
            ],
            "clients": [
                {
                    "client_id": client_id,
                    "software_name": name,
                    "software_version": version,
                    "connections": counts[0],
                    "requests": counts[1],
                    "errors": counts[2],
                }
                for (client_id, name, version), counts in sorted(
                    self._clients.items(), key=lambda item: (-item[1][1], str(item[0]))
                )
            ],
            "odd": {name: count for name, count in self._odd.items() if count},
            "records": self.records.as_dict(),
            "coverage": self.coverage.as_dict(),
            "unrecognised": self.unrecognised(),
        }
