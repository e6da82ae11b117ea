"""Rule about readers that make their own records late, by what they ask brokers to wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import rows_by_key, sort_by, split
from kwire.analyzer.protocol import api_keys


@rule(
    "fetch",
    "fetch-wait",
    "note",
    "dashboard (10.0.0.4) gets records up to 4.9 s late (2.5 s at the median) from 10.0.0.1:9092: fetch.min.bytes is "
    "1,000,000, and 12 fetches waited for that until fetch.max.wait.ms (5,000 ms) was over.",
    why="With fetch.min.bytes = 1, the default, the next record ends the wait at once; half a second is what readers "
    "with the default of fetch.max.wait.ms may wait at most.",
    suppressed_when="Fewer than two such fetches; the answers brought no records (nothing was late), or as much as "
    "was asked for; replicas' fetches.",
    advice="Lower fetch.min.bytes or fetch.max.wait.ms (fetch.wait.max.ms in librdkafka) where latency matters more "
    "than the number of fetches.",
    evidence="long-poll; forged: fetches that bring less than they ask for after 5 s, and those that bring nothing",
    late_ms=500,
    fetches=2,
)
def fetch_wait(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.greatest("latency_us") < at.late_ms * 1000:
        return
    rows = _waited_in_vain(capture, at)
    if len(rows) < at.fetches:
        return
    late = _lateness(capture, rows)
    least, longest, held = (capture.column(name)[rows] for name in ("min_bytes", "max_wait_ms", "hold_us"))
    late = np.minimum(late, held)  # what was there before is late by the wait alone
    for group in split(np.arange(len(rows)), capture.client[rows], capture.broker[rows], least=at.fetches):
        known = late[group][late[group] != NULL]
        if len(known) and known.max() < at.late_ms * 1000:
            continue
        some = rows[group]
        who = capture.who(int(capture.client[some[0]]), int(capture.broker[some[0]]))
        settings = Counter(zip(least[group].tolist(), longest[group].tolist(), strict=True)).most_common(1)[0][0]
        worst = int(late[group].argmax()) if len(known) else int(held[group].argmax())
        most = int(known.max()) if len(known) else int(held[group].max())
        text = f"{client(who)} gets records up to {lasting(most)} late "
        text += f"({lasting(float(np.median(known)))} at the median) " if len(known) else ""
        text += f"from {who['broker']}: fetch.min.bytes is {settings[0]:,}, and {count(len(some), 'fetch', 'fetches')} "
        text += f"waited for that until fetch.max.wait.ms ({settings[1]:,} ms) was over."
        yield Match(
            text,
            len(some),
            int(capture.exchanges.request_time[some].min()),
            int(capture.exchanges.response_end[some].max()),
            who,
            {"fetch.min.bytes": str(settings[0]), "fetch.max.wait.ms": str(settings[1]), "late_us": str(most)},
            (int(some[0]), int(some[worst]), int(some[-1])),
            cause="its own fetch.min.bytes and fetch.max.wait.ms",
            proven=True,
        )


def _waited_in_vain(capture: CaptureFrame, at: Limits) -> np.ndarray:
    """Fetches of clients that brought records, and fewer bytes than asked for, once their longest wait was over."""
    rows = capture.of_api(api_keys.FETCH)
    rows = rows[(capture.exchanges.error[rows] == 0) & ~capture.between_brokers[capture.client[rows]]]
    rows = capture.of_one(rows)
    held, least, longest = (spill.take(capture.column(name), rows) for name in ("hold_us", "min_bytes", "max_wait_ms"))
    # The broker's clock has milliseconds.
    over = (held != NULL) & (held >= at.late_ms * 1000) & (held + 2000 >= 1000 * longest)
    rows, least = rows[over & (least > 1)], least[over & (least > 1)]
    if not len(rows):
        return np.zeros(0, np.int64)
    owner, amount = capture.partitions.owner, capture.table("partitions").numbers("record_bytes")
    parts = spill.where(len(owner), lambda block: arrow.among(owner[block], rows) & (amount[block] > 0))
    brought = np.zeros(len(rows), np.int64)
    order = np.argsort(rows, kind="stable")
    np.add.at(brought, order[np.searchsorted(rows[order], owner[parts])], amount[parts])
    result: np.ndarray = rows[(brought > 0) & (brought < least)]
    return result


def _lateness(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """int64[rows]: from when the first record that each of these fetches brought was written to its answer, us: the
    request of its captured Produce, else the record's timestamp; NULL: neither is known."""
    parts = capture.partitions
    offset, amount = (capture.table("partitions").numbers(name) for name in ("offset", "record_bytes"))
    produced = _produced(capture)
    out = np.full(len(rows), NULL, np.int64)
    order = np.argsort(rows, kind="stable")
    fetched = spill.where(len(parts.owner), lambda block: arrow.among(parts.owner[block], rows) & (amount[block] > 0))
    for part in fetched.tolist():
        row = int(parts.owner[part])
        offsets, times = produced.get((int(parts.topic_partition[part]),), (out[:0], out[:0]))
        at = int(np.searchsorted(offsets, offset[part]))
        if at < len(offsets):
            place = order[np.searchsorted(rows[order], row)]
            waited = int(capture.exchanges.response_end[row] - times[at])
            if waited >= 0:
                out[place] = max(out[place], waited)
    unknown = np.flatnonzero(out == NULL)
    if len(unknown):
        out[unknown] = _by_timestamps(capture, rows[unknown])
    return out


def _produced(capture: CaptureFrame) -> dict[tuple[int, ...], tuple[np.ndarray, ...]]:
    """Offsets of written batches, in order, and when they were sent, us, by number of the topic-partition."""
    parts, offset = capture.partitions, capture.table("partitions").numbers("offset")
    written = capture.parts_of(api_keys.PRODUCE)
    written = written[(parts.error[written] == 0) & (offset[written] >= 0)]
    return {
        key: sort_by(offset[some], capture.exchanges.request_time[parts.owner[some]])
        for key, some in rows_by_key(written, parts.topic_partition[written]).items()
    }


def _by_timestamps(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """int64[rows]: age of the oldest record that each of these fetches brought, us, by clients' clocks; NULL where
    that is unknown or more than its wait."""
    out = np.full(len(rows), NULL, np.int64)
    batches = capture.table("batches")
    if not len(batches):
        return out
    owner, first = capture.owners(batches), batches.numbers("first_timestamp")
    some = spill.where(len(owner), lambda block: arrow.among(owner[block], rows) & (first[block] != NULL))
    held = capture.column("hold_us")
    for (row,), group in rows_by_key(some, owner[some]).items():
        age = int(capture.exchanges.response_end[row] - first[group].min())
        if 0 <= age <= held[row] + 1_000_000:
            out[rows == row] = age
    return out
