"""Connections that have ended: their rows, where their bytes went, and what those without Kafka may be.

In: windows. Out: rows of `connections`, the coverage, and the connections in which no Kafka was found, with a guess at
their protocol. Rule: every captured payload byte of a Kafka connection is in one class of the coverage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk.proxy_prefixes import named_ends
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.bulk.shard_result import AT_BROKER, SYMBOLS, TEXTS, Connections
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.captures.kernels import NULL

CLOSED = ("open", "fin", "rst")
CAPTURE_POINTS = ("unknown", "client", "broker", "between")

MAX_UNRECOGNISED = 1000
"""Connections without Kafka that are listed one by one; more are counted together."""

_AMOUNTS = (
    "payload_bytes",
    "duplicate_bytes",
    "decoded_bytes",
    "skipped_bytes",
    "incomplete_bytes",
    "gap_bytes",
    "snaplen_bytes",
)
_TIMES = {"first_time": "first_ns", "last_time": "last_ns"}
_TIMES_OF_SOME = ("unacknowledged_since_to_broker", "unacknowledged_since_to_client", "longest_silence_end")
_DURATIONS = ("rtt", "longest_silence", "closed_after")
"""Columns in nanoseconds that are null where there is none."""
_CLOSERS = (None, "client", "broker")
_LAST_SAID = (None, "request", "answer")


TLS = "TLS"
"""What a connection looks like that begins with a TLS record."""
ZOOKEEPER = "ZooKeeper"
"""What a connection looks like that begins as one to ZooKeeper does; `kwire.analyzer.bulk.zookeeper` reads it."""


def unrecognised_guess(first: tuple[int, int]) -> str:
    """Guess the protocol of a connection that is not Kafka by the first 8 bytes of each side (0: it sent none)."""
    sides = [value.to_bytes(8, "big", signed=True) for value in first]
    for data in sides:
        if data[0] in (20, 21, 22, 23) and data[1] == 3 and data[2] <= 4:
            return TLS
        if data.startswith((b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE", b"OPTION", b"PATCH ", b"HTTP/", b"PRI *")):
            return "HTTP"
        if data.startswith(b"SSH-"):
            return "SSH"
        if data[4:8] in (b"\x00\x03\x00\x00", b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):
            return "PostgreSQL"
        if data[:3] == b"\x00\x00\x00" and data[3] in (44, 45) and data[4:8] == b"\x00\x00\x00\x00":
            return ZOOKEEPER
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
    tls: dict[str, Any] | None = None


@dataclass(slots=True)
class EndedConnections:
    """Connections that have ended.

    unrecognised    the first of those without Kafka; unrecognised_connections and unrecognised_bytes: of all
    from_before, left_open   ends (`ip:port-ip:port`) of connections that began before the capture, and of those that
                    it left open
    decrypted       something was read that was encrypted
    ports           of brokers
    """

    coverage: Coverage = field(default_factory=Coverage)
    unrecognised: list[Unrecognised] = field(default_factory=list)
    unrecognised_connections: int = 0
    unrecognised_bytes: int = 0
    from_before: set[str] = field(default_factory=set)
    left_open: set[str] = field(default_factory=set)
    decrypted: bool = False
    ports: set[int] = field(default_factory=set)
    _ended: list[pa.Table] = field(default_factory=list)

    def take(self, window: Window, *_: object) -> None:
        ended, names = window.connections, window.names
        if not len(ended):
            return
        kafka = ended["is_kafka"]
        self._not_kafka(ended.take(np.flatnonzero(~kafka)), names)
        self._kafka(ended.take(np.flatnonzero(kafka)), names)

    @property
    def waiting(self) -> int:
        """Number of connections whose rows were not handed out yet."""
        return sum(map(len, self._ended))

    def tables(self, *_: object) -> Iterator[tuple[str, pa.Table]]:
        ended, self._ended = self._ended, []
        nothing = tables.empty("connections")
        yield "connections", pa.concat_tables([nothing, *ended]) if ended else nothing

    def join(self, other: EndedConnections) -> None:
        self.coverage.add(other.coverage)
        self.unrecognised += other.unrecognised[: max(0, MAX_UNRECOGNISED - len(self.unrecognised))]
        self.unrecognised_connections += other.unrecognised_connections
        self.unrecognised_bytes += other.unrecognised_bytes
        self.from_before |= other.from_before
        self.left_open |= other.left_open
        self.decrypted |= other.decrypted
        self.ports |= other.ports
        self._ended += other._ended

    def _not_kafka(self, ended: Connections, names: Names) -> None:
        """Connections in which no Kafka was found: counted, and the first ones listed."""
        captured = ended["payload_bytes"]
        spoke = np.flatnonzero(captured)
        self.unrecognised_connections += len(spoke)
        self.unrecognised_bytes += int(captured.sum())
        for i in spoke[: max(0, MAX_UNRECOGNISED - len(self.unrecognised))].tolist():
            guess = unrecognised_guess((int(ended["first_0"][i]), int(ended["first_1"][i])))
            tls = _tls_handshake(ended, i, names) if guess == TLS else None
            self.unrecognised.append(Unrecognised(names.connections[ended.number[i]], int(captured[i]), guess, tls))

    def _kafka(self, ended: Connections, names: Names) -> None:
        if not len(ended):
            return
        self.coverage.add(
            Coverage(
                **{name: int(ended[name].sum()) for name in _AMOUNTS},
                opaque={reason: int(ended[f"opaque_{reason}_bytes"].sum()) for reason in tables.OPAQUE_REASONS},
            )
        )
        connections = [names.connections[number] for number in ended.number.tolist()]
        self.decrypted |= bool(ended["decrypted"].any())
        self.ports.update(names.ends[number][3] for number in ended.number.tolist())
        opened, closed = ended["opened"], ended["closed"]
        self.from_before.update(connections[i].rpartition("#")[0] for i in np.flatnonzero(~opened).tolist())
        self.left_open.update(connections[i].rpartition("#")[0] for i in np.flatnonzero(closed == 0).tolist())
        self._ended.append(_rows(ended, connections, names))


def _tls_handshake(ended: Connections, row: int, names: Names) -> dict[str, Any]:
    """Return the TLS columns of `connections` that are not null, of a connection that was not decrypted."""
    columns: dict[str, Any] = {"first_time": rfc3339(int(ended["first_ns"][row]) // 1000)}
    for name in TEXTS:
        if ended[name][row] != NULL:
            columns[name] = names.strings[ended[name][row]]
    if ended["tls_not_after"][row] != NULL:
        columns["tls_not_after"] = rfc3339(int(ended["tls_not_after"][row]))
    return columns


def _rows(ended: Connections, connections: list[str], names: Names) -> pa.Table:
    """Rows of `connections`."""
    strings = names.strings
    ends = [names.ends[number] for number in ended.number.tolist()]
    columns = {
        "capture": pa.array([names.capture] * len(connections), pa.string()),
        "connection": pa.array(connections, pa.string()),
        "client_ip": pa.array([strings[end[0]] for end in ends], pa.string()),
        "client_port": pa.array([end[1] for end in ends], pa.int32()),
        "broker_ip": pa.array([strings[end[2]] for end in ends], pa.string()),
        "broker_port": pa.array([end[3] for end in ends], pa.int32()),
        **{f"{name}_us": arrow.integers(arrow.micros(ended[f"{name}_ns"]), pa.int64()) for name in _DURATIONS},
        **{name: arrow.times(arrow.micros(ended[name])) for name in _TIMES_OF_SOME},
        "closed_by": pa.array([_CLOSERS[side] for side in ended["closed_by"].tolist()], pa.string()),
        "closed_after": pa.array([_LAST_SAID[side] for side in ended["closed_after"].tolist()], pa.string()),
        "opened": arrow.flags(ended["opened"]),
        "closed": pa.array([CLOSED[i] for i in ended["closed"].tolist()], pa.string()),
        "tls": arrow.flags(ended["tls"]),
        "tls_not_after": arrow.times(ended["tls_not_after"]),
        "decrypted": arrow.flags(ended["decrypted"]),
    }
    for name, nanos in _TIMES.items():
        columns[name] = arrow.times(ended[nanos] // 1000)
    for name in (*SYMBOLS, *TEXTS):
        values = [None if number == NULL else strings[number] for number in ended[name].tolist()]
        columns[name] = pa.array(values, pa.string())
    prefixes = zip(ended["prefix_kind"].tolist(), columns.pop("prefix").to_pylist(), strict=True)
    proxied = [(None, None) if text is None else named_ends(kind, text) for kind, text in prefixes]
    # On one machine there is no way between the two.
    seen = zip(ends, ended["capture_point"].tolist(), strict=True)
    points = [AT_BROKER if end[0] == end[2] else at for end, at in seen]
    columns["capture_point"] = pa.array([CAPTURE_POINTS[point] for point in points], pa.string())
    columns["proxied_from"] = pa.array([source for source, _ in proxied], pa.string())
    columns["proxied_to"] = pa.array([target for _, target in proxied], pa.string())
    for column in tables.CONNECTIONS:
        if column.name not in columns:
            columns[column.name] = arrow.integers(ended[column.name], column.type)
    wanted = [column.name for column in tables.CONNECTIONS]
    return pa.Table.from_arrays([columns[name] for name in wanted], wanted)


def unrecognised_lines(capture: str, ended: EndedConnections) -> list[str]:
    """Describe the connections that are not Kafka, and what to try."""
    if not ended.unrecognised_connections:
        return []
    lines = []
    sealed = [connection for connection in ended.unrecognised if connection.looks_like == TLS]
    sealed_bytes = sum(connection.payload_bytes for connection in sealed)
    shut = [connection for connection in sealed if "tls_failure" not in (connection.tls or {})]
    failed = len(sealed) - len(shut)
    if shut:
        are = "connections are" if len(shut) != 1 else "connection is"
        shut_bytes = sum(connection.payload_bytes for connection in shut)
        lines.append(
            f"{capture}: {len(shut):,} {are} TLS ({shut_bytes:,} bytes): encrypted, so what is said stays "
            "shut; --keylog opens it with a key log of the clients or brokers, or capture where it is in the clear"
        )
    if failed:
        lines.append(f"{capture}: {failed:,} TLS handshake{'s' * (failed != 1)} failed; kwire findings says why")
    keepers = [
        connection for connection in ended.unrecognised if connection.looks_like == ZOOKEEPER
    ]  # known, if not as Kafka
    if ended.unrecognised_connections == len(sealed) + len(keepers):
        return lines
    looks: dict[str, int] = {}
    ports: dict[str, int] = {}
    for connection in ended.unrecognised:
        if connection.looks_like in (TLS, ZOOKEEPER):
            continue
        looks[connection.looks_like] = looks.get(connection.looks_like, 0) + 1
        port = connection.connection.rsplit("#", 1)[0].rsplit(":", 1)[-1]
        ports[port] = ports.get(port, 0) + connection.payload_bytes
    seen = ", ".join(f"{name} ({count})" for name, count in sorted(looks.items(), key=lambda item: -item[1]))
    insist = f"; --port {max(ports, key=lambda port: ports[port])} insists" if ports else ""
    count = ended.unrecognised_connections - len(sealed) - len(keepers)
    rest = ended.unrecognised_bytes - sealed_bytes - sum(connection.payload_bytes for connection in keepers)
    return [
        *lines,
        f"{capture}: {count} connections are not recognised as Kafka "
        f"({rest:,} bytes; look like: {seen or 'too many to tell'}){insist}",
    ]
