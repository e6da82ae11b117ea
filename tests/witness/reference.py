"""A slow and plain reading of a capture: the twin that the engine is compared with.

In: a capture's files and the brokers' ports. Out: one `Exchange` a request, bodies decoded as Kafka's own JSON.
It shares nothing with the engine except Kafka's definition files: dpkt takes packets apart, a stream is a byte array
with holes, and a message is read by walking the JSON definitions, one dict at a time. It is right before it is fast,
and knows no hostile input. Connections are told apart by SYN; requests and responses are paired in order.
"""

from __future__ import annotations

import base64
import functools
import gzip
import ipaddress
import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

import dpkt

from tests.shared import ROOT

End = tuple[str, int]


@dataclass
class Exchange:
    """A request (or, with `exchange` None, a response that answers none), with times in ns of first and last byte."""

    connection: str
    client: End
    broker: End
    exchange: int | None = None
    """Ordinal of the request frame in its direction of the connection; `reply`: of the response frame in the other."""
    reply: int | None = None
    api_key: int | None = None
    api_version: int | None = None
    correlation_id: int | None = None
    client_id: str | None = None
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    request_time: int | None = None
    request_end: int | None = None
    response_time: int | None = None
    response_end: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    status: str = "unanswered"
    trailing: int = 0
    """Bytes of the frames after the messages' ends."""
    problem: str = ""
    """Why a body is None, where it is not simply absent."""


class Unreadable(Exception):
    """The bytes of a message do not follow its definition, or are not all there."""


# ---------------------------------------------------------------------------------------------- packets and streams


@dataclass
class Packet:
    time: int
    source: End
    target: End
    sequence: int
    syn: bool
    ends: bool
    """FIN or RST."""
    data: bytes
    """The captured payload."""
    length: int
    """The payload's length on the wire."""


def packets(path: Path) -> Iterator[Packet]:
    """The TCP packets of one capture file, gzip or not, in file order."""
    with cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as file:
        reader = dpkt.pcap.UniversalReader(file)
        link = {1: dpkt.ethernet.Ethernet, 113: dpkt.sll.SLL, 276: dpkt.sll2.SLL2}[reader.datalink()]
        for time, frame in reader:
            ip = link(frame).data
            tcp = getattr(ip, "data", None)
            if not isinstance(tcp, dpkt.tcp.TCP):
                continue
            whole = ip.len - 4 * ip.hl if isinstance(ip, dpkt.ip.IP) else ip.plen
            yield Packet(
                # dpkt's times are Decimal for nanosecond files and float otherwise: good to a microsecond.
                time=int(Decimal(time) * 10**9) if isinstance(time, Decimal) else round(time * 1e6) * 1000,
                source=(_address(ip.src), tcp.sport),
                target=(_address(ip.dst), tcp.dport),
                sequence=tcp.seq,
                syn=bool(tcp.flags & dpkt.tcp.TH_SYN),
                ends=bool(tcp.flags & (dpkt.tcp.TH_FIN | dpkt.tcp.TH_RST)),
                data=bytes(tcp.data),
                length=whole - 4 * tcp.off,
            )


