"""`python -m tests.digest --out FILE.json`: digests of what kwire makes of every capture; `--compare OLD NEW` of two.

Without --spark and --replay: the tables of every capture, read locally, and what `kwire show` prints of some.
--spark: the tables read in Spark. --replay: plans, and the verdicts of some replays at brokers. NAME...: only these.
--compare names every capture, table and column that differs; exit code 1 where something does. What NEW alone has
differs too, but with --allow-added it is told and does not count. --accept writes what the suite compares with.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.digest import reading
from tests.digest.comparing import differences
from tests.shared import sample_folders

EXPECTED = Path(__file__).with_name("samples.json")
"""Digests of the shipped samples' tables."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.digest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="captures (default: all)")
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--out", metavar="FILE", type=Path, help="write digests")
    work.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), type=Path, help="what differs between two")
    work.add_argument("--accept", action="store_true", help=f"write {EXPECTED.name}: the samples' tables are as meant")
    parser.add_argument("--allow-added", action="store_true", help="with --compare: what NEW alone has is fine")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--spark", action="store_true", help="tables read in Spark")
    kind.add_argument("--replay", action="store_true", help="plans and replays at brokers")
    options = parser.parse_args()
    if options.compare:
        old, new = options.compare
        return _compare(old, new, options.allow_added)
    if options.accept:
        EXPECTED.write_text(json.dumps({folder.name: accepted(folder) for folder in sample_folders()}, indent=1) + "\n")
        return 0
    started = time.monotonic()
    if options.spark:
        digests = {"spark": reading.spark(reading.largest_set(options.names))}
    elif options.replay:
        from tests.digest import replaying

        digests = {"replay": replaying.digests(options.names)}
    else:
        digests = _local(options.names)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(digests, indent=1) + "\n")
    print(f"{options.out}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


def accepted(folder: Path) -> Any:
    """Return a capture's digest in `samples.json`."""
    return reading.table_digests(folder)


def _local(names: list[str]) -> dict[str, Any]:
    chosen = reading.folders(names)
    shown = {name: folder for name, folder in reading.largest_set().items() if name in (names or reading.SHOWN)}
    return {
        "local": {name: reading.local(folder) for name, folder in chosen.items()},
        "show": {name: reading.show(folder) for name, folder in shown.items()},
    }


def _compare(old: Path, new: Path, allow_added: bool) -> int:
    counting = 0
    for difference in differences(json.loads(old.read_text()), json.loads(new.read_text())):
        print(difference)
        counting += not (allow_added and difference.added)
    print(f"{counting} differences between {old} and {new}")
    return 1 if counting else 0


if __name__ == "__main__":
    sys.exit(main())
