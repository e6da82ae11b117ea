"""The parts of a latency, judged by what the brokers' own request logs say each request took and waited.

Proves `analyzer/meaning/latency.py`, `sessions.py` and `analyzer/bulk/holding.py`. `totalTimeMs` is against the latency
without queue and throttle; `remoteTimeMs` against `hold_us` of Fetch, JoinGroup and SyncGroup answered without error.
All captures were taken on the broker's machine. The table is printed (`pytest -s`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import analyzer
from analyzer.protocol import names
from tests import shared
from tests.witness import requestlog

PARKED_MS = 1.5
"""`remoteTimeMs` from which a Fetch counts as parked; a coordinator's event queue and log take more (`MEMBERS_MS`)."""
MEMBERS_MS = 15.0
"""The same for JoinGroup and SyncGroup: a coordinator of 3.9 waits 10 ms for more to write into its log at once."""
HELD_APIS = {names.FETCH: PARKED_MS, names.JOIN_GROUP: MEMBERS_MS, names.SYNC_GROUP: MEMBERS_MS}

WITH_LOGS = sorted(folder.name for folder in shared.shared_folders() if list(folder.glob("requests*.log.gz")))


@dataclass
class Judged:
    """What the log says of the exchanges of one capture, and what kwire says."""

    name: str
    near: int = 0
    timed: int = 0
    parked: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    right: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    not_parked: int = 0
    called_held: int = 0
    fetches: int = 0
    undecided: int = 0
    odd: list[str] = field(default_factory=list)
    far: list[str] = field(default_factory=list)

    def take(self, row: dict[str, Any], total_ms: float, remote_ms: float | None) -> None:
        if row["latency_us"] is None:
            return
        took = (row["latency_us"] - row["queue_us"] - row["muted_us"]) / 1000
        self.timed += 1
        near = abs(took - total_ms) <= max(2, 0.05 * total_ms)
        self.near += near
        if not near:
            self.far.append(f"{row['api']}: {took:.1f} ms, the log says {total_ms}")
        key, hold = row["api_key"], row["hold_us"]
        if key == names.FETCH:
            self.fetches += 1
            self.undecided += hold is None
        if key not in HELD_APIS or remote_ms is None or row["error_code"] != 0:
            return
        if remote_ms < HELD_APIS[key]:
            self.not_parked += 1
            wrong = hold is not None and hold / 1000 > max(5, HELD_APIS[key])
            self.called_held += wrong
        else:
            self.parked[key] += 1
            wrong = hold is None or abs(hold / 1000 - remote_ms) > max(5, 0.1 * remote_ms)
            self.right[key] += not wrong
        if wrong:
            held = "null" if hold is None else f"{hold / 1000:.1f}"
            where = f"{row['connection']} {row['exchange']} {row['api']}"
            self.odd.append(f"{where}: hold {held} of {took:.1f} ms, the log says {remote_ms}")

    def line(self) -> str:
        def share(part: int, whole: int) -> str:
            return f"{part:>6}/{whole:<6}" + (f"{100 * part / whole:6.1f}" if whole else "     -")

        held = " ".join(share(self.right[key], self.parked[key]) for key in HELD_APIS)
        rest = share(self.called_held, self.not_parked), share(self.undecided, self.fetches)
        return f"{self.name:34} {share(self.near, self.timed)} {held} {' '.join(rest)}"


def judged(folder: Path) -> Judged:
    """One capture against its logs; of a request that is not the only one with its key nothing is said."""
    logged: dict[tuple[object, ...], list[requestlog.Logged]] = defaultdict(list)
    for line in requestlog.read(folder):
        if not line.forwarded:
            logged[line.client, line.api_key, line.correlation_id].append(line)
    found = Judged(folder.name)
    files = [str(path) for path in shared.capture_files(folder)]
    for row in analyzer.analyze(files, records="none", rotated=True).exchanges.to_pylist():
        lines = logged[(row["client_ip"], row["client_port"]), row["api_key"], row["correlation_id"]]
        if len(lines) == 1 and row["status"] == "answered":
            found.take(row, lines[0].total_ms, lines[0].remote_ms)
    return found


def table(every: Iterable[Judged]) -> str:
    heads = ("total near", "Fetch", "JoinGroup", "SyncGroup", "called held", "undecided")
    return "\n".join(["capture".ljust(34) + "".join(f" {head:>19}" for head in heads), *(one.line() for one in every)])
