"""One side of a comparison: the tables of a dataset as arrays, with connections numbered over all of its captures.

In: a dataset. Out: `Side`. A connection (`link`) is a small integer; its time in the capture is a position on one axis
on which captures follow one another, so that a dataset of several is one span of time.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kwire.analyzer.dataset.dataset import StoredDataset
from kwire.analyzer.frame.frame import NULL, Codes, Frame
from kwire.analyzer.frame.grouping import OrdinalIndex
from kwire.analyzer.frame.parquet import RowGroups, StoredFrame, read
from kwire.captures.files import urls
from kwire.reports import output
from kwire.reports.compare.bodies import Settings

_SECOND = 1_000_000

_OF_EXCHANGES = (
    "exchange", "api_key", "api_version", "error_code", "request_time", "request_end", "response_end",
    "latency_us", "queue_us", "muted_us", "network_us", "hold_us", "broker_us", "throttle_us",
    "request_bytes", "response_bytes", "acks", "max_wait_ms", "min_bytes", "isolation_level",
)  # fmt: skip
_TEXTS_OF_EXCHANGES = ("capture", "connection", "client_id", "status", "group_id", "transactional_id", "rack_id")


@dataclass(frozen=True, slots=True)
class Connection:
    """A row of `connections` as far as a comparison needs it; times in us."""

    capture: str
    client_ip: str
    client_id: str | None
    broker: str
    software: str | None
    sasl: str | None
    tls: str | None
    opened: bool
    first: int
    last: int


class Side:
    """A dataset's tables. name: of the side, for people. bodies: settings that its captures' bodies say, by capture and
    connection; None: they were not read."""

    def __init__(self, dataset: StoredDataset, name: str, bodies: Settings | None = None) -> None:
        self.name = name
        self.dataset = dataset
        self.source = RowGroups.of(dataset)
        self._numbers: dict[tuple[str, str], int] = {}
        self._bodies = bodies or {}
        self._frames: dict[str, StoredFrame] = {}
        self._orders: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._exchanges: dict[str, np.ndarray] = {}
        self.connections = self._read_connections()

    def frame(self, table: str, columns: Sequence[str] = ()) -> StoredFrame:
        """The rows of a table, of all captures."""
        if table not in self._frames:
            self._frames[table] = read(self.source, table, columns)
        return self._frames[table]

    def rows_of(self, table: str, links: np.ndarray) -> np.ndarray:
        """int64: the rows of a table that are of some connections, ascending."""
        if table not in self._orders:
            of_rows = self.links_of(self.frame(table))
            order = np.argsort(of_rows, kind="stable")
            self._orders[table] = order, of_rows[order]
        order, ordered = self._orders[table]
        starts, ends = np.searchsorted(ordered, links, "left"), np.searchsorted(ordered, links, "right")
        parts = [order[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))

    @functools.cached_property
    def exchanges(self) -> StoredFrame:
        """All exchanges."""
        return self.frame("exchanges", (*_OF_EXCHANGES, *_TEXTS_OF_EXCHANGES))

    @functools.cached_property
    def link(self) -> np.ndarray:
        """int64[exchanges]: the connection of each."""
        return self.links_of(self.exchanges)

    @functools.cached_property
    def topics(self) -> dict[str, str]:
        """Names of topics by their ids."""
        frame = self.frame("topic_ids")
        ids, names = frame.text("topic_id"), frame.text("topic")
        return {
            ids.values[topic_id]: names.values[topic]
            for topic_id, topic in zip(ids.codes.tolist(), names.codes.tolist(), strict=True)
            if topic_id >= 0 and topic >= 0
        }

    def topics_of(self, frame: Frame) -> Codes:
        """The topics of rows that have a name or an id."""
        names, ids = frame.text("topic"), frame.text("topic_id")
        values = [*names.values, *(self.topics.get(topic_id, topic_id) for topic_id in ids.values)]
        codes = np.where(names.codes >= 0, names.codes, np.where(ids.codes >= 0, ids.codes + len(names.values), -1))
        return Codes(codes, values).rename(lambda name: name)

    def links_of(self, frame: Frame) -> np.ndarray:
        """int64[rows]: the connections of a table's rows."""
        captures, names = frame.text("capture"), frame.text("connection")
        both = captures.codes.astype(np.int64) * max(len(names.values), 1) + names.codes
        distinct, inverse = np.unique(both, return_inverse=True)
        numbers = [
            self._number(captures.values[pair // max(len(names.values), 1)], names.values[pair % len(names.values)])
            for pair in distinct.tolist()
        ]
        return np.asarray(numbers, np.int64)[inverse] if numbers else np.zeros(0, np.int64)

    def _number(self, capture: str, connection: str) -> int:
        return self._numbers.setdefault((capture, connection), len(self._numbers))

    def exchanges_of(self, table: str) -> np.ndarray:
        """int32[rows]: the exchanges of a table's rows, -1 where no request was seen."""
        if table not in self._exchanges:
            frame = self.frame(table)
            ordinal = frame["exchange"]
            out = np.full(len(frame), -1, np.int32)
            self._index.join(out, self.links_of(frame), ordinal, ordinal != NULL)
            self._exchanges[table] = out
        return self._exchanges[table]

    @functools.cached_property
    def _index(self) -> OrdinalIndex:
        link, ordinal = self.link, self.exchanges["exchange"]
        rows = np.flatnonzero(ordinal != NULL)
        return OrdinalIndex(link[rows], ordinal[rows], len(self._numbers), rows)

    def _read_connections(self) -> list[Connection]:
        """The connections, in order of their numbers."""
        frame = self.frame("connections")
        for number in self.links_of(frame).tolist():
            assert number < len(self._numbers)
        texts: dict[str, list[Any]] = {}
        for name in (
            "capture", "connection", "client_ip", "client_id", "broker_ip", "software_name", "software_version",
            "sasl_mechanism", "tls_version",
        ):  # fmt: skip
            column = frame.text(name)
            values = [*column.values, None]
            texts[name] = [values[code] for code in column.codes.tolist()]
        first, last, port, tls, opened = (
            frame[name].tolist() for name in ("first_time", "last_time", "broker_port", "tls", "opened")
        )
        by_number: dict[int, Connection] = {}
        for row in range(len(frame)):
            number = self._number(texts["capture"][row], texts["connection"][row])
            software = " ".join(filter(None, (texts["software_name"][row], texts["software_version"][row])))
            by_number[number] = Connection(
                texts["capture"][row],
                texts["client_ip"][row] or "",
                texts["client_id"][row],
                f"{texts['broker_ip'][row]}:{port[row]}",
                software or None,
                texts["sasl_mechanism"][row],
                f"TLS {texts['tls_version'][row] or ''}".strip() if tls[row] == 1 else None,
                opened[row] == 1,
                first[row],
                last[row],
            )
        return [by_number[number] for number in range(len(by_number))]

    def settings(self, links: np.ndarray) -> dict[str, Counter[str]]:
        """How often each value of a setting was seen in bodies of requests."""
        wanted = set(links.tolist())
        result: dict[str, Counter[str]] = {}
        for key, facts in self._bodies.items():
            if self._numbers.get(key) in wanted:
                for name, counts in facts.items():
                    result.setdefault(name, Counter()).update(counts)
        return result

    @functools.cached_property
    def _starts(self) -> dict[str, tuple[int, int]]:
        """By capture, its first moment, and its position on the common axis, us."""
        spans: dict[str, tuple[int, int]] = {}
        for each in self.connections:
            if NULL in (each.first, each.last):
                continue
            first, last = spans.get(each.capture, (each.first, each.last))
            spans[each.capture] = (min(first, each.first), max(last, each.last))
        starts, position = {}, 0
        for capture, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
            starts[capture] = (first, position)
            position += max(last - first, 0)
        self._length = position
        return starts

    @property
    def seconds(self) -> float:
        """How long its captures last, from the first packet of Kafka to the last."""
        _ = self._starts
        return self._length / _SECOND

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        """int64[links]: what makes a time of a connection a position."""
        return np.array(
            [
                position - first
                for first, position in (self._starts.get(each.capture, (0, 0)) for each in self.connections)
            ],
            np.int64,
        )

    def positions(self, links: np.ndarray, times: np.ndarray) -> np.ndarray:
        """int64[n]: times of connections on the common axis, us."""
        return np.asarray(times + self._offsets[links])


def names_of(before: str, after: str, *others: str) -> tuple[str, ...]:
    """Name the sides, and other runs: the names of the files, with the folders that tell them from the first."""
    if others:
        return (*names_of(before, after), *(names_of(before, other)[1] for other in others))
    first, second = output.name_of(before), output.name_of(after)
    if first != second or urls.is_url(before) or urls.is_url(after) or "-" in (before, after):
        return first, second
    parts = [Path(source).absolute().parts for source in (before, after)]
    for length in range(2, min(map(len, parts)) + 1):
        names = [os.path.join(*each[-length:]) for each in parts]
        if names[0] != names[1]:
            return names[0], names[1]
    return first, second
