"""The parts of a latency, judged by what the brokers' own request logs say each request took and waited.

Proves `analyzer/analysis/latency.py`, `sessions.py`, `analyzer/bulk/purgatory.py` and `latency_split.py`.
`totalTimeMs` is
against the latency without queue and throttle; `remoteTimeMs` against `hold_us` of Fetch, JoinGroup, SyncGroup and
ShareFetch answered without error. All captures were taken on the broker's machine. The table is printed (`pytest -s`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.protocol import api_keys
from tests import shared
from tests.witness import requestlog

PARKED_MS = 1.5
"""`remoteTimeMs` from which a Fetch counts as parked."""
MEMBERS_MS = 5.0
"""The same for JoinGroup and SyncGroup, of which remoteTimeMs has the coordinator's event queue and log in it too."""
HELD_APIS = {
    api_keys.FETCH: PARKED_MS,
    api_keys.JOIN_GROUP: MEMBERS_MS,
    api_keys.SYNC_GROUP: MEMBERS_MS,
    api_keys.SHARE_FETCH: PARKED_MS,
}


BARS = {api_keys.FETCH: 0.97, api_keys.JOIN_GROUP: 0.95, api_keys.SYNC_GROUP: 0.95, api_keys.SHARE_FETCH: 0.95}
"""Of those parked, which share must be told right."""


@dataclass
class Judged:
    """Latencies of one capture's exchanges in the log and in kwire, compared."""

    name: str
    near: int = 0
    timed: int = 0
    later_near: int = 0
    later: int = 0
    """The two without the first exchange of each connection, which waits until the broker accepts it."""
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
        if row["exchange"] > 0:
            self.later += 1
            self.later_near += near
        if not near:
            self.far.append(f"{row['api']}: {took:.1f} ms, the log says {total_ms}")
        key, hold = row["api_key"], row["hold_us"]
        if key == api_keys.FETCH:
            self.fetches += 1
            self.undecided += hold is None
        if key not in HELD_APIS or remote_ms is None or row["error_code"] != 0:
            return
        if key == api_keys.SYNC_GROUP and hold is None:
            return  # the leader's, which waits for its log
        if remote_ms < HELD_APIS[key]:
            self.not_parked += 1
            wrong = hold is not None and hold / 1000 > 5 + remote_ms
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
        total = f"{share(self.near, self.timed)} {share(self.later_near, self.later)}"
        return f"{self.name:34} {total} {held} {' '.join(rest)}"


def judged(folder: Path) -> Judged:
    """One capture against its logs; of a request that is not the only one with its key nothing is said."""
    logged: dict[tuple[object, ...], list[requestlog.Logged]] = defaultdict(list)
    for line in requestlog.read(folder):
        if not line.forwarded:
            logged[line.client, line.api_key, line.correlation_id].append(line)
    result = Judged(folder.name)
    files = [str(path) for path in shared.capture_files(folder)]
    for row in analyzer.analyze(files, records="none", rotated=True).exchanges.to_pylist():
        lines = logged[(row["client_ip"], row["client_port"]), row["api_key"], row["correlation_id"]]
        if len(lines) == 1 and row["status"] == "answered":
            result.take(row, lines[0].total_ms, lines[0].remote_ms)
    return result


def table(every: Iterable[Judged]) -> str:
    heads = ("total near", "not the first", "Fetch", "JoinGroup", "SyncGroup", "ShareFetch", "called held", "undecided")
    return "\n".join(
        ["capture".ljust(34) + "".join(f" {head:>19}" for head in heads), *(capture.line() for capture in every)]
    )


@pytest.fixture(scope="module")
def every() -> list[Judged]:
    """Every capture with a request log: shared ones, else the samples."""
    folders = [folder for folder in shared.shared_folders() or shared.sample_folders() if logs(folder)]
    results = [judged(folder) for folder in folders if not folder.name.startswith(CUT)]
    print(f"\n{table([*results, together(results)])}")
    return results


def logs(folder: Path) -> list[Path]:
    return list(folder.glob("requests*.log.gz"))


CUT = ("snaplen-", "tls13-")
"""Of these most is cut off or encrypted, so nothing can be said of it."""


def together(every: list[Judged]) -> Judged:
    total = Judged("together")
    for capture in every:
        for name in ("near", "timed", "later_near", "later", "not_parked", "called_held", "fetches", "undecided"):
            setattr(total, name, getattr(total, name) + getattr(capture, name))
        for key in HELD_APIS:
            total.parked[key] += capture.parked[key]
            total.right[key] += capture.right[key]
    return total


def test_latencies_are_what_the_broker_took(every: list[Judged]) -> None:
    """Within 2 ms or 5 %: 97.8 % of 50,050, and 98.3 % of those that are not the first of their connection. These
    captures were taken on two cores that brokers and clients shared, so that a packet sometimes lay some milliseconds
    in the broker's socket before a thread read it, most of all the first of a connection; the log counts from then."""
    whole = together(every)
    assert whole.near >= 0.95 * whole.timed
    assert whole.later_near >= 0.95 * whole.later


def test_what_was_parked_was_held_as_long(every: list[Judged]) -> None:
    """Within 5 ms or 10 %. The aim is 99 % of Fetch and 95 % of the others. Of 8,505 parked fetches 198 are missing: 42
    of 3,883 of clients (98.9 % are right), 156 of 4,622 of replicas (96.6 %). 171 of them are told too long: 30 because
    the answer came later than the broker says it sent it, the others because a busy broker (most: two clusters of three
    on two cores) took 5 to 40 ms for its own part, which its log counts apart. The wire does not show when the wait
    ended: the records that release a replica's fetch are acknowledged after it. 14 are told too short, five of them
    waits that were over and that the broker ended late; 13 cannot be told.

    By what the log says of each, the most of what those 171 are too long went by in the request queue (51), in the
    broker's own part before it parked them (44), in the response queue and sending (34), between the broker's sending
    and the capture (29), or in several of these (13). Nothing of these is on the wire; were the first two known, it
    would be 98.8 %. Of the others 13 cannot be told (8 of them among the first nine of their connection), 9 ended 12 to
    259 ms after max_wait (what is over is the broker's own), 5 are too short.

    Tried without success: to end the wait when the request of the releasing Produce was on the wire, and 1 to 5 ms more
    for its append: 95.1 to 97.0 % (that request waits for a thread too, and its time there is part of the hold); to
    take more than a millisecond for the broker itself: 98.1 % with 2, and never more than 98.8 % (5 ms), at the price
    of every usual one, whose own part is 1 ms (median of 7,016); to take what others took at that broker then: 97.3 %;
    to end a replica's wait when another replica had the same records (released by the same append): 21 more, 97.9 %.
    Of 30 SyncGroups one is told 9 ms too long: 10 ms of it its own request waited and ran before it was parked."""
    whole = together(every)
    for key, bar in BARS.items():
        assert whole.right[key] >= bar * whole.parked[key], (api_keys.name(key), [capture.odd for capture in every])


def test_what_was_not_parked_is_not_called_held(every: list[Judged]) -> None:
    whole = together(every)
    assert whole.called_held <= 0.005 * whole.not_parked, [capture.odd for capture in every]


def test_it_can_be_told_of_nearly_every_fetch(every: list[Judged]) -> None:
    """Of at most one in ten, where there are so many, it cannot."""
    for capture in every:
        assert capture.undecided <= max(2, 0.1 * capture.fetches), capture.name
