"""A capture scanned by several threads at once is what one reader gives; damaged ones: `test_chunks.py`. (proves:
captures/chunks/parallel_scan.py)"""

from __future__ import annotations

import gzip
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from kwire.captures.chunks import parallel_scan
from kwire.captures.chunks.parallel_scan import AheadReader, reader_of
from kwire.captures.files import CaptureError, CapturePoint
from kwire.captures.packets import Reader
from tests.captures import forge
from tests.captures.chunks.chunking import read_by, whole
from tests.captures.forge import TO_BROKER, Record, Write
from tests.shared import capture_files, sample_folders

KIB = 1 << 10


def _records(packets: int = 400, size: int = 700) -> list[Record]:
    rng = random.Random(7)
    writes = [Write(bool(n % 2), rng.randbytes(rng.randint(1, size))) for n in range(packets // 2)]
    return forge.rendered(forge.converse(writes, mss=300))


def _point(folder: Path, *contents: bytes) -> CapturePoint:
    paths = []
    for number, content in enumerate(contents):
        path = folder / f"{number}.capture"
        path.write_bytes(content)
        paths.append(str(path))
    return CapturePoint("point", tuple(paths))


def _compared(point: CapturePoint, chunk_bytes: int = 8 * KIB, threads: int = 3) -> AheadReader:
    reader = AheadReader(point, threads, chunk_bytes)
    assert read_by(reader).differences(whole(point)) == []
    assert reader.bytes_read == sum(Path(path).stat().st_size for path in point.paths)
    return reader


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_every_sample(folder: Path, tmp_path: Path) -> None:
    contents = [capture.read_bytes() for capture in capture_files(folder)]
    point = _point(
        tmp_path, *(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content for content in contents)
    )
    for chunk_bytes in (16 * KIB, 256 * KIB):
        _compared(point, chunk_bytes)


def test_several_files_and_one_in_which_nothing_is(tmp_path: Path) -> None:
    records = _records()
    reader = _compared(
        _point(tmp_path, forge.pcap(records), forge.pcap([]), forge.pcapng(records), forge.pcap(records[:3]))
    )
    assert reader.again == 0


def test_wrong_guesses_change_nothing_and_few_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    scanned = AheadReader._scanned

    def counted(self: AheadReader, chunk: Any, known: Any, guess: Any = None) -> Any:
        begun.append(known is None)
        return scanned(self, chunk, known, guess)

    monkeypatch.setattr(AheadReader, "_scanned", counted)
    reader = _compared(_point(tmp_path, forge.pcapng(_records(2_000), comment="what is said of each is read in order")))
    assert 2 < reader.again < len(begun) / 5 > 8
    assert begun.count(True) < len(begun) / 4


def test_a_capture_inside_packets_is_not_taken_for_the_capture(tmp_path: Path) -> None:
    inside = forge.pcap(_records(2_000))
    writes = forge.converse([Write(TO_BROKER, inside)], mss=20 * KIB, acks=False, start_ns=forge.START_NS + 10**9)
    _compared(_point(tmp_path, forge.pcap(forge.rendered(writes))))


def test_no_more_is_held_than_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = _point(tmp_path, forge.pcap(_records(4_000)))
    reader = AheadReader(point, 2, 8 * KIB)
    chunks = Path(point.paths[0]).stat().st_size // (8 * KIB)
    assert chunks > 60
    started = 0
    scanned = reader._scanned

    def counted(*how: Any) -> Any:
        nonlocal started
        started += 1
        return scanned(*how)

    monkeypatch.setattr(reader, "_scanned", counted)
    for count_of_batches, packets in enumerate(reader):
        packets.release()
        if count_of_batches > 20:
            break
    assert started <= 22 + 2 + 1
    reader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kwire-scan")]


def test_a_file_that_goes_away_is_told(tmp_path: Path) -> None:
    point = _point(tmp_path, forge.pcap(_records()), forge.pcap(_records()))
    reader = AheadReader(point, 2, 8 * KIB)
    next(reader).release()
    Path(point.paths[1]).write_bytes(b"something else")
    with pytest.raises(CaptureError, match=r"1\.capture: "):
        list(reader)


def test_who_reads_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = forge.pcap(_records())
    point = _point(tmp_path, data)
    assert reader_of(point, 8, 1 << 20) is None  # it is small
    monkeypatch.setattr(parallel_scan, "LEAST_BYTES", len(data))
    assert isinstance(reader_of(point, 8, 1 << 20), AheadReader)
    assert reader_of(point._replace(paths=("-",)), 8, 1 << 20) is None
    assert reader_of(point._replace(paths=("memory://there",)), 8, 1 << 20) is None
    assert reader_of(point._replace(paths=(*point.paths, str(tmp_path / "none"))), 8, 1 << 20) is None
    packed = _point(tmp_path, gzip.compress(data), data)
    assert reader_of(packed, 8, 1 << 20) is None
    with pytest.raises(CaptureError, match="none"):
        list(Reader(point._replace(paths=(*point.paths, str(tmp_path / "none")))))
