"""Scrubbing: a capture point -> a clean capture, which is there only once it was found clean.

In: a capture point, a key, what is to stay. Out: a pcapng file and a `Report`. Rules: three passes. The first reads
what connections said; then messages are made anew, and every packet with what its bytes became, found by connection,
side and sequence number, so that copies of a byte stay copies; the third reads what was written. What belongs to no
message is zeros: other protocols, what is encrypted, what was never delivered, names and comments of the file.
"""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Final

import numpy as np

from kwire.analyzer.bulk.state import NULL
from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads.framing import SCHEMA_HEADERS
from kwire.analyzer.scrub import prefixes
from kwire.analyzer.scrub.content import SCHEMA, Content
from kwire.analyzer.scrub.packets import Packets
from kwire.analyzer.scrub.scrub_summary import Report
from kwire.analyzer.scrub.streams import UNPLACED, CapturedBytes, FirstPass, Place
from kwire.analyzer.scrub.verification import Leak, leaks, shared_windows
from kwire.captures import dissect as d
from kwire.captures.files import CapturePoint
from kwire.captures.files.layouts import LINK, SNAPLEN
from kwire.captures.files.write import Growing
from kwire.captures.links import FRAGMENT, TCP
from kwire.captures.tls.detection import begins_tls

_TLS_HEADER: Final = 5
_TLS_LARGEST: Final = (1 << 14) + 2048
_PREFIX_LARGEST: Final = 20 << 10
_FRAME_LARGEST: Final = 100 << 20
_APIS: Final = 256


@dataclass(frozen=True, slots=True)
class Task:
    """Options of a scrub: `key` (None: a new one that nobody keeps), `keep` of `content.KEEPABLE` or SCHEMA, `ports`
    that are Kafka."""

    key: bytes | None = None
    keep: frozenset[str] = frozenset()
    ports: tuple[int, ...] = ()
    dry: bool = False


Progress = Callable[[str], None]


def scrub(point: CapturePoint, out: str, task: Task, progress: Progress = lambda _: None) -> Report:
    """Write a clean capture of a capture point to `out`. Raises CaptureError, and UsageError where the result is not
    clean or cannot be written."""
    report = Report()
    content = Content(task.key or secrets.token_bytes(32), task.keep, report)
    beside = output_file.folder_for(out)
    try:
        with output_file.scratch(out) as folder:
            _scrub_in(folder, point, out, content, task, report, progress)
    except OSError as failure:
        if failure.filename is not None and not str(failure.filename).startswith(beside):
            raise
        raise UsageError(
            f"{out}: cannot be written: {failure.strerror or failure}",
            "is the disk full? scrubbing needs about four times the capture's size beside it",
        ) from None
    return report


def _scrub_in(
    folder: str, point: CapturePoint, out: str, content: Content, task: Task, report: Report, progress: Progress
) -> None:
    """Write the clean capture into a folder, check it, and put it where it is to be. Raises OSError."""
    progress("reading")
    first = FirstPass(point, folder, task.ports, content.learn)
    try:
        captured = first.run()
        report.notes = [note for note in first.reader.notes if "comment" not in note]
        report.secrets_blocks = len(first.reader.secrets)
        _messages(captured, content, report, progress)
        for high, low in first.addresses:
            content.addresses.meet(_packed(high, low))
        _others(captured, content, report)
        progress("writing")
        path = os.path.join(folder, "clean.pcapng")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with tempfile.TemporaryFile(dir=folder) as replaced:
            with os.fdopen(handle, "wb", buffering=1 << 20) as file:
                packets = Packets(content.addresses, lambda data: replaced.write(data + b"\0") if data else 0)
                _write(point, captured, packets, Growing(file), report)
            progress("checking")
            _check_windows(path, captured, replaced, content, task)
        _check(path, folder, content, task, report)
        if not task.dry:
            output_file.put(path, out)
    finally:
        first.captured.end()


def _packed(high: int, low: int) -> bytes:
    """An address as `kwire.captures.packets` has it, as in its packet."""
    if high == 0 and low >> 32 == 0xFFFF:
        return (low & 0xFFFFFFFF).to_bytes(4, "big")
    return (high << 64 | low).to_bytes(16, "big")


def _messages(captured: CapturedBytes, content: Content, report: Report, progress: Progress) -> None:
    """All messages made anew."""
    for number, places in _placed(captured).items():
        for text in prefixes.named(b"".join(captured.original(*span) for span in _prefix(captured, number, places))):
            content.learn_text(text)
    content.settle()
    progress("replacing")
    for i, place in enumerate(captured.messages):
        captured.write(place, content.clean(captured.bytes_of(place), captured.parts_of(i), captured.topics))
    report.messages = len(captured.messages)
    report.names, report.shared_names = content.pseudonyms.names, content.pseudonyms.shared


# --- what is no message -----------------------------------------------------------------------------------------------


