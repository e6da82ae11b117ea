"""A capture point read in chunks, by so many shares, and put together again: what a reader of the whole would give."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from kwire.captures.chunks import routing
from kwire.captures.chunks.chunk_reader import ChunkJoiner, ChunkReader, chunks_of
from kwire.captures.chunks.groups import groups_of, pairs_of
from kwire.captures.chunks.routing import RoutedReader
from kwire.captures.chunks.sorting import StoredChunk, divided, store
from kwire.captures.files import CaptureError, CapturePoint
from kwire.captures.flows import OTHERS
from kwire.captures.packets import Reader
from tests.captures.reading import rows_of

GROUPS = 2
"""A share."""

T = TypeVar("T")


@dataclass
class Reading:
    """Rows and notes of a capture point, as a reader gives them.

    problem: the error, if it was refused; rows: each row's file and its values; guesses: chunks whose start was
    guessed; again: those read again."""

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
        names = [field.name for field in fields(self) if field.name not in ("guesses", "again")]
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
        return Reading([], [], [], {}, [], failure.message)


def _of(*readers: Reader, groups: Sequence[Sequence[int]] = ()) -> Reading:
    """Join the rows of readers that have a share each.

    groups: groups of each share, where connections of all packets are told apart."""
    by_group: list[list[Any]] = []
    times: list[int] = []
    for share, reader in enumerate(readers):
        at = 0
        for batch in reader:
            c = batch.columns
            if groups:
                pairs = pairs_of((c.src_hi, c.src_lo, c.src_port), (c.dst_hi, c.dst_lo, c.dst_port))
                is_own = np.isin(groups_of(pairs, GROUPS * len(readers)), groups[share]).tolist()
            else:
                is_own = (c.number != OTHERS).tolist()
            if share == 0:
                by_group += [[] for _ in is_own]
                times += c.time_ns.tolist()
            assert times[at : at + len(is_own)] == c.time_ns.tolist()
            files = c.file.tolist()
            if not all(is_own):
                _blank(batch, is_own)
            for row, (own, values) in enumerate(zip(is_own, rows_of(batch), strict=True)):
                if own:
                    by_group[at + row] = [files[row], values, int(c.identity[row]), _headers(batch, row)]
            at += len(is_own)
            batch.release()
        assert at == len(by_group)
    last = readers[-1]
    return Reading(
        by_group, list(last.notes), list(last.files), last.counts, list(zip(last.secrets_at, last.secrets, strict=True))
    )


def _blank(batch: Any, is_own: list[bool]) -> None:
    """Of others' packets nothing is worth looking at, and nothing is where it says."""
    for row, own in enumerate(is_own):
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
    copied: T = pickle.loads(pickle.dumps(value))
    return copied


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
        stored: list[StoredChunk] = []
        again = guesses = 0
        for number, chunk in enumerate(chunks):
            guesses += chunk.begin > 0
            reader = ChunkReader(chunk, None, window_bytes, look_bytes)
            result, sorted_chunk = store(reader, GROUPS * shares, shares, folder / f"{number}")
            if not joining.wants(chunk):
                continue
            if not joining.fits(chunk, result):
                again += 1
                reader = ChunkReader(chunk, carried(joining.begin(chunk)), window_bytes)
                result, sorted_chunk = store(reader, GROUPS * shares, shares, folder / f"{number}-again")
                assert joining.fits(chunk, result)
            joining.take(chunk, carried(result))
            stored.append(sorted_chunk._replace(number=joining.numbers[-1]))
        summary = carried(joining.summary())
        groups = divided(stored, shares)
        reading = _of(*(RoutedReader(point, summary, stored, groups_of_share) for groups_of_share in groups))
        with mock.patch.object(routing, "MOST_PACKETS", 0):
            same = _of(
                *(RoutedReader(point, summary, stored, groups_of_share, True) for groups_of_share in groups),
                groups=groups,
            )
        assert reading.differences(same) == []
    except CaptureError as failure:
        return Reading([], [], [], {}, [], failure.message)
    reading.guesses, reading.again = guesses, again
    return reading
