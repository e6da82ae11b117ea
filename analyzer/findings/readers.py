"""Readers that get nothing new: held by a transaction, sent the same records again, sent between replicas.

In: a capture point's fetched topic-partitions (`fetched.reads`). Rules: what one client asked for of one
topic-partition, in order of the answers. Replicas are left out, and so are clients whose ids were not captured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.fetched import READ_COMMITTED, Reads, bounces, followed, of_readers, reads
from kwire.analyzer.findings.group_reads import committed_beyond, groups_of_fetches
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.wording import client, count, lasting, name, partition_name
from kwire.analyzer.findings.wording import some as some_names
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import busiest_window, first_rows, split
from kwire.analyzer.protocol import api_keys, errors

# ------------------------------------------------------------------------------------------------- held by transactions


@rule(
    "fetch",
    "reader-held-by-transaction",
    "warning",
    "g-app (10.0.0.4) waits at 100 in t-0 for 3.0 min: an open transaction holds the last stable offset there, and "
    "8,950 offsets beyond it cannot be read.",
    why="A reader of committed data gets nothing beyond the first record of an open transaction. Kafka Streams ends "
    "one ten times a second; ten seconds without an end are a producer that is stuck, dead or slow.",
    suppressed_when="It went on within a minute; it was held as long before, and went on: transactions last that long "
    "there; the log did not grow; hanging-transaction tells of it. Of a transaction that the capture shows, its "
    "producer is named.",
    advice="Find the transaction (kafka-transactions.sh find-hanging, DescribeProducers), and end its producer or "
    "abort it; more consumers do not help.",
    evidence="lso-stuck-consumer-only; forged: a reader that stands at the last stable offset for 10 s, and for 9; one "
    "that goes on; one that reads uncommitted data",
    held_s=10,
    passed_s=60,
    by_clock=True,
)
def held_by_transaction(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    read, isolation = reads(capture), capture.column("isolation_level")

    def is_below(block: slice) -> Any:
        stable = read.stable[block]
        return (isolation[read.owner[block]] == READ_COMMITTED) & (stable >= 0) & (read.end[block] >= stable)

    known = spill.where(len(read.at), is_below)
    if not len(known) or capture.seconds < at.held_s:
        return
    position, last_asked, hanging = read.position(), followed(capture), _hanging(capture)
    for rows in of_readers(capture, known):
        stands = (position[rows] >= read.stable[rows]) & (read.end[rows] > read.stable[rows])
        standing = np.flatnonzero(stands)
        if not len(standing):
            continue
        changes = np.flatnonzero(np.append(True, read.stable[rows][1:] != read.stable[rows][:-1]))
        ends = np.append(changes[1:], len(rows))
        longest_passed = 0
        # A busy reader sees thousands of last stable offsets, and waits at few of them.
        for held in split(standing, np.searchsorted(changes, standing, side="right")):
            end = int(ends[np.searchsorted(changes, held[0], side="right") - 1])
            since, passed = int(read.time[rows[held[0]]]), end < len(rows)
            where = capture.topic_partitions[read.topic_partition[rows[0]]]
            who_ = int(capture.client[read.owner[rows[0]]])
            until = int(read.time[rows[end if passed else held[-1]]])
            if not passed:
                until = max(until, last_asked.get((who_, where), until))
            stable, usual = int(read.stable[rows[held[0]]]), longest_passed
            longest_passed = max(longest_passed, until - since) if passed else longest_passed
            least = (at.passed_s if passed else at.held_s) * SECOND
            if until - since < max(least, 2 * usual) or where in hanging:
                continue
            beyond = int(read.end[rows[held]].max()) - stable
            who = capture.who(who_)
            text = f"{client(who)} {'waited' if passed else 'waits'} at {stable:,} in {partition_name(where)} for "
            text += f"{lasting(until - since)}: an open transaction holds the last stable offset there, and "
            text += f"{count(beyond, 'offset')} beyond it cannot be read."
            holder = _holder(capture, where, stable, since)
            yield Match(
                text,
                len(held),
                since,
                until,
                who,
                {"topic": where[0], "partition": str(where[1]), **holder[1], "group_id": _group(capture, rows)},
                tuple(int(read.owner[rows[row]]) for row in (held[0], held[-1], held[-1])),
                cause=holder[0],
                proven=True,
            )


def _group(capture: CaptureFrame, rows: np.ndarray) -> str | None:
    """The group that some reads are for."""
    group = int(groups_of_fetches(capture)[reads(capture).owner[rows[-1]]])
    return capture.groups[1][group] if group >= 0 else None


def _hanging(capture: CaptureFrame) -> set[tuple[str, int]]:
    """Topic-partitions that hanging-transaction tells of."""
    hanging = RULES["hanging-transaction"]
    matches = hanging.check(capture, limits_of(hanging, capture.query))
    out = set()
    for match in matches:  # of several topics it does not say which partition is whose
        partitions = [int(text) for text in (match.what.get("partition") or "").split(",") if text.isdigit()]
        out |= {(topic, number) for topic in (match.what.get("topic") or "").split(",") for number in partitions}
    return out


def _holder(
    capture: CaptureFrame, where: tuple[str, int], stable: int, since: int
) -> tuple[str, dict[str, str | None]]:
    """Whose transaction begins at an offset: as a cause, and as columns of `what`."""
    table = capture.table("transactions")
    wanted = ["transactional_id", "producer_id", "client_id", "began", "ended", "partitions"]
    for row in table.every(wanted) if len(table) else ():
        places = {(place["topic"], place["partition"]) for place in row["partitions"] or ()}
        if where in places and (row["began"] or since) <= since and (row["ended"] is None or row["ended"] > since):
            named = row["transactional_id"] or f"producer {row['producer_id']}"
            whose = f"the transaction of {name(named)}" + (f" ({name(row['client_id'])})" if row["client_id"] else "")
            return whose, {
                "transactional_id": row["transactional_id"],
                "producer_id": None if row["producer_id"] is None else str(row["producer_id"]),
            }
    producer = _producer_at(capture, where, stable)
    if producer is not None:
        return f"a transaction of producer {producer}", {"producer_id": str(producer)}
    return "a transaction whose producer is not in the capture", {}


def _producer_at(capture: CaptureFrame, where: tuple[str, int], offset: int) -> int | None:
    """The producer of the batch at an offset, where somebody else fetched it."""
    table = capture.table("batches")
    if not len(table):
        return None
    side, sides = table.text("side")
    numbers, places = capture.number_topic_partitions(table)
    fetched = arrow.among(side, [number for number, text in enumerate(sides) if text == "fetch"])
    here = arrow.among(numbers, [number for number, place in enumerate(places) if place == where])
    rows = np.flatnonzero(fetched & here & (table["base_offset"] == offset) & (table["producer_id"] >= 0))
    return int(table["producer_id"][rows[0]]) if len(rows) else None


# ------------------------------------------------------------------------------------------------------- read again


@rule(
    "fetch",
    "fetch-repeats",
    "warning",
    "g-app (10.0.0.4) got the same 3 records of orders-0 at 100 49 times in 1.0 s: it asks for one offset again and "
    "again.",
    why="Going back is a client's right: somebody rewinds once, or three times. Eight times within a minute to the "
    "same offset, over one connection, is a loop.",
    suppressed_when="The client's group committed an offset beyond it meanwhile; the client connected anew each time "
    "(partition-stuck); brokers among themselves.",
    advice="Look for a record that the application does not get past (a seek back after an error), or a client that "
    "drops what it fetched: pausing and resuming with every poll, an answer that it cannot decode.",
    evidence="fetch-same-offset-again; forged: eight answers with the same records, and seven; a commit in between; a "
    "fetch session of kafka-python whose requests were answered with other partitions",
    times=8,
    window_s=60,
    by_clock=True,
)
def repeats(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by_topic: dict[tuple[int, str], list[Match]] = defaultdict(list)
    for who_, where, match in repeated(capture, at):
        by_topic[who_, where[0]].append(match)
    for matches in by_topic.values():
        worst = max(matches, key=lambda match: match.count)
        if len(matches) > 1:
            partitions = ",".join(sorted((match.what["partition"] or "" for match in matches), key=int))
            text = f"{worst.text[:-1]}; so it does in {count(len(matches), 'partition')}."
            worst = _with(worst, text, sum(match.count for match in matches), partitions)
        yield worst


def _with(match: Match, text: str, times: int, partitions: str) -> Match:
    return Match(text, times, match.since, match.until, match.who, {**match.what, "partition": partitions}, match.rows)


def repeated(capture: CaptureFrame, at: Limits) -> Iterator[tuple[int, tuple[str, int], Match]]:
    """Yield (client, topic-partition, match) of readers that got the same records again and again."""
    read = reads(capture)
    if len(read.at) < at.times:
        return
    records = capture.table("partitions")["record_count"]
    got = spill.true_rows(read.size > 0)
    for rows in of_readers(capture, got):
        if len(rows) < at.times:
            continue
        for some in split(rows, capture.exchanges.link[read.owner[rows]], least=at.times):
            match = _repeated_at(capture, some, records, at)
            if match is not None:
                where = capture.topic_partitions[read.topic_partition[some[0]]]
                yield int(capture.client[read.owner[some[0]]]), where, match


def _repeated_at(capture: CaptureFrame, rows: np.ndarray, records: np.ndarray, at: Limits) -> Match | None:
    """The match of the offset that one connection asked for most often, with the same records each time."""
    read = reads(capture)
    requested = _requested(read, rows)
    many = np.maximum(records[read.part[rows]], 0)
    # In a session an offset is also said in requests that are answered with other partitions: the end tells as well.
    end, lag = read.end[rows], read.lag[rows]
    after = np.where((end != NULL) & (lag != NULL), end - lag, requested)
    for same in sorted(split(rows, requested, after, read.size[rows], many, least=at.times), key=len, reverse=True):
        offset = int(requested[np.searchsorted(rows, same[0])])
        amount = int(records[read.part[same[0]]])
        if offset == NULL or amount <= 0:
            continue
        when = read.time[same]
        most = busiest_window(when, int(at.window_s * SECOND))[0]
        if most < at.times:
            continue
        since, until = int(when[0]), int(when[-1])
        where = capture.topic_partitions[read.topic_partition[rows[0]]]
        group = _group(capture, same)
        if group is not None and committed_beyond(capture, group, where, offset, since, until):
            continue
        who = capture.who(int(capture.client[read.owner[same[0]]]), int(capture.broker[read.owner[same[0]]]))
        text = f"{client(who)} got the same {count(amount, 'record')} of {partition_name(where)} at {offset:,} "
        text += f"{len(same):,} times in {lasting(until - since)}: it asks for one offset again and again."
        return Match(
            text,
            len(same),
            since,
            until,
            who,
            {"topic": where[0], "partition": str(where[1]), "offset": str(offset), "group_id": group},
            tuple(int(read.owner[row]) for row in (same[0], same[0], same[-1])),
        )
    return None


def _requested(read: Reads, rows: np.ndarray) -> np.ndarray:
    """int64: the offset that each read of one connection and topic-partition asked for. In a fetch session a request
    does not repeat what has not changed."""
    at = read.at[rows]
    last = np.maximum.accumulate(np.where(at != NULL, np.arange(len(at)), -1))
    requested: np.ndarray = np.where(last >= 0, at[np.maximum(last, 0)], NULL)
    return requested


# ------------------------------------------------------------------------------------------------ the nearest replica


@rule(
    "fetch",
    "replica-bounce",
    "warning",
    "g-app (10.0.0.4) is sent to replica 2 (10.0.0.3:9092, rack b) for orders-0, and refused there: 39 times in 22.8 s "
    "(OFFSET_OUT_OF_RANGE (1)). Each time costs it 600 ms.",
    why="A leader names a replica in the reader's rack (KIP-392). If that one is behind, the reader comes back, and is "
    "sent there again. Once happens where a replica catches up; three times is a loop.",
    suppressed_when="Fewer than three times; the client did not come back to the leader at the same offset.",
    advice="See why that replica is behind (under-replicated partitions, its disk, its fetchers); until it has caught "
    "up, leave client.rack unset.",
    evidence="preferred-replica-bounce; forged: three times, and two",
    times=3,
)
def bounced(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    often = {pair: trips for pair, trips in bounces(capture).items() if len(trips) >= at.times}
    if not often:
        return
    preferred = capture.column("preferred_replica")
    nodes = {row["node_id"]: row for row in capture.table("brokers").every()}
    rows = capture.exchanges
    for (who_, where), trips in often.items():
        away = [there for _, there in trips]
        node = next((int(preferred[sent]) for sent, _ in trips if preferred[sent] >= 0), None)
        address = capture.brokers[capture.broker[away[0]]]
        if node is None:
            node = next((key for key, row in nodes.items() if f"{row['host']}:{row['port']}" == address), None)
        rack = nodes[node]["rack"] if node in nodes else None
        since, until = int(rows.response_end[away[0]]), int(rows.response_end[away[-1]])
        each = (until - since) / (len(trips) - 1)
        who = capture.who(who_, int(capture.broker[away[0]]))
        parts = [text for text in (address, f"rack {name(rack)}" if rack else "") if text]
        replica = f"replica {node} ({', '.join(parts)})" if node is not None else f"{', '.join(parts)}"
        code = int(rows.error[away[0]])
        text = f"{client(who)} is sent to {replica} for {partition_name(where)}, and refused there: "
        text += f"{count(len(trips), 'time')} in {lasting(until - since)} ({errors.name(code)} ({code})). "
        yield Match(
            f"{text}Each time costs it {lasting(each)}.",
            len(trips),
            since,
            until,
            who,
            {
                "topic": where[0],
                "partition": str(where[1]),
                "replica": None if node is None else str(node),
                "rack": rack,
                "price_us": str(round(each)),
            },
            (trips[0][0], away[0], away[-1]),
            cause="that replica does not have the offset yet" if code == errors.OFFSET_OUT_OF_RANGE else None,
            proven=True if code == errors.OFFSET_OUT_OF_RANGE else None,
        )


@rule(
    "fetch",
    "rack-ignored",
    "note",
    "geo-reader (10.0.0.4) says that it is in rack az2, and no broker has a rack: all of its 297 fetches went to "
    "leaders wherever they are.",
    why="A client.rack has an effect only where brokers have a broker.rack and a replica.selector.class (KIP-392). "
    "Twenty fetches are more than a start.",
    suppressed_when="An answer named a replica to read from, or the client reads from a broker of its rack; only one "
    "broker is known; the capture has no Metadata; Fetch before version 11, which does not say the rack. Of a client "
    "that says no rack: neither do others of its group, and none of the brokers at its address is in one.",
    advice="broker.rack on each broker and replica.selector.class=...RackAwareReplicaSelector, or no client.rack.",
    evidence="cross-rack; forged: twenty fetches, and nineteen; brokers that have racks; a leader in the same rack; a "
    "member without a rack among others; a client without one beside a follower",
    fetches=20,
)
def rack_ignored(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    nodes = capture.table("brokers").every()
    if len({row["node_id"] for row in nodes}) < 2:
        return
    table = capture.table("exchanges")
    rack, racks = table.text("rack_id")
    known = {row["rack"] for row in nodes if row["rack"] is not None}
    if not (racks or known):
        return
    of_node = {f"{row['host']}:{row['port']}": row["rack"] for row in nodes}
    preferred = table.numbers("preferred_replica")
    rows = capture.of_one(capture.of_api(api_keys.FETCH))
    rows = rows[(capture.exchanges.error[rows] == 0) & (capture.exchanges.version[rows] >= _SAYS_RACK)]
    rows = rows[~capture.between_brokers[capture.client[rows]]]
    nearer = _with_replica_in(capture) if known else {}
    yield from _without_rack(capture, rows, nearer, int(at.fetches))
    rows = rows[rack[rows] >= 0]
    for some in split(rows, capture.client[rows], rack[rows], least=at.fetches):
        own = racks[rack[some[0]]]
        if (preferred[some] >= 0).any():
            continue
        brokers = {int(broker) for broker in arrow.distinct(capture.broker[some]).tolist()}
        near = any(of_node.get(capture.brokers[broker]) == own for broker in brokers)
        if not known:
            why, cause = "no broker has a rack", "brokers without broker.rack"
        elif own not in known:
            why, cause = "no broker is in that rack", "no broker in that rack"
        elif near or not nearer.get(own):
            continue
        else:
            why, cause = "was sent to no replica there", "brokers without replica.selector.class"
        who = capture.who(int(capture.client[some[0]]))
        text = f"{client(who)} says that it is in rack {name(own)}, and {why}: all of its "
        text += f"{count(len(some), 'fetch', 'fetches')} went to leaders wherever they are."
        yield _of_fetches(capture, some, text, own, cause, not known or own not in known)


def _of_fetches(
    capture: CaptureFrame, rows: np.ndarray, text: str, rack: str | None, cause: str, proven: bool
) -> Match:
    """The match of a client's fetches, with the bytes that they brought. rack: that the client says."""
    brought = np.maximum(capture.column("response_bytes")[rows], 0).sum()
    return Match(
        text,
        len(rows),
        int(capture.exchanges.request_time[rows].min()),
        int(capture.exchanges.request_time[rows].max()),
        capture.who(int(capture.client[rows[0]])),
        {"rack": rack, "bytes": str(int(brought))},
        tuple(rows[[0, 0, -1]].tolist()),
        cause=cause,
        proven=proven,
    )


