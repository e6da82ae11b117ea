"""Framing and seeking once more, slow and plain: the reference that the kernels are compared with.

In: segments of a shard, in order, as `kwire.captures.streams` gives them. Out: for each connection that ends whether it
is Kafka, who asks, its frames (side, ordinal, bytes, where the packet of the first byte lies), and bytes passed over or
incomplete. It follows the table of modes in `kwire.analyzer.bulk.framing`, and shares nothing with the kernels but
Kafka's definitions: bytes are a bytearray a direction, a message is walked along the JSON definitions. It knows no
limits on sizes, no `--port`, and nothing that may stand before Kafka: `test_framing` takes that
away before (`prefixes` has tests of its own).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.witness.reference import definitions, within

DATA, GAP, SNAPLEN, FINISH, RESET, END = range(6)
MORE, HOLE, CLOSING = range(3)
LARGEST = 64 << 20
ASIDE = 4 << 20
MOST_KEPT = 256 << 10
SEARCHED = 16 << 20
REST = 16
FEW, LEAST_CUT = 1000, 128
ORPHANS = 100_000
PRODUCE, SASL_HANDSHAKE, API_VERSIONS, CONTROLLED_SHUTDOWN = 0, 17, 18, 7


# --- messages ---------------------------------------------------------------------------------------------------------


class Ends(Exception):
    """The bytes end inside a value, or inside an array: right so far."""


class Wrong(Exception):
    """The bytes break a rule."""


class Walk:
    """A message's bytes from `at` to `end`."""

    def __init__(self, data: bytes | bytearray, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def take(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise Ends
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def number(self, code: str) -> int:
        return int(struct.unpack(">" + code, self.take(struct.calcsize(code)))[0])

    def varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= 1 << 32:
                    raise Wrong
                return value
        raise Wrong

    def tags(self, known: Callable[[int], Callable[[], None] | None] = lambda _: None) -> None:
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            if size > self.end - self.at:
                raise Ends
            stop = self.at + size
            read = known(tag)
            if read is None:
                self.at = stop
            else:
                read()
                if self.at != stop:
                    raise Wrong


SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16}


class Body:
    """One body along its definition; `acks` is what a Produce request says, which stands before what may be cut off."""

    def __init__(self, message: dict[str, Any], version: int, walk: Walk) -> None:
        self.message, self.walk, self.version = message, walk, version
        self.structs = {shared["name"]: shared["fields"] for shared in message.get("commonStructs", [])}
        self.acks: int | None = None

    def read(self) -> None:
        self.struct(self.message["fields"], within(self.version, self.message.get("flexibleVersions")))

    def struct(self, fields: list[dict[str, Any]], flexible: bool) -> None:
        tagged = {}
        for item in fields:
            if within(self.version, item.get("taggedVersions")) and "tag" in item:
                tagged[item["tag"]] = item
            elif within(self.version, item["versions"]):
                self.value(item["type"], item, flexible)
        if flexible:
            self.walk.tags(
                lambda tag: (lambda: self.value(tagged[tag]["type"], tagged[tag], True)) if tag in tagged else None
            )

    def value(self, kind: str, item: dict[str, Any], flexible: bool, element: bool = False) -> None:
        walk = self.walk
        if "flexibleVersions" in item:
            flexible = flexible and within(self.version, item["flexibleVersions"])
        nullable = within(self.version, item.get("nullableVersions")) and not element
        if kind in SIZES:
            raw = walk.take(SIZES[kind])
            if item["name"].lower() == "acks":
                self.acks = int.from_bytes(raw, "big", signed=True)
        elif kind in ("string", "bytes", "records"):
            start = walk.at
            size = walk.varint() - 1 if flexible else walk.number("h" if kind == "string" else "i")
            if size < 0:
                if not nullable:
                    walk.at = start
                    raise Wrong
            else:
                walk.take(size)
        elif kind.startswith("[]"):
            count = walk.varint() - 1 if flexible else walk.number("i")
            if count < 0 and not nullable:
                raise Wrong
            if count > walk.end - walk.at:
                raise Ends
            for _ in range(max(count, 0)):
                self.value(kind[2:], item, flexible, element=True)
        else:
            if nullable and walk.number("b") < 0:
                return
            self.struct(item.get("fields") or self.structs[kind], flexible)


def known(side: str, api: int, version: int) -> bool:
    return (side, api, version) in definitions()


def newest(api: int) -> int:
    """The last version that any definition of an API has; -1: no such API."""
    return max((version for side, key, version in definitions() if side == "request" and key == api), default=-1)


APIS = max(api for _, api, _ in definitions()) + 1
NEWEST = [newest(api) for api in range(APIS)]


@dataclass
class Read:
    """How far bytes could be read: `ends` inside, `wrong`, or whole up to `at`."""

    at: int
    ends: bool = False
    wrong: bool = False
    acks: int | None = None

    @property
    def whole(self) -> bool:
        return not self.ends and not self.wrong


def body(side: str, api: int, version: int, walk: Walk) -> Read:
    read = Body(definitions()[side, api, version], version, walk)
    try:
        read.read()
    except Ends:
        return Read(walk.at, ends=True, acks=read.acks)
    except Wrong:
        return Read(walk.at, wrong=True)
    return Read(walk.at, acks=read.acks)


@dataclass
class Header:
    api: int
    version: int
    correlation: int
    client_id: bytes | None
    """None: null, or not read."""
    place: int
    """Of the client id."""
    length: int
    """Of the client id; -1: null, -2: not read."""
    read: Read


def request_header(data: bytes | bytearray, at: int, end: int) -> Header:
    walk = Walk(data, at, end)
    header = Header(-1, -1, 0, None, at, -2, Read(at, ends=True))
    try:
        if end - at < 8:
            raise Ends
        header.api, header.version, header.correlation = walk.number("h"), walk.number("h"), walk.number("i")
        header.place = walk.at
        if (header.api, header.version) != (CONTROLLED_SHUTDOWN, 0):
            length = walk.number("h")
            header.place = walk.at
            if length < -1:
                raise Wrong
            if length <= end - walk.at:
                header.length = length
            header.client_id = walk.take(length) if length >= 0 else None
            if known("request", header.api, header.version):
                message = definitions()["request", header.api, header.version]
                if within(header.version, message.get("flexibleVersions")):
                    walk.tags()
        header.read = Read(walk.at)
    except Ends:
        header.read = Read(walk.at, ends=True)
    except Wrong:
        header.read = Read(walk.at, wrong=True)
    return header


def believed(header: Header) -> bool:
    """Whether API, version and correlation id are what they look like, and not part of a raw SASL token."""
    if header.read.whole:
        return 0 <= header.api < 2048 and 0 <= header.version < 1024
    versions = [version for kind, api, version in definitions() if kind == "request" and api == header.api]
    return bool(versions) and 0 <= header.version <= max(versions) + 8


def response_body(data: bytes | bytearray, at: int, end: int, api: int, version: int) -> Read | None:
    """The part behind the correlation id; None: no layout."""
    if api == API_VERSIONS and version != 0 and bytes(data[at : min(end, at + 2)]) == b"\0\x23":
        version = 0
    if not known("response", api, version):
        return None
    walk = Walk(data, at, end)
    message = definitions()["response", api, version]
    if within(version, message.get("flexibleVersions")) and api != API_VERSIONS:
        try:
            walk.tags()
        except Ends:
            return Read(walk.at, ends=True)
        except Wrong:
            return Read(walk.at, wrong=True)
    return body("response", api, version, walk)


# --- directions and connections ---------------------------------------------------------------------------------------


@dataclass
class Mark:
    at: int
    record_at: int
    ordinal: int


@dataclass
class Direction:
    """Bytes not used up: data[0] is byte `start` of the stream, as far as this direction counts it."""

    mode: str = "SEEK"
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    marks: list[Mark] = field(default_factory=list)
    scanned: int = 0
    stalled: int = -1
    strict: bool = False
    tentative: str = ""
    frames: int = 0
    lost: int = 0
    need: int = 0
    seen: int = 0
    held: int = 0
    asks: int | None = None
    answer: tuple[int, int] | None = None
    hole: bool = False
    """Bytes are missing since its last whole request; of answers, ever."""

    @property
    def have(self) -> int:
        return self.start + len(self.data)

    def append(self, piece: bytes, segment: Segment) -> None:
        if not self.marks or self.marks[-1].ordinal != segment.ordinal:
            self.marks.append(Mark(self.have, segment.record_at, segment.ordinal))
        self.data += piece

    def consume(self, count: int) -> None:
        del self.data[:count]
        self.start += count
        self.scanned = max(self.scanned, self.start)
        while len(self.marks) > 1 and self.marks[1].at <= self.start:
            self.marks.pop(0)
        if not self.data:
            self.marks = []
        self.answer = None

    def release(self) -> None:
        self.consume(len(self.data))

    def seek(self, behind: int) -> None:
        self.mode, self.tentative, self.scanned, self.stalled = "SEEK", "", self.start + behind, -1


@dataclass
class Segment:
    key: int
    kind: int
    data: bytes
    length: int
    ordinal: int
    record_at: int


@dataclass
class Pending:
    correlation: int
    api: int | None
    version: int
    silent: bool


@dataclass
class Frame:
    side: int
    ordinal: int
    size: int
    record_at: int
    cause: str


@dataclass
class Connection:
    """State of one connection. `client`: -1, not known."""

    client: int
    kind: str = "UNDECIDED"
    sides: tuple[Direction, Direction] = field(default_factory=lambda: (Direction(), Direction()))
    frames: list[Frame] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    silent: bool = False
    skipped: int = 0
    incomplete: int = 0
    fins: int = 0
    closed: bool = False
    raw: bool = False
    raw_waiting: int = 0
    client_id: bytes | None = None
    lowest: int | None = None
    tls: bool = False
    spoke: set[int] = field(default_factory=set)

    def find(self, correlation: int) -> int | None:
        """The place of the request that an answer belongs to."""
        places = [place for place, pending in enumerate(self.pending) if pending.correlation == correlation]
        return next((place for place in places if not self.pending[place].silent), places[0] if places else None)

    def fits(self, text: bytes) -> int:
        if not text:
            return -1
        if text == self.client_id:
            return 1
        return -1 if any(byte < 32 or byte == 127 for byte in text) else 0

    def not_kafka(self) -> None:
        self.kind = "OTHER"
        for side in self.sides:
            side.lost = 0
            side.release()
            side.mode = "SWALLOW"


def impossible(size: int, least: int) -> bool:
    """Whether no message has this length."""
    text = all(32 <= byte < 127 or byte in b"\t\n\r" for byte in (size & 0xFFFFFFFF).to_bytes(4, "big"))
    return size < least or size > 1 << 30 or (size >= 0x20000000 and text)


def number(data: bytes | bytearray, at: int, code: str = "i") -> int:
    return int(struct.unpack_from(">" + code, data, at)[0])


class Reference:
    """All connections of a shard, by slot. `ended`: those that ended since it was last emptied."""

    def __init__(self) -> None:
        self.connections: dict[int, Connection] = {}
        self.ended: list[tuple[int, Connection]] = []

    def take(self, segment: Segment, opener: int) -> None:
        slot, side = segment.key >> 1, segment.key & 1
        if slot not in self.connections:
            self.connections[slot] = begun = Connection(opener)
            for each in begun.sides:
                each.strict = opener >= 0
        link = self.connections[slot]
        collected = link.kind == "UNDECIDED" and segment.kind == DATA
        for key in self.plan(link, segment, side):
            self.work(link, key, segment, side, segment.length if collected else 0)
        self.conclude(link, slot, segment, side)

    # What happens to the connection as a segment comes, and which directions are worked on.
    def plan(self, link: Connection, segment: Segment, side: int) -> list[int]:
        here, kafka = link.sides[side], link.kind == "KAFKA"
        if segment.kind == DATA:
            if side not in link.spoke:
                link.spoke.add(side)
                head = segment.data[:3]
                link.tls |= len(head) == 3 and 20 <= head[0] <= 23 and head[1] == 3 and head[2] <= 4
            if link.kind == "OTHER":
                return []
            if kafka:
                return [side]
            here.append(segment.data, segment)
            planned = [side] if link.client in (-1, side) else []
            if not planned and len(here.data) > ASIDE:
                here.lost += len(here.data)
                here.release()
                here.strict = False
            if self.answered(link, side, segment.length):
                link.sides[1 - side].stalled = -1
                planned = [1 - side, *planned]
            return planned
        if segment.kind in (GAP, SNAPLEN):
            return [side] if link.kind != "OTHER" and (kafka or link.client in (-1, side)) else []
        if segment.kind == FINISH:
            link.fins |= 1 << side
        closing = segment.kind == END or (segment.kind == FINISH and link.fins == 3 and not link.closed)
        if closing and kafka:
            return [link.client, 1 - link.client]
        if segment.kind == END and link.kind == "UNDECIDED":
            return [link.client] if link.client >= 0 else [0, 1]
        return []

    def answered(self, link: Connection, side: int, length: int) -> bool:
        here, other = link.sides[side], link.sides[1 - side]
        if other.asks is None:
            return False
        place = len(here.data) - length
        if here.answer is None and length >= 8 and number(here.data, place + 4) == other.asks:
            size = number(here.data, place)
            if 4 <= size <= LARGEST:
                here.answer = (here.start + place, here.start + place + 4 + size)
        return here.answer is not None and here.have >= here.answer[1]

    # One direction, until a segment is used up.
    def work(self, link: Connection, side: int, segment: Segment, own_side: int, position: int) -> None:
        here = link.sides[side]
        own = side == own_side
        closing = segment.kind in (END, FINISH)
        hole = own and segment.kind in (GAP, SNAPLEN)
        final = CLOSING if closing else HOLE if hole else MORE
        while True:
            if link.kind == "OTHER":
                return
            client = link.kind == "UNDECIDED" or side == link.client
            if here.mode == "DROP" and here.seen >= here.need:
                self.hand_on_dropped(link, side, "hole")
                continue
            if here.mode == "SYNC" and len(here.data) >= 4:
                size = number(here.data, 0)
                if impossible(size, self.least(link, client)):
                    if self.certain(link, side, client):
                        self.message(link, side, bytes(here.data[:4096]), 0, 0, "impossible")
                        here.hole = True
                    here.seek(0)
                    continue
                if len(here.data) >= size + 4:
                    self.hand_on(link, side, size + 4)
                    continue
                if here.tentative == "WEAK" and here.stalled != here.have:
                    if self.search(link, side, client, final):
                        continue
            if here.mode == "SEEK" and here.data and (final != MORE or here.stalled != here.have):
                if max(here.start, here.scanned) < here.have:
                    undecided = link.kind == "UNDECIDED"
                    if self.search(link, side, client, final) and undecided and link.kind == "KAFKA":
                        self.work(link, side, segment, own_side, position)
                        self.work(link, 1 - side, segment, own_side, position)
                        return
                    continue
            if closing:
                if link.kind == "UNDECIDED" or not self.close(link, side, client):
                    return
                continue
            if not own or position >= segment.length or link.kind != "KAFKA":
                return
            if segment.kind == DATA:
                position += self.feed(link, side, client, segment, position)
            else:
                position += self.hole(link, side, segment.length - position)

    def certain(self, link: Connection, side: int, client: bool) -> bool:
        """Whether a length stands here."""
        here = link.sides[side]
        if here.hole or here.tentative:
            return False
        answers = not client and len(here.data) >= 8 and link.find(number(here.data, 4)) is not None
        return here.frames > 0 or answers

    def least(self, link: Connection, client: bool) -> int:
        return 0 if link.raw or link.raw_waiting else 8 if client else 4

    def feed(self, link: Connection, side: int, client: bool, segment: Segment, position: int) -> int:
        here = link.sides[side]
        rest = segment.length - position
        if here.mode == "DROP":
            count = min(rest, here.need - here.seen)
            here.seen += count
            here.held += count
            return count
        count = rest
        if here.mode == "SYNC":
            if len(here.data) >= 4:
                count = min(rest, number(here.data, 0) + 4 - len(here.data))
            elif here.data:
                count = min(rest, 4 - len(here.data))
            elif rest >= 4 and here.frames > 0:
                size = number(segment.data, position)
                if impossible(size, self.least(link, client)):
                    if here.hole:
                        here.seek(0)
                        return 0
                else:
                    count = min(rest, size + 4)
        here.append(segment.data[position : position + count], segment)
        return count

    def hole(self, link: Connection, side: int, length: int) -> int:
        here = link.sides[side]
        if here.mode == "SYNC" and here.tentative == "WEAK":
            here.seek(1)
            return 0
        if here.mode == "SYNC" and len(here.data) >= 4:
            self.drop(here, number(here.data, 0) + 4)
        if here.mode == "DROP":
            count = min(length, here.need - here.seen)
            here.seen += count
            return count
        if here.mode == "SYNC":
            link.incomplete += len(here.data)
        else:
            link.skipped += len(here.data)
        here.release()
        here.seek(0)
        return length

    def drop(self, here: Direction, need: int) -> None:
        here.mode, here.need = "DROP", need
        here.seen = here.held = len(here.data)

    def close(self, link: Connection, side: int, client: bool) -> bool:
        here = link.sides[side]
        if here.mode == "SYNC" and here.data:
            if here.tentative and len(here.data) > 4:
                here.seek(1)
                return True
            if len(here.data) >= 12 and client:
                self.drop(here, number(here.data, 0) + 4)
        if here.mode == "DROP":
            if client and len(here.data) >= 12:
                self.hand_on_dropped(link, side, "cut")
                return True
            link.incomplete += here.held
            here.mode = "SYNC"
        elif here.mode == "SYNC":
            link.incomplete += len(here.data)
        else:
            link.skipped += len(here.data)
        here.release()
        return False

    # Frames.
    def hand_on(self, link: Connection, side: int, total: int) -> None:
        here = link.sides[side]
        if self.message(link, side, bytes(here.data[:total]), total, total, ""):
            here.tentative = ""
            here.consume(total)
        else:
            here.seek(1)

    def hand_on_dropped(self, link: Connection, side: int, cause: str) -> None:
        here = link.sides[side]
        data, frames = bytes(here.data[: here.need]), len(link.frames)
        if not self.message(link, side, data, here.need, here.held, cause):
            link.skipped += here.held
        elif len(link.frames) > frames:  # else it is a token, whose bytes are told as SASL's
            link.incomplete += here.held
        here.tentative, here.mode = "", "SYNC"
        here.release()

    def message(self, link: Connection, side: int, data: bytes, total: int, held: int, cause: str) -> bool:
        """False: it was tentative and is none."""
        here = link.sides[side]
        tentative, whole = bool(here.tentative), not cause
        frame = Frame(side if link.client == 0 else 1 - side, here.frames, total, here.marks[0].record_at, cause)
        if side == link.client:
            header = request_header(data, 4, len(data))
            if header.read.ends and whole:
                header.read = Read(header.read.at, wrong=True)
            layout = header.read.whole and known("request", header.api, header.version)
            walk = Walk(data, header.read.at, len(data))
            read = body("request", header.api, header.version, walk) if layout else header.read
            if link.raw and not (layout and read.whole and read.at == len(data) and whole):
                link.raw_waiting += 1
                here.frames += 1
                return True
            if tentative and (read.wrong or (read.ends and whole)):
                return False
            link.frames.append(frame)
            here.hole &= not whole
            link.raw = header.api == SASL_HANDSHAKE and header.version == 0 and header.read.whole
            readable = len(data) >= 12 and believed(header)
            if readable and link.client_id is None and header.client_id is not None:
                link.client_id = header.client_id
            if readable and (link.lowest is None or header.correlation < link.lowest):
                link.lowest = header.correlation
            silent = header.api == PRODUCE and read.acks == 0
            if not link.closed and not (silent and link.silent):
                api = header.api if readable else None
                link.pending.append(Pending(header.correlation if readable else 1 << 40, api, header.version, silent))
        else:
            correlation = number(data, 4) if len(data) >= 8 else None
            place = link.find(correlation) if correlation is not None else None
            if link.raw_waiting and place is None:
                link.raw_waiting -= 1
                here.frames += 1
                return True
            if place is not None and link.pending[place].api is not None:
                request = link.pending[place]
                answer = response_body(data, 8, len(data), request.api or 0, request.version)
                if answer is not None and tentative and (answer.wrong or (answer.ends and whole)):
                    return False
            link.frames.append(frame)
            if place is not None:
                passed = link.pending[:place]
                link.silent |= not link.pending[place].silent and any(each.silent for each in passed)
                left = [] if here.hole else [each for each in passed if not each.silent]
                link.pending[: place + 1] = left
        here.frames += 1
        return True

    # Seeking.
    def search(self, link: Connection, side: int, client: bool, final: int) -> bool:
        """Whether a better place was found, or (SYNC) anything changed."""
        here = link.sides[side]
        undecided, doubted, before = link.kind == "UNDECIDED", here.mode == "SYNC", here.start
        offset = max(here.start, here.scanned)
        if doubted:
            offset = here.marks[-1].at if here.marks[-1].at > here.start else here.have
        here.asks = None
        boundaries = {mark.at for mark in here.marks}
        certainty = ""
        while offset < here.have:
            at = offset - here.start
            if here.data[at] > 64:
                offset = here.have if doubted or here.strict else offset + 1
                continue
            boundary = here.strict or offset in boundaries
            verdict = self.judge(link, side, at, boundary, client, final)
            if verdict == "UNSURE" and final != MORE:
                verdict = "NOT"
                if here.strict:
                    here.strict = False
                    offset = here.have
                    break
            if verdict in ("LIKELY", "PROVED"):
                certainty = "SURE" if boundary or verdict == "PROVED" else "WEAK"
                break
            if verdict == "UNSURE" or doubted:
                break
            if here.strict:
                offset = here.have
                break
            offset += 1
        if not certainty:
            if not doubted:
                here.scanned = offset
            here.stalled = here.have
            self.sought_in_vain(link, side, offset - here.start if not doubted else 0)
            return False
        link.skipped += offset - before
        here.consume(offset - here.start)
        here.mode, here.tentative, here.strict = "SYNC", certainty, False
        if undecided:
            other = link.sides[1 - side]
            link.kind, link.client = "KAFKA", side
            link.skipped += here.lost + other.lost
            here.lost = other.lost = 0
            other.scanned, other.stalled = other.start, -1
            if other.strict:
                other.mode, other.strict = "SYNC", False
        return True

    def sought_in_vain(self, link: Connection, side: int, passed: int) -> None:
        here = link.sides[side]
        if here.mode == "SYNC":
            return
        if link.kind == "KAFKA":
            link.skipped += passed
            here.consume(passed)
            here.stalled = here.have
        elif here.strict:
            if passed > 0 or len(here.data) > SEARCHED or link.tls:
                link.not_kafka()
        elif passed > MOST_KEPT:
            here.lost += passed
            here.consume(passed)
            here.stalled = here.have
            if here.lost > SEARCHED:
                link.not_kafka()

    def judge(self, link: Connection, side: int, at: int, boundary: bool, client: bool, final: int) -> str:
        here = link.sides[side]
        undecided, left = link.kind == "UNDECIDED", len(here.data) - at
        if not client:
            verdict = self.judge_response(link, side, at, boundary)
            return "NOT" if verdict == "UNSURE" and left >= 24 and not boundary else verdict
        settled = here.strict or (boundary and not undecided)
        verdict = self.judge_request(link, here.data, at, boundary, settled, final != MORE)
        if verdict == "UNSURE" and left >= 14 and not boundary:
            return "NOT"
        named = left >= 15 and number(here.data, at + 12, "h") >= 1 and begins_a_name(here.data[at + 14])
        if verdict == "LIKELY" and undecided:
            if left < number(here.data, at) + 4 and final == MORE:
                return "UNSURE" if boundary else "NOT"
            if not here.strict and (final == CLOSING or not named):
                return "NOT"
            if not here.strict and left < number(here.data, at) + 4:
                if (not boundary and left < LEAST_CUT) or lists_topics(here.data, at):
                    return "NOT"
        if verdict == "LIKELY" and not boundary and not undecided:
            length = number(here.data, at + 12, "h")
            text = bytes(here.data[at + 14 : at + 14 + max(length, 0)])
            if 14 + length > left or link.fits(text) != 1:
                return "NOT"
        if verdict == "PROVED" and undecided:
            if not boundary and number(here.data, at) < 16:
                return "NOT"
            if not here.strict and not named:
                verdict = "NAMELESS"
        if verdict == "NAMELESS":
            return self.vouched(link, side, at, boundary) if undecided else "LIKELY"
        return verdict

    def judge_request(
        self, link: Connection, data: bytearray, at: int, boundary: bool, settled: bool, final: bool
    ) -> str:
        left = len(data) - at
        if left < 4:
            return "UNSURE"
        size = number(data, at)
        if size < 8 or size > LARGEST:
            return "NOT"
        if left < min(14, 4 + size):
            api = number(data, at + 4, "h") if left >= 6 else 0
            return "UNSURE" if 0 <= api < (2048 if settled else APIS) else "NOT"
        stop = min(len(data), at + 4 + size)
        whole = stop == at + 4 + size
        header = request_header(data, at + 4, stop)
        plausible = 0 <= header.api < APIS and 0 <= header.version <= NEWEST[header.api] + 8
        future = 0 <= header.api < 2048 and 0 <= header.version < 1024
        if not plausible and not (settled and whole and header.read.whole and future):
            return "NOT"
        if not header.read.whole:
            if header.read.wrong or whole:
                return "NOT"
            here = left - 14 if header.length == -2 else header.length
            text = bytes(data[at + 14 : at + 14 + max(here, 0)])
            if final and settled and here > 0 and 1 <= number(data, at + 12, "h") <= 255 and link.fits(text) >= 0:
                return "LIKELY"
            return "UNSURE" if here < 1 or link.fits(text) >= 0 else "NOT"
        fits = link.fits(header.client_id or b"")
        if not known("request", header.api, header.version):
            return "LIKELY" if fits >= 0 and (whole or fits == 1) else "NOT"
        read = body("request", header.api, header.version, Walk(data, header.read.at, stop))
        if whole:
            if read.whole and read.at == stop:
                return "PROVED"
            if read.whole and boundary and stop - read.at <= REST:
                empty = stop - read.at == 4 and number(data, read.at) in (0, -1)
                if fits >= 0 and stop == len(data) and header.api == API_VERSIONS and empty:
                    return "PROVED"
                return "LIKELY" if fits >= 0 else "NAMELESS"
            return "LIKELY" if fits == 1 else "NOT"
        if not read.ends:
            return "NOT"
        if fits < 0 and (header.length > 0 or link.client_id is not None):
            return "NOT"
        return "LIKELY" if fits >= 0 else "UNSURE"

    def vouched(self, link: Connection, side: int, at: int, boundary: bool) -> str:
        here, other = link.sides[side], link.sides[1 - side]
        verdict = followed(here.data, at, boundary)
        if verdict == "PROVED" or not boundary:
            return verdict
        correlation = number(here.data, at + 8)
        if other.answer is not None and other.have >= other.answer[1]:
            begin, stop = other.answer[0] - other.start, other.answer[1] - other.start
            if number(other.data, begin + 4) == correlation:
                api, version = number(here.data, at + 4, "h"), number(here.data, at + 6, "h")
                read = response_body(other.data, begin + 8, stop, api, version)
                if read is not None and read.whole and stop - read.at <= REST:
                    return "PROVED"
            other.answer = None
        if verdict == "UNSURE" or len(here.data) == at + 4 + number(here.data, at):
            here.asks = correlation
            return "UNSURE"
        return verdict

    def judge_response(self, link: Connection, side: int, at: int, boundary: bool) -> str:
        here = link.sides[side]
        data, left = here.data, len(here.data) - at
        if left < 8:
            return "UNSURE"
        size, correlation = number(data, at), number(data, at + 4)
        if size < 4 or size > LARGEST:
            return "NOT"
        stop = min(len(data), at + 4 + size)
        whole = stop == at + 4 + size
        place = link.find(correlation)
        request = link.pending[place] if place is not None else None
        if request is not None and request.api is not None:
            if not boundary and left > 8 and known("response", request.api, request.version) and data[at + 8] != 0:
                message = definitions()["response", request.api, request.version]
                if within(request.version, message.get("flexibleVersions")) and request.api != API_VERSIONS:
                    return "NOT"
            read = response_body(data, at + 8, stop, request.api, request.version)
            if whole:
                if read is not None and read.whole and read.at == stop:
                    return "PROVED"
                return "LIKELY" if boundary and read is None else "NOT"
            if read is not None and read.ends:
                return "LIKELY" if boundary or stop - (at + 8) >= 12 else "UNSURE"
            return "NOT"
        early = boundary and here.frames == 0 and link.lowest is not None
        if early and correlation >= 0 and (link.lowest or 0) - ORPHANS <= correlation < (link.lowest or 0):
            after = len(data) - stop
            if not whole or after == 0:
                return "LIKELY"
            if after >= 8:
                following = number(data, stop + 4)
                ascending = correlation < following <= correlation + ORPHANS
                return "LIKELY" if number(data, stop) >= 4 and ascending else "NOT"
            if after >= 4:
                return "LIKELY" if number(data, stop) >= 4 else "NOT"
            return "UNSURE"
        return "NOT"

    # The end of a segment.
    def conclude(self, link: Connection, slot: int, segment: Segment, side: int) -> None:
        here = link.sides[side]
        here.hole |= segment.kind in (GAP, SNAPLEN)
        if segment.kind in (GAP, SNAPLEN) and link.kind == "UNDECIDED":
            here.lost += len(here.data)
            here.release()
            here.strict = False
        if segment.kind in (RESET, FINISH) and not link.closed and (segment.kind == RESET or link.fins == 3):
            link.closed = True
            link.pending = []
        if segment.kind == END:
            if link.kind == "UNDECIDED":
                link.not_kafka()
            self.ended.append((slot, self.connections.pop(slot)))


def begins_a_name(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte >= 128


def lists_topics(data: bytearray, at: int) -> bool:
    """Whether a cut Produce request may as well be an answer: a count of topics, a name, a count of partitions."""
    if number(data, at + 4, "h") != PRODUCE or not 0 < number(data, at + 8) <= FEW:
        return False
    behind = at + 14 + number(data, at + 12, "h")
    if len(data) - behind >= 4 and not 0 < number(data, behind) <= FEW:
        return False
    return len(data) - behind < 8 or 0 <= number(data, behind + 4) <= FEW


def followed(data: bytearray, at: int, boundary: bool) -> str:
    """Whether the next request follows the one at `at`."""
    if not boundary or number(data, at) < 16:
        return "NOT"
    after = at + 4 + number(data, at)
    if len(data) - after < 14:
        return "UNSURE"
    size, api, version = number(data, after), number(data, after + 4, "h"), number(data, after + 6, "h")
    if size < 16 or size > LARGEST or not known("request", api, version):
        return "NOT"
    if number(data, after + 8) != number(data, at + 8) + 1:
        return "NOT"
    return "PROVED" if data[after + 12 : after + 14] == data[at + 12 : at + 14] else "NOT"
