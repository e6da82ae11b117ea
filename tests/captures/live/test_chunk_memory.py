"""Memory of chunks: copies are right, and memory is used again only once nobody refers to its chunk."""

from __future__ import annotations

import ctypes

import pytest

from kwire.captures.live.chunk_memory import ChunkMemory


def _copied(memory: ChunkMemory, data: bytes) -> bytes | memoryview:
    held = ctypes.create_string_buffer(data, len(data))
    return memory.copied(ctypes.addressof(held), len(data))


def _memory_of(chunk: bytes | memoryview) -> ctypes.Array[ctypes.c_char]:
    assert isinstance(chunk, memoryview)
    assert isinstance(chunk.obj, ctypes.Array)
    return chunk.obj


@pytest.mark.parametrize("size", [0, 1, 2**15, 2**15 + 1, 70_000, 2**16, 2**20, 2**21, 2**21 + 1, 5_000_000])
def test_a_chunk_is_a_copy(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    chunk = _copied(ChunkMemory(), data[:size])
    assert len(chunk) == size
    assert chunk == data[:size]


def test_memory_is_used_again_once_nobody_refers_to_its_chunk() -> None:
    memory = ChunkMemory()
    first = _copied(memory, b"a" * 100_000)
    address = ctypes.addressof(_memory_of(first))
    part = first[50_000:]
    del first
    second = _copied(memory, b"b" * 100_000)
    assert ctypes.addressof(_memory_of(second)) != address, "part of the first is still looked at"
    assert part == b"a" * 50_000
    del part
    third = _copied(memory, b"c" * 70_000)
    assert ctypes.addressof(_memory_of(third)) == address
    assert third == b"c" * 70_000
    assert second == b"b" * 100_000


def test_a_small_chunk_does_not_hold_memory_of_a_large_one() -> None:
    memory = ChunkMemory()
    large = _copied(memory, b"a" * 2**20)
    address = ctypes.addressof(_memory_of(large))
    del large
    small = _memory_of(_copied(memory, b"b" * 2**17))
    assert ctypes.addressof(small) != address
    assert len(small) == 2**17
