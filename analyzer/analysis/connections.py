"""Connections that have ended: their rows, where their bytes went, and what those without Kafka may be.

In: windows. Out: rows of `connections`, the coverage, and the connections in which no Kafka was found, with a guess at
their protocol. Rule: every captured payload byte of a Kafka connection is in one class of the coverage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk.proxy_prefixes import named_ends
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.bulk.shard_result import AT_BROKER, SYMBOLS, TEXTS, Connections
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.tables import ADDRESSES
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
        guess = next((name for name, begins in _BEGINNINGS.items() if data.startswith(begins)), None)
        guess = guess or next((name for name, fits in _SHAPES.items() if fits(data)), None)
        if guess:
            return guess
    return "nothing said" if first == (0, 0) else "unknown"


# fmt: off
_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
    "HTTP": (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ",
             b"HTTP/", b"PRI *"),
    "RTSP": (b"RTSP/", b"DESCRIBE"),
    "SIP": (b"SIP/2.0 ", b"INVITE s", b"REGISTER"),
    "SSH": (b"SSH-",),
    "Redis": (b"+OK\r\n", b"-ERR", b"+PONG", b"-NOAUTH", b"-DENIED", b"PING\r\n", b"INFO\r\n"),
    "AMQP": (b"AMQP",),
    "SMTP": (b"EHLO ", b"HELO ", b"EHLO\r", b"HELO\r", b"MAIL FRO"),
    "FTP": (b"USER ", b"AUTH TLS", b"220 FTP", b"220 (vsF", b"220 ProF"),
    "SMTP or FTP": (b"220 ", b"220-"),
    "POP3": (b"+OK ", b"CAPA\r\n"),
    "IMAP": (b"* OK ",),
    "memcached": (b"stats\r\n", b"version\r", b"VERSION "),
    "NATS": (b"INFO {",),
    "STOMP": (b"CONNECT\n", b"STOMP\n", b"CONNECTE"),
    "JDWP": (b"JDWP-Han",),
    "Java RMI": (b"JRMI",),
    "VNC": (b"RFB 00",),
    "SOCKS": (b"\x05\x01\x00", b"\x05\x02\x00", b"\x04\x01"),
    "ZooKeeper's four-letter words": (b"ruok", b"imok", b"stat", b"srvr", b"mntr", b"conf", b"cons", b"envi", b"isro",
                                      b"wchs", b"dump"),
}
# fmt: on
"""By protocol, what one of its sides says first."""


def _is_tls(data: bytes) -> bool:
    return data[0] in (20, 21, 22, 23) and data[1] == 3 and data[2] <= 4


def _is_ldap(data: bytes) -> bool:
    """A bind request or response: a sequence, a message id, and the operation (RFC 4511)."""
    return data[0] == 0x30 and data[2:4] == b"\x02\x01" and data[5] in (0x60, 0x61)


_SHAPES: dict[str, Callable[[bytes], bool]] = {
    TLS: _is_tls,
    "RDP": lambda data: data[:2] == b"\x03\x00" and data[5] in (0xE0, 0xD0),  # TPKT and X.224 (RFC 1006)
    "SMB": lambda data: data[0] == 0 and data[4:8] in (b"\xffSMB", b"\xfeSMB"),
    "PostgreSQL": lambda data: (
        data[4:8] in (b"\x00\x03\x00\x00", b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30")
        or data == b"R\x00\x00\x00\x08\x00\x00\x00"
    ),
    "MySQL": lambda data: data[2:5] == b"\x00\x00\x0a" and data[5:7].replace(b".", b"0").isdigit(),
    "OpenWire": lambda data: data[4:8] == b"\x01Act",
    ZOOKEEPER: lambda data: data[:3] == b"\x00\x00\x00" and data[3] in (44, 45) and data[4:8] == b"\x00" * 4,
    "Redis": lambda data: data[:1] == b"*" and data[1:2].isdigit() and b"\r\n" in data[2:5],
    "MQTT": lambda data: (
        (data[0] == 0x10 and (b"\x00\x04MQ" in data or b"\x00\x06MQ" in data)) or data == b"\x20\x02" + bytes(6)
    ),
    "LDAP": _is_ldap,
    "Telnet": lambda data: data[0] == 0xFF and 0xFB <= data[1] <= 0xFE,
    "syslog": lambda data: data[:1] == b"<" and data[1:2].isdigit() and b">" in data[2:5],
    # Not DNS: four bytes of length, as other protocols have.
    "unknown": lambda data: data[2:4] == b"\x00\x00" and data[0] == 0 and data[4] & 0x78 == 0 and data[4:8] != bytes(4),
    "DNS": lambda data: int.from_bytes(data[:2], "big") >= 12 and data[4] & 0x78 == 0 and data[6:8] == b"\x00\x01",
}
"""By protocol, whether 8 bytes may be the first ones of one of its sides."""


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
    """A connection in which no Kafka was found, or whose answers are none of Kafka. `unanswered`: it was captured from
    its beginning to its end, no byte is missing, the side that was asked sent none, and what it was asked does not
    begin as a request of Kafka."""

    connection: str
    payload_bytes: int
    looks_like: str
    tls: dict[str, Any] | None = None
    unanswered: bool = False


@dataclass(slots=True)
class EndedConnections:
    """Connections that have ended.

    unrecognised    the first of those without Kafka; unrecognised_connections and unrecognised_bytes: of all
    otherwise       the first of those whose requests are Kafka's, and whose answers are of another protocol
    from_before, left_open   ends (`ip:port-ip:port`) of connections that began before the capture, and of those that
                    it left open
    decrypted       something was read that was encrypted
    ports           of brokers
    """

    coverage: Coverage = field(default_factory=Coverage)
    unrecognised: list[Unrecognised] = field(default_factory=list)
    unrecognised_connections: int = 0
    unrecognised_bytes: int = 0
    otherwise: list[Unrecognised] = field(default_factory=list)
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
        self.otherwise += other.otherwise[: max(0, MAX_UNRECOGNISED - len(self.otherwise))]
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
            first = int(ended["first_1" if ended["client_side"][i] == 1 else "first_0"][i])
            unanswered = not ended["broker_bytes"][i] and ended["closed"][i] != 0 and _is_whole(ended, i)
            unanswered = bool(unanswered and not _may_be_request(first))
            link = names.connections[ended.number[i]]
            self.unrecognised.append(Unrecognised(link, int(captured[i]), guess, tls, unanswered))

    def _answered_otherwise(self, ended: Connections, connections: list[str]) -> None:
        """Connections with requests of Kafka whose answers begin as another protocol's do."""
        plain = (ended["prefix_kind"] == 0) & (ended["client_side"] >= 0) & ~ended["tls"]
        silent = (ended["broker_frames"] == 0) & (ended["broker_bytes"] > 0) & (ended["requests"] > 0) & plain
        for i in np.flatnonzero(silent)[: max(0, MAX_UNRECOGNISED - len(self.otherwise))].tolist():
            first = int(ended["first_0" if ended["client_side"][i] == 1 else "first_1"][i])
            guess = unrecognised_guess((first, 0))
            begins = bool(ended["opened"][i]) and guess != "unknown"  # what is cut off later does not matter
            if first and (begins or _is_whole(ended, i)):
                self.otherwise.append(Unrecognised(connections[i], int(ended["broker_bytes"][i]), guess))

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
        self._answered_otherwise(ended, connections)
        self.decrypted |= bool(ended["decrypted"].any())
        self.ports.update(names.ends[number][3] for number in ended.number.tolist())
        opened, closed = ended["opened"], ended["closed"]
        self.from_before.update(connections[i].rpartition("#")[0] for i in np.flatnonzero(~opened).tolist())
        self.left_open.update(connections[i].rpartition("#")[0] for i in np.flatnonzero(closed == 0).tolist())
        self._ended.append(_rows(ended, connections, names))


_MOST_REQUEST_BYTES = 100 << 20
_MOST_API, _MOST_VERSION = 127, 31


def _may_be_request(first: int) -> bool:
    """Whether 8 bytes may be the first ones of a request: its length, API and version."""
    length, api, version = struct.unpack(">ihh", first.to_bytes(8, "big", signed=True))
    return bool(8 <= length <= _MOST_REQUEST_BYTES and 0 <= api <= _MOST_API and 0 <= version <= _MOST_VERSION)


def _is_whole(ended: Connections, row: int) -> bool:
    """Whether a connection's beginning was captured and no byte is missing."""
    return bool(ended["opened"][row]) and not (ended["gaps"][row] or ended["snaplen_bytes"][row])


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
    others = [None if number == NULL else strings[number].split() for number in ended["other_addresses"].tolist()]
    columns["other_addresses"] = pa.array(others, ADDRESSES)
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
