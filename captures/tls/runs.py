"""Many records of one direction at once: a kernel finds them, opens them, and says which packet brought which byte.

In: rows of one direction of a connection whose traffic keys are at hand, in order, with nothing missing between them.
Out: rows of plaintext. Rules: it stops before the first record that is not whole, does not authenticate, or holds
anything but application data; `captures.tls.session` goes on there, as if nothing had been done before. The slow twin
of this is the session itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np

from captures.kernels import Bytes, Int, Table, address_of, call_at, copy_bytes, inline, kernel
from captures.stream_tables import SEG_AT, SEG_COLUMNS, SEG_LENGTH, SEG_SOURCE, SEG_TRIGGER
from captures.tls.ciphers import Keys
from captures.tls.direction import HELD as HELD
from captures.tls.direction import LARGEST, Direction, needed
from captures.tls.evp import CONTROL, FINAL, INIT, UPDATE, functions

(P_CONTEXT, P_NUMBER, P_TLS13, P_EXPLICIT, P_LARGEST, P_PARAMETERS) = range(6)
"""A direction's keys: the context's address, the next sequence number, whether it is TLS 1.3, how many bytes of the
nonce a record carries (TLS 1.2 with GCM: 8), and how long a record's body may be."""

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


class Given(NamedTuple):
    """The bytes that rows name: the window's, the waiting ones, those held from before (`HELD`)."""

    window: Bytes
    waiting: Bytes
    held: Bytes


class Made(NamedTuple):
    """What comes out: rows, of each the place of the row that brought its record's last byte, and the text."""

    rows: Table
    places: Table
    text: Bytes


@inline
def _copied(given: Given, row: Table, first: Int, count: Int, work: Bytes, into: Int) -> None:
    """work[into:] = some bytes of a row."""
    at = row[SEG_AT] + first
    if row[SEG_SOURCE] == 0:
        copy_bytes(work, into, given.window, at, count)
    elif row[SEG_SOURCE] == 1:
        copy_bytes(work, into, given.waiting, at, count)
    else:
        copy_bytes(work, into, given.held, at, count)


@inline
def _gathered(given: Given, rows: Table, i: Int, first: Int, count: Int, work: Bytes, into: Int) -> Int:
    """work[into:] = `count` bytes from a place in row i on, as far as they are there; returns how many are."""
    done = np.int64(0)
    while done < count and i < len(rows):
        part = min(rows[i, SEG_LENGTH] - first, count - done)
        _copied(given, rows[i], first, part, work, into + done)
        done += part
        first = np.int64(0)
        i += 1
    return done


@inline
def _opened(calls: Table, key: Table, vector: Bytes, record: Int, size: Int, made: Made, at: Int, work: Bytes) -> Int:
    """Open a record's body (`size` bytes behind its header, which lies at the address `record` and in work[_HEAD:])
    into made.text[at:]; returns the length of the text, -1: it does not authenticate."""
    base = address_of(work)
    context = key[P_CONTEXT]
    number = key[P_NUMBER]
    explicit = key[P_EXPLICIT]
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
    if not key[P_TLS13]:  # its number, and the header with the text's length (RFC 5246, 6.2.3.3)
        for i in range(8):
            work[_ABOUT + 7 - i] = np.uint8((number >> (8 * i)) & 255)
        for i in range(3):
            work[_ABOUT + 8 + i] = work[_HEAD + i]
        work[_ABOUT + 11] = np.uint8(text >> 8)
        work[_ABOUT + 12] = np.uint8(text & 255)
        about = base + _ABOUT
        many = np.int64(13)
    length = base + _LENGTH
    into = address_of(made.text) + at
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


@kernel
def open_run(
    calls: Table, key: Table, vector: Bytes, rows: Table, places: Table, given: Given, made: Made, work: Bytes
) -> tuple[Int, Int, Int, Int]:
    """Records from rows[0] on -> (row, and byte in it, where the first one begins that was not opened; rows made, bytes
    made). key[P_NUMBER] is then the next one's."""
    i = np.int64(0)
    first = np.int64(0)
    count = np.int64(0)
    at = np.int64(0)
    explicit = key[P_EXPLICIT]
    least = explicit + _TAG + key[P_TLS13]
    while True:
        while i < len(rows) and first >= rows[i, SEG_LENGTH]:
            i += 1
            first = np.int64(0)
        if _gathered(given, rows, i, first, _HEADER + explicit, work, np.int64(_HEAD)) < _HEADER + explicit:
            break
        size = np.int64(work[_HEAD + 3]) << 8 | np.int64(work[_HEAD + 4])
        if work[_HEAD] != _DATA or work[_HEAD + 1] != 3 or size > key[P_LARGEST] or size < least:
            break
        last = i
        left = _HEADER + size
        place = first
        while last < len(rows) and rows[last, SEG_LENGTH] - place < left:
            left -= rows[last, SEG_LENGTH] - place
            last += 1
            place = np.int64(0)
        if last >= len(rows):
            break
        if last == i and rows[i, SEG_SOURCE] == 0:
            record = address_of(given.window) + rows[i, SEG_AT] + first
        elif last == i and rows[i, SEG_SOURCE] == 1:
            record = address_of(given.waiting) + rows[i, SEG_AT] + first
        else:
            _gathered(given, rows, i, first, _HEADER + size, work, np.int64(0))
            record = address_of(work)
        text = _opened(calls, key, vector, record, size, made, at, work)
        if text < 0:
            break
        if key[P_TLS13]:
            while text > 0 and made.text[at + text - 1] == 0:  # padding
                text -= 1
            if text == 0 or made.text[at + text - 1] != _DATA:
                break
            text -= 1
        count = _told(rows, places, i, first, last, explicit, text, made, count, at)
        at += text
        key[P_NUMBER] += 1
        i = last
        first = place + left
    return i, first, count, at


