"""The filter language over mapped columns.

In: `Columns`. Out: a source of `analyzer.filter`, so that the page's filter is the one of `kwire show`.
"""

from __future__ import annotations

import numpy as np

from analyzer.filter.sources import Coded, Ints, Listed, Source
from reports.view.columns import Columns


class Mapped(Source):
    """The columns of a view. Addresses are looked up once, for there are few pairs and many rows."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.n = columns.n
        self._addresses: dict[tuple[str, ...], Coded] = {}

    def integers(self, name: str) -> Ints | None:
        if name == "api":
            keys, present = self.columns.integer("api_key")
            return keys.astype(np.int64), present & (self.columns.codes["api"] >= 0)
        if name not in self.columns.integers:
            return None
        numbers, present = self.columns.integer(name)
        return numbers.astype(np.int64), present  # comparisons of two names multiply by their units

    def texts(self, name: str) -> Coded | None:
        codes = self.columns.codes[name]
        return codes, codes >= 0, self.columns.values[name]

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        found = self._addresses.get(names)
        if found is None:
            ips, (ports, with_port) = self.columns.codes[names[0]], self.columns.integer(names[1])
            present = (ips >= 0) & with_port
            packed = np.where(present, ips.astype(np.int64) << 16 | ports, 0)
            pairs, where = np.unique(packed, return_inverse=True)
            values = self.columns.values[names[0]]
            ends = [(values[pair >> 16] if values else "", pair & 0xFFFF) for pair in pairs.tolist()]
            found = self._addresses[names] = where.astype(np.int32), present, ends
        return found

    def topics(self, name: str) -> Listed | None:
        topics = self.columns.topics
        there = topics.code >= 0
        rows, codes = (topics.row, topics.code) if there.all() else (topics.row[there], topics.code[there])
        every, sure = np.arange(self.n), np.zeros(len(codes), np.bool_)
        return Listed(every, self.n, rows, codes, sure, self.columns.values["topics"])

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        return self.columns.errors.row, self.columns.errors.code