_SAYS_RACK = 11
"""The first version of Fetch that does (KIP-392)."""


def _without_rack(capture: CaptureFrame, rows: np.ndarray, nearer: dict[str, int], least: int) -> Iterator[Match]:
    """Clients that say no rack, though others of their group do, or a broker at their address is in one, where an
    in-sync follower is that they never read from. rows: fetches of clients."""
    table = capture.table("exchanges")
    rack, racks = table.text("rack_id")
    (_, groups), own_group = capture.groups, groups_of_fetches(capture)
    stating, silent = rows[rack[rows] >= 0], rows[rack[rows] < 0]
    silent = silent[~arrow.among(capture.client[silent], arrow.distinct(capture.client[stating]))]
    of_group: dict[int, set[str]] = defaultdict(set)
    for row in stating[first_rows(own_group[stating], rack[stating])].tolist():
        if own_group[row] >= 0:
            of_group[int(own_group[row])].add(racks[rack[row]])
    nodes = capture.table("brokers").every()
    rack_of = {f"{row['host']}:{row['port']}": row["rack"] for row in nodes}
    at_address: dict[str, set[str]] = defaultdict(set)
    for row in nodes:
        if row["rack"] is not None:
            at_address[row["host"]].add(row["rack"])
    for some in split(silent, capture.client[silent], least=least):
        address = capture.clients[capture.client[some[0]]][0]
        beside = next(iter(at_address[address])) if len(at_address.get(address, ())) == 1 else None
        others = sorted(set().union(*(of_group[number] for number in set(own_group[some].tolist()))))
        used = {rack_of.get(capture.brokers[broker]) for broker in arrow.distinct(capture.broker[some]).tolist()}
        who = capture.who(int(capture.client[some[0]]))
        if others:
            named = groups[next(number for number in own_group[some].tolist() if of_group[number])]
            text = f"{client(who)} says no rack, though others of group {name(named)} do ({some_names(others)}): all "
            text += f"of its {count(len(some), 'fetch', 'fetches')} went to leaders wherever they are."
        elif beside is not None and nearer.get(beside) and beside not in used:
            text = f"{client(who)} says no rack: all of its {count(len(some), 'fetch', 'fetches')} went to leaders in "
            text += f"other racks, though rack {name(beside)}, where it runs beside a broker, has in-sync followers."
        else:
            continue
        yield _of_fetches(capture, some, text, None, "client.rack is not set", True)


def _with_replica_in(capture: CaptureFrame) -> dict[str, int]:
    """How many partitions that were read have an in-sync replica in each rack."""
    rack_of = {row["node_id"]: row["rack"] for row in capture.table("brokers").every()}
    read_here = {capture.topic_partitions[number] for number in spill.distinct(reads(capture).topic_partition).tolist()}
    out: dict[str, int] = defaultdict(int)
    for row in capture.table("leaders").every(["topic", "topic_id", "partition", "isr"]):
        topic = row["topic"] or capture.topic_names.get(row["topic_id"], row["topic_id"])
        if (topic, row["partition"]) in read_here:
            for rack in {rack_of.get(node) for node in row["isr"] or ()}:
                if rack is not None:
                    out[rack] += 1
    return out
