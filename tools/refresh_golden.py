"""Refresh `tests/golden/`: messages that Kafka's own code wrote, with what Kafka's own JSON converters say of them.

    python tools/refresh_golden.py [--jars FOLDER]

Needs Maven and a JDK (17 or newer). `Golden.java` makes them, from a fixed seed, for every API, version and direction
of the two releases that `analyzer/definitions/` was made from. Out: `kafka-RELEASE.tsv.xz` with lines of api_key,
direction (0 request, 1 response), version, bytes (hex), JSON.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

from refresh_definitions import NEW_RELEASE, OLD_RELEASE, fetch_jars

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden"
SEED = "1"
MESSAGES_PER_LAYOUT = "5"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jars", type=Path, help="keep the jars in this folder and use those already there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for release in (OLD_RELEASE, NEW_RELEASE):
            folder = (arguments.jars or Path(temporary)) / release
            fetch_jars(release, folder)
            program = Path(__file__).resolve().parent / "Golden.java"
            command = ["java", "-cp", str(folder / "*"), str(program), SEED, MESSAGES_PER_LAYOUT]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            path = FOLDER / f"kafka-{release}.tsv.xz"
            path.write_bytes(lzma.compress(out, preset=9 | lzma.PRESET_EXTREME))
            print(f"{path.name}: {len(out.splitlines())} messages, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
