"""Figures of a role: its settings as seen, sums by block of time, latencies, errors.

In: `Side` and `Role`. Out: `Measures`. Nothing is compared here. What a dataset does not hold (batches, with
`--records none`) is absent, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.analyzer.findings.capture import HELD
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import schema
from kwire.reports.compare.intervals import BLOCKS, Sums, Values
from kwire.reports.compare.roles import Role
from kwire.reports.compare.side import Side

_READS: Final = (apis.FETCH, apis.SHARE_FETCH)
_MILLISECOND: Final = 1_000
_SECOND: Final = 1_000_000

_OFFSET_TYPE: Final = {0: "read_uncommitted", 1: "read_committed"}
_ACKS: Final = {-1: "all"}
NOT_SAID: Final = "not said"
PARTS: Final = ("broker", "network", "queue")
"""Parts of a latency that are compared. What a broker holds on purpose depends on what others write."""
_LONGEST_WAIT: Final = 60 * _SECOND
"""A batch whose first record is older than this when it is sent has timestamps that tell something else."""
_CLOCK: Final = -2 * _MILLISECOND
"""A record that is sent so long before its timestamp was stamped by another clock."""


@dataclass
class Measures:
    """Figures of a role on one side. facts: how often each value of a setting was seen, by its name. sums: ratios.
    latencies: by API and part, us. waits: of batches, from their first record to their request, us."""

    facts: dict[str, Counter[str]] = field(default_factory=dict)
    versions: dict[str, Counter[str]] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)
    rates: dict[str, Sums] = field(default_factory=dict)
    errors: dict[tuple[str, int], Sums] = field(default_factory=dict)
    latencies: dict[tuple[str, str], Values] = field(default_factory=dict)
    wait: Values | None = None
    seconds: float = 0.0


class _Blocks:
    """The time of a role, divided into blocks: from the first packet of its connections to the last."""

    def __init__(self, side: Side, role: Role) -> None:
        links = role.links
        first = np.array([side.connections[link].first for link in links.tolist()], np.int64)
        last = np.array([side.connections[link].last for link in links.tolist()], np.int64)
        is_timed = (first != NULL) & (last != NULL)
        positions = side.positions(links[is_timed], first[is_timed]), side.positions(links[is_timed], last[is_timed])
        self.start = int(positions[0].min(initial=np.iinfo(np.int64).max)) if is_timed.any() else 0
        end = int(positions[1].max(initial=self.start)) if is_timed.any() else 0
        self.length = max(end - self.start, 1)

    def of(self, positions: np.ndarray) -> np.ndarray:
        """int64[n]: the block of each position."""
        blocks = (positions - self.start) * BLOCKS // self.length
        return np.asarray(np.clip(blocks, 0, BLOCKS - 1), np.int64)

    @property
    def seconds(self) -> np.ndarray:
        """float64[BLOCKS]: how long each is."""
        return np.full(BLOCKS, self.length / BLOCKS / _SECOND, np.float64)


def measured(side: Side, role: Role) -> Measures:
    """The figures of a role."""
    return _Measuring(side, role).measures


class _Measuring:
    def __init__(self, side: Side, role: Role) -> None:
        self._side, self._role = side, role
        self._rows = role.rows
        frame = side.exchanges
        self._api = frame["api_key"][self._rows]
        times = frame["request_time"][self._rows]
        times = np.where(times == NULL, frame["response_end"][self._rows], times)
        self._blocks = _Blocks(side, role)
        self._block = self._blocks.of(side.positions(side.link[self._rows], times))
        self._has_request = frame["exchange"][self._rows] != NULL
        status = frame.text("status")
        self._is_answered = np.isin(status.codes[self._rows], status.codes_of("answered"))
        self._is_lost = np.isin(status.codes[self._rows], status.codes_of("unanswered"))
        self.measures = Measures(seconds=self._blocks.length / _SECOND)
        self._connections()
        self._settings()
        self._sizes()
        self._batches()
        self._groups()
        self._count()
        self._latencies()

    def _column(self, name: str) -> np.ndarray:
        values = self._side.exchanges[name]
        return np.asarray(values[self._rows])

    def _fact(self, name: str, values: Mapping[str, int]) -> None:
        if values:
            self.measures.facts.setdefault(name, Counter()).update(values)

    # --- settings -----------------------------------------------------------------------------------------------------

    def _connections(self) -> None:
        connections = [self._side.connections[link] for link in self._role.links.tolist()]
        # The beginning of a connection says it; KIP-511 came with ApiVersions 3.
        names = [each.software or NOT_SAID for each in connections if each.opened or each.software]
        self._fact("software", Counter(names))
        self._fact("tls", Counter(each.tls or "none" for each in connections))
        self._fact("sasl", Counter(each.sasl or "none" for each in connections if each.opened))
        opened = [link for link in self._role.links.tolist() if self._side.connections[link].opened]
        first = np.array([self._side.connections[link].first for link in opened], np.int64)
        blocks = self._blocks.of(self._side.positions(np.array(opened, np.int64), first))
        self.measures.sums["connections"] = Sums(_per_block(blocks), self._blocks.seconds / 60)

    def _settings(self) -> None:
        """Of requests. Those that older APIs say too (ShareFetch has waits as well) are of reading."""
        for name, column, keys, spelt in (
            ("acks", "acks", (apis.PRODUCE,), _ACKS),
            ("fetch_max_wait_ms", "max_wait_ms", _READS, {}),
            ("fetch_min_bytes", "min_bytes", _READS, {}),
            ("isolation", "isolation_level", (apis.FETCH,), _OFFSET_TYPE),
        ):
            values = self._column(column)
            chosen = values[np.isin(self._api, keys) & (values != NULL) & self._has_request]
            self._fact(name, _counted(chosen, spelt))
        rack = self._side.exchanges.text("rack_id")
        codes = rack.codes[self._rows][(self._api == apis.FETCH) & self._has_request]
        self._fact("rack", {rack.values[code] if code >= 0 else "none": count for code, count in _counts(codes)})
        for name, counts in self._side.settings(self._role.links).items():
            self._fact(name, counts)
        versions = self._column("api_version")
        for key in np.unique(self._api[self._has_request]).tolist():
            chosen = versions[(self._api == key) & self._has_request & (versions != NULL)]
            if key != NULL and len(chosen):
                self.measures.versions[schema.api_name(key)] = _counted(chosen, {})

    def _groups(self) -> None:
        frame, rows = self._side.frame("groups"), self._side.rows_of("groups", self._role.links)
        protocol = frame.text("protocol")
        self._fact("group_protocol", _texts(protocol.codes[rows], protocol.values))
        event = frame.text("event")
        joins = rows[np.isin(event.codes[rows], event.codes_of("join"))]
        for name in ("session_timeout_ms", "rebalance_timeout_ms"):
            values = frame[name][joins]
            self._fact(name, _counted(values[values != NULL], {}))
        static = frame.text("group_instance_id").codes[joins] >= 0
        self._fact("static_membership", _counted(static.astype(np.int64), {0: "no", 1: "yes"}))
        offsets = self._side.frame("offsets", ("capture", "connection", "kind", "target"))
        rows = self._side.rows_of("offsets", self._role.links)
        kind, target = offsets.text("kind"), offsets.text("target")
        resets = rows[np.isin(kind.codes[rows], kind.codes_of("reset"))]
        self._fact("offset_reset", _texts(target.codes[resets], target.values))

    # --- records ------------------------------------------------------------------------------------------------------

    def _of_role(self, table: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a table that are of the role's exchanges, and the exchanges' positions among the role's."""
        rows = self._side.rows_of(table, self._role.links)
        exchange = self._side.exchanges_of(table)[rows]
        rows = rows[exchange >= 0]
        return rows, np.searchsorted(self._rows, exchange[exchange >= 0])

    def _sizes(self) -> None:
        frame = self._side.frame("partitions", ("capture", "connection", "exchange", "record_bytes", "record_count"))
        rows, position = self._of_role("partitions")
        size, count, batches = (frame[name][rows] for name in ("record_bytes", "record_count", "batch_count"))
        key = self._api[position]
        for side, keys in (("write", (apis.PRODUCE,)), ("read", _READS)):
            chosen = np.isin(key, keys) & (size != NULL)
            # Of a request of which a count is not known (compressed messages of old formats), nothing counts.
            unknown = np.unique(position[chosen & (count == NULL) & (size > 0)])
            counted = chosen & (count != NULL) & ~np.isin(position, unknown)
            if counted.any():
                requests = np.isin(self._api, keys) & self._has_request & ~np.isin(np.arange(len(self._api)), unknown)
                if side == "read":
                    requests &= self._is_answered
                self._of_records(side, position[counted], size[counted], count[counted], batches[counted], requests)

    def _of_records(
        self,
        side: str,
        position: np.ndarray,
        size: np.ndarray,
        count: np.ndarray,
        batches: np.ndarray,
        requests: np.ndarray,
    ) -> None:
        block, sums = self._block[position], self.measures.sums
        records, bytes_ = _per_block(block, count), _per_block(block, size)
        batch_count = _per_block(block, np.where(batches == NULL, 0, batches))
        exchanges = _per_block(self._block[requests])
        sums[f"{side}_records_s"] = Sums(records, self._blocks.seconds, is_count=False)
        sums[f"{side}_records_batch"] = Sums(records, batch_count, is_count=False)
        sums[f"{side}_bytes_batch"] = Sums(bytes_, batch_count, is_count=False)
        sums[f"{side}_requests_record"] = Sums(exchanges, records)
        column = "request_bytes" if side == "write" else "response_bytes"
        wire = self._column(column)
        chosen = requests & (wire != NULL)
        sums[f"{side}_wire_record"] = Sums(_per_block(self._block[chosen], wire[chosen]), records, is_count=False)
        if side == "read":
            full = np.zeros(len(self._api), bool)
            full[position[size > 0]] = True
            sums["read_empty"] = Sums(_per_block(self._block[requests & ~full]), exchanges)

    def _batches(self) -> None:
        columns = ("capture", "connection", "exchange", "codec", "side", "producer_id", "first_timestamp")
        frame = self._side.frame("batches", columns)
        rows, position = self._of_role("batches")
        side = frame.text("side")
        rows_of = side.codes[rows]
        for name, what in (("produce", "codec"), ("fetch", "codec_read")):
            codec = frame.text("codec")
            codes = codec.codes[rows][np.isin(rows_of, side.codes_of(name))]
            self._fact(what, _texts(codes[codes >= 0], codec.values))
        written = np.isin(rows_of, side.codes_of("produce"))
        rows, position = rows[written], position[written]
        if not len(rows):
            return
        yes_no = {0: "no", 1: "yes"}
        magic = frame["magic"][rows]
        self._fact("message_format", _counted(magic[magic != NULL], {0: "v0", 1: "v1", 2: "v2"}))
        producer = frame["producer_id"][rows]
        idempotent = ((producer != NULL) & (producer >= 0)).astype(np.int64)
        self._fact("idempotence", _counted(idempotent[magic == 2], yes_no))
        transactional = frame["is_transactional"][rows]
        self._fact("transactions", _counted(transactional[(magic == 2) & (transactional != NULL)], yes_no))
        kind = frame.text("timestamp_type")
        first, sent = frame["first_timestamp"][rows], self._column("request_time")[position]
        timed = (first != NULL) & (sent != NULL) & np.isin(kind.codes[rows], kind.codes_of("CreateTime"))
        wait = sent[timed] - first[timed]
        if len(wait) and float(np.quantile(wait, 0.02)) > _CLOCK and float(np.quantile(wait, 0.9)) < _LONGEST_WAIT:
            self.measures.wait = Values(wait, self._block[position[timed]])

    # --- answers ------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        minutes = self._blocks.seconds / 60
        for key in np.unique(self._api).tolist():
            if key == NULL:
                continue
            chosen = self._api == key
            name = schema.api_name(key)
            requests = _per_block(self._block[chosen & self._has_request])
            answers = _per_block(self._block[chosen & self._is_answered])
            if key != apis.PRODUCE:  # that depends on how much there is to write: requests a record are compared
                self.measures.rates[name] = Sums(requests, minutes)
            codes = self._column("error_code")
            for code in np.unique(codes[chosen & self._is_answered]).tolist():
                if code not in (0, NULL):
                    failed = _per_block(self._block[chosen & self._is_answered & (codes == code)])
                    self.measures.errors[name, code] = Sums(failed, answers)
            self.measures.errors[name, 0] = Sums(np.zeros(BLOCKS), answers)
        every = _per_block(self._block[self._has_request])
        self.measures.sums["unanswered"] = Sums(_per_block(self._block[self._is_lost]), every)
        throttle = self._column("throttle_us")
        answered = _per_block(self._block[self._is_answered])
        throttled = _per_block(self._block[self._is_answered & (throttle > 0)])
        self.measures.sums["throttled"] = Sums(throttled, answered)

    def _latencies(self) -> None:
        """Of answers. Where the broker's own time cannot be told (acks=all), it is the latency without the queue."""
        latency, queue = self._column("latency_us"), self._column("queue_us")
        broker = self._column("broker_us")
        rest = np.where((latency != NULL) & (queue != NULL), latency - queue, NULL)
        parts = {"network": self._column("network_us"), "queue": queue}
        for key in np.unique(self._api).tolist():
            if key == NULL:
                continue
            chosen = (self._api == key) & self._is_answered
            own = broker if key in HELD else np.where(broker != NULL, broker, rest)
            for part, values in {"broker": own, **parts}.items():
                rows = chosen & (values != NULL)
                if rows.any():
                    self.measures.latencies[schema.api_name(key), part] = Values(values[rows], self._block[rows])


def _per_block(blocks: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    return np.bincount(blocks, weights=weights, minlength=BLOCKS).astype(np.float64)


def _counts(codes: np.ndarray) -> Iterator[tuple[int, int]]:
    values, counts = np.unique(codes, return_counts=True)
    return zip(values.tolist(), counts.tolist(), strict=True)


def _counted(values: np.ndarray, spelt: Mapping[int, str]) -> Counter[str]:
    return Counter({spelt.get(value, f"{value:,}"): count for value, count in _counts(values)})


def _texts(codes: np.ndarray, values: list[str]) -> Counter[str]:
    return Counter({values[code]: count for code, count in _counts(codes) if code >= 0})
