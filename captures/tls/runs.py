"""Many records of many directions at once: a kernel finds them, opens them, and says which packet brought which byte.

In: a window's rows, and directions whose traffic keys are at hand, each with what it holds from before. Out: rows of
plaintext, in the order in which their records became whole. Rules

- A direction stops before its first record that does not authenticate, or holds anything but application data, and
  before its first row that is no payload; `kwire.captures.tls.session` goes on there, as if nothing had been done
  before. The reference implementation of this is the session itself.
- All directions of a window are one call: what happens between calls is Python's, of which only one thread has a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.kernels import Bytes, Int, Table, address_of, call_at, copy_bytes, inline, kernel
from kwire.captures.tls.ciphers import Keys
from kwire.captures.tls.direction import BYTES_PER_TRIAL, LARGEST, Direction
from kwire.captures.tls.direction import HELD as HELD
from kwire.captures.tls.evp import CONTROL, FINAL, INIT, UPDATE, functions

(
    D_CONTEXT,
    D_NUMBER,
    D_TLS13,
    D_EXPLICIT,
    D_LARGEST,
    D_ENTRY,
    D_BYTE,
    D_HAVE,
    D_NEED,
    D_LAST,
    D_WHOLE,
    D_TAKEN,
    D_TRIALS,
    D_GIVEN,
    D_STOPPED,
) = range(15)
"""A direction.

CONTEXT, NUMBER, TLS13, EXPLICIT, LARGEST  the context's address, the next sequence number, whether it is TLS 1.3, how
    many bytes of the nonce a record carries (TLS 1.2 with GCM: 8), and how long a record's body may be
ENTRY, BYTE  the entry of `Entries` (-1: none yet), and the byte in it, where the next record begins
HAVE, NEED   bytes from there on, and how many it takes to go on
LAST, WHOLE  its newest entry (-1: none), and how many rows of the window were worked on
TAKEN, TRIALS, GIVEN  bytes of those rows, what they pay for (`kwire.captures.tls.direction`), bytes of text
STOPPED      what comes next is to be looked at by itself
"""
D_COLUMNS: Final = 15

_HEADER: Final = 5
_TAG: Final = 16
_DATA: Final = 23
_SET_TAG: Final = 0x11
"""EVP_CTRL_AEAD_SET_TAG."""

WORK_BYTES: Final = 1 << 15
"""Of scratch memory: a record that crosses packets, and behind it what each call is given."""
_HEAD: Final = WORK_BYTES - 128
_ABOUT: Final = WORK_BYTES - 96
_NONCE: Final = WORK_BYTES - 64
_LENGTH: Final = WORK_BYTES - 32


class Input(NamedTuple):
    """The bytes that rows name: the window's, the waiting ones, those held from before (`HELD`)."""

    window: Bytes
    waiting: Bytes
    held: Bytes


class Output(NamedTuple):
    """Decrypted rows, for each the place of the row with its record's last byte, and the text."""

    rows: Table
    places: Table
    text: Bytes


class Entries(NamedTuple):
    """Rows by number: those held from before (int64[h, SEG_COLUMNS]), then those of the window that `places` (int64[m])
    names. `turns` (int64[h + m]): the direction of each; -1: none's. `links` (int64[h + m]): the next entry of the same
    direction, which the kernel finds."""

    before: Table
    window: Table
    places: Table
    turns: Table
    links: Table


@inline
def _of(entries: Entries, entry: Int, column: Int) -> Int:
    """A column of an entry."""
    if entry < len(entries.before):
        return entries.before[entry, column]
    return entries.window[entries.places[entry - len(entries.before)], column]


@inline
def _copied(given: Input, entries: Entries, entry: Int, first: Int, count: Int, work: Bytes, into: Int) -> None:
    """work[into:] = some bytes of an entry."""
    at = _of(entries, entry, t.SEG_AT) + first
    source = _of(entries, entry, t.SEG_SOURCE)
    if source == 0:
        copy_bytes(work, into, given.window, at, count)
    elif source == 1:
        copy_bytes(work, into, given.waiting, at, count)
    else:
        copy_bytes(work, into, given.held, at, count)


