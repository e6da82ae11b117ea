"""Thousands of broken requests and answers in one capture, each on a connection of its own: a mutant costs about a
millisecond, where a capture of its own costs a third of a second.

In: a number, a seed. Out: an `Outcome`, or `Broken`; `smallest` finds the connections of a case that fail by
themselves, mostly one. Requests and answers are those of the samples, of every API and version there, and bodies with
random values of every API and version that Kafka defines. Broken are: bytes of frames, values of bodies, record batches
(with right checksums afterwards), and now and then the packets. Sound exchanges stand before and behind some of them.

Held are the invariants of `checking`: no exception, coverage that adds up for each connection, rows that make sense,
the same tables with other threads and windows, and a bound of processor time.
"""

from __future__ import annotations

import base64
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire import analyzer
from kwire.analyzer.protocol import schema, tree
from kwire.analyzer.protocol.encoding import EncodeError, encode_request, encode_response
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from kwire.captures.crc32c_sums import crc32c
from tests.captures import forge
from tests.captures.forge import TO_BROKER, TO_CLIENT, Segment, Write
from tests.fuzz import corpus, mutations, rogue
from tests.fuzz.checking import (
    Outcome,
    check_bodies,
    check_coverage,
    check_rows,
    check_same,
    must,
)
from tests.shared import capture_files, sample_folders

TOGETHER: Final = 2000
"""Connections of a case."""
OF_EACH: Final = 12
"""Different exchanges of an API's version that are taken from the samples."""
MOST_BYTES: Final = 1500
"""Of a message that is taken from the samples."""
SECONDS: Final = 4.0
"""Processor time that reading a case may take: usual is an eighth of it."""
MOST_NEW_BYTES: Final = 6000
"""That an edit puts in."""
MINIMISING_SECONDS: Final = 60.0
"""How long the connections of a case that fails are made fewer."""
_BATCH: Final = 61
"""Bytes of a record batch's header (KIP-98)."""


