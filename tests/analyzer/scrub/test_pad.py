"""Compressed to an exact size: whatever size is asked for, what comes back has it and opens to the content, in the
codecs' own libraries and in ours.

proves: kwire.analyzer.scrub.pad.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

import lz4.frame
import pytest
import snappy
import zstandard

from kwire.analyzer.records import codecs
from kwire.analyzer.records.batches import GZIP, LZ4, SNAPPY, ZSTD
from kwire.analyzer.scrub.pad import fitted

XERIAL = codecs.XERIAL_MAGIC + bytes.fromhex("00000001 00000001")


def from_xerial(data: bytes) -> bytes:
    out, at = b"", len(XERIAL)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        out += snappy.uncompress(data[at + 4 : at + 4 + size])
        at += 4 + size
    return out


OPENED: dict[str, tuple[int, bytes, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, b"", gzip.decompress),
    "snappy": (SNAPPY, b"", snappy.uncompress),
    "xerial": (SNAPPY, XERIAL, from_xerial),
    "lz4": (LZ4, b"", lz4.frame.decompress),
    "zstd": (ZSTD, b"", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
}


@pytest.mark.parametrize("form", OPENED)
def test_any_size_that_is_reached_is_exact_and_opens(form: str) -> None:
    codec, before, opened = OPENED[form]
    rng = random.Random(form)
    reached = tried = 0
    for length in (1, 9, 60, 61, 70, 300, 3000, 70_000):
        content = (rng.randbytes(length // 3) + bytes(length))[:length]
        least = -fitted(codec, content, 0, before)[1]
        for more in (*range(12), 15, 40, 70, 255, 300, length // 2, length):
            tried += 1
            packed, left = fitted(codec, content, least + more, before)
            assert left == more
            if packed is None:
                continue
            reached += 1
            assert len(packed) == least + more
            assert opened(packed) == content
            scratch = codecs.Scratch()
            assert codecs.decompress(codec, memoryview(packed), 1 << 20, scratch) == length
            assert scratch.data[:length].tobytes() == content
        less, left = fitted(codec, content, least - 1, before)
        assert left == -1
        assert less is None or opened(less) == content  # as it is, where that is shorter
    stored = lz4.frame.compress(b"1234567", store_size=False, content_checksum=True)
    if form == "lz4":  # a block as it is, which clients write where it would not be smaller
        assert lz4.frame.decompress(fitted(codec, b"abcdefg", len(stored), b"")[0]) == b"abcdefg"
    assert reached > tried * {"lz4": 0.4}.get(form, 0.8)
