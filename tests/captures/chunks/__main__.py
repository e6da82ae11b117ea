"""Many damaged captures, read in chunks and as a whole: `python -m tests.captures.chunks --count 5000`.

Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.captures.chunks.damaging import differences_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.captures.chunks")
    parser.add_argument("--count", type=int, default=5000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = differences_of(range(chosen.count), Path(folder))
    for line in found:
        print(line)
    print(f"{chosen.count:,} damaged captures in chunks: {len(found)} differ from the whole")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