def _placed(captured: CapturedBytes) -> dict[int, list[Place]]:
    """The messages of each direction, in order."""
    by_direction: dict[int, list[Place]] = {}
    for place in captured.messages:
        by_direction.setdefault(place.direction, []).append(place)
    return by_direction


def _prefix(captured: CapturedBytes, number: int, places: list[Place]) -> list[tuple[int, int]]:
    """Where the bytes before a direction's first message lie, as far as a prefix may have them."""
    start = captured.directions[number].pos[0]
    return captured.run(number, start, min(captured.begins(places[0]), start + _PREFIX_LARGEST))


def _others(captured: CapturedBytes, content: Content, report: Report) -> None:
    """Writes what stays of bytes that are no messages: what stands before the first, without names; lengths, where
    something is known to have one: of frames that are no messages (tokens of SASL), of the one at a direction's end, of
    TLS."""
    placed = _placed(captured)
    kinds: dict[int, int] = {}
    for number in sorted(placed, key=lambda number: not placed[number][0].request):
        places = placed[number]
        begun = captured.directions[number].pos[0]
        spans = _prefix(captured, number, places)
        data = b"".join(captured.original(*span) for span in spans)
        if places[0].request:
            kinds[number >> 1], clean = prefixes.client(data, content.pseudonyms, content.addresses)
        else:
            clean = prefixes.broker(data, kinds.get(number >> 1, 0))
        captured.write_run(spans, clean)
        content.prefixes.add(bytes(new if new == old else 0 for new, old in zip(clean, data, strict=False)))
        cursor = begun + len(clean)
        for place in places:
            _frames(captured, number, cursor, captured.begins(place), places[0])
            cursor = captured.begins(place) + place.size
        _frames(captured, number, cursor, captured.directions[number].next, places[-1])
    tls = set()
    for number, stream in captured.directions.items():
        report.other_bytes += sum(stream.length) - sum(place.size for place in placed.get(number, ()))
        if (
            number not in placed
            and stream.pos
            and begins_tls(captured.original(stream.at[0], min(stream.length[0], 6)))
        ):
            tls.add(number >> 1)
    for connection in tls:
        for number in (2 * connection, 2 * connection + 1):
            if number in captured.directions and number not in placed:
                _tls(captured, number)
    report.tls_connections = len(tls)


def _frames(captured: CapturedBytes, number: int, start: int, stop: int, near: Place) -> None:
    """Frames that are no messages, one behind the other from `start` on: they keep their lengths if the last one ends
    at `stop`, where a message begins, or reaches beyond what is there. `near`: a message of this direction."""
    spans = captured.run(number, start, stop)
    have = sum(size for _, size in spans)
    lengths: list[tuple[int, int]] = []
    at = 0
    while have - at >= 4:
        size = int.from_bytes(_bytes_at(captured, spans, at, 4), "big")
        if size > _FRAME_LARGEST:
            return
        lengths.append((at, 4 + size))
        at += 4 + size
    if at != have and not (at > have and (start + have == captured.directions[number].next or start + have < stop)):
        return
    for at, size in lengths:
        head = 4
        if at + size > have and near.api_key != NULL:  # never whole: what it would have been is known
            head = _head(_bytes_at(captured, spans, at, 12), near.request)
        clean = _bytes_at(captured, spans, at, head) + b"\xff" * (min(size, have - at) - head)
        _write_in(captured, spans, at, clean)


def _head(head: bytes, request: bool) -> int:
    """Bytes of a message's beginning that are numbers: length, what it asks, correlation id."""
    if len(head) < 8:
        return min(4, len(head))
    if not request:
        return 8
    key, version = int.from_bytes(head[4:6], "big"), int.from_bytes(head[6:8], "big")
    return min(12, len(head)) if key < _APIS and version < _APIS // 2 else 4


def _bytes_at(captured: CapturedBytes, spans: list[tuple[int, int]], at: int, size: int) -> bytes:
    """Bytes of a run, as far as there are any."""
    out = b""
    for place, length in spans:
        if at < length and size > 0:
            piece = captured.original(place + at, min(size, length - at))
            out += piece
            size -= len(piece)
            at = 0
        else:
            at = max(at - length, 0)
    return out


def _write_in(captured: CapturedBytes, spans: list[tuple[int, int]], at: int, data: bytes) -> None:
    """Write into a run."""
    for place, length in spans:
        if at < length and data:
            captured.write_at(place + at, data[: length - at])
            data, at = data[length - at :], 0
        else:
            at = max(at - length, 0)


