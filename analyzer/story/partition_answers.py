"""Find the next good answer about the topic-partition that was refused.

In: the tables `exchanges` and `partitions`. Out: for refused exchanges the first later success of the same client, API
and topic-partition. Another partition's success says nothing of this one.
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

import numpy as np

from kwire.analyzer.analysis.combinations import combinations
from kwire.analyzer.common.times import moment
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.frame import NULL, Frame
from kwire.analyzer.frame.grouping import OrdinalIndex
from kwire.analyzer.story.sources import Source

NEVER = np.iinfo(np.int64).max
NO_TIMES = np.zeros(0, np.int64)


class After(NamedTuple):
    """The next success: its time, and its broker (address and port)."""

    time: datetime.datetime
    ip: str
    port: int


class Afters(NamedTuple):
    """The next successes after many times; `time` int64: `NEVER` where nothing did; broker int64[2, n]."""

    time: np.ndarray
    broker: np.ndarray
    ips: list[str]
    ports: list[int]

    def of(self, at: int) -> After | None:
        """The next success after one time, or None."""
        if self.time[at] == NEVER:
            return None
        return After(moment(int(self.time[at])), self.ips[self.broker[0, at]], self.ports[self.broker[1, at]])


class PartitionAnswers:
    """Good answers about the topic-partitions of refused exchanges.

    bad        int64: refused exchanges, as rows of `exchanges`
    exchanges  their texts `client_id`, `client_ip` and `api`
    """

    def __init__(self, source: Source, bad: np.ndarray, exchanges: Frame) -> None:
        self._places = np.full(len(bad), -1, np.int64)  # of each refused exchange: its first topic-partition refused
        self._key = np.full(len(bad), -1, np.int64)
        self._good: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._ips: list[str] = []
        self._ports: list[int] = []
        parts = source.stored("partitions")
        if not len(parts):
            return
        stored = source.stored("exchanges")
        more = stored.gather(
            dict.fromkeys(("exchange", "response_end", "broker_port"), np.int64), {"connection": {}, "broker_ip": {}}
        )
        links = {name: number for number, name in enumerate(more.text("connection").values)}
        numbers = dict.fromkeys(("exchange", "partition", "error_code"), np.int64)
        rows = parts.gather(numbers, {"connection": links, "topic": {}, "topic_id": {}})
        owner = spill.full(len(rows["exchange"]), -1, np.int32)
        ordinal = more["exchange"]
        known = spill.true_rows(ordinal != NULL)
        link = spill.take(more.text("connection").codes, known)
        many = len(rows.text("connection").values)
        index = OrdinalIndex(link, spill.take(ordinal, known), many, known)
        index.join(owner, rows.text("connection").codes, rows["exchange"], rows["exchange"] != NULL)
        refused = spill.full(len(ordinal) + 1, -1, np.int32)
        refused[bad] = np.arange(len(bad), dtype=np.int32)
        code = rows["error_code"]
        failed = spill.true_rows((code != NULL) & (code != 0) & (spill.take(refused, owner) >= 0))
        if not len(failed):
            return
        topic = self._topics(source, rows)
        place = topic.astype(np.int64) << 32 | (rows["partition"] & 0xFFFFFFFF)
        whose = self._whose(exchanges, bad)
        for row in failed[::-1].tolist():  # the first of an exchange is written last
            self._places[refused[owner[row]]] = place[row]
        concerned = arrow.distinct(self._places[self._places >= 0])
        good = (owner >= 0) & ((code == 0) | (code == NULL)) & arrow.among(place, concerned)
        good &= spill.take(refused, owner) < 0
        chosen = spill.true_rows(good)
        answered = spill.take(more["response_end"], spill.take(owner, chosen))
        chosen = chosen[(answered != NULL) & (exchanges.text("error").codes[owner[chosen]] < 0)]
        of = spill.take(owner, chosen)
        self._ips = list(more.text("broker_ip").values)
        ports, port = np.unique(more["broker_port"][of], return_inverse=True)
        self._ports = ports.tolist()
        _, keys = combinations(np.append(whose[bad], whose[of]), np.append(self._places, place[chosen]))
        self._key = np.where(self._places >= 0, keys[: len(bad)], -1)
        times, broker = more["response_end"][of], np.stack([more.text("broker_ip").codes[of], port.reshape(-1)])
        in_time = np.argsort(times, kind="stable")
        of_good = keys[len(bad) :][in_time]
        groups = grouping.group(of_good)
        for begin, end in zip(groups.starts.tolist(), groups.ends.tolist(), strict=True):
            some = in_time[groups.order[begin:end]]
            self._good[int(of_good[groups.order[begin]])] = times[some], broker[:, some]

    @staticmethod
    def _topics(source: Source, rows: Frame) -> np.ndarray:
        """int32[rows]: the topic of each, by its name where that is known."""
        names: dict[str, int] = {}

        def numbered(text: Any) -> np.ndarray:
            codes = [names.setdefault(source.topics.get(value, value), len(names)) for value in text.values]
            return spill.take(np.array([*codes, -1], np.int32), text.codes)

        topic, by_id = numbered(rows.text("topic")), numbered(rows.text("topic_id"))
        return np.where(topic >= 0, topic, by_id)

    @staticmethod
    def _whose(exchanges: Frame, bad: np.ndarray) -> np.ndarray:
        """int64[exchanges]: client, address and API of each as one number."""
        key = np.zeros(len(exchanges.text("api").codes), np.int64)
        for name in ("client_id", "client_ip", "api"):
            text = exchanges.text(name)
            key = key * (len(text.values) + 1) + text.codes + 1
        return key

    @property
    def unnamed(self) -> np.ndarray:
        """bool[n]: refused exchanges that name no topic-partition."""
        return self._key < 0

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Times (us) of good answers about the topic-partitions of some refused exchanges, in order."""
        known = [self._good[key][0] for key in arrow.distinct(self._key[rows]).tolist() if key in self._good]
        return np.sort(np.concatenate(known)) if known else NO_TIMES

    def after(self, rows: np.ndarray, times: np.ndarray) -> Afters | None:
        """The first success after each of some refused exchanges (positions in `bad`) at these times (us); None where
        they name no topic-partition."""
        if not len(rows) or self.unnamed[rows].any():
            return None
        when = np.full(len(rows), NEVER, np.int64)
        broker = np.zeros((2, len(rows)), np.int64)
        for key in arrow.distinct(self._key[rows]).tolist():
            if key not in self._good:
                continue
            known, brokers = self._good[key]
            chosen = np.flatnonzero(self._key[rows] == key)
            at = np.searchsorted(known, times[chosen], side="right")
            when[chosen] = np.append(known, NEVER)[at]
            broker[:, chosen] = brokers[:, np.minimum(at, len(known) - 1)]
        return Afters(when, broker, self._ips, self._ports)
