"""The summary that `kwire analyze` prints, counted window by window.

In: windows; of latencies without waits (`own`) the exchanges as they become rows, because only then they are known.
Out: a dictionary (`--json`), and text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.connections import Coverage, EndedConnections
from kwire.analyzer.analysis.latency_quantiles import Histogram, OwnLatencies
from kwire.analyzer.bulk.exchange_tables import STATUSES
from kwire.analyzer.bulk.rows import Exchanges, Names, Window
from kwire.analyzer.bulk.shard_result import Connections
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.protocol import errors as kafka_errors
from kwire.analyzer.protocol import schema as definitions
from kwire.analyzer.records.arrow_tables import RecordCounts
from kwire.analyzer.records.log_reader import LogRead
from kwire.captures.files import FileInfo
from kwire.captures.kernels import NULL

LISTED = 20
"""Topics and clients shown to people; `--json` has all, but for those beyond `MOST_COUNTED`."""

MOST_COUNTED = 100_000
"""Topics, and clients, that are counted each by itself (twice as many for a while): those with the most exchanges. A
client id is any text, and each takes a quarter of a kilobyte."""


def _counted(numbers: np.ndarray, most: int) -> tuple[list[int], list[int]]:
    """The different numbers, all below `most`, and how often each is there."""
    if most > 4 * len(numbers):
        different, counts = np.unique(numbers, return_counts=True)
        return different.tolist(), counts.tolist()
    counts = np.bincount(numbers)
    different = np.flatnonzero(counts)
    return different.tolist(), counts[different].tolist()


_BACKWARDS = "responses captured before their requests"
_ODD = ("retransmissions", "duplicates", "out_of_order", "overlap_conflicts", "zero_windows", "gaps")
"""Counters of connections that are odd where they are not 0."""
_CLIENT = ("client_id", "software_name", "software_version")


def _odd_names(counted: Iterable[str]) -> list[str]:
    """In one order, whatever was counted first."""
    first = [_BACKWARDS, *(name.replace("_", " ") for name in _ODD)]
    return [*first, *(name for name in counted if name not in first)]


def _by_count(topic: tuple[str, int]) -> tuple[int, str]:
    return -topic[1], topic[0]


def _by_requests(client: tuple[tuple[str | None, ...], list[int]]) -> tuple[int, str]:
    return -client[1][1], str(client[0])


class CaptureStats(Protocol):
    """Statistics of a capture point that was read to its end."""

    @property
    def files(self) -> list[FileInfo]: ...
    @property
    def counts(self) -> dict[str, Any]: ...
    @property
    def notes(self) -> list[str]: ...


@dataclass(slots=True)
class _Api:
    exchanges: int = 0
    errors: int = 0
    statuses: list[int] = field(default_factory=lambda: [0] * len(STATUSES))
    latencies: Histogram = field(default_factory=Histogram)
    undecoded: int = 0

    def join(self, other: _Api) -> None:
        """Take in another part of the same API's exchanges."""
        self.exchanges += other.exchanges
        self.errors += other.errors
        self.undecoded += other.undecoded
        self.statuses = [a + b for a, b in zip(self.statuses, other.statuses, strict=True)]
        self.latencies.join(other.latencies)