@inline
def _gathered(given: Input, entries: Entries, entry: Int, first: Int, count: Int, work: Bytes, into: Int) -> None:
    """work[into:] = `count` bytes from a place in an entry on; they are there."""
    done = np.int64(0)
    while done < count:
        part = min(_of(entries, entry, t.SEG_LENGTH) - first, count - done)
        _copied(given, entries, entry, first, part, work, into + done)
        done += part
        first = np.int64(0)
        entry = entries.links[entry]


@inline
def _opened(calls: Table, side: Table, vector: Bytes, record: Int, size: Int, out: Output, at: Int, work: Bytes) -> Int:
    """Open a record's body into out.text[at:]; return the length of the text, -1: it does not authenticate.

    The body is the `size` bytes behind its header, which lies at the address `record` and in work[_HEAD:]."""
    base = address_of(work)
    context = side[D_CONTEXT]
    number = side[D_NUMBER]
    explicit = side[D_EXPLICIT]
    text = size - explicit - _TAG
    for i in range(12):
        work[_NONCE + i] = vector[i]
    for i in range(8):
        if explicit:
            work[_NONCE + 4 + i] = work[_HEAD + _HEADER + i]
        else:
            work[_NONCE + 11 - i] = vector[11 - i] ^ np.uint8((number >> (8 * i)) & 255)
    about = base + _HEAD
    many = np.int64(_HEADER)
    if not side[D_TLS13]:  # its number, and the header with the text's length (RFC 5246, 6.2.3.3)
        for i in range(8):
            work[_ABOUT + 7 - i] = np.uint8((number >> (8 * i)) & 255)
        for i in range(3):
            work[_ABOUT + 8 + i] = work[_HEAD + i]
        work[_ABOUT + 11] = np.uint8(text >> 8)
        work[_ABOUT + 12] = np.uint8(text & 255)
        about = base + _ABOUT
        many = np.int64(13)
    length = base + _LENGTH
    into = address_of(out.text) + at
    body = record + _HEADER + explicit
    if call_at(calls[INIT], (context, np.int64(0), np.int64(0), np.int64(0), base + _NONCE)) != 1:
        return np.int64(-1)
    call_at(calls[UPDATE], (context, np.int64(0), length, about, many))
    if text > 0:
        call_at(calls[UPDATE], (context, into, length, body, text))
    call_at(calls[CONTROL], (context, np.int64(_SET_TAG), np.int64(_TAG), body + text))
    if call_at(calls[FINAL], (context, into + text, length)) <= 0:
        return np.int64(-1)
    return text


@inline
def _next(side: Table, entries: Entries, given: Input, work: Bytes) -> bool:
    """Whether a direction's next record is whole; its header then lies in work[_HEAD:]. STOPPED where it is none that
    can be opened here."""
    while side[D_BYTE] >= _of(entries, side[D_ENTRY], t.SEG_LENGTH):
        side[D_ENTRY] = entries.links[side[D_ENTRY]]
        side[D_BYTE] = 0
    explicit = side[D_EXPLICIT]
    _gathered(given, entries, side[D_ENTRY], side[D_BYTE], _HEADER + explicit, work, np.int64(_HEAD))
    size = np.int64(work[_HEAD + 3]) << 8 | np.int64(work[_HEAD + 4])
    least = explicit + _TAG + side[D_TLS13]
    if work[_HEAD] != _DATA or work[_HEAD + 1] != 3 or size > side[D_LARGEST] or size < least:
        side[D_STOPPED] = 1
        return False
    side[D_NEED] = _HEADER + size
    return bool(side[D_HAVE] >= side[D_NEED])


