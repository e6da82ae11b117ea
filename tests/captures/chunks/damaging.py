"""Damaged captures, read in chunks, by several threads ahead, and as a whole."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kwire.captures.chunks.parallel_scan import AheadReader
from kwire.captures.files import CapturePoint
from tests.captures import mutants
from tests.captures.chunks.chunking import in_chunks, read_by, whole

KIB = 1 << 10


@cache
def _originals() -> list[bytes]:
    return mutants.originals()


def differences_of(numbers: Iterable[int], folder: Path) -> list[str]:
    """List the differences between chunks and one reader, for mutants with these numbers."""
    differing = []
    for number in numbers:
        rng = random.Random(number)
        original = _originals()[number % len(_originals())]
        data = mutants.damaged(original, rng) if number % 8 else original
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name) / "capture"
            path.write_bytes(data)
            point = CapturePoint("point", (str(path),))
            chunk, look, shares = rng.choice((64, 200, 500, 2 * KIB)), rng.choice((32, 300, KIB)), rng.randint(1, 3)
            window = rng.choice((64, 300, 1 << 16))
            expected = whole(point)
            different = in_chunks(point, chunk, shares, Path(name), look, window).differences(expected)
            ahead = read_by(AheadReader(point, shares, max(chunk, 4 * 64))).differences(expected)
        if different or ahead:
            differing.append(f"mutant {number}, chunks of {chunk}, {look} bytes looked at: {different}, ahead: {ahead}")
    return differing
