"""A corpus of captures that showed something new, what is made of them, and the smallest part of one that still fails.

In: captures as bytes, and what kwire's tables say of them. Out: files in a folder that is kept from run to run. A
feature is a state, a reason, an error or a finding, without its numbers: a capture that has one which none had before
is kept, and broken further (`broken_further`), so that each run begins where the ones before it had come to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from kwire.analyzer.dataset.dataset import Dataset
from tests.fuzz import mutations
from tests.shared import ROOT

FOLDER: Final = Path(os.environ.get("KWIRE_FUZZ_CORPUS", ROOT / "out" / "fuzz" / "corpus"))
MOST_BYTES: Final = 1 << 20
"""Larger captures are not kept: what is made of them would take seconds each."""
_COLUMNS: Final = {
    "exchanges": ("status", "request_state", "response_state", "reason", "error", "cause"),
    "connections": ("encryption", "login", "close", "reason"),
    "batches": ("codec", "magic", "partial", "crc_ok", "reason"),
    "findings": ("code",),
}
_PCAP_HEADER, _RECORD_HEADER = 24, 16
Part = TypeVar("Part")


def features(dataset: Dataset) -> frozenset[str]:
    """List what the tables of a capture say, without numbers."""
    named: set[str] = set()
    for table, columns in _COLUMNS.items():
        rows = dataset.tables.get(table)
        for column in columns:
            if rows is not None and column in rows.column_names:
                named.update(f"{table}.{column}: {value}" for value in rows[column].unique().to_pylist())
    named.update(name for name, count in dataset.coverage.items() if count)
    named.update(f"note: {note}" for note in dataset.notes)
    return frozenset(re.sub(r"\d+|'.*'", "N", text)[:120] for text in named)


@dataclass(slots=True)
class Corpus:
    """A folder of captures, each with a text that says which features it was the first to have."""

    folder: Path
    known: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for path in self.folder.glob("*.txt"):
            self.known.update(path.read_text().splitlines())

    def captures(self) -> list[Path]:
        return sorted(self.folder.glob("*.capture"))

    def keep(self, data: bytes, seen: Collection[str]) -> bool:
        """Keep a capture that has a new feature; whether it has."""
        new = sorted(set(seen) - self.known)
        if not new or len(data) > MOST_BYTES:
            return False
        self.known.update(new)
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = self.folder / hashlib.sha256(data).hexdigest()[:16]
        # Several runs may share the folder: a file is there whole, or not at all.
        for ending, content in ((".capture", data), (".txt", "\n".join(new).encode())):
            part = stem.with_suffix(f"{ending}.{os.getpid()}")
            part.write_bytes(content)
            part.replace(stem.with_suffix(ending))
        return True


def records_of(data: bytes) -> list[bytes] | None:
    """The records of a pcap file, headers and all, the last as far as it goes; None for what is no pcap of this order
    of bytes."""
    if len(data) < _PCAP_HEADER or data[:4] not in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1"):
        return None
    records, at = [], _PCAP_HEADER
    while at + _RECORD_HEADER <= len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        records.append(data[at : at + _RECORD_HEADER + size])
        at += _RECORD_HEADER + size
    return records


def broken_further(data: bytes, rng: random.Random) -> bytes:
    """Change a capture: records that are lost, come twice, change places, or have other bytes."""
    records = records_of(data)
    if not records:
        return _edited(data, rng)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(records))
        kind = rng.randrange(6)
        if kind == 0 and len(records) > 1:
            del records[at]
        elif kind == 1:
            records.insert(rng.randrange(len(records) + 1), records[at])
        elif kind == 2:
            other = rng.randrange(len(records))
            records[at], records[other] = records[other], records[at]
        elif kind == 3:
            moment = struct.pack("<II", rng.choice((0, 1, 2**31, 2**32 - 1)), rng.randrange(1_000_000))
            records[at] = moment + records[at][8:]
        else:
            body = _edited(records[at][_RECORD_HEADER:], rng)
            records[at] = records[at][:8] + struct.pack("<II", len(body), max(len(body), 1)) + body
    return data[:_PCAP_HEADER] + b"".join(records)


def _edited(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not changed:
            break
        start = rng.randrange(len(changed))
        begin, stop, new = rng.choice(mutations.EDITS)(rng, bytes(changed), start, min(start + 61, len(changed)))
        changed[begin:stop] = new[: 1 << 16]
    return bytes(changed)


def fewest(parts: list[Part], fails: Callable[[list[Part]], bool], seconds: float) -> list[Part]:
    """The fewest parts that were met in this time and still fail: halves are left out, then quarters, and so on (delta
    debugging)."""
    until = time.monotonic() + seconds
    size = max(len(parts) // 2, 1)
    while time.monotonic() < until:
        is_smaller = False
        at = 0
        while at < len(parts) and time.monotonic() < until:
            fewer = parts[:at] + parts[at + size :]
            if fewer and fails(fewer):
                parts, is_smaller = fewer, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = max(size // 2, 1)
    return parts


def minimised(data: bytes, fails: Callable[[bytes], bool], seconds: float = 60.0) -> bytes:
    """The fewest records of a capture that still fail; for what is no pcap all of it."""
    records = records_of(data)
    if not records:
        return data
    header = data[:_PCAP_HEADER]
    few = fewest(records, lambda some: fails(header + b"".join(some)), seconds)
    return header + b"".join(few)


def evolved(number: int, seed: int) -> tuple[bytes, str, random.Random]:
    """A capture of the corpus, broken further (as it is now: other runs add to it); without a corpus a mutant."""
    rng = random.Random(f"evolved/{seed}/{number}")
    captures = Corpus(FOLDER).captures()
    with contextlib.suppress(OSError):
        if captures:
            path = rng.choice(captures)
            return broken_further(path.read_bytes(), rng), path.stem, rng
    _, broken, rng = mutations.mutant(number, seed)
    return broken.data, broken.what, rng