class Pair(NamedTuple):
    """A request and its answer, with their lengths in front."""

    api_key: int
    version: int
    request: bytes
    response: bytes

    def with_side(self, side: str, data: bytes) -> Pair:
        """The exchange with another `request` or `response`."""
        return self._replace(request=data) if side == "request" else self._replace(response=data)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The packets of one connection, and what was done to them."""

    what: str
    segments: list[Segment]


# ------------------------------------------------------------------------------------------------- sound exchanges


@cache
def captured() -> tuple[Pair, ...]:
    """A few exchanges of each API and version of the samples."""
    pairs: dict[tuple[int, int], dict[bytes, Pair]] = {}
    for folder in sample_folders():
        for exchange in analyzer.exchanges([str(path) for path in capture_files(folder)], rotated=True):
            request, response = exchange.request_message, exchange.response_message
            if request is None or response is None or exchange.row["response_state"] != "decoded":
                continue
            key = exchange.row["api_key"], exchange.row["api_version"]
            of_key = pairs.setdefault(key, {})
            if len(of_key) < OF_EACH and max(len(request.data), len(response.data)) <= MOST_BYTES:
                of_key.setdefault(request.data[12:], Pair(*key, request.data, response.data))
    return tuple(pair for key in sorted(pairs) for pair in pairs[key].values())


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED: Final = {"uint16": 16, "uint32": 32}


def _scalar(rng: random.Random, kind: str, records: Sequence[bytes]) -> Any:
    if kind in _BITS:
        high = 1 << (_BITS[kind] - 1)
        few = rng.choice((0, 0, 1, 2, 5, -1, high - 1, -high))
        return few if rng.random() < 0.8 else rng.randrange(-high, high)
    if kind in _UNSIGNED:
        return rng.choice((0, 1, (1 << _UNSIGNED[kind]) - 1))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, 0.5, -1e300, 1e-300))
    if kind == "uuid":
        return base64.urlsafe_b64encode(bytes(16) if rng.random() < 0.3 else rng.randbytes(16))[:22].decode()
    if kind == "string":
        return rng.choice((*rogue.NAMES, "orders", "group", "é", "consumer", "range"))
    if kind == "records" and records and rng.random() < 0.8:
        return rng.choice(records)
    return rng.randbytes(rng.choice((0, 1, 4, 12, 70)))


def body(
    rng: random.Random, fields: Sequence[schema.Field], flexible: bool, records: Sequence[bytes]
) -> dict[str, Any]:
    """A body with random values; absent are some of its tagged fields. `records`: batches for fields of such."""
    values: dict[str, Any] = {}
    for item in fields:
        if item.tag is not None and rng.random() < 0.5:
            continue
        if item.nullable and rng.random() < 0.1:
            values[item.name] = None
        elif item.kind == "struct":
            values[item.name] = body(rng, item.fields, flexible, records)
        elif item.kind == "array":
            count = rng.choice((0, 1, 1, 1, 2, 3))
            values[item.name] = [
                body(rng, item.fields, flexible, records)
                if item.element == "struct"
                else _scalar(rng, item.element or "", records)
                for _ in range(count)
            ]
        else:
            values[item.name] = _scalar(rng, item.kind, records)
    if flexible and rng.random() < 0.05:
        values[tree.UNKNOWN_TAGS] = {rng.choice((50, 1 << 20, 0xFFFFFFFF)): rng.randbytes(3)}
    return values


@cache
def _versions() -> tuple[tuple[int, int], ...]:
    """Every API and version whose request and response Kafka defines."""
    listed = [(key, version) for key, version, direction, _ in schema.layouts() if direction == REQUEST]
    return tuple(pair for pair in listed if schema.layout(*pair, RESPONSE) is not None)


@cache
def _batches() -> tuple[bytes, ...]:
    """Record batches of the samples, each alone."""
    listed: dict[bytes, None] = {}
    for pair in captured():
        for data in (pair.request, pair.response):
            for start, stop in batches_of(data):
                listed[data[start:stop]] = None
    return tuple(listed)


def batches_of(data: bytes) -> list[tuple[int, int]]:
    """Where record batches of magic 2 lie: what has its own length and a right checksum."""
    spans, at = [], 0
    while at + _BATCH <= len(data):
        (size,) = struct.unpack_from(">i", data, at + 8)
        stop = at + 12 + size
        if data[at + 16] == 2 and 12 + size >= _BATCH and stop <= len(data):
            (sum_there,) = struct.unpack_from(">I", data, at + 17)
            if crc32c(data[at + 21 : stop]) == sum_there:
                spans.append((at, stop))
                at = stop
                continue
        at += 1
    return spans


def synthetic(rng: random.Random) -> Pair:
    """An exchange of any API and version with random values."""
    key, version = rng.choice(_versions())
    frames = []
    for direction in (REQUEST, RESPONSE):
        layout = schema.layout(key, version, direction)
        assert layout is not None
        values = body(rng, layout.fields, layout.flexible, _batches())
        try:
            if direction == REQUEST:
                frames.append(encode_request(key, version, 7, "made", values))
            else:
                frames.append(encode_response(key, version, 7, values))
        except EncodeError:  # a name longer than its version allows, say
            number = struct.pack(">i", 7)
            frames.append(struct.pack(">hh", key, version) + number if direction == REQUEST else number)
    return Pair(key, version, _framed(frames[0]), _framed(frames[1]))


# ------------------------------------------------------------------------------------------------------ broken ones


def _numbered(pair: Pair, number: int) -> Pair:
    """The exchange with another correlation id."""
    text = struct.pack(">i", number)
    return pair._replace(
        request=pair.request[:8] + text + pair.request[12:], response=pair.response[:4] + text + pair.response[8:]
    )


def _bytes_broken(rng: random.Random, pair: Pair) -> Pair:
    """Edits of what one or both sides sent."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        side = rng.choice(("request", "response"))
        data = getattr(pair, side)
        if data:
            start, stop, new = rng.choice(mutations.EDITS)(rng, data, 0, len(data))
            pair = pair.with_side(side, data[:start] + new[:MOST_NEW_BYTES] + data[stop:])
    return pair


