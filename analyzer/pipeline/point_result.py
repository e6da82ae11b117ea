"""Results of capture points: the entry in `_kwire.json`, notes and the summary, of one point or of several.

In: what the reader and the collectors know at the end. Out: a `PointResult`; of several, a `Dataset` without tables and
its manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kwire.analyzer.analysis.cluster_metadata import Brokers
from kwire.analyzer.analysis.connections import EndedConnections
from kwire.analyzer.analysis.summary import MOST_COUNTED, CaptureStats, Summary
from kwire.analyzer.analysis.zookeeper import Requests
from kwire.analyzer.bulk.rows import end_point, ip_text
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.common.version import __version__
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset
from kwire.captures.attempts import Attempt
from kwire.captures.files import CapturePoint
from kwire.captures.frame_kinds import unread_lines

_EARLY_ROWS: Final = (
    "more happened in groups, transactions and reads than is kept to the end: what was over became rows {} times on "
    "the way, and only the latest of it is remembered (analyzer/README.md, What is kept)"
)
CUT: Final = (
    f"more than {MOST_COUNTED:,} topics or clients: the summary names those of them with the most exchanges, and has "
    "the others together"
)
MOST_ATTEMPTS: Final = 1000
"""Pairs of client and server whose failed connection attempts `_kwire.json` lists."""
MOST_ADVERTISED: Final = 1000
"""Addresses that brokers advertise which `_kwire.json` lists, with the end points that say so."""
USUAL_PORT: Final = 9092
"""Port at which brokers listen by default: attempts there count even where no Kafka was seen at all."""


class PointResult(NamedTuple):
    """Result of a capture point that was read to its end, besides its rows.

    capture      its entry in `_kwire.json`
    notes        lines for the user
    summary      its part of the summary, coverage included
    from_before  ends (`ip:port-ip:port`) of connections that began before it
    left_open    ends of connections that it left open
    passed       how many exchanges a filter let through, of how many"""

    capture: dict[str, Any]
    notes: list[str]
    summary: Summary
    from_before: frozenset[str] = frozenset()
    left_open: frozenset[str] = frozenset()
    passed: tuple[int, int] | None = None


def point_result(
    point: CapturePoint,
    stats: CaptureStats,
    attempts: Sequence[Attempt],
    *,
    summary: Summary,
    ended: EndedConnections,
    zookeeper: Requests,
    brokers: Brokers,
    means: bool,
    schema_sources: list[str] | None,
    early_rows: int,
    passed: tuple[int, int] | None,
) -> PointResult:
    """Put a result together. `means`: the traffic was analysed; `schema_sources`: where the schemas of keys and values
    came from, None: these were not decoded; `early_rows`: how often rows were made on the way."""
    entry = {**_entry(point, stats), "meaning": means}
    if failed := list(_failed(attempts, ended.ports)):
        entry["attempts"] = failed[:MOST_ATTEMPTS]
    if advertised := brokers.advertised():
        entry["advertised"] = advertised[:MOST_ADVERTISED]
    if ended.decrypted:
        entry["decrypted"] = True
    if schema_sources is not None:
        entry["schema_sources"] = schema_sources
    if ended.otherwise:
        entry["answered_otherwise"] = [
            {"connection": connection.connection, "looks_like": connection.looks_like} for connection in ended.otherwise
        ]
    if requests := zookeeper.as_dict():
        entry["zookeeper"] = requests
    unread = unread_lines(point.name, stats.counts)
    notes = [*stats.notes, *unread, *([_EARLY_ROWS.format(early_rows)] if early_rows else [])]
    return PointResult(entry, notes, summary, frozenset(ended.from_before), frozenset(ended.left_open), passed)


def _failed(attempts: Sequence[Attempt], ports: Collection[int]) -> Iterator[dict[str, Any]]:
    """List failed connection attempts to ports at which Kafka was seen or is usual."""
    for attempt in attempts:
        if attempt.port in ports or attempt.port == USUAL_PORT:
            times = {"first_time": attempt.first_ns, "last_time": attempt.last_ns}
            yield {
                "client": ip_text(attempt.client),
                "server": end_point(ip_text(attempt.server), attempt.port),
                "refused": attempt.refused,
                "unanswered": attempt.unanswered,
                "most_in_a_minute": attempt.most,
                **{name: rfc3339(time // 1000) for name, time in times.items()},
            }


def joined(reads: Sequence[PointResult]) -> Dataset:
    """Join the results of all capture points into one dataset, without tables."""
    summary = Summary()
    for read in reads:
        summary.join(read.summary)
    return Dataset(
        {},
        captures=[read.capture for read in reads],
        coverage=summary.coverage.as_dict(),
        unrecognised=summary.unrecognised(),
        summary=summary.as_dict(),
        notes=[
            *(note for read in reads for note in read.notes),
            *nothing_matches([read.passed for read in reads if read.passed is not None]),
            *([CUT] if summary.cut else []),
        ],
        hints=list(_continued(reads)),
    )


def nothing_matches(passed: Sequence[tuple[int, int]]) -> list[str]:
    """Return a note if a filter let nothing through: silence would look as if nothing had been captured."""
    if not passed or any(matched for matched, _ in passed):
        return []
    return [f"0 of {sum(seen for _, seen in passed):,} exchanges match the filter"]


def _continued(reads: Sequence[PointResult]) -> Iterator[str]:
    """Return a hint for each capture point that goes on with the connections of an earlier one.

    They may be one capture in several files. Two points that were captured at the same time (the client's and the
    broker's side) are not."""
    for later in reads:
        for earlier in reads:
            ended, begun = earlier.capture["last_time"], later.capture["first_time"]
            shared = len(earlier.left_open & later.from_before)
            if shared and earlier is not later and ended <= begun:
                yield (
                    f"{later.capture['name']} goes on with {shared} connection{'s' * (shared > 1)} of "
                    f"{earlier.capture['name']}: --rotated reads them as one capture"
                )


def manifest(result: Dataset) -> dict[str, Any]:
    """Return the content of `_kwire.json`, but for the list of files."""
    return {
        "format_version": tables.FORMAT_VERSION,
        "kwire_version": __version__,
        "captures": result.captures,
        "coverage": result.coverage,
        "unrecognised": result.unrecognised,
        "notes": result.notes,
        **({"decrypted": True} if any(entry.get("decrypted") for entry in result.captures) else {}),
    }


def _entry(point: CapturePoint, stats: CaptureStats) -> dict[str, Any]:
    """Return a capture point's entry in `_kwire.json`."""
    files, counts = stats.files, dict(stats.counts)
    unread = counts.pop("not_understood", None)
    first = min((info.first_ns for info in files if info.first_ns is not None), default=None)
    last = max((info.last_ns for info in files if info.last_ns is not None), default=None)
    return {
        "name": point.name,
        "first_time": rfc3339(first // 1000) if first is not None else None,
        "last_time": rfc3339(last // 1000) if last is not None else None,
        "link_types": sorted({link for info in files for link in info.link_types}),
        "packets": counts,
        **({"not_understood": unread} if unread else {}),
        "files": [
            {
                "name": info.name,
                "size": info.size,
                "mtime": rfc3339(info.mtime_ns // 1000) if info.mtime_ns else None,
                "crc32c": f"{info.crc32c:08x}",
                "packets": info.packets,
                "first_time": rfc3339(info.first_ns // 1000) if info.first_ns is not None else None,
                "last_time": rfc3339(info.last_ns // 1000) if info.last_ns is not None else None,
                "link_types": list(info.link_types),
            }
            for info in files
        ],
    }
