"""Windows of eight printable bytes that two captures share: found wherever they stand, and words of protocols apart.

proves: kwire.analyzer.scrub.windows, kwire.analyzer.scrub.verification.
"""

from __future__ import annotations

import random
import string
import struct
from pathlib import Path

import numpy as np
import pytest

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.scrub import windows
from kwire.analyzer.scrub.packets import Packets
from kwire.analyzer.scrub.records import RecordScrubber
from kwire.analyzer.scrub.rewrite import Task, scrub
from kwire.analyzer.scrub.verification import WORDS
from kwire.captures.files import capture_points
from kwire.captures.files.write import Record, pcap
from tests.analyzer import forging
from tests.captures.forge import converse, rendered


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def every_window(data: bytes) -> set[bytes]:
    """Reference implementation."""
    slices = (data[at : at + 8] for at in range(len(data) - 7))
    return {window for window in slices if all(0x20 <= byte < 0x7F for byte in window)}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("most", [2, 50, 1 << 22])
def test_shared_windows_are_those_of_the_reference(seed: int, most: int) -> None:
    """However few are held at a time, and whatever the length of a piece."""
    rng = random.Random(seed)
    letters = (string.ascii_letters + " \n\0\x7f\xff").encode("latin-1")
    text = [bytes(rng.choices(letters, weights=[9] * 52 + [4] * 5, k=rng.randrange(40))) for _ in range(60)]
    clean = [b"\0".join(rng.choices(text, k=5)) + bytes(rng.choices(letters, k=rng.randrange(30))) for _ in range(9)]
    original = [b"\xff".join(rng.choices(text, k=7)) for _ in range(9)]
    expected = set().union(*map(every_window, clean)) & set().union(*map(every_window, original))
    assert windows.shared(map(array, clean), lambda: map(array, original), most) == expected


@pytest.mark.parametrize("at", [0, 1, 7, 8, windows.CHUNK - 8, windows.CHUNK - 7, windows.CHUNK - 1, windows.CHUNK])
def test_a_window_is_found_across_pieces(at: int) -> None:
    data = array(bytes(at) + b"JANE DOE" + bytes(9))
    assert windows.shared(windows.overlapping(data), lambda: [array(b"JANE DOE")]) == {b"JANE DOE"}


@pytest.mark.parametrize(
    "window", [b"apache-k", b"__consum", b"afka-pyt", b"P/1.1 20", b"rdkafka-", b"dkafka-3", b"!streams"]
)
def test_words_of_protocols_may_stay(window: bytes) -> None:
    assert windows.is_public(window, WORDS)


@pytest.mark.parametrize("window", [b"JANE DOE", b"41111111", b"afka4711", b"wordshar", b"orders.v"])
def test_no_other_text_may(window: bytes) -> None:
    assert not windows.is_public(window, WORDS)


def test_one_byte_repeated_tells_nothing() -> None:
    assert all(windows.is_filler(window) for window in (b"DDDDDDDD", b"EDDDDDDD", b"0000 000"))
    assert not any(windows.is_filler(window) for window in (b"EDDDDDDE", b"10000001", b"JANE DOE"))


def produced(records: bytes) -> list[Record]:
    """A conversation in which a producer sends something in place of a batch."""
    body = struct.pack(">hhii", -1, 1, 30000, 1) + struct.pack(">h", 6) + b"orders"
    body += struct.pack(">iii", 1, 0, len(records)) + records
    request = struct.pack(">hhih", 0, 3, 7, 6) + b"client" + body
    writes = [forging.asking(len(request).to_bytes(4, "big") + request), forging.answering(forging.heartbeat_answer(7))]
    return rendered(converse(writes, mss=400))


def scrubbed(records: list[Record], folder: Path) -> bytes:
    path, out = folder / "capture.pcap", folder / "clean.pcapng"
    path.write_bytes(pcap(records, nanoseconds=True))
    scrub(capture_points([str(path)])[0], str(out), Task(b"k" * 32))
    return out.read_bytes()


TEXT = b"CARD4111 1111222233334444 JANE DOE 12/29 CVC 123 and the rest of this"


def test_nothing_of_what_is_no_batch_is_in_the_result(tmp_path: Path) -> None:
    clean = scrubbed(produced(TEXT), tmp_path)
    assert not every_window(TEXT) & every_window(clean)


def test_content_that_stays_is_found_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message names it, so only its windows tell."""
    monkeypatch.setattr(RecordScrubber, "scrub", lambda self, data, topic, depth=0: data)
    with pytest.raises(UsageError, match="a text of 8 bytes of the original stands in the file"):
        scrubbed(produced(TEXT), tmp_path)
    assert not (tmp_path / "clean.pcapng").exists()


def test_headers_that_stay_are_found_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = produced(TEXT)
    trailing = Record(records[2].time_ns, records[2].data + TEXT, records[2].wire_length + len(TEXT))
    records[2] = trailing
    assert not every_window(TEXT) & every_window(scrubbed(records, tmp_path))
    (tmp_path / "clean.pcapng").unlink()
    clean = Packets.clean

    def leaky(self: Packets, data: bytes, *rest: object) -> bytes:
        written = clean(self, data, *rest)  # type: ignore[arg-type]
        return written[: -len(TEXT)] + TEXT if data.endswith(TEXT) else written

    monkeypatch.setattr(Packets, "clean", leaky)
    with pytest.raises(UsageError, match="a text of 8 bytes of the original stands in the file"):
        scrubbed(records, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_captures_keep_no_window(seed: int, tmp_path: Path) -> None:
    """Bytes of packets changed at random."""
    rng = random.Random(seed)
    records = produced(TEXT * 3)
    damaged = []
    for record in records:
        data = bytearray(record.data)
        for _ in range(rng.randrange(3)):
            data[rng.randrange(54, len(data) + 54) % len(data)] ^= 1 << rng.randrange(8)
        damaged.append(Record(record.time_ns, bytes(data), record.wire_length))
    clean = scrubbed(damaged, tmp_path)
    assert not every_window(TEXT * 3) & every_window(clean)