@inline
def _record(
    calls: Table, side: Table, vector: Bytes, entries: Entries, given: Input, out: Output, at: Int, work: Bytes
) -> Int:
    """Open the record that `_next` found, into out.text[at:], and go behind it.

    Returns the length of its application data. -1: it has none, or does not authenticate, and the direction stays
    before it."""
    begin = side[D_ENTRY]
    end = begin
    place = side[D_BYTE]
    left = side[D_NEED]
    while _of(entries, end, t.SEG_LENGTH) - place < left:
        left -= _of(entries, end, t.SEG_LENGTH) - place
        end = entries.links[end]
        place = np.int64(0)
    source = _of(entries, begin, t.SEG_SOURCE)
    if end == begin and source == 0:
        record = address_of(given.window) + _of(entries, begin, t.SEG_AT) + place
    elif end == begin and source == 1:
        record = address_of(given.waiting) + _of(entries, begin, t.SEG_AT) + place
    else:
        _gathered(given, entries, begin, side[D_BYTE], side[D_NEED], work, np.int64(0))
        record = address_of(work)
    text = _opened(calls, side, vector, record, side[D_NEED] - _HEADER, out, at, work)
    if text < 0:
        return np.int64(-1)
    if side[D_TLS13]:
        while text > 0 and out.text[at + text - 1] == 0:  # padding
            text -= 1
        if text == 0 or out.text[at + text - 1] != _DATA:
            return np.int64(-1)
        text -= 1
    side[D_ENTRY], side[D_BYTE] = end, place + left
    side[D_HAVE] -= side[D_NEED]
    side[D_NEED] = _HEADER + side[D_EXPLICIT]
    side[D_NUMBER] += 1
    side[D_GIVEN] += text
    return text


@inline
def _put_rows(
    entries: Entries, side: Table, entry: Int, first: Int, text: Int, out: Output, count: Int, at: Int
) -> Int:
    """A row for each entry that brought some of a record's text, from where the record begins up to where the direction
    is now; returns how many rows there are."""
    held = len(entries.before)
    last = side[D_ENTRY]
    position = np.int64(-_HEADER) - side[D_EXPLICIT]  # in the text
    while position < text:
        end = position + _of(entries, entry, t.SEG_LENGTH) - first
        begin = max(position, np.int64(0))
        stop = min(end, text)
        if stop > begin:
            if entry < held:
                for column in range(t.SEG_COLUMNS):
                    out.rows[count, column] = entries.before[entry, column]
            else:
                place = entries.places[entry - held]
                for column in range(t.SEG_COLUMNS):
                    out.rows[count, column] = entries.window[place, column]
            out.rows[count, t.SEG_SOURCE] = 1
            out.rows[count, t.SEG_AT] = at + begin
            out.rows[count, t.SEG_LENGTH] = stop - begin
            out.rows[count, t.SEG_COMPLETED_BY] = _of(entries, last, t.SEG_COMPLETED_BY)
            out.places[count] = entries.places[last - held]  # its last byte is of this window
            count += 1
        position = end
        first = np.int64(0)
        entry = entries.links[entry]
    return count


@kernel
def open_rows(
    calls: Table, sides: Table, vectors: Bytes, entries: Entries, done: Bytes, given: Input, out: Output, work: Bytes
) -> tuple[Int, Int]:
    """Records of all directions -> rows made, bytes made. sides (int64[n, D_COLUMNS]) say how far each has come;
    vectors (uint8[n * 12]): the fixed parts of their nonces; done[place] = 1 for each row that was worked on."""
    count = np.int64(0)
    at = np.int64(0)
    held = len(entries.before)
    for entry in range(len(entries.turns)):
        d = entries.turns[entry]
        if d < 0 or sides[d, D_STOPPED]:
            continue
        side = sides[d]
        size = _of(entries, entry, t.SEG_LENGTH)
        if entry >= held:
            place = entries.places[entry - held]
            if entries.window[place, t.SEG_KIND] != t.DATA:
                side[D_STOPPED] = 1
                continue
            done[place] = 1
            side[D_WHOLE] += 1
            side[D_TAKEN] += size
            side[D_TRIALS] += size // BYTES_PER_TRIAL + 1
        entries.links[entry] = -1
        if side[D_LAST] >= 0:
            entries.links[side[D_LAST]] = entry
        else:
            side[D_ENTRY] = entry
        side[D_LAST] = entry
        side[D_HAVE] += size
        while side[D_HAVE] >= side[D_NEED]:
            if not _next(side, entries, given, work):
                break
            begin, first = side[D_ENTRY], side[D_BYTE]
            text = _record(calls, side, vectors[12 * d : 12 * d + 12], entries, given, out, at, work)
            if text < 0:
                side[D_STOPPED] = 1
                break
            count = _put_rows(entries, side, begin, first, text, out, count, at)
            at += text
    return count, at


class Sources(NamedTuple):
    """The bytes that rows of `Segments` name."""

    window: np.ndarray
    waiting: np.ndarray


