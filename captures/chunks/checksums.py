"""CRC-32C of two byte strings, one behind the other, from that of each (RFC 3720's polynomial, reflected).

What the CRC of the first becomes as zeros follow it is linear: each doubling of the zeros squares a 32 x 32 matrix over
GF(2), kept as 32 numbers (as zlib's `crc32_combine` does for its polynomial).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78


def combined(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32C of both; `second_bytes`: how many bytes the second is of."""
    matrix = [_POLYNOMIAL, *(1 << bit for bit in range(31))]  # one zero bit
    for _ in range(3):
        matrix = [_times(matrix, row) for row in matrix]  # one zero byte
    while second_bytes:
        if second_bytes & 1:
            first = _times(matrix, first)
        matrix = [_times(matrix, row) for row in matrix]
        second_bytes >>= 1
    return first ^ second


def _times(matrix: Sequence[int], vector: int) -> int:
    product = 0
    for row in matrix:
        if not vector:
            break
        if vector & 1:
            product ^= row
        vector >>= 1
    return product