def _values_broken(rng: random.Random, pair: Pair) -> Pair:
    """Values that no client or broker gives, encoded as they should be."""
    key, version = pair.api_key, pair.version
    number = int.from_bytes(pair.request[8:12], "big", signed=True)
    for side in ("request", "response"):
        frame = getattr(pair, side)[4:]
        is_request = side == "request"
        decoded = tree.decode_request(frame) if is_request else tree.decode_response(frame, key, version)
        if decoded.body is None or rng.random() < 0.3:
            continue
        values = rogue.bent(rng, decoded.body)
        try:
            encoded = (
                encode_request(key, version, number, "bent", values)
                if is_request
                else encode_response(key, version, number, values)
            )
        except (EncodeError, KeyError, TypeError, ValueError):
            continue
        pair = pair.with_side(side, _framed(encoded))
    return pair


def _batch_broken(rng: random.Random, pair: Pair) -> Pair:
    """An edit of a record batch, with a right checksum afterwards; without batches, of bytes."""
    sides = [(side, span) for side in ("request", "response") for span in batches_of(getattr(pair, side))]
    if not sides:
        return _bytes_broken(rng, pair)
    side, (start, stop) = rng.choice(sides)
    data = getattr(pair, side)
    batch = data[start:stop]
    for _ in range(rng.choice((1, 1, 3))):
        inside = rng.choice((21, _BATCH))
        if len(batch) > inside + 1:
            begin, end, new = rng.choice(mutations.EDITS)(rng, batch, inside, len(batch))
            batch = batch[:begin] + new[:MOST_NEW_BYTES] + batch[end:]
    if rng.random() < 0.8 and len(batch) > 21:
        batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    if len(batch) > 21:
        batch = batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]
    grown = len(batch) - (stop - start)
    data = data[:start] + batch + data[stop:]
    # The sizes around it: the frame's, and that of the record set where it stands right before, in its old form.
    data = _framed(data[4:])
    if struct.unpack_from(">i", data, start - 4)[0] == stop - start:
        data = data[: start - 4] + struct.pack(">i", stop - start + grown) + data[start:]
    return pair.with_side(side, data)


def _packets_broken(rng: random.Random, segments: list[Segment]) -> list[Segment]:
    """Lose, reorder, repeat or divide packets, as networks and capture points do."""
    how = rng.randrange(5)
    if how == 0:
        return forge.dropped(segments, rng, 0.2)
    if how == 1:
        return forge.reordered(segments, rng, 0.3)
    if how == 2:
        return forge.retransmitted(segments, rng, 0.3)
    if how == 3:
        return forge.overlapped(segments, rng, 0.3)
    return forge.resegmented(segments, rng, 40)


_KINDS: Final = (
    ("bytes", _bytes_broken),
    ("bytes", _bytes_broken),
    ("bytes", _bytes_broken),
    ("values", _values_broken),
    ("batch", _batch_broken),
)


