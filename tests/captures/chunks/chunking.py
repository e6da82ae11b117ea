"""A capture point read in chunks, by so many shares, and put together again: what a reader of the whole would give."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from captures.chunks import routing
from captures.chunks.chunk_reader import ChunkJoiner, ChunkReader, chunks_of
from captures.chunks.groups import groups_of, pairs_of
from captures.chunks.routing import RoutedReader
from captures.chunks.sorting import Stored, divided, store
from captures.files import CaptureError, CapturePoint
from captures.flows import OTHERS
from captures.packets import Reader
from tests.captures.reading import rows_of

GROUPS = 2
"""A share."""

T = TypeVar("T")


@dataclass
class Reading:
    """What came of a capture point. `problem`: the error, where it was refused; `rows`: each row's file and its values;
    `guesses`: chunks whose start was to be guessed, `again`: those read again."""

    rows: list[Any]
    notes: list[str]
    files: list[Any]
    counts: dict[str, Any]
    secrets: list[tuple[int, bytes]]
    problem: str = ""
    guesses: int = 0
    again: int = 0

    def differences(self, other: Reading) -> list[str]:
        """The names of what differs, but for how it was read."""
        names = [one.name for one in fields(self) if one.name not in ("guesses", "again")]
        if self.problem and other.problem:
            return [] if self.problem == other.problem else [f"{self.problem} / {other.problem}"]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def whole(point: CapturePoint) -> Reading:
    """By one reader."""
    return read_by(Reader(point))


def read_by(reader: Reader) -> Reading:
    """By this one."""
    try:
        return _of(reader)
    except CaptureError as failure:
        return Reading([], [], [], {}, [], str(failure))


def _of(*readers: Reader, groups: Sequence[Sequence[int]] = ()) -> Reading:
    """What readers that have a share each give together. `groups`: of each, where they tell connections of all packets
    apart."""
    found: list[list[Any]] = []
    times: list[int] = []
    for share, reader in enumerate(readers):
        at = 0
        for batch in reader:
            c = batch.columns
            if groups:
                pairs = pairs_of((c.src_hi, c.src_lo, c.src_port), (c.dst_hi, c.dst_lo, c.dst_port))
                mine = np.isin(groups_of(pairs, GROUPS * len(readers)), groups[share]).tolist()
            else:
                mine = (c.number != OTHERS).tolist()
            if share == 0:
                found += [[] for _ in mine]
                times += c.time_ns.tolist()
            assert times[at : at + len(mine)] == c.time_ns.tolist()
            files = c.file.tolist()
            if not all(mine):
                _blank(batch, mine)
            for row, (own, values) in enumerate(zip(mine, rows_of(batch), strict=True)):
                if own:
                    found[at + row] = [files[row], values, int(c.identity[row]), _headers(batch, row)]
            at += len(mine)
            batch.release()
        assert at == len(found)
    last = readers[-1]
    return Reading(
        found, list(last.notes), list(last.files), last.counts, list(zip(last.secrets_at, last.secrets, strict=True))
    )


def _blank(batch: Any, mine: list[bool]) -> None:
    """Of others' packets nothing is worth looking at, and nothing is where it says."""
    for row, own in enumerate(mine):
        if not own:
            batch.columns.payload_at[row] = batch.columns.payload_captured[row] = 0


def _headers(batch: Any, row: int) -> bytes:
    """The TCP header of a packet that brings bytes."""
    c = batch.columns
    if not c.payload_captured[row]:
        return b""
    content: bytes = batch.buffer[int(c.tcp_at[row]) : int(c.payload_at[row])].tobytes()
    return content


def carried(value: T) -> T:
    """As it comes out of another process."""
    found: T = pickle.loads(pickle.dumps(value))
    return found


def in_chunks(
    point: CapturePoint,
    chunk_bytes: int,
    shares: int,
    folder: Path,
    look_bytes: int = 256 << 10,
    window_bytes: int = 1 << 14,
) -> Reading:
    """By chunks, of which shares read their own packets, what was stored put together, and then what tells connections
    of all apart, as it was stored."""
    try:
        chunks = chunks_of(point, chunk_bytes)
        joining = ChunkJoiner(point)
        stored: list[Stored] = []
        again = guesses = 0
        for number, chunk in enumerate(chunks):
            guesses += chunk.begin > 0
            reader = ChunkReader(chunk, None, window_bytes, look_bytes)
            said, kept = store(reader, GROUPS * shares, shares, folder / f"{number}")
            if not joining.wants(chunk):
                continue
            if not joining.fits(chunk, said):
                again += 1
                reader = ChunkReader(chunk, carried(joining.begin(chunk)), window_bytes)
                said, kept = store(reader, GROUPS * shares, shares, folder / f"{number}-again")
                assert joining.fits(chunk, said)
            joining.take(chunk, carried(said))
            stored.append(kept._replace(number=joining.numbers[-1]))
        told = carried(joining.summary())
        groups = divided(stored, shares)
        found = _of(*(RoutedReader(point, told, stored, mine) for mine in groups))
        with mock.patch.object(routing, "MOST_PACKETS", 0):
            same = _of(*(RoutedReader(point, told, stored, mine, True) for mine in groups), groups=groups)
        assert found.differences(same) == []
    except CaptureError as failure:
        return Reading([], [], [], {}, [], str(failure))
    found.guesses, found.again = guesses, again
    return found
