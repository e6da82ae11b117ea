"""Many damaged captures, read in chunks and as a whole: `python -m tests.captures.chunks --count 5000 [--first N]`.

What differs is told as it is found, on stdout, and how far it is on stderr. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.captures.chunks.damaging import differences_of

_AT_ONCE = 100


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.captures.chunks")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default: 0)")
    chosen = parser.parse_args()
    different, end = 0, chosen.first + chosen.count
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(chosen.first, end, _AT_ONCE):
            differing = differences_of(range(begin, min(begin + _AT_ONCE, end)), Path(folder))
            different += len(differing)
            for line in differing:
                print(line, flush=True)
            print(f"up to {min(begin + _AT_ONCE, end):,}: {different} differ", file=sys.stderr)
    print(f"{chosen.count:,} damaged captures in chunks: {different} differ from the whole")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