@dataclass(slots=True)
class Summary:
    """Counts over all capture points of one `analyze`."""

    coverage: Coverage = field(default_factory=Coverage)
    records: RecordCounts = field(default_factory=RecordCounts)
    own: OwnLatencies = field(default_factory=OwnLatencies)
    _apis: dict[int, _Api] = field(default_factory=dict)
    _error_codes: Counter[int] = field(default_factory=Counter)
    _topics: Counter[str] = field(default_factory=Counter)
    _clients: dict[tuple[str | None, str | None, str | None], list[int]] = field(default_factory=dict)
    _captures: list[dict[str, Any]] = field(default_factory=list)
    _odd: Counter[str] = field(default_factory=Counter)
    _unrecognised: list[dict[str, Any]] = field(default_factory=list)
    _unrecognised_total: list[int] = field(default_factory=lambda: [0, 0])
    _connections: int = 0
    _other_topics: int = 0  # exchanges of topics that are not counted by themselves any more
    _other_clients: list[int] = field(default_factory=lambda: [0, 0, 0])  # the same: connections, requests, errors

    def take(self, window: Window, *_: object) -> None:
        self._take_exchanges(window.exchanges)
        self._take_connections(window.connections, window.names)
        self._cut(2 * MOST_COUNTED)

    def _cut(self, most: int) -> None:
        """Where more topics or clients than that are counted, those with the fewest exchanges become others."""
        if len(self._topics) > most:
            counted = dict(sorted(self._topics.items(), key=_by_count)[:MOST_COUNTED])
            self._other_topics += self._topics.total() - sum(counted.values())
            self._topics = Counter(counted)
        if len(self._clients) > most:
            ordered = sorted(self._clients.items(), key=_by_requests)
            for _, counts in ordered[MOST_COUNTED:]:
                self._other_clients = [a + b for a, b in zip(self._other_clients, counts, strict=True)]
            self._clients = dict(ordered[:MOST_COUNTED])

    @property
    def cut(self) -> bool:
        """Whether some topics or clients are counted together as others."""
        return bool(self._other_topics or self._other_clients[0])

    def tables(self, *_: object) -> Iterator[tuple[str, Any]]:
        yield from ()

    def _take_exchanges(self, exchanges: Exchanges) -> None:
        if not len(exchanges):
            return
        keys, statuses, errors = (exchanges.column(name) for name in ("api_key", "status", "error_code"))
        responded, requested = exchanges.column("response_time"), exchanges.column("request_end")
        undecoded = (exchanges.column("request_state") > 0) | (exchanges.column("response_state") > 0)
        error = (errors != NULL) & (errors != 0)
        both = (responded != NULL) & (requested != NULL)
        latency = np.where(both, responded // 1000 - requested // 1000, -1)
        for key in distinct(keys).tolist():
            here = keys == key
            api = self._apis.setdefault(key, _Api())
            api.exchanges += int(np.count_nonzero(here))
            api.errors += int(np.count_nonzero(here & error))
            counts = np.bincount(statuses[here], minlength=len(STATUSES)).tolist()
            api.statuses = [before + count for before, count in zip(api.statuses, counts, strict=True)]
            api.undecoded += int(np.count_nonzero(here & undecoded))
            api.latencies.add(latency[here & (latency >= 0)])
        for code, count in zip(*np.unique(errors[error], return_counts=True), strict=True):
            self._error_codes[int(code)] += int(count)
        names, topics = exchanges.names, exchanges.column("topics")
        for number, count in zip(*_counted(topics[topics != NULL], len(names.lists)), strict=True):
            for topic in names.lists[number]:
                self._topics[names.strings[topic]] += count
        self._odd[_BACKWARDS] += int((both & (latency < 0)).sum())

    def _take_connections(self, ended: Connections, names: Names) -> None:
        """Connections that have ended."""
        kafka = ended.take(np.flatnonzero(ended["is_kafka"])) if len(ended) else ended
        self._connections += len(kafka)
        described = [
            [names.strings[number] if number != NULL else None for number in kafka[name].tolist()] for name in _CLIENT
        ]
        counted = (kafka[name].tolist() for name in ("requests", "errors"))
        for *client, requests, errors in zip(*described, *counted, strict=True):
            counts = self._clients.setdefault(tuple(client), [0, 0, 0])
            counts[0] += 1
            counts[1] += requests
            counts[2] += errors
        for name in _ODD:
            self._odd[name.replace("_", " ")] += int(kafka[name].sum())

    def join(self, other: Summary) -> None:
        """Take in the summary of further capture points, all of them finished."""
        self.coverage.add(other.coverage)
        self.records.join(other.records)
        self.own.join(other.own)
        for key, other_api in other._apis.items():
            self._apis.setdefault(key, _Api()).join(other_api)
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
        self._other_topics += other._other_topics
        self._other_clients = [a + b for a, b in zip(self._other_clients, other._other_clients, strict=True)]
        self._cut(MOST_COUNTED)

    def finish_log(self, read: LogRead) -> None:
        """A partition's log segments have been read."""
        self.records.join(read.counts)
        files = read.capture["files"]
        self._captures.append(
            {
                "name": read.capture["name"],
                "log": True,
                "files": len(files),
                "bytes": sum(file["size"] for file in files),
                "packets": 0,
                "tcp_packets": 0,
                "link_types": [],
                "first_time": None,
                "last_time": None,
            }
        )

    def rename_topics(self, name: Callable[[str], str]) -> None:
        """Count topics by the names that `name` gives for those they are counted by."""
        counted, self._topics = self._topics, Counter()
        for topic, count in counted.items():
            self._topics[name(topic)] += count

    def finish(self, point: str, stats: CaptureStats, ended: EndedConnections, topics: TopicIds) -> None:
        """The capture point of this name has been read."""
        self.coverage.add(ended.coverage)
        self.rename_topics(topics.name)
        files = stats.files
        first = [info.first_ns for info in files if info.first_ns is not None]
        last = [info.last_ns for info in files if info.last_ns is not None]
        counts = stats.counts
        if counts["dropped_by_capture"]:
            self._odd["packets the capture itself lost"] += counts["dropped_by_capture"]
        if counts["fragment"]:
            self._odd["IP fragments that never became whole"] += counts["fragment"]
        self._captures.append(
            {
                "name": point,
                "files": len(files),
                "bytes": sum(info.size for info in files),
                "packets": counts["packets"],
                "tcp_packets": counts["tcp"],
                "link_types": sorted({link for info in files for link in info.link_types}),
                "first_time": min(first) // 1000 if first else None,
                "last_time": max(last) // 1000 if last else None,
            }
        )
        self._unrecognised_total[0] += ended.unrecognised_connections
        self._unrecognised_total[1] += ended.unrecognised_bytes
        self._unrecognised += [
            {
                "capture": point,
                "connection": connection.connection,
                "payload_bytes": connection.payload_bytes,
                "looks_like": connection.looks_like,
                **({"tls": connection.tls} if connection.tls else {}),
                **({"unanswered": True} if connection.unanswered else {}),
            }
            for connection in ended.unrecognised
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
        names = {api.api_key: api.name for api in definitions.apis()}
        apis = []
        for key, api in sorted(self._apis.items(), key=lambda item: (-item[1].exchanges, item[0])):
            apis.append(
                {
                    "api_key": None if key == NULL else key,
                    "api": names.get(key),
                    "exchanges": api.exchanges,
                    "errors": api.errors,
                    "not_decoded": api.undecoded,
                    **dict(zip(STATUSES, api.statuses, strict=True)),
                    "latency_us": api.latencies.as_dict(),
                    "own_us": self.own.apis.get(key, Histogram()).as_dict(),
                }
            )
        captures = [
            {
                **capture,
                **{name: rfc3339(capture[name]) for name in ("first_time", "last_time") if capture[name] is not None},
            }
            for capture in self._captures
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
                {"topic": topic, "exchanges": count} for topic, count in sorted(self._topics.items(), key=_by_count)
            ],
            **({"other_topics": {"exchanges": self._other_topics}} if self._other_topics else {}),
            "clients": [
                {
                    "client_id": client_id,
                    "software_name": name,
                    "software_version": version,
                    "connections": counts[0],
                    "requests": counts[1],
                    "errors": counts[2],
                }
                for (client_id, name, version), counts in sorted(self._clients.items(), key=_by_requests)
            ],
            **(
                {"other_clients": dict(zip(("connections", "requests", "errors"), self._other_clients, strict=True))}
                if self._other_clients[0]
                else {}
            ),
            "odd": {name: self._odd[name] for name in _odd_names(self._odd) if self._odd[name]},
            "records": self.records.as_dict(),
            "coverage": self.coverage.as_dict(),
            "unrecognised": self.unrecognised(),
        }
