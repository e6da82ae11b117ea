"""Many messages decoded at once, for who wants only some of their fields: one call of the kernel for all of them.

In: bytes, and where which messages lie in them. Out: the tape of the selected fields of all of them, and how each
ended. Rules: those of `decoding.decode`, which does it; a message is its header and then its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from analyzer.protocol import program
from analyzer.protocol.decoding import FULL, OK, STACK_COLUMNS, TAPE_COLUMNS, decode
from captures.kernels import Array, Bytes, Int, Table, kernel

(AT, END, HEADER, BODY, PLACE_COLUMNS) = range(5)
"""Of a message: its bytes, and where the code of its header and of its body starts."""

(ENDED, STATUS, ENDING_COLUMNS) = range(3)
"""Where a message ended, or the field that could not be read; `decoding`'s status."""

_ROWS: Final = 1 << 14
_MOST_ROWS: Final = 1 << 20


@kernel
def walk(
    buffer: Bytes,
    places: Table,
    begin: Int,
    code: Array,
    tags: Array,
    tag_entries: Array,
    selected: Bytes,
    tape: Table,
    endings: Table,
    stack: Table,
) -> tuple[Int, Int]:
    """Decode the messages of `places` int64[n, PLACE_COLUMNS] from `begin` on, as long as `tape` has room ->
    (the first that is not decoded, rows of the tape in use). `endings` int64[n, ENDING_COLUMNS] is filled in."""
    used = np.int64(0)
    row = begin
    while row < len(places):
        before = used
        end = places[row, END]
        at, used, status, _ = decode(
            buffer, places[row, AT], end, places[row, HEADER], code, tags, tag_entries, selected, tape, used, row, stack
        )
        if status == OK:
            at, used, status, _ = decode(
                buffer, at, end, places[row, BODY], code, tags, tag_entries, selected, tape, used, row, stack
            )
        if status == FULL:
            return row, before
        endings[row, ENDED] = at
        endings[row, STATUS] = status
        row += 1
    return row, used


def decode_all(
    buffer: np.ndarray, places: np.ndarray, selected: np.ndarray, loaded: program.Program
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Stretch after stretch of the messages: their tape (valid until the next), and how all ended so far. A message
    with more than a million selected fields has the status FULL, and none on the tape."""
    endings = np.zeros((len(places), ENDING_COLUMNS), np.int64)
    endings[:, STATUS] = FULL
    stack = np.empty((program.STACK_DEPTH, STACK_COLUMNS), np.int64)
    tape = np.empty((_ROWS, TAPE_COLUMNS), np.int64)
    at = 0
    while at < len(places):
        following, used = walk(buffer, places, at, *loaded.arrays, selected, tape, endings, stack)
        if following == at and len(tape) < _MOST_ROWS:
            tape = np.empty((len(tape) * 8, TAPE_COLUMNS), np.int64)
            continue
        yield tape[:used], endings
        at = max(int(following), at + 1)
