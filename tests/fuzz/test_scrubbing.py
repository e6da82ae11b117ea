"""The search for what a scrub left finds what is left, and nothing else.

proves: tests/fuzz/scrubbing.py
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.common.errors import UsageError
from kwire.captures.files import CaptureError
from tests.fuzz import scrubbing
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"


def test_nothing_of_a_sample_and_its_copy_is_left(tmp_path: Path) -> None:
    names = []
    for name, data, rng in scrubbing.cases([CAPTURE], copies=1, seed=51):
        names.append(name)
        assert scrubbing.check(name, data, tmp_path, rng) is None
    assert names == ["client-kafkajs-3.9/capture.pcap copy 0", "client-kafkajs-3.9/capture.pcap copy 1"]


def test_what_is_left_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(point: Any, out: str, task: Any) -> None:
        Path(out).write_bytes(b"...." + Path(point.paths[0]).read_bytes())

    monkeypatch.setattr(scrubbing, "scrub", copy)
    data = b"\0\0card 4711 of JANE DOE\0apache-kafka-java\0\x0010.0.0.1:9092"
    leak = scrubbing.check("planted", data, tmp_path, random.Random(1))
    assert leak is not None
    assert b"JANE DOE" in leak.windows
    assert not any(b"kafka" in window or b"9092" in window for window in leak.windows)


@pytest.mark.parametrize(
    ("problem", "failed"),
    [
        (CaptureError("cannot be read", "a hint"), ""),
        (UsageError("a text of the original stands in the file", "a hint"), "UsageError: a text"),
        (ValueError("a bug"), "ValueError: a bug"),
    ],
)
def test_a_refusal_is_fair_and_a_failure_is_not(
    problem: Exception, failed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(scrubbing, "scrub", fail)
    leak = scrubbing.check("broken", CAPTURE.read_bytes(), tmp_path, random.Random(1))
    assert (leak.failure if leak else "").startswith(failed)
    assert (leak is None) == (not failed)
    of_copy = scrubbing.check("broken", CAPTURE.read_bytes(), tmp_path, random.Random(1), damaged=True)
    assert (of_copy is None) == (not isinstance(problem, ValueError))


def test_windows_are_printable_bytes_each_once() -> None:
    values = scrubbing.printable(b"abcdefgh\0abcdefghi")
    assert {value.tobytes() for value in values} == {b"abcdefgh", b"bcdefghi"}
    assert not len(scrubbing.printable(b"short"))
    assert scrubbing.may_stay(b"00000000")
    assert not scrubbing.may_stay(b"JANE DOE")


def test_numbers_in_a_header_of_tcp_may_stay_and_what_it_carries_may_not() -> None:
    tcp = struct.pack(">HHIIBBHHH", 42_996, 0x2526, 0x72452678, 0x7B6C0000, 0x80, 0x18, 512, 0, 0)
    options = b"\x01\x01\x08\x0a6%~aJE!%"
    four = b"\x45" + bytes(8) + b"\x06" + bytes(10) + tcp + options
    six = b"\x60" + bytes(5) + b"\x06" + bytes(33) + tcp + options
    for header in (four, six, bytes(100) + four):
        assert scrubbing.in_headers(b"%&rE&x{l", header)
        assert scrubbing.in_headers(b"6%~aJE!%", header + b"payload.")
        assert not scrubbing.in_headers(b"6%~aJE!%", header + b"6%~aJE!%")
        assert not scrubbing.in_headers(b"payload.", header + b"payload.")
        assert not scrubbing.in_headers(b"aJE!%pay", header + b"payload.")