class PlaintextSink(Protocol):
    """Takes what is opened."""

    def room(self, rows: int, size: int) -> Output:
        """Memory for so many rows and bytes; what is taken next lies at its begin."""
        ...

    def take(self, rows: int, used: int) -> None:
        """The first rows of the memory, whose bytes lie in its first `used` bytes."""
        ...

    def at(self, place: int, completed_by: int) -> None:
        """Set the row for the plaintext that follows: its place, and the packet that completed it."""
        ...


class Run(NamedTuple):
    """Result of decrypting a direction.

    whole: rows that were worked on, the last one at `place`; number: of the next record; bytes_in, given: bytes of
    those rows, and of text; trials: trials that they pay for."""

    whole: int
    place: int
    number: int
    bytes_in: int
    given: int
    trials: int


def opened(
    many: Sequence[tuple[Keys, Direction]],
    rows: np.ndarray,
    places: np.ndarray,
    turns: np.ndarray,
    done: np.ndarray,
    sources: Sources,
    sink: PlaintextSink,
) -> list[Run]:
    """Open what can be of these rows of a window, and leave the rest to each direction: all of it where more bytes are
    needed, else up to the row at which it stopped. `turns` says for each place which direction it is of, -1: none;
    done[place] = 1 for rows that were worked on."""
    before, of, base = [], [], 0
    for number, (_, d) in enumerate(many):
        held = d.held_rows(base)
        before += held
        of += [number] * len(held)
        base += d.have
    entries = Entries(
        np.array(before, np.int64).reshape(-1, t.SEG_COLUMNS),
        rows,
        places,
        np.concatenate([np.array(of, np.int64), turns]),
        np.empty(len(of) + len(turns), np.int64),
    )
    waiting = np.frombuffer(bytearray(b"".join(piece for _, d in many for piece in d.pieces)) or bytearray(1), np.uint8)
    given = Input(sources.window, sources.waiting, waiting)
    total = base + int(rows[places, t.SEG_LENGTH].sum())
    out = sink.room(len(entries.turns) + total // (_HEADER + _TAG) + 1, total)
    sides = np.array([_side(keys, d) for keys, d in many], np.int64)
    vectors = np.concatenate([keys.vector for keys, _ in many])
    work = np.empty(WORK_BYTES, np.uint8)
    count, used = open_rows(functions(), sides, vectors, entries, done, given, out, work)
    sink.take(count, used)
    runs = []
    for (_, d), side in zip(many, sides.tolist(), strict=True):
        place = 0
        if side[D_WHOLE]:
            place = int(places[side[D_LAST] - len(of)])
            left, text = _left(entries, side, given)
            d.keep(d.have + side[D_TAKEN] - side[D_HAVE], left, text)
        runs.append(Run(side[D_WHOLE], place, side[D_NUMBER], side[D_TAKEN], side[D_GIVEN], side[D_TRIALS]))
    return runs


def _side(keys: Keys, d: Direction) -> list[int]:
    """A direction's row before anything was worked on."""
    side = [0] * D_COLUMNS
    side[D_CONTEXT], side[D_NUMBER], side[D_TLS13], side[D_EXPLICIT] = (
        keys.context.address,
        d.number,
        keys.tls13,
        keys.explicit,
    )
    side[D_LARGEST], side[D_NEED], side[D_ENTRY], side[D_LAST] = LARGEST, _HEADER + keys.explicit, -1, -1
    return side


def _left(entries: Entries, side: list[int], given: Input) -> tuple[list[list[int]], bytes]:
    """The rows that brought what was not opened, and its bytes."""
    rows, texts = [], []
    entry, first, left = side[D_ENTRY], side[D_BYTE], side[D_HAVE]
    held = len(entries.before)
    while left > 0:
        row = (entries.before[entry] if entry < held else entries.window[entries.places[entry - held]]).tolist()
        row[t.SEG_AT] += first
        row[t.SEG_LENGTH] -= first
        if row[t.SEG_LENGTH]:
            rows.append(row)
            texts.append(given[row[t.SEG_SOURCE]][row[t.SEG_AT] : row[t.SEG_AT] + row[t.SEG_LENGTH]].tobytes())
            left -= row[t.SEG_LENGTH]
        entry, first = int(entries.links[entry]), 0
    return rows, b"".join(texts)
