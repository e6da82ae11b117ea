"""Batches of integers -> Arrow tables.

In: the `Batch`es of one capture point, in order. Out: Arrow tables with the columns of `tables.py`. Strings travel as
symbols until here; a column of strings is built as indices into the few distinct ones, so no row makes a Python object.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from analyzer import errors as kafka_errors
from analyzer import schema as definitions
from analyzer import state as s
from analyzer import tables
from analyzer.conversation import Batch
from analyzer.decoding import REASONS
from analyzer.engine import Engine
from analyzer.merging import move_columns
from analyzer.program import load
from captures import streams as t

if TYPE_CHECKING:
    from analyzer.filtering import Names

STATUSES = ("answered", "no_response_expected", "unanswered", "in_flight", "orphan_response")
STATES = ("decoded", "truncated", "undecoded")
CLOSED = ("open", "fin", "rst")
OFFSET_KINDS = {
    0: "base", 1: "fetch", 2: "listed", 8: "committed", 9: "committed", 21: "delete", 23: "end", 28: "committed",
    90: "start", 91: "start",
}  # fmt: skip
"""What `partitions.offset` is, by API."""


class Strings:
    """Distinct strings, numbered."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: str) -> int:
        """The number of a string, a new one if it is new."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


def text(value: bytes) -> str:
    """A string from the wire. Kafka's are UTF-8; bytes that are not show as `\\xNN`, so that none is lost."""
    return value.decode("utf-8", "backslashreplace")


@functools.lru_cache(maxsize=1 << 16)
def ip_text(address: int) -> str:
    """An address of `captures.packets`: IPv4 is ::ffff:a.b.c.d there."""
    if address >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(address & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(address))


def end_point(ip: str, port: int) -> str:
    """`ip:port`, IPv6 in brackets (RFC 5952)."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def unrecognised_guess(first: tuple[int, int]) -> str:
    """What a connection that is not Kafka may be, by the first 8 bytes of each side (0: it said nothing)."""
    sides = [value.to_bytes(8, "big", signed=True) for value in first]
    for data in sides:
        if data[0] in (20, 21, 22, 23) and data[1] == 3 and data[2] <= 4:
            return "TLS"
        if data.startswith((b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE", b"OPTION", b"PATCH ", b"HTTP/", b"PRI *")):
            return "HTTP"
        if data.startswith(b"SSH-"):
            return "SSH"
        if data[4:8] in (b"\x00\x03\x00\x00", b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):
            return "PostgreSQL"
        if data[:3] == b"\x00\x00\x00" and data[3] in (44, 45) and data[4:8] == b"\x00\x00\x00\x00":
            return "ZooKeeper"
        if data.startswith((b"*1\r\n", b"*2\r\n", b"*3\r\n", b"+OK", b"-ERR", b"+PONG")):
            return "Redis"
        if data.startswith(b"AMQP"):
            return "AMQP"
        if data[:1] == b"\x10" and b"\x00\x04MQ" in data:
            return "MQTT"
        if data[2:4] == b"\x00\x00" and data[0] == 0 and data[4] & 0x78 == 0 and data[4:8] != b"\x00" * 4:
            return "unknown"
        if int.from_bytes(data[:2], "big") >= 12 and data[4] & 0x78 == 0 and data[6:8] == b"\x00\x01":
            return "DNS"
    return "nothing said" if first == (0, 0) else "unknown"


@dataclass(slots=True)
class Coverage:
    """Where the captured payload bytes of Kafka connections went, and what is missing."""

    payload_bytes: int = 0
    duplicate_bytes: int = 0
    decoded_bytes: int = 0
    opaque: dict[str, int] = field(default_factory=lambda: dict.fromkeys(tables.OPAQUE_REASONS, 0))
    skipped_bytes: int = 0
    incomplete_bytes: int = 0
    gap_bytes: int = 0
    snaplen_bytes: int = 0

    @property
    def opaque_bytes(self) -> int:
        return sum(self.opaque.values())

    def as_dict(self) -> dict[str, Any]:
        """For `_kwire.json`, `--json` and the summary."""
        return {
            "payload_bytes": self.payload_bytes,
            "duplicate_bytes": self.duplicate_bytes,
            "decoded_bytes": self.decoded_bytes,
            "opaque_bytes": self.opaque_bytes,
            "opaque": dict(self.opaque),
            "skipped_bytes": self.skipped_bytes,
            "incomplete_bytes": self.incomplete_bytes,
            "gap_bytes": self.gap_bytes,
            "snaplen_bytes": self.snaplen_bytes,
        }

    def add(self, other: Coverage) -> None:
        """Add another capture point's."""
        for name in ("payload", "duplicate", "decoded", "skipped", "incomplete", "gap", "snaplen"):
            key = f"{name}_bytes"
            setattr(self, key, getattr(self, key) + getattr(other, key))
        for reason, amount in other.opaque.items():
            self.opaque[reason] += amount


@dataclass(slots=True)
class Unrecognised:
    """A connection in which no Kafka was found."""

    connection: str
    payload_bytes: int
    looks_like: str


@dataclass(slots=True)
class _Symbols:
    """One shard's symbols in the numbering of the whole capture point; -1: not needed yet."""

    strings: list[int] = field(default_factory=list)
    lists: list[bytes] = field(default_factory=list)
    topics: list[int] = field(default_factory=list)  # of lists of strings
    errors: list[int] = field(default_factory=list)  # of lists of numbers: errors with counts, node ids


