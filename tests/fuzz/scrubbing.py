"""Scrub captures and damaged copies of them, and look for anything of the original in the result.

    python -m tests.fuzz.scrubbing [--copies 20] [--seed N] [--minutes M] [CAPTURE ...]

Without captures: all shipped and shared ones. In: a capture, or a copy that `tests.fuzz.corpus` broke. Out: `Leak`s:
eight printable bytes that stand in the original file and in the clean one. It looks at whole files, on its own, not as
`kwire scrub` verifies what it wrote. What may stay, with the reason:

- `WORDS`: what Kafka, its clients and HTTP proxies call themselves; nobody's own.
- seven of eight bytes the same: padding, and compressed bytes by chance.
- digits, hexadecimal ones and what stands in addresses: pseudonyms of ids and addresses have them by chance (these are
  looked for as whole texts by `kwire scrub`), and ports in a proxy's line stay as those of packets do.
- fewer than four letters and digits beside such words.
- numbers in the headers of TCP (ports, sequence numbers, timestamps): they stay as times of packets do.

A refusal (exit code 2 and a hint) is a fair answer. So is that of scrub's own check for a damaged copy, in which a name
may stand where numbers should be: nothing is written. For a capture as it is, that is a failure. Exit code 1: something
of an original was left, or scrub failed.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import zstandard

from kwire.analyzer.scrub import windows
from kwire.analyzer.scrub.rewrite import Task, scrub
from kwire.analyzer.scrub.verification import WORDS
from kwire.captures.errors import KwireError
from kwire.captures.files import CaptureError, capture_points
from tests.fuzz import corpus
from tests.shared import ROOT, capture_files, sample_folders, shared_folders

SIZE: Final = 8
_TCP: Final = 6
_LARGEST_TCP_HEADER: Final = 60
_NUMBER: Final = re.compile(rb"[0-9a-fA-F.:/ -]{8}")


@dataclass(frozen=True, slots=True)
class Leak:
    """A capture and the windows of it that its clean copy has; `failure`: how scrub failed."""

    name: str
    windows: tuple[bytes, ...] = ()
    failure: str = ""


def printable(data: bytes) -> np.ndarray:
    """uint64: every eight printable bytes in a row, once."""
    each = np.frombuffer(data, np.uint8)
    if len(each) < SIZE:
        return np.zeros(0, np.uint64)
    rows = np.lib.stride_tricks.sliding_window_view(each, SIZE)
    good = ((each >= 0x20) & (each < 0x7F)).astype(np.int64)
    whole = np.convolve(good, np.ones(SIZE, np.int64), "valid") == SIZE
    return np.unique(np.ascontiguousarray(rows[whole]).view(np.uint64).ravel())


def may_stay(window: bytes) -> bool:
    """Whether a window is one of those that the module's docstring names."""
    return windows.is_filler(window) or windows.is_public(window, WORDS) or bool(_NUMBER.fullmatch(window))


def in_headers(window: bytes, clean: bytes) -> bool:
    """Whether a window stands in a clean file only in headers of TCP over IPv4 or IPv6 (RFC 9293, with options)."""
    at = clean.find(window)
    while at >= 0:
        if not _in_header(clean, at):
            return False
        at = clean.find(window, at + 1)
    return True


def _in_header(clean: bytes, at: int) -> bool:
    for begin in range(max(0, at - _LARGEST_TCP_HEADER), at + 1):
        is_four = begin >= 20 and clean[begin - 20] == 0x45 and clean[begin - 11] == _TCP
        is_six = begin >= 40 and clean[begin - 40] >> 4 == 6 and clean[begin - 34] == _TCP
        size = 4 * (clean[begin + 12] >> 4) if begin + 12 < len(clean) else 0
        if (is_four or is_six) and size >= 20 and at + SIZE <= begin + size:
            return True
    return False


def content(path: Path) -> bytes:
    """A capture file's bytes, decompressed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return reader.read()
    return data


def check(name: str, data: bytes, folder: Path, rng: random.Random, damaged: bool = False) -> Leak | None:
    """Scrub a capture with these bytes. None: nothing of it was left. `damaged`: scrub's own check may refuse it."""
    path, out = folder / "capture.pcap", folder / "clean.pcapng"
    path.write_bytes(data)
    out.unlink(missing_ok=True)
    try:
        scrub(capture_points([str(path)], False)[0], str(out), Task(rng.randbytes(32)))
    except CaptureError as refusal:
        return None if refusal.hint else Leak(name, failure=f"an error without a hint: {refusal}")
    except KwireError as refusal:  # the check of scrub itself: nothing was written, but something would have been left
        return None if damaged and refusal.hint else Leak(name, failure=f"{type(refusal).__name__}: {refusal}")
    except Exception as failure:
        return Leak(name, failure=f"{type(failure).__name__}: {failure}")
    clean = out.read_bytes()
    shared = np.intersect1d(printable(data), printable(clean), assume_unique=True)
    left = [window for window in map(np.uint64.tobytes, shared) if not (may_stay(window) or in_headers(window, clean))]
    return Leak(name, tuple(left)) if left else None


def cases(paths: Sequence[Path], copies: int, seed: int) -> Iterator[tuple[str, bytes, random.Random]]:
    """Yield each capture, then copies of all of them, broken more and more."""
    for number in range(copies + 1):
        for path in paths:
            rng = random.Random(f"scrubbing/{seed}/{path.parent.name}/{path.name}/{number}")
            data = content(path)
            for _ in range(rng.randint(1, 4) if number else 0):
                data = corpus.broken_further(data, rng)
            yield f"{path.parent.name}/{path.name} copy {number}", data, rng


def captures() -> list[Path]:
    """All shipped and shared captures, each file alone."""
    return [path for folder in [*sample_folders(), *shared_folders()] for path in capture_files(folder)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.scrubbing", description=__doc__.partition("\n")[0])
    parser.add_argument("captures", nargs="*", type=Path)
    parser.add_argument("--copies", type=int, default=20, help="damaged copies of each (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=None, help="stop after so many")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "fuzz", help="where what failed is written")
    options = parser.parse_args(arguments)
    paths = options.captures or captures()
    began = time.monotonic()
    done = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data, rng in cases(paths, options.copies, options.seed):
            if options.minutes is not None and time.monotonic() - began > options.minutes * 60:
                break
            done += 1
            leak = check(name, data, Path(folder), rng, damaged=not name.endswith(" copy 0"))
            if leak is None:
                continue
            failed += 1
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"scrub-seed{options.seed}-{done}.capture").write_bytes(data)
            print(f"FAILED {name} ({done}): {leak.failure or list(leak.windows[:8])}", flush=True)
    seconds = time.monotonic() - began
    print(f"{done} captures of {len(paths)} and {options.copies} copies of each: {failed} failed; {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
