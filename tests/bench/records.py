"""How fast batches are checked and opened, without captures around them.

    python -m tests.bench.records

Record parsing: records a second of one core, uncompressed batches in memory. Decompression and checksums: what
`BatchReader` and `check` do with batches of a codec, against the codec's and the checksum's library called alone on the
same bytes, in the same run; a share of 1 is as fast as the libraries. Best of several rounds, on one thread.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

import crc32c
import lz4.frame
import numpy as np
import snappy
import zstandard
from isal import isal_zlib

from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums

ROUNDS = 7
BATCHES = 64
HEAP_BYTES = 4 << 20


def varint(value: int) -> bytes:
    """Zigzag."""
    left, out = value << 1 if value >= 0 else (-value << 1) - 1, b""
    while left >= 0x80:
        out += bytes([left & 0x7F | 0x80])
        left >>= 7
    return out + bytes([left])


def records_of(count: int, size: int, generator: random.Random) -> bytes:
    """`count` records with a key and a value of `size` bytes of words."""
    words = [generator.randbytes(4).hex() for _ in range(400)]
    records = []
    for i in range(count):
        key = f"key-{i:06d}".encode()
        value = " ".join(generator.choices(words, k=size // 9 + 1)).encode()[:size]
        body = b"\0" + varint(i) + varint(i) + varint(len(key)) + key + varint(len(value)) + value + b"\0"
        records.append(varint(len(body)) + body)
    return b"".join(records)


def batch(payload: bytes, codec: int, count: int) -> bytes:
    """Magic 2 around records."""
    tail = struct.pack(">hiqqqhii", codec, count - 1, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c.crc32c(tail)) + tail


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def walked(data: bytes, copies: int) -> b.Batches:
    """`copies` of a batch in one heap."""
    heap = np.frombuffer(data * copies, np.uint8).copy()
    return b.batches(heap, np.arange(copies) * len(data), np.full(copies, len(data)))


def parsing(count: int, size: int) -> float:
    """Records a second."""
    data = batch(records_of(count, size, random.Random(1)), b.NONE, count)
    copies = max(BATCHES, HEAP_BYTES // len(data))
    batches = walked(data, copies)
    opener = r.BatchReader()
    return copies * count / best(lambda: [len(piece) for piece in opener.open(batches)])


def libraries_alone(codec: int, packed: bytes, plain: int) -> Callable[[], object]:
    """The codec's library on one batch's bytes, as fast as it goes."""
    zstd = zstandard.ZstdDecompressor()
    if codec == b.GZIP:
        return lambda: isal_zlib.decompress(packed, 31, plain)
    if codec == b.SNAPPY:
        return lambda: snappy.uncompress(packed)
    if codec == b.LZ4:
        return lambda: lz4.frame.decompress(packed)
    return lambda: zstd.decompressobj().decompress(packed)


COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    b.GZIP: lambda data: isal_zlib.compress(data, 1, 31),
    b.SNAPPY: snappy.compress,
    b.LZ4: lambda data: lz4.frame.compress(data, store_size=False, block_linked=False),
    b.ZSTD: zstandard.ZstdCompressor(write_content_size=False).compress,
}


def share(codec: int, count: int, size: int) -> tuple[float, float]:
    """(MB of records a second that we check and decompress, its share of what the libraries do)."""
    plain = records_of(count, size, random.Random(2))
    packed = COMPRESS[codec](plain)
    data = batch(packed, codec, count)
    copies = max(BATCHES, HEAP_BYTES // len(data))
    batches = walked(data, copies)
    opener = r.BatchReader()

    def product() -> None:
        checksums.check(batches.table, batches.heap)
        packed = r.CompressedBatches(batches, np.arange(copies))
        done = 0
        while done < copies:
            done = opener.decompress(packed, done)

    alone = libraries_alone(codec, packed, len(plain))

    def library() -> None:
        for _ in range(copies):
            crc32c.crc32c(data[21:])
            alone()

    seconds = best(product)
    return copies * len(plain) / seconds / 1e6, best(library) / seconds


def main() -> None:
    """Print a table."""
    for count, size in ((10, 100), (1000, 100), (100, 1000)):
        print(f"parsing, {count:>4} records of {size:>4} bytes a batch: {parsing(count, size) / 1e6:6.1f} M records/s")
    for count, size in ((10, 100), (150, 100), (1000, 1000)):
        for codec in (b.GZIP, b.SNAPPY, b.LZ4, b.ZSTD):
            speed, part = share(codec, count, size)
            print(
                f"checked and decompressed, {count:>4} records of {size:>4} bytes, {b.CODECS[codec]:<6}: "
                f"{speed:7.0f} MB/s, {part:.2f} of the libraries alone"
            )


if __name__ == "__main__":
    main()
