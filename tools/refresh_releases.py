"""Refresh `reports/releases.json`: which versions of which API each Kafka release has.

    python tools/refresh_releases.py [--check] [--jars FOLDER]

Needs Maven and a JDK (11 or newer). What comes in: the kafka-clients jar of the last patch of each release, as
published. What goes out: one JSON object a line, the release with its APIs as `{api_key: [lowest, highest]}`; versions
that a release calls unstable are left out. `kwire report --target` compares clients with it.

A new release is one more entry in RELEASES.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from refresh_definitions import fetch_jars

FILE = Path(__file__).resolve().parent.parent / "reports" / "releases.json"
RELEASES = (
    "0.9.0.1",
    "0.10.0.1",
    "0.10.1.1",
    "0.10.2.2",
    "0.11.0.3",
    "1.0.2",
    "1.1.1",
    "2.0.1",
    "2.1.1",
    "2.2.2",
    "2.3.1",
    "2.4.1",
    "2.5.1",
    "2.6.3",
    "2.7.2",
    "2.8.2",
    "3.0.2",
    "3.1.2",
    "3.2.3",
    "3.3.2",
    "3.4.1",
    "3.5.2",
    "3.6.2",
    "3.7.2",
    "3.8.1",
    "3.9.2",
    "4.0.2",
    "4.1.2",
    "4.2.1",
    "4.3.1",
    "4.4.0",
)
"""The last patch of each, oldest first; nobody moves to an older one."""


def name_of(patch: str) -> str:
    """The common name of a release: `3.9` for 3.9.2; before 1.0 the third number was a release, `0.10.2` for
    0.10.2.2."""
    return patch.rsplit(".", 1)[0]


def apis_of(patch: str, folder: Path) -> dict[int, list[int]]:
    """{api_key: [lowest, highest]} of the release whose jars are in `folder`."""
    fetch_jars(patch, folder)
    program = Path(__file__).resolve().parent / "ApiVersions.java"
    command = ["java", "-cp", str(folder / "*"), str(program)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [[int(part) for part in line.split("\t")] for line in out.splitlines()]
    return {key: [lowest, highest] for key, lowest, highest in sorted(rows)}


def make(work: Path) -> str:
    """The file's text."""
    lines = []
    for patch in RELEASES:
        row = {"release": name_of(patch), "patch": patch, "apis": apis_of(patch, work / patch)}
        lines.append(json.dumps(row, separators=(",", ":")))
        print(f"{patch}: {len(row['apis'])} APIs", file=sys.stderr)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    parser.add_argument("--jars", type=Path, help="keep the jars in this folder and use those already there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        text = make(arguments.jars or Path(temporary))
    if arguments.check:
        same = FILE.exists() and FILE.read_text() == text
        print(f"{FILE.name}: {'as committed' if same else 'differs from a fresh copy'}")
        return 0 if same else 1
    FILE.write_text(text)
    print(f"{FILE.name}: {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
