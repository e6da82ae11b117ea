"""Small snappy and lz4 batches in one call: the libraries decide what is right; whatever is odd is left to them."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from typing import Any

import lz4.frame
import numpy as np
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from kwire.analyzer.records import batches as b
from kwire.analyzer.records import codecs, small_blocks
from tests.programs import CHECKED_AND_PLAIN, printed

ROOM = 1 << 20


def xerial(data: bytes, block: int = 700) -> bytes:
    """As snappy-java writes it, in smaller blocks."""
    framed = codecs.XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block):
        packed = snappy.compress(data[at : at + block])
        framed += struct.pack(">i", len(packed)) + packed
    return framed


FORMS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "snappy, one block": (b.SNAPPY, snappy.compress),
    "snappy, xerial's frame": (b.SNAPPY, xerial),
    "lz4": (b.LZ4, lambda data: lz4.frame.compress(data, store_size=False, block_linked=False)),
    "lz4, size stored": (b.LZ4, lz4.frame.compress),
    "lz4, several linked blocks": (b.LZ4, lambda data: lz4.frame.compress(data, block_size=4, block_linked=True)),
    "lz4, several blocks": (b.LZ4, lambda data: lz4.frame.compress(data, block_size=4, block_linked=False)),
}
WORDS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8)
CONTENT = st.tuples(WORDS, st.lists(st.integers(0, 7), max_size=300)).map(
    lambda drawn: b"".join(drawn[0][i % len(drawn[0])] for i in drawn[1])
)
LARGE = st.integers(60_000, 200_000)


def decompressed(codec: int, batches: list[bytes], most: int = ROOM, room: int = ROOM) -> tuple[list[bytes], int]:
    """Return the contents that one call decompresses, and the bytes it used; they lie behind 5 others."""
    table = np.zeros((b.B_COLUMNS, len(batches)), np.int64)
    table[b.B_ATTRIBUTES] = codec
    table[b.B_MAGIC] = 2
    table[b.B_RECORDS_LENGTH] = [len(batch) for batch in batches]
    table[b.B_RECORDS_AT] = np.cumsum(table[b.B_RECORDS_LENGTH]) - table[b.B_RECORDS_LENGTH]
    heap = np.frombuffer(b"".join(batches), np.uint8).copy()
    out, place = np.zeros(room, np.uint8), np.zeros((2, len(batches)), np.int64)
    small = np.ones(len(batches), np.bool_)
    done, used = small_blocks.decompress(heap, table, np.arange(len(batches)), small, 0, most, out, 5, room, place)
    assert out[:5].tolist() == [0] * 5
    assert table[b.B_UNCOMPRESSED, :done].tolist() == place[1, :done].tolist()
    return [out[at : at + size].tobytes() for at, size in place[:, :done].T.tolist()], int(used)


def by_library(codec: int, packed: bytes, most: int = ROOM) -> bytes | None:
    out = codecs.Scratch()
    try:
        codecs.decompress(codec, memoryview(packed), most, out)
    except (codecs.CorruptDataError, codecs.DecompressedSizeError):
        return None
    return out.data[: out.used].tobytes()


@pytest.mark.parametrize("form", FORMS)
@given(drawn=st.lists(CONTENT | LARGE, min_size=1, max_size=4))
def test_each_form_is_what_was_compressed(form: str, drawn: list[bytes | int]) -> None:
    codec, compress = FORMS[form]
    contents = [
        content if isinstance(content, bytes) else random.Random(content).randbytes(200) * (content // 200)
        for content in drawn
    ]
    results, used = decompressed(codec, [compress(content) for content in contents])
    assert results == contents
    assert used == 5 + sum(map(len, contents))


@pytest.mark.parametrize("form", FORMS)
@given(
    content=CONTENT,
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 40),
    more=st.binary(max_size=3),
)
def test_what_is_not_left_is_what_the_library_says(
    form: str, content: bytes, flips: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    codec, compress = FORMS[form]
    packed = bytearray(compress(content))
    for place, byte in flips:
        packed[place % len(packed)] = byte
    hostile = bytes(packed[: len(packed) - cut]) + more
    results, _ = decompressed(codec, [hostile])
    assert results in ([], [by_library(codec, hostile)])


@pytest.mark.parametrize("form", FORMS)
@given(content=CONTENT, missing=st.integers(1, 50))
def test_nothing_is_more_than_allowed_or_than_there_is_room_for(form: str, content: bytes, missing: int) -> None:
    codec, compress = FORMS[form]
    packed = compress(content)
    less = max(len(content) - missing, 0)
    if len(content):
        assert decompressed(codec, [packed], most=less) == ([], 5)
        assert decompressed(codec, [packed], room=5 + less) == ([], 5)
    assert decompressed(codec, [packed], most=len(content)) == ([content], 5 + len(content))


def test_the_first_that_is_odd_ends_the_call() -> None:
    good = lz4.frame.compress(b"good", store_size=False)
    checked = lz4.frame.compress(b"checked", content_checksum=True)
    assert decompressed(b.LZ4, [good, good, checked, good])[0] == [b"good", b"good"]


def test_which_are_small() -> None:
    table = np.zeros((b.B_COLUMNS, 5), np.int64)
    table[b.B_MAGIC] = [2, 2, 1, 2, 2]
    table[b.B_ATTRIBUTES] = [b.SNAPPY, b.LZ4, b.LZ4, b.ZSTD, b.SNAPPY]
    table[b.B_RECORDS_LENGTH] = [9, 9, 9, 9, small_blocks.SMALL_BYTES + 1]
    assert small_blocks.are_small(table).tolist() == [True, True, False, False, False]


@CHECKED_AND_PLAIN
def test_the_same_with_bounds_checks_and_without_compiling(variable: str, value: str, tmp_path: Any) -> None:
    """A read past an array raises with bounds checks, and narrow integers overflow without compiling."""
    code = "import tests.analyzer.records.test_small_blocks as t; print(t.hostile_digest())"
    assert printed(code, **{variable: value, "KWIRE_CACHE_DIR": str(tmp_path)}) == f"{hostile_digest()}\n"


def hostile_digest() -> str:
    """Return one number for the results of every form, cut at every byte and with bytes flipped."""
    generator = random.Random(7)
    content = b"".join(generator.choice((b"kafka", b"wire", b"\0" * 30)) for _ in range(30))
    digest = hashlib.sha256()
    for codec, compress in FORMS.values():
        packed = compress(content)
        hostile = [packed[:cut] for cut in range(len(packed))]
        for _ in range(300):
            flipped = bytearray(packed)
            for _ in range(generator.randint(1, 4)):
                flipped[generator.randrange(len(flipped))] = generator.randrange(256)
            hostile.append(bytes(flipped))
        for data in hostile:
            digest.update(repr(decompressed(codec, [data], room=len(content) + 8)).encode())
    return digest.hexdigest()