@dataclass(frozen=True, slots=True)
class Rows:
    """Exchanges of one window, ready to become Arrow, with symbols in the numbering of the capture point.

    x            int64[X_COLUMNS, n], columns as in `analyzer.state`
    connection   int64[n], the number of each row's connection
    parts        int64[P_COLUMNS, m], their topic-partitions in the same order, P_OWNER the exchange's row
    """

    x: np.ndarray
    connection: np.ndarray
    parts: np.ndarray

    def where(self, mask: np.ndarray) -> Rows:
        """The rows that a mask lets through, and their topic-partitions."""
        if mask.all():
            return self
        parts = self.parts.compress(mask[self.parts[s.P_OWNER]], axis=1)
        parts[s.P_OWNER] = (np.cumsum(mask) - 1)[parts[s.P_OWNER]]
        return Rows(self.x.compress(mask, axis=1), self.connection[mask], parts)


MAX_OFFERS = 1024
"""Offers of API versions remembered of a connection, so that each is one row; brokers offer fewer than a hundred."""


class Columns:
    """Turns the batches of one capture point into Arrow tables. `take` in order, then `exchanges` of what it gave."""

    def __init__(self, engine: Engine, capture: str, ahead: Callable[[], dict[str, str]] | None = None) -> None:
        """`ahead` reads the capture to its end for the topic ids that it names; called once, and only for an id that
        nothing has named so far."""
        self.capture = capture
        self.coverage = Coverage()
        self.unrecognised: list[Unrecognised] = []
        self.unrecognised_connections = 0
        self.unrecognised_bytes = 0
        self.connections: list[pa.Table] = []
        self.topic_ids: list[dict[str, Any]] = []
        self.api_versions: list[dict[str, Any]] = []
        self.from_before: set[str] = set()
        self.left_open: set[str] = set()
        self.leaders: list[dict[str, Any]] = []
        self.brokers: list[dict[str, Any]] = []
        self._engine = engine
        self._strings = Strings()
        self._lists: list[tuple[int, ...]] = []
        self._list_numbers: dict[tuple[int, ...], int] = {}
        self._shards = [_Symbols() for _ in range(max(1, engine.settings.threads))]
        self._slots = np.full(256, -1, np.int64)
        self._names: list[str] = []
        self._free: list[int] = []
        self._over: list[int] = []
        self._born: list[int] = []
        self._ends: list[tuple[int, int, int, int]] = []
        self._topic_ids: set[tuple[int, int]] = set()
        self._brokers: set[tuple[int, int, int, int]] = set()
        self._offered: dict[int, set[tuple[int, int, int]]] = {}  # of open connections
        self._leaders: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._topic_names: dict[str, str] = {}
        self._ahead = ahead
        self._message_numbers: dict[int, np.ndarray] = {}
        self._api_names = [api.name for api in definitions.apis()]

    # -- taking batches ---------------------------------------------------------------------------------------------
    def take(self, batches: list[Batch]) -> Rows:
        """Take one window's batches, one a shard: its exchanges, in order; the small tables' rows are kept."""
        exchanges, numbers, parts = [], [], []
        before = 0
        facts: list[tuple[int, int, int, int, list[int]]] = []
        for shard, batch in enumerate(batches):
            self._learn(shard, batch)
            x = batch.exchanges
            exchanges.append(self._renumber(shard, x))
            numbers.append(self._connections(x[s.X_SLOT], x[s.X_NEXT]))
            parts.append(self._renumber_parts(shard, batch.parts, before))
            before += x.shape[1]
            for order, row in enumerate(_without_repeats(batch.facts).tolist()):
                _, _, _, born = self._engine.flows.end_points(row[s.FACT_SLOT])
                facts.append((row[s.FACT_TRIGGER], born, order, shard, row))
        rows = self._ordered(exchanges, numbers, parts)
        facts.sort(key=lambda fact: fact[:3])
        for _, _, _, shard, row in facts:
            self._fact(self._shards[shard], row)
        self._take_leaders(batches)
        self._message_numbers.clear()
        for batch in batches:
            messages = batch.messages
            self._message_numbers[id(batch)] = self._connections(messages[:, s.MSG_SLOT], messages[:, s.MSG_CLIENT])
        self._take_ended(batches)
        return rows

    def _learn(self, shard: int, batch: Batch) -> None:
        """Number the strings that are new in a batch."""
        known = self._shards[shard]
        known.strings.extend(self._strings.number(text(value)) for value in batch.strings)
        known.lists.extend(batch.lists)
        known.topics.extend([-1] * len(batch.lists))
        known.errors.extend([-1] * len(batch.lists))

    def _renumber(self, shard: int, x: np.ndarray) -> np.ndarray:
        """Symbols of the shard -> numbers of the capture point."""
        known = self._shards[shard]
        strings = np.array(known.strings, np.int64)
        for column in (s.X_CLIENT_ID, s.X_GROUP, s.X_MEMBER, s.X_TRANSACTIONAL_ID):
            x[column] = _through(strings, x[column])
        for column, numbers, signed in ((s.X_TOPICS, known.topics, False), (s.X_ERRORS, known.errors, True)):
            used = x[column] != s.NULL
            for symbol in distinct(x[column][used]).tolist():
                if numbers[symbol] < 0:
                    content = np.frombuffer(known.lists[symbol], "<i4")
                    values = content.tolist() if signed else [known.strings[i] for i in content.tolist()]
                    numbers[symbol] = self._list_number(tuple(values))
            x[column] = _through(np.array(numbers, np.int64), x[column])
        return x

    def _list_number(self, values: tuple[int, ...]) -> int:
        number = self._list_numbers.get(values)
        if number is None:
            number = self._list_numbers[values] = len(self._lists)
            self._lists.append(values)
        return number

    def _renumber_parts(self, shard: int, parts: np.ndarray, before: int) -> np.ndarray:
        """The same for topic-partitions; `before`: exchanges of the shards before this one."""
        strings = np.array(self._shards[shard].strings, np.int64)
        for column in (s.P_TOPIC, s.P_TOPIC_ID):
            parts[column] = _through(strings, parts[column])
        parts[s.P_OWNER] += before
        parts[s.P_SET] = np.where(parts[s.P_SET] == s.NULL, s.NULL, self.set_numbers(shard, parts[s.P_SET]))
        return parts

    def set_numbers(self, shard: int, numbers: np.ndarray) -> np.ndarray:
        """A shard's numbers of record sets in the numbering of the capture point, which `Rows.parts` has in P_SET."""
        return numbers * len(self._shards) + shard

    def _ordered(self, exchanges: list[np.ndarray], numbers: list[np.ndarray], parts: list[np.ndarray]) -> Rows:
        """The shards' rows in one order: by the packet that completed them, then by age of the connection."""
        trigger = np.concatenate([x[s.X_TRIGGER] for x in exchanges])
        connection = np.concatenate(numbers)
        step = np.diff(trigger)
        if len(exchanges) == 1 and not ((step < 0) | ((step == 0) & (np.diff(connection) != 0))).any():
            return Rows(exchanges[0], numbers[0], parts[0])
        order = np.lexsort((np.array(self._born, np.int64)[connection], trigger))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        owner = place[np.concatenate([part[s.P_OWNER] for part in parts])]
        part_order = np.argsort(owner, kind="stable")
        part_place = np.empty(len(part_order), np.int64)
        part_place[part_order] = np.arange(len(part_order))
        part = _merged(parts, part_place)
        part[s.P_OWNER] = owner[part_order]
        return Rows(_merged(exchanges, place), connection[order], part)

    def _take_leaders(self, batches: list[Batch]) -> None:
        """Rows for `leaders` where a leader, its epoch or the in-sync replicas are other than last said."""
        taken = []
        for shard, batch in enumerate(batches):
            rows = batch.leaders
            known = self._shards[shard]
            strings, born = np.array(known.strings, np.int64), self._engine.flows.born(rows[:, s.L_SLOT])
            for column in (s.L_TOPIC, s.L_TOPIC_ID):
                rows[:, column] = _through(strings, rows[:, column])
            for symbol in distinct(rows[rows[:, s.L_ISR] != s.NULL, s.L_ISR]).tolist():
                if known.errors[symbol] < 0:
                    content = np.frombuffer(known.lists[symbol], "<i4")
                    known.errors[symbol] = self._list_number(tuple(content.tolist()))
            rows[:, s.L_ISR] = _through(np.array(known.errors, np.int64), rows[:, s.L_ISR])
            taken.append(np.column_stack([rows, born]))
        rows = np.concatenate(taken)
        rows = rows[np.lexsort((rows[:, -1], rows[:, s.L_TRIGGER]))]
        # Most of what Metadata says repeats: what one topic-partition had said of it twice in a row is dropped here.
        said = rows[:, [s.L_TOPIC, s.L_TOPIC_ID, s.L_PARTITION, s.L_LEADER, s.L_EPOCH, s.L_ISR]]
        order = np.lexsort((said[:, 2], said[:, 1], said[:, 0]))
        fresh = np.ones(len(rows), bool)
        fresh[order[1:]] = (said[order[1:]] != said[order[:-1]]).any(axis=1)
        values = self._strings.values
        for row in rows[fresh].tolist():
            topic = values[row[s.L_TOPIC]] if row[s.L_TOPIC] != s.NULL else None
            topic_id = values[row[s.L_TOPIC_ID]] if row[s.L_TOPIC_ID] != s.NULL else None
            key = (topic or self._topic_names.get(topic_id or "", topic_id or ""), row[s.L_PARTITION])
            last = self._leaders.get(key)
            isr = row[s.L_ISR] if row[s.L_ISR] != s.NULL or last is None else last[2]
            now = (row[s.L_LEADER], row[s.L_EPOCH], isr)
            if now == last:
                continue
            self._leaders[key] = now
            self.leaders.append(
                {
                    "capture": self.capture,
                    "time": row[s.L_NS] // 1000,
                    "topic": topic,
                    "topic_id": topic_id,
                    "partition": row[s.L_PARTITION],
                    "leader": row[s.L_LEADER] if row[s.L_LEADER] != s.NULL else None,
                    "leader_epoch": row[s.L_EPOCH] if row[s.L_EPOCH] != s.NULL else None,
                    "isr": list(self._lists[row[s.L_ISR]]) if row[s.L_ISR] != s.NULL else None,
                }
            )

    # -- connections --------------------------------------------------------------------------------------------------
    def _connections(self, slots: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """The number of each slot's connection; `clients`: which side of it asks."""
        top = int(slots.max(initial=-1)) + 1
        if top > len(self._slots):
            larger = np.full(max(top, 2 * len(self._slots)), -1, np.int64)
            larger[: len(self._slots)] = self._slots
            self._slots = larger
        numbers: np.ndarray = self._slots[slots]
        new = numbers < 0
        if new.any():
            fresh, where = np.unique(slots[new], return_index=True)
            self._slots[fresh] = [
                self._name(slot, side) for slot, side in zip(fresh.tolist(), clients[new][where].tolist(), strict=True)
            ]
            numbers = self._slots[slots]
        return numbers

    def _name(self, slot: int, side: int) -> int:
        """Give the connection in a slot a number; those of connections long ended are used again."""
        a, b, reuse, born = self._engine.flows.end_points(slot)
        client, broker = (b, a) if side == 1 else (a, b)
        client_ip, broker_ip = ip_text(client[0]), ip_text(broker[0])
        name = f"{end_point(client_ip, client[1])}-{end_point(broker_ip, broker[1])}#{reuse}"
        ends = (self._strings.number(client_ip), client[1], self._strings.number(broker_ip), broker[1])
        if not self._free:
            self._names.append(name)
            self._ends.append(ends)
            self._born.append(born)
            return len(self._names) - 1
        number = self._free.pop()
        self._names[number], self._ends[number], self._born[number] = name, ends, born
        return number

    def release(self) -> None:
        """All rows taken so far have become tables: numbers of connections that have ended may be given again. So what
        is kept grows with the connections that are open, not with the capture."""
        self._free += self._over
        self._over = []

    def names(self) -> Names:
        """What the numbers in `Rows` stand for, for filters."""
        from analyzer.filtering import Names

        return Names(self._strings.values, self._lists, self._names, self._ends, self.capture, self.topic_name)

    @property
    def strings(self) -> list[str]:
        """The strings that `Rows` number; the list grows."""
        return self._strings.values

    @property
    def connection_names(self) -> list[str]:
        """The names of the connections that `Rows` number; the list grows."""
        return self._names

    def connection_name(self, number: int) -> str:
        """`client_ip:port-broker_ip:port#n` of a connection's number."""
        return self._names[number]

    def connection_born(self, number: int) -> int:
        """Which connection of the capture point it was, from 0."""
        return self._born[number]

    def message_connections(self, batch: Batch) -> np.ndarray:
        """The numbers of the connections of a batch's messages; valid until the next `take`."""
        return self._message_numbers[id(batch)]

    def topic_lists(self) -> list[list[str]]:
        """The lists of topics that `Rows` number (X_TOPICS), as names."""
        values = self._strings.values
        return [[values[i] for i in entry if 0 <= i < len(values)] for entry in self._lists]

    def resolve_topics(self, row: dict[str, Any]) -> None:
        """Put names for topic ids in a row, as far as some message has said them."""
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(self.topic_name(topic) for topic in row["topics"]))

    def topic_name(self, topic: str) -> str:
        """The name for a topic id, where some message says it; else what was given."""
        if topic not in self._topic_names and self._ahead is not None and len(topic) == TOPIC_ID_LENGTH:
            ahead, self._ahead = self._ahead, None
            self._topic_names = {**ahead(), **self._topic_names}
        return self._topic_names.get(topic, topic)

    @property
    def topic_names(self) -> dict[str, str]:
        """Names by topic id, as far as messages have said them."""
        return dict(self._topic_names)

    def _take_ended(self, batches: list[Batch]) -> None:
        """Connections that have ended: their rows, and their bytes in the coverage."""
        parts = []
        for shard, batch in enumerate(batches):
            k, slots = batch.k, batch.ended[:, 0]
            strings = np.array(self._shards[shard].strings, np.int64)
            for column in (s.K_CLIENT_ID, s.K_SOFTWARE_NAME, s.K_SOFTWARE_VERSION, s.K_MECHANISM):
                k[:, column] = _through(strings, k[:, column])
            numbers = self._connections(slots, k[:, s.K_CLIENT])
            f = batch.f.reshape(len(slots), 2, s.F_COLUMNS)
            d = batch.d.reshape(len(slots), 2, t.D_COLUMNS)
            parts.append((batch.ended[:, 1], numbers, k, f, d, batch.c))
            self._slots[slots] = -1
            self._over += numbers.tolist()
            for number in numbers.tolist():
                self._offered.pop(number, None)
        trigger, numbers, k, f, d, c = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if not len(numbers):
            return
        order = np.lexsort((np.array([self._born[number] for number in numbers.tolist()]), trigger))
        kafka = k[order, s.K_CLASS] == s.KAFKA
        self._not_kafka(numbers[order[~kafka]], k[order[~kafka]], d[order[~kafka]])
        order = order[kafka]
        if len(order):
            self._kafka_ended(numbers[order], k[order], f[order], d[order], c[order])

    def _not_kafka(self, numbers: np.ndarray, k: np.ndarray, d: np.ndarray) -> None:
        """Connections in which no Kafka was found: counted, and the first ones listed."""
        captured = d[:, :, t.D_CAPTURED].sum(axis=1)
        said = np.flatnonzero(captured)
        self.unrecognised_connections += len(said)
        self.unrecognised_bytes += int(captured.sum())
        for i in said[: max(0, MAX_UNRECOGNISED - len(self.unrecognised))].tolist():
            guess = unrecognised_guess((int(k[i, s.K_FIRST_0]), int(k[i, s.K_FIRST_1])))
            self.unrecognised.append(Unrecognised(self._names[numbers[i]], int(captured[i]), guess))

    def _kafka_ended(self, numbers: np.ndarray, k: np.ndarray, f: np.ndarray, d: np.ndarray, c: np.ndarray) -> None:
        """Rows of `connections`. k and c have a row a connection, f and d two: int64[n, 2, columns]."""
        rows = np.arange(len(numbers))
        client = np.maximum(0, k[:, s.K_CLIENT])
        both = d.sum(axis=1)
        opaque = {
            reason: k[:, column]
            for reason, column in zip(
                tables.OPAQUE_REASONS,
                (s.K_ENCRYPTED, s.K_SASL, s.K_UNKNOWN_API, s.K_UNSUPPORTED_VERSION, s.K_MALFORMED, s.K_TRAILING,
                 s.K_LIMIT),
                strict=True,
            )
        }  # fmt: skip
        amounts = {
            "payload_bytes": both[:, t.D_CAPTURED],
            "duplicate_bytes": both[:, t.D_DUPLICATE],
            "decoded_bytes": k[:, s.K_DECODED],
            "skipped_bytes": k[:, s.K_SKIPPED] + both[:, t.D_LATE] + f[:, :, s.F_LOST].sum(axis=1),
            "incomplete_bytes": k[:, s.K_INCOMPLETE],
            "gap_bytes": both[:, t.D_GAP_BYTES],
            "snaplen_bytes": both[:, t.D_SNAPLEN],
        }
        self.coverage.add(
            Coverage(
                **{name: int(values.sum()) for name, values in amounts.items()},
                opaque={reason: int(values.sum()) for reason, values in opaque.items()},
            )
        )
        ends = [self._ends[number] for number in numbers.tolist()]
        names = [self._names[number] for number in numbers.tolist()]
        opened, closed = c[:, t.C_SYN_SIDE] >= 0, k[:, s.K_CLOSED]
        self.from_before.update(names[i].rpartition("#")[0] for i in np.flatnonzero(~opened).tolist())
        self.left_open.update(names[i].rpartition("#")[0] for i in np.flatnonzero(closed == 0).tolist())
        strings = self._strings.values
        columns = {
            "capture": pa.array([self.capture] * len(names), pa.string()),
            "connection": pa.array(names, pa.string()),
            "client_ip": pa.array([strings[end[0]] for end in ends], pa.string()),
            "client_port": pa.array([end[1] for end in ends], pa.int32()),
            "broker_ip": pa.array([strings[end[2]] for end in ends], pa.string()),
            "broker_port": pa.array([end[3] for end in ends], pa.int32()),
            "first_time": _times(c[:, t.C_FIRST_NS] // 1000),
            "last_time": _times(c[:, t.C_LAST_NS] // 1000),
            "client_packets": _integers(d[rows, client, t.D_PACKETS], pa.int64()),
            "broker_packets": _integers(d[rows, 1 - client, t.D_PACKETS], pa.int64()),
            "client_bytes": _integers(d[rows, client, t.D_CAPTURED], pa.int64()),
            "broker_bytes": _integers(d[rows, 1 - client, t.D_CAPTURED], pa.int64()),
            "rtt_us": _integers(np.where(c[:, t.C_RTT_NS] >= 0, c[:, t.C_RTT_NS] // 1000, s.NULL), pa.int64()),
            "retransmissions": _integers(both[:, t.D_RETRANSMISSIONS], pa.int64()),
            "duplicates": _integers(both[:, t.D_DUPLICATE_PACKETS], pa.int64()),
            "out_of_order": _integers(both[:, t.D_OUT_OF_ORDER], pa.int64()),
            "overlap_conflicts": _integers(both[:, t.D_CONFLICTS], pa.int64()),
            "zero_windows": _integers(both[:, t.D_ZERO_WINDOWS], pa.int64()),
            "gaps": _integers(both[:, t.D_GAPS], pa.int64()),
            "opaque_bytes": _integers(np.sum(list(opaque.values()), axis=0), pa.int64()),
            "opened": pa.array(opened),
            "closed": pa.array([CLOSED[i] for i in closed.tolist()], pa.string()),
            "tls": pa.array(k[:, s.K_TLS] != 0),
            "requests": _integers(k[:, s.K_REQUESTS], pa.int64()),
            "errors": _integers(k[:, s.K_ERRORS], pa.int64()),
        }
        for name, column in (
            ("client_id", s.K_CLIENT_ID),
            ("software_name", s.K_SOFTWARE_NAME),
            ("software_version", s.K_SOFTWARE_VERSION),
            ("sasl_mechanism", s.K_MECHANISM),
        ):
            values = [None if number == s.NULL else strings[number] for number in k[:, column].tolist()]
            columns[name] = pa.array(values, pa.string())
        columns |= {name: _integers(values, pa.int64()) for name, values in amounts.items()}
        columns |= {f"opaque_{reason}_bytes": _integers(values, pa.int64()) for reason, values in opaque.items()}
        wanted = [column.name for column in tables.CONNECTIONS]
        self.connections.append(pa.Table.from_arrays([columns[name] for name in wanted], wanted))

    def _fact(self, known: _Symbols, row: list[int]) -> None:
        """A row for one of the small tables."""
        if row[s.FACT_KIND] == s.FACT_TOPIC_ID:
            pair = (known.strings[row[s.FACT_A]], known.strings[row[s.FACT_B]])
            if pair not in self._topic_ids:
                self._topic_ids.add(pair)
                values = self._strings.values
                self._topic_names[values[pair[0]]] = values[pair[1]]
                self.topic_ids.append({"capture": self.capture, "topic_id": values[pair[0]], "topic": values[pair[1]]})
        elif row[s.FACT_KIND] == s.FACT_BROKER:
            host = known.strings[row[s.FACT_B]]
            rack = known.strings[row[s.FACT_D]] if row[s.FACT_D] != s.NULL else -1
            node = (row[s.FACT_A], host, row[s.FACT_C], rack)
            if node not in self._brokers:
                self._brokers.add(node)
                values = self._strings.values
                self.brokers.append(
                    {
                        "capture": self.capture,
                        "node_id": row[s.FACT_A],
                        "host": values[host],
                        "port": row[s.FACT_C],
                        "rack": values[rack] if rack >= 0 else None,
                    }
                )
        else:
            number = int(self._slots[row[s.FACT_SLOT]])
            if number < 0:
                number = int(self._connections(np.array([row[s.FACT_SLOT]]), np.array([-1]))[0])
            offer = (row[s.FACT_A], row[s.FACT_B], row[s.FACT_C])
            offered = self._offered.setdefault(number, set())
            if offer in offered:
                return
            if len(offered) < MAX_OFFERS:
                offered.add(offer)
            _, _, broker_ip, broker_port = self._ends[number]
            self.api_versions.append(
                {
                    "capture": self.capture,
                    "connection": self._names[number],
                    "broker": end_point(self._strings.values[broker_ip], broker_port),
                    "api_key": row[s.FACT_A],
                    "min": row[s.FACT_B],
                    "max": row[s.FACT_C],
                }
            )

    # -- Arrow ------------------------------------------------------------------------------------------------------
    def small_tables(self) -> dict[str, pa.Table]:
        """The rows of the tables that are small, kept since the last call."""
        ended, self.connections = self.connections, []
        made = {"connections": pa.concat_tables([tables.schema("connections").empty_table(), *ended])}
        for name in ("leaders", "brokers", "topic_ids", "api_versions"):
            rows = getattr(self, name)
            made[name] = pa.Table.from_pylist(rows, schema=tables.schema(name))
            setattr(self, name, [])
        return made

    def exchanges(self, windows: list[Rows]) -> pa.Table:
        """The exchanges of some windows. Strings come as dictionaries: `plain` makes them what the contract says."""
        x = np.concatenate([rows.x for rows in windows], axis=1) if windows else np.zeros((s.X_COLUMNS, 0), np.int64)
        connection = np.concatenate([rows.connection for rows in windows]) if windows else np.zeros(0, np.int64)
        n = x.shape[1]
        strings, files = self._strings.values, [info.name for info in self._engine.reader.files]
        used, local = _compact(connection, len(self._names))
        ends = [self._ends[i] for i in used.tolist()]
        request_us, request_end_us = _micros(x[s.X_REQUEST_FIRST_NS]), _micros(x[s.X_REQUEST_LAST_NS])
        response_us, response_end_us = _micros(x[s.X_RESPONSE_FIRST_NS]), _micros(x[s.X_RESPONSE_LAST_NS])
        latency = _minus(response_us, request_end_us)
        backwards = (latency < 0) & (latency != s.NULL)
        latency[backwards] = s.NULL
        plain_file = np.array([not info.compressed for info in self._engine.reader.files] or [False])
        columns: dict[str, pa.Array] = {
            "capture": _dictionary(np.zeros(n, np.int32), [self.capture]),
            "connection": _dictionary(local, [self._names[i] for i in used.tolist()]),
            "exchange": _integers(x[s.X_EXCHANGE], pa.int64()),
            "reply": _integers(x[s.X_REPLY], pa.int64()),
            "client_ip": _of_ends(local, [strings[end[0]] for end in ends]),
            "client_port": _arrow(np.array([end[1] for end in ends], np.int32)[local], pa.int32()),
            "broker_ip": _of_ends(local, [strings[end[2]] for end in ends]),
            "broker_port": _arrow(np.array([end[3] for end in ends], np.int32)[local], pa.int32()),
            "api_key": _integers(x[s.X_API_KEY], pa.int16()),
            "api": self._api(x[s.X_API_KEY]),
            "api_version": _integers(x[s.X_API_VERSION], pa.int16()),
            "correlation_id": _integers(x[s.X_CORRELATION_ID], pa.int32()),
            "client_id": _strings(x[s.X_CLIENT_ID], strings),
            "request_time": _times(request_us),
            "request_end": _times(request_end_us),
            "response_time": _times(response_us),
            "response_end": _times(response_end_us),
            "latency_us": _integers(latency, pa.int64()),
            "total_us": _integers(_minus(response_end_us, request_us), pa.int64()),
            "throttle_us": _integers(_times_1000(x[s.X_THROTTLE]), pa.int64()),
            "request_bytes": _integers(x[s.X_REQUEST_BYTES], pa.int64()),
            "response_bytes": _integers(x[s.X_RESPONSE_BYTES], pa.int64()),
            "status": _dictionary(x[s.X_STATUS], STATUSES),
            "request_state": _dictionary(x[s.X_REQUEST_STATE], STATES),
            "response_state": _dictionary(x[s.X_RESPONSE_STATE], STATES),
            "reason": self._reasons(x, backwards),
            "error_code": _integers(x[s.X_ERROR], pa.int16()),
            "error": self._error_names(x[s.X_ERROR]),
            "errors": self._errors(x),
            "acks": _integers(x[s.X_ACKS], pa.int16()),
            "max_wait_ms": _integers(x[s.X_MAX_WAIT], pa.int32()),
            "min_bytes": _integers(x[s.X_MIN_BYTES], pa.int32()),
            "group_id": _strings(x[s.X_GROUP], strings),
            "member_id": _strings(x[s.X_MEMBER], strings),
            "generation": _integers(x[s.X_GENERATION], pa.int32()),
            "transactional_id": _strings(x[s.X_TRANSACTIONAL_ID], strings),
            "topics": self._topics(x),
            "request_file": _dictionary(x[s.X_REQUEST_FILE], files),
            "request_packet": _integers(x[s.X_REQUEST_NUMBER], pa.int64()),
            "response_file": _dictionary(x[s.X_RESPONSE_FILE], files),
            "response_packet": _integers(x[s.X_RESPONSE_NUMBER], pa.int64()),
            "request_offset": _offsets(x[s.X_REQUEST_RECORD_AT], x[s.X_REQUEST_FILE], plain_file),
            "response_offset": _offsets(x[s.X_RESPONSE_RECORD_AT], x[s.X_RESPONSE_FILE], plain_file),
        }
        arrays = [
            columns[column.name] if column.name in columns else pa.nulls(n, column.type) for column in tables.EXCHANGES
        ]
        return pa.Table.from_arrays(arrays, names=[column.name for column in tables.EXCHANGES])

    def partitions(self, windows: list[Rows]) -> pa.Table:
        """The topic-partitions of the exchanges of some windows, in their order."""
        none = np.zeros((s.P_COLUMNS, 0), np.int64)
        p = np.concatenate([none, *(rows.parts for rows in windows)], axis=1)
        columns = (s.X_EXCHANGE, s.X_REPLY, s.X_API_KEY)
        exchange, reply, api = (_of_owners([(rows.x[column], rows.parts) for rows in windows]) for column in columns)
        connection = _of_owners([(rows.connection, rows.parts) for rows in windows])
        n = p.shape[1]
        strings = self._strings.values
        used, local = _compact(connection, len(self._names))
        kinds = sorted(set(OFFSET_KINDS.values()))
        kind_of = np.full(len(self._api_names) + 1, s.NULL, np.int64)
        for key, kind in OFFSET_KINDS.items():
            kind_of[key] = kinds.index(kind)
        offset, watermark = p[s.P_OFFSET], p[s.P_HIGH_WATERMARK]
        after = np.where(p[s.P_FOLLOWING] != s.NULL, p[s.P_FOLLOWING], offset)
        lag = np.where(api == FETCH, _minus(watermark, after), s.NULL)
        arrays = {
            "capture": _dictionary(np.zeros(n, np.int32), [self.capture]),
            "connection": _dictionary(local, [self._names[i] for i in used.tolist()]),
            "exchange": _integers(exchange, pa.int64()),
            "reply": _integers(reply, pa.int64()),
            "topic": _strings(p[s.P_TOPIC], strings),
            "topic_id": _strings(p[s.P_TOPIC_ID], strings),
            "partition": _integers(p[s.P_PARTITION], pa.int32()),
            "error_code": _integers(p[s.P_ERROR], pa.int16()),
            "error": self._error_names(p[s.P_ERROR]),
            "offset": _integers(offset, pa.int64()),
            "offset_kind": _dictionary(np.where(offset == s.NULL, s.NULL, kind_of[api]), kinds),
            "high_watermark": _integers(watermark, pa.int64()),
            "last_stable_offset": _integers(p[s.P_LAST_STABLE], pa.int64()),
            "log_start_offset": _integers(p[s.P_LOG_START], pa.int64()),
            "leader_epoch": _integers(p[s.P_EPOCH], pa.int32()),
            "record_bytes": _integers(p[s.P_RECORD_BYTES], pa.int64()),
            "batch_count": _integers(p[s.P_BATCHES], pa.int64()),
            "record_count": _integers(p[s.P_RECORDS], pa.int64()),
            "lag": _integers(lag, pa.int64()),
        }
        names = [column.name for column in tables.PARTITIONS]
        return pa.Table.from_arrays([arrays[name] for name in names], names=names)

    def _api(self, keys: np.ndarray) -> pa.Array:
        known = (keys >= 0) & (keys < len(self._api_names))
        return _dictionary(np.where(known, keys, s.NULL), self._api_names)

    def _error_names(self, codes: np.ndarray) -> pa.Array:
        bad = (codes != s.NULL) & (codes != 0)
        known = distinct(codes[bad])
        where = np.where(bad, np.searchsorted(known, codes), s.NULL)
        return _dictionary(where, [kafka_errors.name(code) for code in known.tolist()])

    def _topics(self, x: np.ndarray) -> pa.Array:
        """Lists of topics; empty where the messages name none, null where no message was decoded."""
        seen = (x[s.X_REQUEST_STATE] == 0) | (x[s.X_RESPONSE_STATE] == 0)
        used, local = _compact(x[s.X_TOPICS], len(self._lists))
        lists = [self._lists[i] for i in used.tolist()]
        numbers = np.array([i for entry in lists for i in entry], np.int64)
        where, index = _lists_of(local, x[s.X_TOPICS] != s.NULL, seen, lists, 1)
        return pa.ListArray.from_arrays(where, _strings(numbers[index], self._strings.values))

    def _errors(self, x: np.ndarray) -> pa.Array:
        """Lists of (code, name, count); empty on success, null where no response was decoded."""
        seen = x[s.X_RESPONSE_STATE] == 0
        used, local = _compact(x[s.X_ERRORS], len(self._lists))
        lists = [self._lists[i] for i in used.tolist()]
        flat = [pair for entry in lists for pair in zip(entry[::2], entry[1::2], strict=True)]
        values = pa.StructArray.from_arrays(
            [
                pa.array([code for code, _ in flat], pa.int16()),
                pa.array([kafka_errors.name(code) for code, _ in flat], pa.string()),
                pa.array([count for _, count in flat], pa.int32()),
            ],
            names=["code", "error", "count"],
        )
        where, index = _lists_of(local, x[s.X_ERRORS] != s.NULL, seen, lists, 2)
        # Seldom any: `take` loads PyArrow's functions, a tenth of a small capture's time.
        return pa.ListArray.from_arrays(where, values.take(pa.array(index)) if len(index) else values[:0])

    def _reasons(self, x: np.ndarray, backwards: np.ndarray) -> pa.Array:
        """Sentences for the few rows that have something to say."""
        odd = (
            ((x[s.X_REQUEST_REASON] != s.NULL) & (x[s.X_REQUEST_REASON] != s.R_NONE))
            | ((x[s.X_RESPONSE_REASON] != s.NULL) & (x[s.X_RESPONSE_REASON] != s.R_NONE))
            | backwards
        )
        found = Strings()
        numbers = np.full(x.shape[1], s.NULL, np.int64)
        for i in np.flatnonzero(odd).tolist():
            said = []
            for side, column in (("request", s.X_REQUEST_REASON), ("response", s.X_RESPONSE_REASON)):
                reason, a, b = x[column, i], x[column + 1, i], x[column + 2, i]
                if reason != s.NULL and reason != s.R_NONE:
                    said.append(f"{side}: {self._reason(int(reason), int(a), int(b))}")
            if backwards[i]:
                said.append("response: captured before the end of its request")
            numbers[i] = found.number("; ".join(said))
        return _strings(numbers, found.values)

    def _reason(self, reason: int, a: int, b: int) -> str:
        if reason == s.R_TRAILING:
            return f"{a} trailing bytes"
        if reason == s.R_MALFORMED:
            return f"malformed: {load().field_path(a // 16)} at byte {b}: {REASONS[a % 16]}"
        if reason == s.R_HEADER:
            return "malformed: header" + (f" at byte {b}" if b >= 0 else "")
        if reason == s.R_TRUNCATED:
            return f"{a} bytes missing inside"
        if reason == s.R_CUT:
            return f"the last {a} bytes never came"
        if reason == s.R_LIMIT:
            return f"limit: {a} bytes are more than may be kept"
        return {
            s.R_UNKNOWN_API: "unknown_api",
            s.R_UNSUPPORTED_VERSION: "unsupported_version",
            s.R_NO_REQUEST: "its request was not seen",
            s.R_TOO_MANY: "too many requests without an answer before it",
        }[reason]


MAX_UNRECOGNISED = 1000
"""Connections without Kafka that are listed one by one; more are counted together."""


def plain(table: pa.Table, name: str) -> pa.Table:
    """The table with the contract's plain types."""
    return table.cast(tables.schema(name))


FETCH = 1
TOPIC_ID_LENGTH = 22
"""Characters of a uuid as Kafka prints it."""


def _of_owners(windows: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """A column of the exchanges, once for each of their topic-partitions."""
    found = [values[parts[s.P_OWNER]] for values, parts in windows]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _without_repeats(facts: np.ndarray) -> np.ndarray:
    """Facts of one window, each once: what Metadata says of topics and brokers it says again and again. Offered API
    versions stay: `Columns` knows what a connection was offered in earlier windows too."""
    if len(facts) < 2:
        return facts
    said = facts[:, : s.FACT_TRIGGER].copy()
    said[:, s.FACT_SLOT] = 0
    _, first = np.unique(said, axis=0, return_index=True)
    fresh: np.ndarray = facts[:, s.FACT_KIND] == s.FACT_API_VERSION
    fresh[first] = True
    kept: np.ndarray = facts[fresh]
    return kept


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, in order. (`np.unique` of this form loads NumPy's masked arrays.)"""
    ordered = np.sort(values)
    found: np.ndarray = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    return found


def _merged(tables: list[np.ndarray], place: np.ndarray) -> np.ndarray:
    """The columns of some tables in one: row i of all of them in a row becomes row place[i]."""
    out = np.empty((len(tables[0]), len(place)), np.int64)
    begin = 0
    for table in tables:
        end = begin + table.shape[1]
        move_columns(table, place[begin:end], out)
        begin = end
    return out


def _through(numbers: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """numbers[symbols], NULL staying NULL."""
    if not len(numbers):
        return symbols
    absent = symbols == s.NULL
    mapped: np.ndarray = numbers[np.where(absent, 0, symbols)]
    mapped[absent] = s.NULL
    return mapped


def _compact(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct numbers in use, sorted; each row's place among them, 0 where it is NULL)."""
    at = np.where(numbers == s.NULL, count, numbers)
    place = np.zeros(count + 1, np.int32)
    place[at] = 1
    place[count] = 0
    used = np.flatnonzero(place)
    place[used] = np.arange(len(used))
    return used, place[at]


def _arrow(values: np.ndarray, kind: pa.DataType, absent: np.ndarray | None = None) -> pa.Array:
    """An Arrow array over the memory of `values`, which have the width of `kind` and do not change any more."""
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def _absent(values: np.ndarray) -> np.ndarray | None:
    """Where NULL stands; None where it nowhere does."""
    absent = values == s.NULL
    return absent if absent.any() else None


def _integers(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    return _arrow(values.astype(f"i{kind.bit_width // 8}", copy=False), kind, _absent(values))


def _dictionary(indices: np.ndarray, values: Any) -> pa.Array:
    """A column of strings: which of `values` each row has, NULL where none (in int64 only)."""
    where = _arrow(
        indices.astype(np.int32, copy=False), pa.int32(), _absent(indices) if indices.dtype == np.int64 else None
    )
    return pa.DictionaryArray.from_arrays(where, pa.array(list(values), pa.string()), safe=False)


def _strings(numbers: np.ndarray, values: list[str]) -> pa.Array:
    used, local = _compact(numbers, len(values))
    where = _arrow(local, pa.int32(), _absent(numbers))
    return pa.DictionaryArray.from_arrays(where, pa.array([values[i] for i in used.tolist()], pa.string()), safe=False)


def _of_ends(local: np.ndarray, values: list[str]) -> pa.Array:
    """The same where values repeat, as connections share addresses: writing repeated ones takes three times as long."""
    place = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return _dictionary(np.array([place[value] for value in values], np.int32)[local], place)


def _micros(nanos: np.ndarray) -> np.ndarray:
    return np.where(nanos == s.NULL, s.NULL, nanos // 1000)


def _times(micros: np.ndarray) -> pa.Array:
    return _integers(micros, tables.TIME)


def _times_1000(values: np.ndarray) -> np.ndarray:
    return np.where(values == s.NULL, s.NULL, values * 1000)


def _minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == s.NULL) | (b == s.NULL), s.NULL, a - b)


def _offsets(at: np.ndarray, file: np.ndarray, plain_file: np.ndarray) -> pa.Array:
    seen = at != s.NULL
    readable = seen & plain_file[np.where(seen, file, 0)]
    return _integers(np.where(readable, at, s.NULL), pa.int64())


def _lists_of(
    local: np.ndarray, has: np.ndarray, seen: np.ndarray, lists: list[tuple[int, ...]], width: int
) -> tuple[pa.Array, np.ndarray]:
    """Offsets of a column of lists, and which values of all `lists` in a row are its elements: row i is lists[local[i]]
    where `has`, empty where only `seen`, else null."""
    lengths = np.array([len(entry) // width for entry in lists] or [0], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    sizes = np.where(has, lengths[local], 0)
    offsets = np.zeros(len(local) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    total = int(offsets[-1])
    # Element j of the result is values[first of its row's list + how far j is into that row].
    index = np.arange(total) + np.repeat(np.where(has, starts[local], 0) - offsets[:-1], sizes)
    return _arrow(offsets.astype(np.int32), pa.int32(), np.append(~(has | seen), False)), index
