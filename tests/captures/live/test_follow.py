"""A folder where captures rotate: every packet once, in order, whatever the tool does with its files.

Each step of a test reads all that was written before the next: nothing depends on time.

(proves: captures/live/follow.py)
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from kwire.captures.errors import CaptureError
from kwire.captures.files import CapturePoint
from kwire.captures.files.write import Record, pcap, pcapng
from kwire.captures.live.follow import Follower
from kwire.captures.packets import Reader
from tests.captures.reading import rows_of
from tests.live import Wire, sample_records

RECORDS = sample_records()
HEAD = pcap([], nanoseconds=True)


def packed(records: list[Record]) -> bytes:
    return pcap(records, nanoseconds=True)[24:]


class Followed:
    """Packets that a reader gives of a folder; `more(n)` reads until n packets have come in all."""

    def __init__(self, folder: Path) -> None:
        self.follower = Follower(str(folder))
        point = CapturePoint("folder", cast(tuple[str, ...], self.follower))
        self._reader = Reader(point, stdin=self.follower)  # type: ignore[arg-type]
        self.seen: list[int] = []

    def more(self, count: int) -> None:
        while len(self.seen) < count:
            self._take(next(self._reader))

    def rest(self) -> list[int]:
        self.follower.stop()
        for batch in self._reader:
            self._take(batch)
        return self.seen

    def _take(self, batch: object) -> None:
        self.seen += [row.time_ns for row in rows_of(batch)]  # type: ignore[arg-type]
        batch.release()  # type: ignore[attr-defined]


@contextmanager
def followed(folder: Path) -> Iterator[Followed]:
    followed_folder = Followed(folder)
    try:
        yield followed_folder
    finally:
        followed_folder.follower.stop()
        followed_folder._reader.close()


def times(count: int, begin: int = 0) -> list[int]:
    return [record.time_ns for record in RECORDS[begin:count]]


def test_files_that_are_there_come_oldest_first_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.pcap").write_bytes(HEAD + packed(RECORDS[:10]))
    (tmp_path / "a.pcapng").write_bytes(pcapng(RECORDS[10:20]))
    (tmp_path / "notes.txt").write_text("no capture")
    (tmp_path / "folder").mkdir()
    with followed(tmp_path) as reading:
        reading.more(20)
        assert reading.rest() == times(20)
        assert [file.name for file in reading.follower.read] == ["b.pcap", "a.pcapng"]


def test_a_file_grows_and_another_follows(tmp_path: Path) -> None:
    with followed(tmp_path) as reading, open(tmp_path / "1.pcap", "wb", buffering=0) as first:
        first.write(HEAD)
        first.write(packed(RECORDS[:3]))
        reading.more(3)
        data = packed(RECORDS[3:5])
        first.write(data[:25])  # half a record: the next one is there when the rest is
        first.write(data[25:])
        reading.more(5)
        with open(tmp_path / "2.pcap", "wb", buffering=0) as second:
            second.write(HEAD)
            first.write(packed(RECORDS[5:6]))
            reading.more(6)
            second.write(packed(RECORDS[6:9]))
            reading.more(9)
        assert reading.rest() == times(9)


def test_a_renamed_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "now.pcap").write_bytes(HEAD + packed(RECORDS[:4]))
    with followed(tmp_path) as reading:
        reading.more(4)
        (tmp_path / "now.pcap").rename(tmp_path / "2026.pcap")
        (tmp_path / "now.pcap").write_bytes(HEAD + packed(RECORDS[4:6]))
        reading.more(6)
        assert reading.rest() == times(6)


def test_a_packed_file_is_read_once(tmp_path: Path) -> None:
    """tcpdump -z gzip: while it packs both are there."""
    path = tmp_path / "0.pcap"
    path.write_bytes(HEAD + packed(RECORDS[:4]))
    with followed(tmp_path) as reading:
        reading.more(4)
        (tmp_path / "0.pcap.gz").write_bytes(gzip.compress(path.read_bytes()))
        assert reading.follower.listed() == []
        path.unlink()
        (tmp_path / "1.pcap").write_bytes(HEAD + packed(RECORDS[4:6]))
        reading.more(6)
        assert reading.rest() == times(6)


def test_a_file_that_is_used_again_is_read_again(tmp_path: Path) -> None:
    """tcpdump -W writes to the first file anew, which stays the same one on the disk."""
    path = tmp_path / "0.pcap"
    path.write_bytes(HEAD + packed(RECORDS[:4]))
    inode = path.stat().st_ino
    with followed(tmp_path) as reading:
        reading.more(4)
        path.write_bytes(HEAD + packed(RECORDS[4:6]))
        assert path.stat().st_ino == inode
        reading.more(6)
        assert reading.rest() == times(6)


def test_deleted_files_do_not_matter_once_begun(tmp_path: Path) -> None:
    path = tmp_path / "0.pcap"
    path.write_bytes(HEAD + packed(RECORDS[:4]))
    with followed(tmp_path) as reading:
        reading.more(4)
        path.unlink()
        (tmp_path / "1.pcap").write_bytes(HEAD + packed(RECORDS[4:6]))
        reading.more(6)
        assert reading.rest() == times(6)


@pytest.mark.parametrize("tool", ["tcpdump", "dumpcap"])
def test_what_the_tools_themselves_rotate(tool: str, wire: Wire, tmp_path: Path) -> None:
    """A new file after a megabyte, or half of one, while they capture."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command, begun = {
        "tcpdump": (["tcpdump", "-U", "-B", "8192", "-Z", "root", "-C", "1", "-w", f"{tmp_path}/a.pcap"], "listening"),
        "dumpcap": (["dumpcap", "-q", "-B", "8", "-b", "filesize:500", "-w", f"{tmp_path}/a.pcapng"], "File:"),
    }[tool]
    frames = [record.data for record in RECORDS] * 15
    with subprocess.Popen([*command, "-i", wire.name], stderr=subprocess.PIPE, text=True) as capturing:
        assert capturing.stderr is not None
        while begun not in (line := capturing.stderr.readline()):
            assert line, "it ended"
        try:
            wire.send(frames)
            with followed(tmp_path) as reading:
                reading.more(len(frames))
                assert len(set(reading.follower.read)) > 1
                seen = reading.rest()
        finally:
            capturing.terminate()
            capturing.stderr.read()
    assert len(seen) == len(frames)
    assert seen == sorted(seen)


def test_no_packets_end_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty.pcap").write_bytes(HEAD)
    with followed(tmp_path) as reading:
        assert reading.rest() == []


def test_a_folder_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be read"):
        Follower(str(tmp_path / os.devnull.lstrip("/")))
