"""Judge offsets that held one batch under a leader, and another one under the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from kwire.analyzer.common.listing import listed
from kwire.analyzer.findings import fetch, produce
from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import count, lasting, name, partition_name
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import split
from kwire.analyzer.protocol import errors

_IDENTITY: Final = ("producer_id", "producer_epoch", "base_sequence", "first_timestamp")
"""Columns of a batch that compaction leaves as they are."""


@rule(
    "fetch",
    "replaced-uncommitted",
    "note",
    "orders-1 held another batch at offset 497 (1 record) before its leader changed: 10.0.0.1:9092 gave it to "
    "broker-2-fetcher-0 and never committed it; clients read from there on what 10.0.0.2:9092 has, 311 ms later. Its "
    "producer was answered NOT_LEADER_OR_FOLLOWER (6).",
    why="Followers get records before they are committed, clients do not (KIP-101): a leader that is lost may take "
    "some with it. Nothing that acks=all promised is lost.",
    suppressed_when="The high watermark had passed the offset, or a client had read it there (log-truncated); the "
    "batch was compacted; the topic was made anew.",
    advice="Nothing, where its producer was refused and sent it again. Where it was answered that it was written "
    "(acks=1), the records are lost: acks=all. After an incident: these are the records that one broker's log had "
    "there; kwire story --topic T --partition P --offset N has both batches.",
    evidence="cluster-kraft-3.9 (a leader is killed); forged: a follower's batch below and at the high watermark",
)
def replaced_uncommitted(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("batches")
    if len(capture.brokers) < 2 or not len(table) or not capture.between_brokers.any():
        return
    side, sides = table.text("side")
    base, crc, magic = table["base_offset"], table["crc"], table["magic"]
    rows = spill.true_rows(arrow.among(side, codes_of(sides, "fetch")) & (base > 0) & (crc != NULL) & (magic == 2))
    owner, (where, places) = capture.owners(table), capture.number_topic_partitions(table)
    rows = rows[owner[rows] >= 0]
    if not len(rows):
        return
    rows = rows[fetch.with_several(where[rows], capture.broker[owner[rows]], len(places))]
    rows = _with_other_contents(rows, where[rows], base[rows], crc[rows])
    replaced: dict[tuple[int, int, int], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for some in split(rows, where[rows], base[rows]):
        some = some[np.argsort(capture.exchanges.response_end[owner[some]], kind="stable")]
        before, after = some[crc[some] == crc[some[0]]], some[crc[some] != crc[some[0]]]
        if not _is_replaced(capture, before, after):
            continue
        old, new = (int(capture.broker[owner[group[0]]]) for group in (before, after))
        replaced[int(where[some[0]]), old, new].append((before, after))
    for (number, old, new), pairs in replaced.items():
        topic = places[number][0]
        if topic not in capture.remade:
            yield _match(capture, places[number], (capture.brokers[old], capture.brokers[new]), pairs)


def _with_other_contents(rows: np.ndarray, where: np.ndarray, base: np.ndarray, crc: np.ndarray) -> np.ndarray:
    """Return those of some rows whose topic-partition and offset occur with more than one checksum."""
    order = np.lexsort((crc, base, where))
    rows, where, base, crc = (column[order] for column in (rows, where, base, crc))
    same = (where[1:] == where[:-1]) & (base[1:] == base[:-1])
    number = np.append(0, np.cumsum(~same))[: len(rows)]
    several = np.zeros(len(rows), np.bool_)
    several[number[1:][same & (crc[1:] != crc[:-1])]] = True
    chosen: np.ndarray = rows[several[number]]
    return chosen


def _is_replaced(capture: CaptureFrame, before: np.ndarray, after: np.ndarray) -> bool:
    """Tell whether followers alone had the first batch at an offset, uncommitted, and clients have another one of
    another leader. Both are rows of `batches`, in order of time."""
    table, rows = capture.table("batches"), capture.exchanges
    owner = capture.owners(table)
    inside = capture.between_brokers[capture.client]
    old = int(capture.broker[owner[before[0]]])
    if not inside[owner[before]].all() or inside[owner[after]].all():
        return False
    if (capture.broker[owner[before]] != old).any() or (capture.broker[owner[after]] == old).any():
        return False
    first, second = table.rows([before[0], after[0]], [*_IDENTITY, "record_count", "delete_horizon"])
    if first["delete_horizon"] or second["delete_horizon"]:
        return False
    if all(first[column] == second[column] for column in _IDENTITY):
        if (second["record_count"] or 0) <= (first["record_count"] or 0):  # it may be compacted
            return False
    parts, marks = capture.partitions, capture.table("partitions")["high_watermark"]
    where, places = capture.number_topic_partitions(table)
    place = places[where[before[0]]]
    number = capture.topic_partitions.index(place) if place in capture.topic_partitions else -1
    until = int(rows.response_end[owner[after[0]]])
    answers = np.flatnonzero((parts.topic_partition == number) & (marks != NULL) & (parts.owner >= 0))
    answer_owner = parts.owner[answers]
    answers = answers[(capture.broker[answer_owner] == old) & (rows.response_end[answer_owner] <= until)]
    return bool(len(answers)) and int(marks[answers].max()) <= int(table["base_offset"][before[0]])


def _match(
    capture: CaptureFrame, place: tuple[str, int], brokers: tuple[str, str], pairs: list[tuple[np.ndarray, np.ndarray]]
) -> Match:
    table, rows = capture.table("batches"), capture.exchanges
    owner, base = capture.owners(table), table["base_offset"]
    records = np.maximum(table["record_count"], 0)
    pairs = sorted(pairs, key=lambda pair: int(base[pair[0][0]]))
    low, high = (int(base[pair[0][0]]) for pair in (pairs[0], pairs[-1]))
    many = int(sum(records[before[0]] for before, _ in pairs))
    offsets = f"offset {low:,}" if len(pairs) == 1 else f"{count(len(pairs), 'offset')} from {low:,} to {high:,}"
    followers = sorted(
        {capture.clients[capture.client[row]][1] or "" for before, _ in pairs for row in owner[before].tolist()}
    )
    first = min(pairs, key=lambda pair: int(rows.response_end[owner[pair[0][0]]]))
    since = int(rows.response_end[owner[first[0][0]]])
    of_clients = [
        int(row)
        for _, after in pairs
        for row in owner[after].tolist()
        if not capture.between_brokers[capture.client[row]]
    ]
    read = min(of_clients, key=lambda row: int(rows.response_end[row]))
    batch, it = ("another batch", "it") if len(pairs) == 1 else ("other batches", "them")
    text = f"{partition_name(place)} held {batch} at {offsets} ({count(many, 'record')}) before its leader changed: "
    text += f"{brokers[0]} gave {it} to {listed([*map(name, followers)], len(followers))} and never committed {it}; "
    text += f"clients read from there on what {brokers[1]} has, "
    text += f"{lasting(int(rows.response_end[read]) - since)} later.{_answered(capture, pairs)}"
    return Match(
        text,
        len(pairs),
        since,
        int(rows.response_end[read]),
        capture.who(broker=int(capture.broker[read])),
        {"topic": place[0], "partition": str(place[1]), "offset": str(low)},
        (int(owner[first[0][0]]), read, read),
        cause="the leader was lost before its followers had confirmed the records",
        proven=True,
    )


def _answered(capture: CaptureFrame, pairs: list[tuple[np.ndarray, np.ndarray]]) -> str:
    """Say how the Produce requests that carried the replaced batches were answered."""
    written, table = produce.batches(capture), capture.table("batches")
    crc = table["crc"]
    wanted = arrow.distinct(np.array([crc[before[0]] for before, _ in pairs]))
    where, _ = capture.number_topic_partitions(table)
    number = where[pairs[0][0][0]]
    there = np.flatnonzero((written.topic_partition == number) & arrow.among(crc[written.row], wanted))
    codes = [code for code in arrow.distinct(written.error[there]).tolist() if code in errors.errors()]
    if not codes:
        return ""
    texts = ["that it was written" if code == 0 else errors.label(code) for code in codes]
    return f" Its producer was answered {listed(texts, len(texts))}."