def _tls(captured: CapturedBytes, number: int) -> None:
    """Headers of TLS records stay (type, version, length), and of the first the type of its message: so it is seen
    what it was. Where a record's header was lost, everything behind it is zeros."""
    rest: int | None = 0  # bytes of the record at hand that are still to come
    head = b""
    expected: int | None = None
    begun = True
    for pos, data, at in captured.stream(number):
        if rest is None:
            return
        if expected is not None and pos != expected:
            hole = pos - expected
            if head or hole > rest:
                return
            rest -= hole
        expected = pos + len(data)
        place = 0
        while place < len(data):
            if rest:
                step = min(rest, len(data) - place)
                if begun:
                    captured.write_at(at + place, data[place : place + 1] if data[place] in (1, 2) else b"\0")
                    begun = False
                rest -= step
                place += step
                continue
            take = min(_TLS_HEADER - len(head), len(data) - place)
            head += data[place : place + take]
            if not (20 <= head[0] <= 24 and head[1:2] in (b"", b"\3") and head[2:3] <= b"\4"):
                return
            captured.write_at(at + place, data[place : place + take])
            place += take
            if len(head) == _TLS_HEADER:
                rest = int.from_bytes(head[3:], "big")
                if rest > _TLS_LARGEST:
                    return
                head = b""


# --- packets ----------------------------------------------------------------------------------------------------------


def _write(point: CapturePoint, captured: CapturedBytes, packets: Packets, file: Growing, report: Report) -> None:
    """Every packet again."""
    dissector = d.Dissector(point)
    numbers: dict[tuple[int, int], int] = {}
    last_ns = 0
    places = zip(
        captured.packet_file,
        captured.packet_number,
        captured.packet_direction,
        captured.packet_pos,
        strict=True,
    )
    place = next(places, None)
    for batch in dissector:
        kinds = batch.rows[:, d.KIND]
        fragments = int(np.count_nonzero(kinds == FRAGMENT))
        report.fragments += fragments
        report.not_tcp_packets += int(np.count_nonzero(kinds != TCP)) - fragments
        report.packets += len(kinds)
        buffer = memoryview(batch.buffer)  # type: ignore[arg-type]  # arrays do have the buffer protocol
        for row in batch.rows.tolist():
            key = batch.file, row[d.INTERFACE]
            if key not in numbers:
                about = batch.interfaces[row[d.INTERFACE]]
                numbers[key] = file.interface(int(about[LINK]), int(about[SNAPLEN]))
            data = bytes(buffer[row[d.AT] : row[d.AT] + row[d.CAPTURED]])
            here = batch.file, row[d.ORDINAL]
            while place is not None and place[:2] < here:
                place = next(places, None)
            direction, pos = place[2:] if place is not None and place[:2] == here else (UNPLACED, UNPLACED)
            clean = packets.clean(data, row, functools.partial(captured.payload, direction, pos))
            file.packet(row[d.TIME_NS], clean, row[d.ORIGINAL], numbers[key])
            last_ns = row[d.TIME_NS]
    report.skipped_blocks = dissector.skipped
    report.bent_addresses = packets.addresses.bent
    if dissector.dropped is not None and numbers:
        file.dropped(0, last_ns, dissector.dropped)


def _check(path: str, folder: str, content: Content, task: Task, report: Report) -> None:
    """Raise UsageError where something is left of the original."""
    texts = content.pseudonyms.known
    if "addresses" in task.keep:
        texts = {text for text in texts if content.addresses.literal(text.removeprefix(b"/")) is None}
    records_kept = bool(task.keep & {"keys", "values", "headers"})
    leaked = list(leaks(CapturePoint("clean", (path,)), folder, texts, task.ports, not records_kept))
    report.texts_checked = len(texts)
    _refuse(leaked)


def _check_windows(path: str, captured: CapturedBytes, replaced: IO[bytes], content: Content, task: Task) -> None:
    """Raise UsageError where eight printable bytes of the original are in the result. With names or parts of records
    kept there are many; their own check is `_check`."""
    if task.keep - {"ids", SCHEMA}:
        return
    replaced.flush()
    size = replaced.tell()
    data = np.memmap(replaced, np.uint8, "r", shape=(size,)).view(np.ndarray) if size else np.zeros(0, np.uint8)
    words = content.pseudonyms.public | content.prefixes
    if SCHEMA in task.keep:
        words = words | {name.encode() for name in SCHEMA_HEADERS}
    _refuse(list(shared_windows(path, captured, data, content.pseudonyms, words)))


def _refuse(leaked: list[Leak]) -> None:
    """Raise UsageError for what is left of the original, if anything is."""
    if leaked:
        first = leaked[0]
        raise UsageError(
            f"the result is not clean: a text of {first.size} bytes of the original stands {first.where}"
            + (f" ({len(leaked):,} such places)" if len(leaked) > 1 else "")
            + ", so nothing was written",
            "short texts may stand there by chance: try again, or with another --key; else this is a defect: tell us",
        )


def same_file(first: str, others: Sequence[str]) -> bool:
    """Whether a path is one of some files."""
    return any(os.path.exists(other) and os.path.exists(first) and os.path.samefile(first, other) for other in others)


__all__ = ["Report", "Task", "same_file", "scrub"]
