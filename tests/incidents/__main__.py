"""`python -m tests.incidents [NAME ...]`: let incidents happen, and judge what is said of them (`--list`: which).

A line each: right (the first screen names cause and who), hidden (the wire cannot tell), silent, or false. Exit code 1
where one is silent or false. Without names: all of them (half an hour).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from tests.brokers import jars
from tests.incidents import all_incidents, network, packages
from tests.incidents.lab import Clusters, Lab, judge


def main() -> int:
    incidents = all_incidents()
    parser = argparse.ArgumentParser(prog="python -m tests.incidents", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="(default: all)")
    parser.add_argument("--list", action="store_true", help="names and causes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the captures there")
    parser.add_argument(
        "--minutes", type=float, default=Lab.minutes, help="a healthy hour lasts so long (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.list:
        for incident in incidents.values():
            print(f"{incident.name:28} {incident.cause}")
        return 0
    unknown = [name for name in options.names if name not in incidents]
    if unknown:
        parser.error(f"no incident {', '.join(unknown)}; see --list")
    for artifact in ("connect-file", "kafka-streams"):
        jars.fetch_more(jars.NEWEST, artifact)
    jars.fetch(jars.NEWEST)
    packages.fetch(packages.KAFKA_PYTHON)
    network.isolate()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="kwire-incidents-") as folder:
        clusters = Clusters(Path(folder))
        captures = options.keep or Path(folder)
        captures.mkdir(parents=True, exist_ok=True)
        try:
            for name in options.names or incidents:
                try:
                    cluster = clusters.get(incidents[name].spec)
                    verdict = judge(incidents[name], cluster, captures, options.minutes)
                except Exception:
                    traceback.print_exc()
                    bad += 1
                    continue
                print(verdict, flush=True)
                bad += not verdict.good
        finally:
            clusters.stop()
    print(f"{bad} wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
