"""A file read in portions while it grows says what one reader says of it when it is whole.

(proves: captures/files/growing_files.py, captures/packets.py)
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kwire.captures.files import CaptureError, CapturePoint
from kwire.captures.files.write import block_of, option
from kwire.captures.packets import Reader
from tests.captures import forge
from tests.captures.forge import RAW, TO_BROKER, TO_CLIENT, Write
from tests.captures.mutants import fragments
from tests.captures.reading import rows_of


def _records(packets: int = 60) -> list[forge.Record]:
    rng = random.Random(7)
    return forge.rendered(
        forge.converse([Write(bool(n % 2), rng.randbytes(rng.randint(1, 400))) for n in range(packets)])
    )


def _in_fragments() -> bytes:
    packet = forge.tcp_ip(forge.converse([Write(TO_BROKER, bytes(range(64)))])[3])
    return forge.pcap(
        [forge.Record(forge.START_NS + n, record, len(record)) for n, record in enumerate(fragments(packet, 7, 16))],
        RAW,
    )


def _sections() -> bytes:
    """Two sections in either byte order, interfaces that come late, comments, losses, secrets, and packets without a
    time."""
    records = _records()
    secret = struct.pack("<II", 0x544C534B, 12) + b"CLIENT_x 1 2"
    lost = struct.pack("<III", 0, 0, 0) + option("<", 5, struct.pack("<Q", 7))
    return (
        forge.pcapng(records[:20], comment="first")
        + block_of("<", 10, secret)
        + block_of("<", 1, struct.pack("<HHI", 1, 0, 0))
        + forge.pcapng(
            [replace(record, interface=1) for record in records[20:40]], (1, 1), resolution=6, big_endian=True
        )
        + forge.pcapng(records[40:50], block="simple")
        + forge.pcapng(records[50:], block="obsolete")
        + block_of("<", 5, lost)
    )


CAPTURES: dict[str, Callable[[], bytes]] = {
    "pcap": lambda: forge.pcap(_records()),
    "pcap, big-endian": lambda: forge.pcap(_records(), big_endian=True, nanoseconds=True),
    "pcapng": _sections,
    "fragments": _in_fragments,
    "cut": lambda: forge.pcap(_records())[:-5],
    "damaged": lambda: forge.pcap(_records(20)) + b"\xff" * 40,
    "a link type that is not known besides": lambda: forge.pcapng(
        [replace(record, interface=n % 2) for n, record in enumerate(_records(8))], (1, 999)
    ),
}


def _results(reader: Reader, rows: list[Any]) -> tuple[Any, ...]:
    files = [file._replace(mtime_ns=0) for file in reader.files]
    return rows, files, reader.notes, reader.counts, reader.secrets, reader.secrets_at


def _whole(*paths: Path) -> tuple[Any, ...]:
    reader = Reader(CapturePoint("point", tuple(map(str, paths))))
    return _results(reader, [row for batch in reader for row in rows_of(batch)])


@pytest.mark.parametrize("what", CAPTURES)
def test_portions_say_what_the_whole_says(what: str, tmp_path: Path) -> None:
    data = CAPTURES[what]()
    rng = random.Random(1)
    path, later = tmp_path / "growing", tmp_path / "later"
    later.write_bytes(forge.pcap(_records(2)))
    for turn in range(12):
        path.write_bytes(data)
        expected = _whole(path, later)
        reader = Reader(CapturePoint("point", ()), window_bytes=rng.choice((64, 1000, 1 << 20)))
        rows = []
        for until in sorted(rng.sample(range(60, len(data)), rng.randrange(1, 6))):
            path.write_bytes(data[: until + turn % 2 * 9])  # more may have come before it is read
            reader.go_on(CapturePoint("point", (str(path),)), until)
            rows += [row for batch in reader for row in rows_of(batch)]
            assert reader.files[-1].size <= until
        path.write_bytes(data)
        reader.go_on(CapturePoint("point", (str(path), str(later))))
        rows += [row for batch in reader for row in rows_of(batch)]
        assert _results(reader, rows) == expected


def test_a_file_may_be_renamed_and_packed_before_its_rest_is_read(tmp_path: Path) -> None:
    data = forge.pcap(_records())
    path, packed = tmp_path / "a.pcap", tmp_path / "b.pcap.gz"
    path.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    reader = Reader(CapturePoint("point", ()))
    rows = []
    for name, until in ((path, 1000), (packed, 3000), (packed, None)):
        reader.go_on(CapturePoint("point", (str(name),)), until)
        rows += [row for batch in reader for row in rows_of(batch)]
    assert _results(reader, rows) == _whole(packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("size", "until"), [(900, None), (900, 1500), (1200, 1500)])
def test_a_file_that_became_shorter_is_told(size: int, until: int | None, packed: bool, tmp_path: Path) -> None:
    path, data = tmp_path / "a.pcap", forge.pcap(_records())
    path.write_bytes(data[:1000])
    reader = Reader(CapturePoint("point", ()))
    reader.go_on(CapturePoint("point", (str(path),)), 1000)
    list(reader)
    at = reader.files[-1].size
    assert 900 < at <= 1000
    path.write_bytes(gzip.compress(data[:size]) if packed else data[:size])
    reader.go_on(CapturePoint("point", (str(path),)), until)
    with pytest.raises(CaptureError, match=f"has {size:,} bytes, and had ({at}|1,500) before"):
        list(reader)


def test_answers_of_a_client_are_rows_once(tmp_path: Path) -> None:
    """A record of which all but the last byte is there waits for that byte."""
    head, both = forge.pcap([]), forge.rendered(forge.converse([Write(TO_CLIENT, b"x" * 50)]))
    data = forge.pcap(both)
    path = tmp_path / "a.pcap"
    path.write_bytes(data)
    reader = Reader(CapturePoint("point", ()))
    counts = []
    for until in (*range(len(head) + 16, len(data)), None):
        reader.go_on(CapturePoint("point", (str(path),)), until)
        counts.append(sum(len(batch) for batch in reader))
    assert sum(counts) == len(both)
    assert max(counts) == 1