def conversation(rng: random.Random, number: int) -> Conversation:
    """Connection `number` of a case."""
    real = captured()
    pair = synthetic(rng) if rng.random() < 0.4 else rng.choice(real)
    kind, broken = rng.choice(_KINDS)
    changed = broken(rng, _numbered(pair, 7))
    writes = []
    if rng.random() < 0.6:
        writes += _writes(_numbered(rng.choice(real), 6))
    writes += _writes(changed)
    if rng.random() < 0.5:
        writes += _writes(_numbered(rng.choice(real), 8))
    segments = forge.converse(
        writes,
        client=(f"10.{1 + number // 60_000}.0.{1 + number % 200}", 2000 + number % 60_000),
        broker=(f"192.168.0.{1 + number % 3}", 9092),
        mss=60 if rng.random() < 0.05 else rng.choice((536, 1448, 60_000)),
        handshake=rng.random() < 0.7,
        close=rng.choice(("fin", "rst", None)),
        acks=rng.random() < 0.1,
        client_isn=rng.choice((1000, 2**32 - 50)),
        start_ns=forge.START_NS + number * 40_000,
    )
    what = f"{schema.api_name(pair.api_key)} v{pair.version}, {kind}"
    if rng.random() < 0.1:
        segments, what = _packets_broken(rng, segments), f"{what}, packets"
    return Conversation(what, segments)


def _writes(pair: Pair) -> list[Write]:
    return [Write(TO_BROKER, pair.request), Write(TO_CLIENT, pair.response)]


def case(number: int, seed: int, count: int = TOGETHER) -> list[Conversation]:
    """All connections of a case."""
    rng = random.Random(f"conversations/{seed}/{number}")
    return [conversation(rng, i) for i in range(count)]


# ------------------------------------------------------------------------------------------------------- what holds


def capture(conversations: Sequence[Conversation]) -> bytes:
    """The capture of some connections."""
    segments = forge.interleaved(*(conversation.segments for conversation in conversations))
    return forge.pcap(forge.rendered(segments), nanoseconds=True)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a case is read, twice: what `analyzer.analyze` takes. `bodies`: whether it is read message by message too."""

    first: dict[str, Any]
    second: dict[str, Any]
    bodies: bool

    @classmethod
    def of(cls, number: int, seed: int) -> Reading:
        """Choose for a case."""
        rng = random.Random(f"reading/{seed}/{number}")
        both = {
            "records": rng.choice(("none", "batches", "meta", "full")),
            "keep_bytes": rng.random() < 0.2,
            "ports": rng.choice(((), (9092,), (9092,))),
            "meaning": rng.random() < 0.7,
        }
        windows = rng.choice((None, None, 1 << 20, 1 << 20, 1 << 16))
        other = {"threads": rng.choice((1, 1, 4)), "window_bytes": windows}
        return cls(both | {"threads": 2}, both | other, rng.random() < 0.05)


def check(talks: Sequence[Conversation], reading: Reading, folder: Path, most_seconds: float = SECONDS) -> Outcome:
    """All that must hold of a case; raises Broken, or whatever came out of kwire."""
    path = folder / "capture.pcap"
    path.write_bytes(capture(talks))
    payload = sum(len(segment.payload) for talk in talks for segment in talk.segments)
    begin = time.process_time()
    dataset = analyzer.analyze(path, **reading.first)
    seconds = time.process_time() - begin
    must(seconds <= most_seconds, f"took {seconds:.1f} s")
    check_coverage(dataset, payload)
    check_rows(dataset)
    check_same(dataset, analyzer.analyze(path, **reading.second))
    if reading.bodies:
        check_bodies(path)
    return Outcome(seconds, len(dataset.exchanges), False, mutants=len(talks))


def check_number(number: int, seed: int, folder: Path) -> Outcome:
    """Make a case and check it."""
    return check(case(number, seed), Reading.of(number, seed), folder)


def smallest(number: int, seed: int, failing: type[Exception], folder: Path) -> list[Conversation]:
    """The fewest connections of a case that were met in `MINIMISING_SECONDS` and fail in the same way; all of them
    where they did not fail again."""
    talks, reading = case(number, seed), Reading.of(number, seed)

    def fails(part: list[Conversation]) -> bool:
        try:
            check(part, reading, folder, SECONDS if len(part) == len(talks) else SECONDS / 2)
        except Exception as failure:
            return type(failure) is failing
        return False

    return corpus.fewest(talks, fails, MINIMISING_SECONDS) if fails(talks) else talks