@functools.cache
def _address(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


@dataclass
class Stream:
    """One direction of one connection: bytes from `start`, with holes."""

    segments: list[tuple[int, bytes, int, int]] = field(default_factory=list)
    """(offset from the first sequence number seen, captured bytes, wire length, time) as they came."""
    origin: int | None = None
    opened: bool = False
    closed: bool = False

    def add(self, packet: Packet) -> None:
        if self.origin is None:
            self.origin = packet.sequence + (1 if packet.syn else 0)
            self.opened = packet.syn
        self.closed = self.closed or packet.ends
        # Sequence numbers wrap: distances are taken modulo 2^32, as signed numbers around the stream's origin.
        offset = ((packet.sequence + packet.syn - self.origin + 2**31) % 2**32) - 2**31
        if packet.length:
            self.segments.append((offset, packet.data, packet.length, packet.time))

    def laid_out(self) -> Laid:
        """All bytes at their places, the first copy of each."""
        lowest = min((offset for offset, *_ in self.segments), default=0)
        # A keep-alive repeats the byte before the first: it is no data of an opened stream.
        lowest = max(lowest, 0) if self.opened else lowest
        size = max((offset + length for offset, _, length, _ in self.segments), default=0) - lowest
        data, there, times = bytearray(size), bytearray(size), [0] * size
        for offset, captured, _, time in self.segments:
            for position, byte in enumerate(captured, offset - lowest):
                if position >= 0 and not there[position]:
                    data[position], there[position], times[position] = byte, 1, time
        starts = sorted({offset - lowest for offset, *_ in self.segments if offset >= lowest})
        return Laid(bytes(data), bytes(there), times, starts, self.opened, self.closed)


@dataclass
class Laid:
    data: bytes
    there: bytes
    times: list[int]
    starts: list[int]
    """Where segments begin: places to resynchronise."""
    opened: bool
    closed: bool

    def whole(self, begin: int, end: int) -> bool:
        return end <= len(self.data) and 0 not in self.there[begin:end]


def connections(paths: Iterable[Path], ports: set[int]) -> Iterator[tuple[str, End, End, Laid, Laid]]:
    """Each connection with a broker on one of `ports`: name, client, broker, bytes to and from the broker."""
    open_: dict[tuple[End, End], tuple[str, Stream, Stream]] = {}
    every: list[tuple[str, End, End, Stream, Stream]] = []
    count: dict[tuple[End, End], int] = {}
    for path in paths:
        for packet in packets(path):
            to_broker = packet.target[1] in ports
            pair = (packet.source, packet.target) if to_broker else (packet.target, packet.source)
            if pair[1][1] not in ports:
                continue
            known = open_.get(pair)
            if known is not None and packet.syn and to_broker:
                stream = known[1]
                if stream.origin is not None and stream.origin != (packet.sequence + 1) % 2**32:
                    known = None  # the same four ports, another connection
            if known is None:
                count[pair] = count.get(pair, 0) + 1
                name = f"{_end(pair[0])}-{_end(pair[1])}#{count[pair]}"
                known = (name, Stream(), Stream())
                open_[pair] = known
                every.append((name, *pair, known[1], known[2]))
            (known[1] if to_broker else known[2]).add(packet)
    for name, client, broker, requests, responses in every:
        yield name, client, broker, requests.laid_out(), responses.laid_out()


def _end(end: End) -> str:
    return f"[{end[0]}]:{end[1]}" if ":" in end[0] else f"{end[0]}:{end[1]}"


# ------------------------------------------------------------------------------------------------------ definitions


@functools.cache
def definitions() -> dict[tuple[str, int, int], dict[str, Any]]:
    """(`request` or `response`, API key, version) to its definition: the newer release's where both have it."""
    results: dict[tuple[str, int, int], dict[str, Any]] = {}
    for release in sorted((ROOT / "analyzer" / "definitions").glob("kafka-*.json")):
        for message in json.loads(release.read_text()):
            if message["type"] in ("request", "response") and message["validVersions"] != "none":
                low, high = bounds(message["validVersions"])
                for version in range(low, high + 1):
                    results[message["type"], message["apiKey"], version] = message
    if not results:
        raise FileNotFoundError("no Kafka definitions in analyzer/definitions: run tools/refresh_definitions.py")
    return results


@functools.cache
def bounds(versions: str) -> tuple[int, int]:
    """`0-3`, `2+`, `4` or `none` as lowest and highest version."""
    if versions == "none":
        return 1, 0
    low, _, high = versions.partition("-")
    return int(low.rstrip("+")), 2**15 if low.endswith("+") else int(high or low)


def within(version: int, versions: str | None) -> bool:
    low, high = bounds(versions or "none")
    return low <= version <= high


NUMBERS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
}


