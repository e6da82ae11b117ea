"""Transactions and idempotent producers: fencing, holes in sequences, transactions that hang."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame, once
from kwire.analyzer.findings.error_answers import EXPLANATIONS, claim, match_of, of, times
from kwire.analyzer.findings.fetched import reads
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.runs import Run, Trouble, runs
from kwire.analyzer.findings.wording import client, count, lasting, listed, moment, name, partition_name, share
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import busiest_window, first_rows, rows_by_key, sort_by, split
from kwire.analyzer.protocol import api_keys, errors

_OF_TRANSACTIONS = (
    api_keys.INIT_PRODUCER_ID,
    api_keys.ADD_PARTITIONS_TO_TXN,
    api_keys.ADD_OFFSETS_TO_TXN,
    api_keys.END_TXN,
    api_keys.TXN_OFFSET_COMMIT,
    api_keys.PRODUCE,
)
_FENCED = claim(_OF_TRANSACTIONS, (errors.INVALID_PRODUCER_EPOCH, errors.PRODUCER_FENCED), every=True)
_WAITING = claim(_OF_TRANSACTIONS, (51,))


@rule(
    "transactions",
    "producer-fenced",
    "error",
    "Transactional id tx-1 is used by 2 clients in turn (svc-a (10.0.0.4), svc-b (10.0.0.9)): 8 fencings, 10:01:03 to "
    "10:01:19.",
    why="Fencing is how one producer takes over from another: once is right, back and forth is two owners.",
    suppressed_when="It happened once, or to one client whose successor took over (a note); its transaction went on "
    "beyond its timeout, and nobody else was seen to take it (transaction-timed-out); producers of several "
    "transactional ids, or of none, that write one topic; KIP-890 raises the epoch of every transaction, and answers "
    "the new one; INVALID_PRODUCER_EPOCH of a coordinator, where no other producer was seen to take the id and the "
    "client goes on (KIP-360).",
    advice="A transactional.id for each instance.",
    evidence="forged: two clients fenced in turn, also with INVALID_PRODUCER_EPOCH, and one fenced once; two instances "
    "of one client",
    often=2,
)
def producer_fenced(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by_id: dict[tuple[str | None, str, int], list[tuple[Run, list[int]]]] = defaultdict(list)
    for run in runs(capture):
        if not _FENCED(run):
            continue
        by_transaction: dict[str | None, list[int]] = defaultdict(list)
        for row, transaction in zip(run.rows.tolist(), _transaction_of(capture, run.rows), strict=True):
            transaction = run.thing.transaction or transaction
            # An epoch that is refused and raised again by the same producer is KIP-360, and passes.
            if run.code == errors.PRODUCER_FENCED or run.lasting or _fenced_by(capture, transaction, row) is not None:
                by_transaction[transaction].append(row)
        for transaction, own_rows in by_transaction.items():
            # Who has no transactional id shares none: another client is another producer.
            of_client = -1 if transaction is not None else run.client
            by_id[transaction, "" if transaction is not None else _topic(run), of_client].append((run, own_rows))
    late = _since(capture)
    for (transaction, topic, _), some in by_id.items():
        rows = arrow.distinct(np.array([row for _, own_rows in some for row in own_rows]))
        clients = sorted({run.client for run, _ in some})
        owners, in_turn = _turns(capture, transaction, rows)
        many = (len(clients) > 1 or in_turn) and len(rows) >= at.often
        if not many:  # then by what says so itself: an epoch that a coordinator refuses once may be raised again
            some = [(run, own_rows) for run, own_rows in some if run.code == errors.PRODUCER_FENCED or run.lasting]
            rows = arrow.distinct(np.array([row for _, own_rows in some for row in own_rows], np.int64))
            clients = sorted({run.client for run, _ in some})
            if not some:
                continue
        what = f"Transactional id {name(transaction)}" if transaction is not None else f"A producer of {name(topic)}"
        named = ", ".join(client(capture.who(client_number)) for client_number in clients[:3])
        fenced, cause = f"{named} was fenced {count(len(rows), 'time')}", "another producer took over"
        answered = capture.exchanges.response_end[rows]
        since, until = int(answered.min()), int(answered.max())
        if many:
            of = sorted({*clients, *owners})
            users = f"{count(len(of), 'client')} in turn" if len(of) > 1 else "several producers of one client in turn"
            everybody = listed([client(capture.who(client_number)) for client_number in of[:3]], len(of))
            text = f"{what} is used by {users} ({everybody}): {count(len(rows), 'fencing')}, {moment(since)} to "
            text += f"{moment(until)}."
            cause = "several owners of one transactional id"
        elif transaction is not None and _taken_by(capture, transaction) == set(clients):
            if transaction in late:
                continue
            text = f"{what}: {fenced}, and nobody else was seen to take it."
            cause = "its transaction timed out"
        else:
            text = f"{what} was taken over: {fenced}."
        yield Match(
            text,
            len(rows),
            since,
            until,
            capture.who(clients[0]),
            {"transactional_id": transaction},
            tuple(rows[[0, 0, -1]].tolist()),
            severity=None if many else "note",
            cause=cause,
            proven=False,
        )


class _Owner(NamedTuple):
    """A producer that took a transactional id by a successful InitProducerId: when it was answered, us."""

    time: int
    client: int
    link: int


@once
def _owners(capture: CaptureFrame) -> dict[str, list[_Owner]]:
    """Producers that took each transactional id, in order of time."""
    codes, ids = capture.table("exchanges").text("transactional_id")
    rows, inits = capture.exchanges, capture.of_api(api_keys.INIT_PRODUCER_ID)
    successful = inits[(codes[inits] >= 0) & (rows.error[inits] == 0) & (rows.response_end[inits] != NULL)]
    owners: dict[str, list[_Owner]] = defaultdict(list)
    for row in successful[np.argsort(rows.response_end[successful], kind="stable")].tolist():
        owner = _Owner(int(rows.response_end[row]), int(capture.client[row]), int(rows.link[row]))
        owners[ids[codes[row]]].append(owner)
    return owners


def _fenced_by(capture: CaptureFrame, transaction: str | None, row: int) -> _Owner | None:
    """Return the other producer that owned the id when an exchange was refused, or None."""
    if transaction is None:
        return None
    owners = _owners(capture).get(transaction, [])
    at = bisect.bisect_right(owners, int(capture.exchanges.response_end[row]), key=lambda owner: owner.time)
    if not at:
        return None
    last, link = owners[at - 1], int(capture.exchanges.link[row])
    if last.client != int(capture.client[row]):
        return last
    # Another process of the same name: it has taken the id on another connection, while this one has its own still.
    other = last.link != link and any(owner.link == link for owner in owners[: at - 1])
    return last if other else None


def _turns(capture: CaptureFrame, transaction: str | None, rows: np.ndarray) -> tuple[set[int], bool]:
    """Clients that took an id from those that were fenced in some exchanges, and whether one that was fenced took it
    again (two processes in turn), and not once for all."""
    takers = [_fenced_by(capture, transaction, row) for row in rows.tolist()]
    known = [owner for owner in takers if owner is not None]
    owners = _owners(capture).get(transaction or "", [])
    of = [owner.client for owner in owners]
    back = any(of[at] == of[at + 2] != of[at + 1] for at in range(len(of) - 2))
    of_one = len({owner.link for owner in known}) > 1 and len(set(of)) == 1
    return {owner.client for owner in known}, back or of_one


def _transaction_of(capture: CaptureFrame, rows: np.ndarray) -> list[str | None]:
    """The transactional id in each exchange; Produce has it too, besides topics."""
    codes, ids = capture.table("exchanges").text("transactional_id")
    return [ids[code] if code >= 0 else None for code in codes[rows].tolist()]


def _taken_by(capture: CaptureFrame, transaction: str) -> set[int]:
    """Clients that got an id by InitProducerId."""
    codes, ids = capture.table("exchanges").text("transactional_id")
    rows = capture.of_api(api_keys.INIT_PRODUCER_ID)
    if transaction not in ids:
        return set()
    own_rows = rows[(codes[rows] == ids.index(transaction)) & (capture.exchanges.error[rows] == 0)]
    return set(capture.client[own_rows].tolist())


def _topic(run: Run) -> str:
    return run.thing.topic or "an unknown topic"


@rule(
    "transactions",
    "hanging-transaction",
    "error",
    "The last stable offset of t-0 stands at 4,410 since 22 min, while its end moved to 91,000: readers of committed "
    "data are stuck.",
    why="The coordinator must abort at the transaction's timeout, and looks for such every 10 s: beyond it nothing "
    "will. The timeout is what InitProducerId said of the transactions of that partition; 15 min, the most that "
    "brokers allow unless told otherwise, where none was seen. Before the timeout it is a warning where a captured "
    "reader of committed data waits at its first offset, and nothing was written in it for 10 s and five times as long "
    "as its producer's earlier transactions lasted (20 s where none was seen). A note: half of that, or nobody was "
    "seen to wait.",
    suppressed_when="The log did not grow; the offset moved within that time; its producer writes on in it.",
    advice="Find the producer (DescribeProducers), abort it (kafka-transactions.sh, KIP-664); 4.0 prevents it "
    "(KIP-890). Where the timeout has not passed: restart the producer, which ends what it left open, and see why it "
    "stands still.",
    evidence="forged: a stable offset that stands for 16 min, and for 14; for 80 s where transactions may last 60, and "
    "for 70; a reader that waits for a transaction in which nothing is written for 21 s; a real producer that stops in "
    "the middle",
    timeout_s=900,
    slack_s=15,
    silent_s=10,
    alone_s=20,
    longer=5,
    by_clock=True,
)
def hanging(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    beyond = list(_beyond_timeout(capture, at))
    yield from beyond
    reported = {(match.what["topic"], match.what["partition"]) for match in beyond}
    for open_ in _left_open(capture):
        match = _holding(capture, open_, at, reported)
        if match is not None:
            yield match


def _beyond_timeout(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    """Topic-partitions whose last stable offset stands for longer than a transaction may last."""
    timeouts = _timeouts(capture)
    shortest = min(at.timeout_s, min(timeouts.values(), default=int(1e18)) / SECOND + at.slack_s)
    if capture.span[1] - capture.span[0] < shortest * SECOND:
        return
    read = reads(capture)
    known = spill.true_rows((read.stable >= 0) & (read.end >= 0))
    for group_rows in split(known, spill.take(read.topic_partition, known)):
        last = int(read.stable[group_rows[-1]])
        same = group_rows[read.stable[group_rows] == last]
        since, until = int(read.time[same[0]]), int(read.time[same[-1]])
        end = int(read.end[group_rows].max())
        topic, partition = capture.topic_partitions[read.topic_partition[group_rows[0]]]
        timeout = timeouts.get((topic, partition))
        least = at.timeout_s * SECOND if timeout is None else timeout + at.slack_s * SECOND
        if until - since < least or end <= last or int(read.end[same[0]]) >= end:
            continue
        text = f"The last stable offset of {partition_name((topic, partition))} stands at {last:,} since "
        text += f"{lasting(until - since)}, "
        text += f"while its end moved to {end:,}: readers of committed data are stuck."
        yield Match(
            text,
            end - last,
            since,
            until,
            capture.who(broker=int(capture.broker[read.owner[group_rows[0]]])),
            {"topic": topic, "partition": str(partition)},
            (int(read.owner[same[0]]), int(read.owner[same[-1]]), int(read.owner[same[-1]])),
            cause="a transaction that nobody ends",
            proven=True,
        )


class Open(NamedTuple):
    """A transaction that is open at the end of the capture, and in which nothing is written any more. last: when its
    producer last spoke of it, us; row: that exchange; usual: how long its producer's longest other one lasted, us
    (None: none was seen); places: the topic-partitions that it holds; first: its first offset in them, where known."""

    transaction: str
    began: int
    last: int
    row: int
    usual: int | None
    timeout_ms: int | None
    places: tuple[tuple[str, int], ...]
    first: Mapping[tuple[str, int], int]


@once
def _left_open(capture: CaptureFrame) -> list[Open]:
    """Open transactions, each with the topic-partitions of which it is the oldest open one."""
    table = capture.table("transactions")
    outcome, outcomes = table.text("outcome")
    chosen = np.flatnonzero(arrow.among(outcome, codes_of(outcomes, "open"))) if len(table) else np.zeros(0, np.int64)
    if not len(chosen):
        return []
    columns = ["transactional_id", "began", "timeout_ms", "partitions"]
    some = [row for row in table.rows(chosen, columns) if row["transactional_id"] and row["began"] is not None]
    oldest: dict[tuple[str, int], str] = {}
    for row in sorted(some, key=lambda row: int(row["began"])):
        for partition in row["partitions"] or ():
            oldest.setdefault((partition["topic"], partition["partition"]), row["transactional_id"])
    codes, ids = capture.table("exchanges").text("transactional_id")
    whose, names = table.text("transactional_id")
    lasted = table["duration_us"]
    rows, opened = capture.exchanges, []
    for row in some:
        transaction, began = row["transactional_id"], int(row["began"])
        own_rows = spill.true_rows(arrow.among(codes, codes_of(ids, transaction)))
        # Since KIP-890 brokers add partitions in the producer's name.
        own_rows = own_rows[~capture.between_brokers[capture.client[own_rows]]]
        own_rows = own_rows[rows.request_time[own_rows] >= began]
        if not len(own_rows):
            continue
        last = int(own_rows[rows.request_time[own_rows].argmax()])
        others = lasted[arrow.among(whose, codes_of(names, transaction))]
        others = others[others != NULL]
        places = tuple(place for place, holder in oldest.items() if holder == transaction)
        opened.append(
            Open(
                transaction,
                began,
                int(rows.request_time[last]),
                last,
                int(others.max()) if len(others) else None,
                row["timeout_ms"],
                places,
                _first_offsets(capture, own_rows),
            )
        )
    return opened


def _first_offsets(capture: CaptureFrame, own_rows: np.ndarray) -> dict[tuple[str, int], int]:
    """The least offset at which Produce requests stored records, by topic-partition."""
    parts, offset = capture.partitions, capture.table("partitions")["offset"]
    produced = own_rows[capture.exchanges.api[own_rows] == api_keys.PRODUCE]
    chosen = spill.true_rows(arrow.among(parts.owner, produced)) if len(produced) else produced
    first: dict[tuple[str, int], int] = {}
    for part in chosen[(parts.error[chosen] == 0) & (offset[chosen] >= 0)].tolist():
        place = capture.topic_partitions[parts.topic_partition[part]]
        first[place] = min(first.get(place, 1 << 62), int(offset[part]))
    return first


def _holding(
    capture: CaptureFrame, open_: Open, at: Limits, reported: set[tuple[str | None, str | None]]
) -> Match | None:
    """The match of an open transaction that its producer left, and those who wait for it."""
    end = capture.span[1]
    silent = end - open_.last
    least = at.silent_s if open_.usual is not None else at.alone_s
    enough = max(least * SECOND, at.longer * (open_.usual or 0))
    places = [place for place in open_.places if (place[0], str(place[1])) not in reported]
    if silent < enough / 2 or not places:
        return None
    waiting = [(place, *held) for place in places if (held := _waiting(capture, open_, place)) is not None]
    if not waiting and silent < enough:
        return None
    who = capture.who(int(capture.client[open_.row]))
    text = f"The transaction of {name(open_.transaction)} that {client(who)} began at {moment(open_.began)} stays "
    text += f"open, and nothing was written in it for {lasting(silent)}"
    readers = sorted({reader for _, readers, _, _ in waiting for reader in readers})
    if waiting:
        named = listed([client(capture.who(reader)) for reader in readers[:3]], len(readers))
        text += f": {named} {'waits' if len(readers) == 1 else 'wait'} at "
        stands = [
            f"{offset:,} of {partition_name(place)} ({count(behind, 'offset')} behind it)"
            for place, _, offset, behind in waiting[:3]
        ]
        text += listed(stands, len(waiting))
    else:
        text += f": readers of committed data cannot pass it in {partition_name(places[0])}"
        text += f" and {len(places) - 1} more" if len(places) > 1 else ""
    if open_.timeout_ms is not None:
        text += f"; it is aborted after {lasting(open_.timeout_ms * 1000)} (transaction.timeout.ms)"
    topic = ",".join(sorted({topic for topic, _ in places}))
    what = {
        "transactional_id": open_.transaction,
        "topic": topic,
        "partition": ",".join(str(partition) for _, partition in places[:20]),
        "readers": ",".join(str(capture.clients[reader][1]) for reader in readers[:20]) or None,
    }
    return Match(
        f"{text}.",
        max(sum(behind for *_, behind in waiting), 1),
        open_.began,
        end,
        who,
        what,
        (open_.row,),
        severity="warning" if waiting and silent >= enough else "note",
        cause="the producer stands still in an open transaction",
        proven=bool(waiting) and all(open_.first.get(place) == offset for place, _, offset, _ in waiting),
    )


def _waiting(capture: CaptureFrame, open_: Open, place: tuple[str, int]) -> tuple[list[int], int, int] | None:
    """Readers of committed data that wait for a transaction in a topic-partition: they, the offset at which they
    stand, and how many offsets lie behind it. None: nobody was seen to wait."""
    read = reads(capture)
    if place not in capture.topic_partitions:
        return None
    number = capture.topic_partitions.index(place)
    chosen = spill.true_rows((read.topic_partition == number) & (read.stable >= 0) & (read.time > open_.last))
    chosen = chosen[capture.column("isolation_level")[read.owner[chosen]] == _READ_COMMITTED]
    if not len(chosen):
        return None
    stable, end = int(read.stable[chosen[-1]]), int(read.end[chosen].max())
    same = chosen[read.stable[chosen] == stable]
    stands = 2 * int(read.time[same[-1]] - read.time[same[0]]) >= capture.span[1] - open_.last
    if not stands or end <= stable or open_.first.get(place, stable) != stable:
        return None  # another transaction, which is older, holds it
    readers = [
        int(capture.client[read.owner[rows[0]]])
        for rows in split(chosen, capture.client[read.owner[chosen]])
        if read.at[rows[-1]] >= stable
    ]
    return (readers, stable, end - stable) if readers else None


_READ_COMMITTED = 1


def _timeouts(capture: CaptureFrame) -> dict[tuple[str, int], int]:
    """The longest timeout of transactions that wrote to each topic-partition, us, from InitProducerId; without
    topic-partitions where one is not known."""
    table = capture.table("transactions")
    longest: dict[tuple[str, int], int] = {}
    unknown = set()
    for row in table.every(["partitions", "timeout_ms"]) if len(table) else ():
        for partition in row["partitions"] or ():
            where = partition["topic"], partition["partition"]
            if row["timeout_ms"] is None:
                unknown.add(where)
            else:
                longest[where] = max(longest.get(where, 0), row["timeout_ms"] * 1000)
    return {where: limit for where, limit in longest.items() if where not in unknown}


@rule(
    "transactions",
    "transaction-timed-out",
    "error",
    "1 transaction of svc-a (tx-1) went on beyond its timeout of 60.0 s, for 75.0 s: the coordinator aborted it.",
    why="The coordinator aborts a transaction that is open for longer than transaction.timeout.ms, which "
    "InitProducerId says, and looks for such every 10 s. Its producer is fenced then: what it wrote is not read by who "
    "reads committed data only, and offsets that it committed do not count.",
    suppressed_when="Another client was seen to take the transactional id (producer-fenced); when it began, or its "
    "timeout, was not seen; its producer ended it. Nor where nobody was seen to abort it, and its producer did not "
    "come back to be refused.",
    advice="Shorter transactions, or a longer transaction.timeout.ms (up to transaction.max.timeout.ms, 15 min); a new "
    "producer after the error. See what the application did meanwhile.",
    evidence="forged rows: fenced by nobody after 60 s, and before; by another; aborted by a marker, and by EndTxn; an "
    "EndTxn that finds none; real producers that wait, with what brokers say to each other and without",
    by_clock=True,
)
def timed_out(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for (transaction, client_id), some in _late(capture).items():
        worst = max(some, key=lambda late: late.lasted)
        text = f"{count(len(some), 'transaction')} of {name(client_id)} ({name(transaction)}) went on beyond "
        text += f"{'its' if len(some) == 1 else 'their'} timeout of {lasting(worst.timeout)}, for "
        text += f"{'' if len(some) == 1 else 'up to '}{lasting(worst.lasted)}: the coordinator aborted "
        text += f"{'it' if len(some) == 1 else 'them'}."
        proof = tuple(late.row for late in (some[0], worst, some[-1]) if late.row is not None)
        yield Match(
            text,
            len(some),
            some[0].until - some[0].lasted,
            some[-1].until,
            {"client_id": client_id},
            {"transactional_id": transaction},
            proof,
            cause="transaction.timeout.ms",
            proven=False,
        )


class _Late(NamedTuple):
    """A transaction that went on beyond its timeout, us; `until`: its end was seen; `row`: the exchange that shows
    it."""

    lasted: int
    timeout: int
    until: int
    row: int | None


_Whose = tuple[str | None, str | None]
"""Transactional id, client id."""


@once
def _late(capture: CaptureFrame) -> dict[_Whose, list[_Late]]:
    """Transactions that a coordinator aborted after their timeout, or whose producer was refused by then, and whose id
    no other client took over; in order."""
    table, rows = capture.table("transactions"), capture.exchanges
    lasted, timeout, began, ended = table.together(("duration_us", "timeout_ms", "began", "ended"))
    (whose, ids), (client_, clients) = table.text("transactional_id"), table.text("client_id")
    outcome, outcomes = table.text("outcome")
    limited = (timeout > 0) & (table.text("fenced_by")[0] < 0)
    over = limited & (lasted // 1000 >= timeout) & (began != NULL) & (ended != NULL)
    over &= arrow.among(outcome, codes_of(outcomes, "fenced", "aborted"))
    late_ends: list[tuple[int, _Late]] = []
    chosen = np.flatnonzero(over)
    for row, shown in zip(chosen.tolist(), table.rows(chosen, ["outcome", "evidence"]), strict=True):
        proof = shown["evidence"] or {}
        end = capture.row_of(proof["connection"], proof["exchange"]) if proof.get("exchange") is not None else None
        # What its producer aborted by itself is another matter.
        if shown["outcome"] == "fenced" or (end is not None and int(rows.api[end]) == api_keys.WRITE_TXN_MARKERS):
            late_ends.append((row, _Late(int(lasted[row]), int(timeout[row]) * 1000, int(ended[row]), end)))
    refused = _no_transaction(capture)
    open_ = limited & (began != NULL) & arrow.among(outcome, codes_of(outcomes, "open"))
    for row in np.flatnonzero(open_ & arrow.among(whose, codes_of(ids, *refused))).tolist():
        ends = refused[ids[whose[row]]]
        at = bisect.bisect_left(ends, int(began[row]), key=lambda end: int(rows.request_time[end]))
        went_on = int(rows.request_time[ends[at]] - began[row]) if at < len(ends) else 0
        if went_on >= int(timeout[row]) * 1000:
            late_ends.append(
                (row, _Late(went_on, int(timeout[row]) * 1000, int(rows.request_time[ends[at]]), ends[at]))
            )
    by_whose: dict[_Whose, list[_Late]] = defaultdict(list)
    for row, late in sorted(late_ends, key=lambda pair: pair[0]):
        named = ids[whose[row]] if whose[row] >= 0 else None
        by_whose[named, clients[client_[row]] if client_[row] >= 0 else None].append(late)
    return by_whose


_INVALID_TXN_STATE = 48
"""Error of EndTxn if the coordinator had ended the transaction (KIP-890)."""


def _no_transaction(capture: CaptureFrame) -> dict[str, list[int]]:
    """EndTxns without an open transaction, by transactional id, in order of time."""
    rows = capture.exchanges
    ends = capture.of_api(api_keys.END_TXN)
    ends = ends[(rows.error[ends] == _INVALID_TXN_STATE) & (rows.request_time[ends] != NULL)]
    if not len(ends):
        return {}
    codes, ids = capture.table("exchanges").text("transactional_id")
    ends = ends[codes[ends] >= 0]
    ends = ends[np.argsort(rows.request_time[ends], kind="stable")]
    return {ids[key]: own_rows.tolist() for (key,), own_rows in rows_by_key(ends, codes[ends]).items()}


@once
def _since(capture: CaptureFrame) -> dict[str | None, int]:
    """Transactional ids that transaction-timed-out reports, with the first time of each."""
    since: dict[str | None, int] = {}
    for (transaction, _), some in _late(capture).items() if capture.set_back is None else ():
        since[transaction] = min(since.get(transaction, some[0].until), *(late.until for late in some))
    return since


def _told_as_late(capture: CaptureFrame, trouble: Trouble) -> bool:
    if (trouble.api, trouble.code) != (api_keys.END_TXN, _INVALID_TXN_STATE):
        return False
    since = _since(capture).get(trouble.thing.transaction)
    return since is not None and trouble.since >= since


EXPLANATIONS.append(_told_as_late)


@rule(
    "transactions",
    "transaction-retries",
    "note",
    "svc-a (10.0.0.4) waited 6.0 s for its previous transaction (tx-1): CONCURRENT_TRANSACTIONS (51), 40 times, "
    "10:01:03 to 10:01:09.",
    why="The previous transaction completes within 44 ms in captures; five seconds, or ten answers in a second, do "
    "not.",
    suppressed_when="It passed before, however often: a client that begins transactions at once meets the markers of "
    "the one before.",
    advice="Slow markers: the brokers that lead the transaction's partitions.",
    evidence="forged: ten such answers over a second, and nine; each second of forty",
)
def transaction_retries(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _WAITING):
        if trouble.of is not None:
            continue
        text = f"{client(capture.who(trouble.client))} waited {lasting(trouble.longest)} for its previous transaction"
        text += f" ({name(trouble.thing.transaction)})" if trouble.thing.transaction else ""
        text += f": {trouble.error}, {times(trouble)}."
        yield match_of(capture, trouble, text)


@rule(
    "transactions",
    "tiny-transactions",
    "note",
    "svc-a makes 25.0 transactions a second (tx-1) of 2.0 records each: every one is some answers of the coordinator, "
    "and a marker in each partition that it writes to.",
    why="Ours: ten a second over ten seconds, with fewer than ten records in the median.",
    suppressed_when="Fewer, or larger; how many records they hold is not known; a capture of less than ten seconds.",
    advice="End transactions by time (of Kafka Streams: commit.interval.ms), not for each record.",
    evidence="forged rows: 100 transactions of nine records in 10 s, and 99; of ten records; a real producer of one "
    "record each",
    rate=10,
    window_s=10,
    records=10,
    by_clock=True,
)
def tiny_transactions(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("transactions")
    if len(table) < at.rate * at.window_s or capture.seconds < at.window_s:
        return
    began, records = table.together(("began", "records"))
    whose, ids = table.text("transactional_id")
    outcome, outcomes = table.text("outcome")
    over = arrow.among(outcome, codes_of(outcomes, "committed", "aborted"))
    rows = spill.true_rows(over & (began != NULL) & (records >= 0) & (whose >= 0))
    for group_rows in split(rows, whose[rows], least=at.rate * at.window_s):
        when, group_rows = sort_by(began[group_rows], group_rows)
        most, first, past = busiest_window(when, int(at.window_s * SECOND))
        group_rows = group_rows[first:past]
        if most < at.rate * at.window_s or np.median(records[group_rows]) >= at.records:
            continue
        some = table.rows(group_rows[[0, -1]], ["client_id", "evidence"])
        transaction, client_id = ids[whose[group_rows[0]]], some[0]["client_id"]
        text = f"{name(client_id)} makes {most / at.window_s:.1f} transactions a second ({name(transaction)}) of "
        text += f"{records[group_rows].mean():.1f} records each: every one is some answers of the coordinator, "
        text += "and a marker "
        shown = [row["evidence"] for row in some if row["evidence"]]
        proof = [
            row
            for evidence in shown
            if (row := capture.row_of(evidence["connection"], evidence["exchange"])) is not None
        ]
        yield Match(
            f"{text}in each partition that it writes to.",
            most,
            int(when[first]),
            int(when[past - 1]),
            {"client_id": client_id},
            {"transactional_id": transaction},
            tuple(proof),
        )


@rule(
    "transactions",
    "producer-id-churn",
    "warning",
    "svc-a (10.0.0.4) made 40 idempotent producers within a minute, each gone after 1.2 s at most: each takes a "
    "producer id of its own.",
    why="Ten a minute: a producer is meant to live as long as its process, and its id is remembered for a day "
    "(producer.id.expiration.ms) by the brokers to whose partitions it wrote.",
    suppressed_when="All within half a minute, as processes that start together; producers with a transactional id, "
    "whose id is theirs; connections that last for more than a minute, or have no end in the capture.",
    advice="One producer for the process, not one for each message or request.",
    evidence="forged: ten producers in a minute, and nine; ten that stay; a real script that makes one for each record",
    often=10,
    window_s=60,
    spread_s=30,
    life_s=60,
    by_clock=True,
)
def producer_churn(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows, known = capture.exchanges, capture.of_one(capture.of_api(api_keys.INIT_PRODUCER_ID))
    known = known[(rows.error[known] == 0) & (rows.request_time[known] != NULL)]
    if len(known) < at.often:
        return
    known = known[capture.table("exchanges").text("transactional_id")[0][known] < 0]
    known = known[first_rows(rows.link[known])]
    life = capture.link_times("last_time")[rows.link[known]] - rows.request_time[known]
    closed = np.array([end != "open" for end in capture.closed], bool)[rows.link[known]]
    short = closed & (life >= 0) & (life <= at.life_s * SECOND)
    known, life = known[short], life[short]
    for places in split(None, capture.client[known], least=at.often):
        requested, places = sort_by(rows.request_time[known[places]], places)
        most, first, past = busiest_window(requested, int(at.window_s * SECOND))
        if most < at.often or requested[past - 1] - requested[first] < at.spread_s * SECOND:
            continue
        window, longest = known[places[first:past]], int(life[places[first:past]].max())
        who = capture.who(int(capture.client[window[0]]))
        text = f"{client(who)} made {count(most, 'idempotent producer')} within a minute, each gone after "
        text += f"{lasting(longest)} at most: each takes a producer id of its own."
        yield Match(
            text, most, int(requested[first]), int(requested[past - 1]), who, {}, tuple(window[[0, 0, -1]].tolist())
        )


@rule(
    "transactions",
    "aborts-many",
    "warning",
    "12 of 80 transactions of svc-a (tx-1) were aborted (15.0 %).",
    why="Ours: one in ten, of twenty at least.",
    suppressed_when="Fewer transactions, or a smaller share.",
    advice="What makes the application give up: look at the errors before each EndTxn.",
    evidence="forged rows: two of twenty aborted, and one",
    share=0.1,
    transactions=20,
)
def aborts_many(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by_id: dict[str | None, list[str]] = defaultdict(list)
    clients: dict[str | None, str | None] = {}
    for row in capture.table("transactions").every(["transactional_id", "outcome", "client_id"]):
        by_id[row["transactional_id"]].append(row["outcome"])
        clients.setdefault(row["transactional_id"], row["client_id"])
    for transaction, outcomes in by_id.items():
        aborted = outcomes.count("aborted")
        if len(outcomes) >= at.transactions and aborted >= at.share * len(outcomes):
            text = f"{aborted:,} of {count(len(outcomes), 'transaction')} of {name(clients[transaction])} "
            text += f"({name(transaction)}) were aborted ({share(aborted, len(outcomes))})."
            yield Match(
                text, aborted, *capture.span, {"client_id": clients[transaction]}, {"transactional_id": transaction}
            )