@inline
def _told(
    rows: Table, places: Table, i: Int, first: Int, last: Int, explicit: Int, text: Int, made: Made, count: Int, at: Int
) -> Int:
    """A row for each row that brought some of a record's text; returns how many rows there are now."""
    position = np.int64(-_HEADER) - explicit  # in the text
    while position < text:
        end = position + rows[i, SEG_LENGTH] - first
        begin = max(position, np.int64(0))
        stop = min(end, text)
        if stop > begin:
            for column in range(SEG_COLUMNS):
                made.rows[count, column] = rows[i, column]
            made.rows[count, SEG_SOURCE] = 1
            made.rows[count, SEG_AT] = at + begin
            made.rows[count, SEG_LENGTH] = stop - begin
            made.rows[count, SEG_TRIGGER] = rows[last, SEG_TRIGGER]
            made.places[count] = places[last]
            count += 1
        position = end
        first = np.int64(0)
        i += 1
    return count


class Sources(NamedTuple):
    """The bytes that rows of `Segments` name."""

    window: np.ndarray
    waiting: np.ndarray


class Sink(Protocol):
    """Takes what is opened."""

    def room(self, rows: int, size: int) -> Made:
        """Memory for so many rows and bytes; what is taken next lies at its begin."""
        ...

    def take(self, rows: int, used: int) -> None:
        """The first rows of the memory, whose bytes lie in its first `used` bytes."""
        ...

    def at(self, place: int, trigger: int) -> None:
        """What is given one by one from here on stands for the row at this place, with this trigger."""
        ...


class Run(NamedTuple):
    """`whole`: rows that were worked on; `number`: the next record's; `used`: bytes of text."""

    whole: int
    number: int
    used: int


def opened(keys: Keys, d: Direction, rows: np.ndarray, places: np.ndarray, sources: Sources, sink: Sink) -> Run:
    """Open what can be, and leave the rest to the direction: all of it where more bytes are needed, else up to the row
    that brought the beginning of a record that is to be looked at by itself."""
    before = d.held_rows()
    held = np.frombuffer(bytearray(b"".join(d.pieces)) or bytearray(1), np.uint8)
    every, stands = rows, places
    if len(before):
        every = np.concatenate([before, rows])
        stands = np.concatenate([np.full(len(before), places[0], np.int64), places])
    total = int(every[:, SEG_LENGTH].sum())
    made = sink.room(len(every) + total // (_HEADER + _TAG) + 1, total)
    given = Given(sources.window, sources.waiting, held)
    key = np.array([keys.context.address, d.number, keys.tls13, keys.explicit, LARGEST], np.int64)
    work = np.empty(WORK_BYTES, np.uint8)
    row, first, count, used = open_run(functions(), key, keys.vector, every, stands, given, made, work)
    sink.take(count, used)
    left = every[row:].copy()
    if len(left):
        left[0, SEG_AT] += first
        left[0, SEG_LENGTH] -= first
    size = int(left[:, SEG_LENGTH].sum())
    if _is_whole(left, given, size):
        left = left[: max(1, len(before) - row + 1)]
    d.keep(total - size, left, b"".join(_bytes(one, given) for one in left.tolist()))
    return Run(row + len(left) - len(before), int(key[P_NUMBER]), used)


def _bytes(row: list[int], given: Given) -> bytes:
    at = row[SEG_AT]
    found: bytes = given[row[SEG_SOURCE]][at : at + row[SEG_LENGTH]].tobytes()
    return found


def _is_whole(left: np.ndarray, given: Given, size: int) -> bool:
    """Whether what is left begins with a record that is there, or with no record."""
    head = b""
    for row in left.tolist():
        if len(head) >= _HEADER:
            break
        head += _bytes(row, given)[:_HEADER]
    return len(head) >= _HEADER and size >= needed(head)