class Walk:
    """Reads one message: a position in bytes, and the version's rules."""

    def __init__(self, data: bytes, position: int, message: dict[str, Any], version: int) -> None:
        self.data, self.position, self.version = data, position, version
        self.flexible = within(version, message.get("flexibleVersions"))
        self.structs = {shared["name"]: shared["fields"] for shared in message.get("commonStructs", [])}

    def take(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self.data):
            raise Unreadable(f"{count} bytes wanted at {self.position} of {len(self.data)}")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, kind: str) -> Any:
        code = ">" + NUMBERS[kind]
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def length(self, kind: str, flexible: bool) -> int:
        """The length before a string, bytes or array; -1 for null."""
        return self.varint() - 1 if flexible else int(self.number("int16" if kind == "string" else "int32"))

    def fields(self, definition: list[dict[str, Any]], flexible: bool) -> dict[str, Any]:
        """One struct: its fields in order, then, where flexible, its tagged fields that are not at their default."""
        out: dict[str, Any] = {}
        tagged = {}
        for entry in definition:
            if within(self.version, entry.get("taggedVersions")) and "tag" in entry:
                tagged[entry["tag"]] = entry
            elif within(self.version, entry["versions"]):
                self.into(out, entry, flexible)
        if flexible:
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                end = self.position + size
                if tag in tagged:
                    present: dict[str, Any] = {}
                    self.into(present, tagged[tag], flexible)
                    if list(present.values()) != [self.default(tagged[tag])]:
                        out |= present
                    if self.position != end:
                        raise Unreadable(f"tagged field {tag} ends at {self.position}, not {end}")
                else:
                    self.take(size)
        return out

    def into(self, out: dict[str, Any], field: dict[str, Any], flexible: bool) -> None:
        name = field["name"][0].lower() + field["name"][1:]
        kind = field["type"]
        if "flexibleVersions" in field:
            flexible = flexible and within(self.version, field["flexibleVersions"])
        value = self.value(kind, field, flexible)
        if kind == "records" and value is not None:
            out[name + "SizeInBytes"] = len(value)
        else:
            out[name] = value

    def value(self, kind: str, field: dict[str, Any], flexible: bool) -> Any:
        if kind in NUMBERS:
            return self.number(kind)
        if kind == "uuid":
            return base64.urlsafe_b64encode(self.take(16)).decode().rstrip("=")
        if kind in ("string", "bytes", "records"):
            size = self.length(kind, flexible)
            if size < 0:
                return None
            raw = self.take(size)
            if kind == "records":
                return raw
            return raw.decode() if kind == "string" else base64.b64encode(raw).decode()
        if kind.startswith("[]"):
            count = self.length(kind, flexible)
            if count < 0:
                return None
            if count > len(self.data):
                raise Unreadable(f"{count} elements in {len(self.data)} bytes")
            return [self.value(kind[2:], field, flexible) for _ in range(count)]
        if not field["type"].startswith("[]") and within(self.version, field.get("nullableVersions")):
            if self.number("int8") < 0:  # KIP-893: a nullable struct has a sign byte before it
                return None
        return self.fields(field.get("fields") or self.structs[kind], flexible)

    def default(self, field: dict[str, Any]) -> Any:
        """The value a tagged field has when it is left out, as JSON."""
        kind, given = field["type"], field.get("default")
        if given == "null":
            return None
        if kind in ("string", "bytes"):
            return given or ""
        if kind == "uuid":
            return "A" * 22
        if kind.startswith("[]"):
            return []
        if kind == "bool":
            return given in (True, "true")
        if kind in NUMBERS:
            return float(given or 0) if kind == "float64" else int(str(given or 0), 0)
        present = {}
        for part in field.get("fields") or self.structs[kind]:
            if within(self.version, part["versions"]) and "tag" not in part:
                present[part["name"][0].lower() + part["name"][1:]] = self.default(part)
        return present


def body(side: str, api_key: int, version: int, data: bytes, position: int) -> tuple[dict[str, Any], int]:
    """The decoded body at `position` of a frame, and how many bytes follow it."""
    walk = Walk(data, position, definitions()[side, api_key, version], version)
    decoded = walk.fields(definitions()[side, api_key, version]["fields"], walk.flexible)
    return decoded, len(data) - walk.position


# ---------------------------------------------------------------------------------------- frames, headers, exchanges


def frames(laid: Laid, known: set[int] | None) -> Iterator[tuple[int, int]]:
    """Begin and end of each length-prefixed unit whose head was captured. A direction that was not opened in the
    capture, or lost a head, goes on at the next segment that looks like a message: a response's correlation id must
    be one of `known`; requests have `known` None."""
    position, sure = 0, laid.opened
    while position + 4 <= len(laid.data):
        if laid.whole(position, position + 4) and (sure or looks_like_one(laid, position, known)):
            size = struct.unpack_from(">i", laid.data, position)[0]
            if 4 <= size <= 2**28:
                yield position, position + 4 + size
                position, sure = position + 4 + size, True
                continue
        position = next((start for start in laid.starts if start > position), len(laid.data))
        sure = False


def looks_like_one(laid: Laid, position: int, known: set[int] | None) -> bool:
    if not laid.whole(position, position + 14 if known is None else position + 8):
        return False
    size, first, second = struct.unpack_from(">ihh", laid.data, position)
    if not 4 <= size <= 2**28:
        return False
    if known is None:
        return ("request", first, second) in definitions()
    return struct.unpack_from(">i", laid.data, position + 4)[0] in known


def read_request(exchange: Exchange, laid: Laid, begin: int, end: int) -> None:
    """Header and body of the request frame at begin..end. What was not captured stays None."""
    exchange.request_bytes = end - begin
    exchange.request_time = laid.times[begin]
    if not laid.whole(begin, begin + 12):
        exchange.problem = "header not captured"
        return
    key, version, correlation_id = struct.unpack_from(">hhi", laid.data, begin + 4)
    exchange.api_key, exchange.api_version, exchange.correlation_id = key, version, correlation_id
    if end <= len(laid.data) and laid.there[end - 1]:
        exchange.request_end = max(laid.times[begin:end])  # a hole may have been filled late
    at = 12
    if (key, version) != (7, 0):  # ControlledShutdown v0 has a header without client id
        if not laid.whole(begin, begin + 14):
            exchange.problem = "client id not captured"
            return
        (size,) = struct.unpack_from(">h", laid.data, begin + 12)
        at = 14 + max(size, 0)
        if not laid.whole(begin, begin + at):
            exchange.problem = "client id not captured"
            return
        exchange.client_id = laid.data[begin + 14 : begin + at].decode() if size >= 0 else None
    if ("request", key, version) not in definitions():
        exchange.problem = "unsupported"
    elif not laid.whole(begin, end):
        exchange.problem = "bytes missing"
    else:
        walk = Walk(laid.data[begin:end], at, definitions()["request", key, version], version)
        if walk.flexible:
            walk.fields([], True)
        try:
            exchange.request, exchange.trailing = body("request", key, version, walk.data, walk.position)
        except (Unreadable, UnicodeDecodeError) as error:
            exchange.problem = f"request: {error}"


def read_response(exchange: Exchange, laid: Laid, begin: int, end: int) -> None:
    """The response frame at begin..end into the exchange of its request."""
    exchange.response_bytes, exchange.response_time = end - begin, laid.times[begin]
    exchange.status = "answered"
    if end <= len(laid.data) and laid.there[end - 1]:
        exchange.response_end = max(laid.times[begin:end])
    key, version = cast(int, exchange.api_key), cast(int, exchange.api_version)
    if not laid.whole(begin, end):
        exchange.problem = exchange.problem or "bytes missing"
        return
    data, at = laid.data[begin:end], 8
    if key == 18 and data[8:10] == b"\0\x23":
        version = 0  # KIP-511: error 35 is answered as v0, whatever was asked
    if ("response", key, version) not in definitions():
        return
    definition = definitions()["response", key, version]
    walk = Walk(data, at, definition, version)
    if walk.flexible and key != 18:  # KIP-511: ApiVersions responses keep the old header
        walk.fields([], True)
    try:
        exchange.response, trailing = body("response", key, version, data, walk.position)
        exchange.trailing += trailing
    except (Unreadable, UnicodeDecodeError) as error:
        exchange.problem = exchange.problem or f"response: {error}"


def exchanges(paths: Iterable[Path], ports: set[int]) -> Iterator[Exchange]:
    """Every exchange of a capture, connection by connection."""
    for name, client, broker, to_broker, from_broker in connections(paths, ports):
        waiting: deque[Exchange] = deque()
        for ordinal, (begin, end) in enumerate(frames(to_broker, None)):
            exchange = Exchange(name, client, broker, exchange=ordinal)
            read_request(exchange, to_broker, begin, end)
            if exchange.api_key == 0 and exchange.request is not None and exchange.request["acks"] == 0:
                exchange.status = "no_response_expected"
                yield exchange
            else:
                waiting.append(exchange)
        known = {request.correlation_id for request in waiting if request.correlation_id is not None}
        for ordinal, (begin, end) in enumerate(frames(from_broker, known)):
            index = answered_by(waiting, from_broker, begin)
            if index is None:
                orphan = Exchange(name, client, broker, reply=ordinal, status="orphan_response")
                orphan.response_bytes, orphan.response_time = end - begin, from_broker.times[begin]
                yield orphan
                continue
            # The broker answers in order: what stands before the answered one will never be answered.
            for _ in range(index):
                yield waiting.popleft()
            answered = waiting.popleft()
            answered.reply = ordinal
            read_response(answered, from_broker, begin, end)
            yield answered
        for left in waiting:
            left.status = "unanswered" if to_broker.closed or from_broker.closed else "in_flight"
            yield left


def answered_by(waiting: Iterable[Exchange], laid: Laid, begin: int) -> int | None:
    """Which waiting request the response frame at `begin` answers: the first with its correlation id, asked before."""
    if not laid.whole(begin + 4, begin + 8):
        return None
    (correlation_id,) = struct.unpack_from(">i", laid.data, begin + 4)
    for index, request in enumerate(waiting):
        if request.correlation_id == correlation_id and (request.request_time or 0) <= laid.times[begin]:
            return index
    return None
