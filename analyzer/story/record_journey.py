"""Tell the journey of one record: produced, replicated, acknowledged, fetched by whom and how often, committed.

In: the tables `journeys`, `partitions`, `exchanges` and `transactions`, and the record's topic, partition and offset.
Out: events. Rule: what was not captured is said, never guessed. A record that was written before the capture is told of
by the answers that brought it.
"""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.story.events import Event, Row, count, later, of_group, span, who
from kwire.analyzer.story.sources import FETCHER, Source

_US = datetime.timedelta(microseconds=1)


def events(source: Source, topic: str, partition: int, offset: int) -> Iterator[Event]:
    """Events of a record; none where no batch that holds it was captured."""
    rows = [
        row
        for row in source.rows("journeys", where=_there(source, topic) & (pc.field("partition") == partition))
        if row["base_offset"] is not None and row["base_offset"] <= offset <= (row["last_offset"] or row["base_offset"])
    ]
    batches: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["sent"]):
        batches.setdefault(_key(row["produced"]), []).append(row)
    for of_batch in batches.values():
        yield from _produced(source, of_batch[0], offset)
        for row in of_batch:
            yield from _read(source, row, topic, offset)
    if not batches and not lacks_journeys(source, topic, partition):
        yield from _only_fetched(source, topic, partition, offset)


def known_offsets(source: Source, topic: str, partition: int) -> tuple[int, int] | None:
    """The first and the last offset of a partition that a captured Produce wrote, or an answer to a Fetch brought."""
    where = _there(source, topic) & (pc.field("partition") == partition) & pc.is_valid(pc.field("base_offset"))
    rows = source.table("journeys", ("base_offset", "last_offset"), where)
    ends = [rows.column("base_offset"), pc.coalesce(rows.column("last_offset"), rows.column("base_offset"))]
    fetched = source.table("partitions", ("offset", "high_watermark", "lag"), _brought(source, topic, partition))
    first = [ends[0], fetched.column("offset")]
    last = [ends[1], pc.subtract(pc.subtract(fetched.column("high_watermark"), fetched.column("lag")), 1)]
    known = [(pc.min(low).as_py(), pc.max(high).as_py()) for low, high in zip(first, last, strict=True) if len(low)]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def lacks_journeys(source: Source, topic: str, partition: int) -> bool:
    """Whether journeys were left out (`--no-journeys`) of a partition that was written to."""
    written = _there(source, topic) & (pc.field("partition") == partition) & (pc.field("offset_kind") == "base")
    return not len(source.table("journeys", ("partition",))) and bool(
        len(source.table("partitions", ("exchange",), written))
    )


def _there(source: Source, topic: str) -> Any:
    ids = [topic_id for topic_id, name in source.topics.items() if name == topic]
    return (pc.field("topic") == topic) | (pc.field("topic_id").isin(pa.array(ids, pa.string())))


def _key(evidence: Row) -> tuple[Any, ...]:
    return evidence["connection"], evidence["exchange"], evidence["reply"]


def _common(row: Row) -> dict[str, Any]:
    return {"topic": row["topic"], "partition": row["partition"]}


def _produced(source: Source, row: Row, offset: int) -> Iterator[Event]:
    """The record on its way to the log: sent, received, acknowledged, and its transaction."""
    producer = who(row["producer_client"])
    link = dict(zip(("connection", "exchange", "reply"), _key(row["produced"]), strict=True))
    common = {**_common(row), **link, "client_id": row["producer_client"]}
    batch = "alone in its batch"
    if row["records"] is None:
        batch = f"in a compressed message at {row['base_offset']}"
    elif row["records"] > 1:
        batch = f"in a batch of {count(row['records'], 'record')} from {row['base_offset']} to {row['last_offset']}"
    waited = ""
    if row["created"] is not None and row["created"] <= row["sent"]:
        waited = f"; the batch's first record had waited {span((row['sent'] - row['created']) // _US)} in the producer"
    elif row["created"] is not None:
        waited = "; its time is after it was sent: the producer's clock and the capture's differ"
    yield Event(row["sent"], "produced", producer, f"sent offset {offset} {batch}{waited}", **common)
    if row["acked"] is not None:
        took = later(row["received"], row["acked"]) if row["received"] is not None else "later"
        yield Event(row["acked"], "acknowledged", producer, f"had it acknowledged {took}", **common)
    elif row["received"] is not None:
        why = "asked for no acknowledgement (acks=0)" if row["reason"] == "no acknowledgement" else "got no answer"
        yield Event(row["received"], "acknowledged", producer, why, **common)
    if row["outcome"] is not None:
        yield from _transaction(source, row, link, common)
    if row["kind"] is None and row["reason"] is not None:
        text = {
            "not read": "nobody was captured reading it",
            "reader not captured": "a reader passed it, by an answer that was not captured whole",
        }.get(row["reason"])
        if text is not None:
            yield Event(row["acked"] or row["received"] or row["sent"], "not_read", producer, text, **common)


def _transaction(source: Source, row: Row, link: Row, common: Row) -> Iterator[Event]:
    """The end of the transaction that the record is in."""
    where = (pc.field("connection") == link["connection"]) & (pc.field("exchange") == link["exchange"])
    for exchange in source.rows("exchanges", ("transactional_id",), where):
        named = pc.field("transactional_id") == (exchange["transactional_id"] or "")
        for transaction in source.rows("transactions", where=named):
            began, ended = transaction["began"], transaction["ended"]
            if began is not None and began <= row["sent"] and (ended is None or row["sent"] <= ended):
                text = {
                    "committed": "committed the transaction that it is in",
                    "aborted": "aborted the transaction that it is in: readers of committed data skip it",
                    "fenced": "was fenced out of the transaction that it is in: readers of committed data skip it",
                }.get(transaction["outcome"], "left the transaction that it is in open, as far as was captured")
                name = exchange["transactional_id"]
                kind = f"transaction_{transaction['outcome']}"
                yield Event(ended or began, kind, who(row["producer_client"]), text, transactional_id=name, **common)


def _read(source: Source, row: Row, topic: str, offset: int) -> Iterator[Event]:
    """The record at one of its readers."""
    if row["kind"] is None:
        return
    common = {**_common(row), "group_id": row["group_id"], "client_id": row["reader_client"]}
    if row["kind"] == "replica":
        actor, verb = f"broker {row['broker_id']}", "replicated it"
    else:
        actor, verb = who(row["reader_client"]), "fetched it"
        if row["group_id"] is not None:
            verb += f" for {'share ' if row['kind'] == 'share' else ''}{of_group(row['group_id'])}"
    if row["fetched"] is None:
        text = "asked for it: whether the answer held it was not captured"
        yield Event(row["received"] or row["sent"], "fetched", actor, text, certain=False, **common)
        return
    after = (
        f", {span((row['fetched'] - row['sent']) // _US)} after it was sent" if row["fetched"] >= row["sent"] else ""
    )
    if row["acked"] is not None and row["fetched"] < row["acked"]:
        after += " and before it was acknowledged"
    deliveries = _deliveries(source, row, topic, offset)
    first = next((delivery for delivery in deliveries if delivery["response_end"] == row["fetched"]), {})
    kind = "replicated" if row["kind"] == "replica" else "fetched"
    link: dict[str, Any] = {name: first.get(name) for name in ("connection", "exchange", "reply")}
    yield Event(row["fetched"], kind, actor, verb + after, **common, **link)
    again = [delivery for delivery in deliveries if delivery["response_end"] > row["fetched"]]
    if row["fetches"] is not None and row["fetches"] > 1 and row["kind"] != "replica":
        for number, delivery in enumerate(again[: row["fetches"] - 1], 2):
            text = f"{verb} again ({number} of {row['fetches']})"
            link = {name: delivery[name] for name in ("connection", "exchange", "reply")}
            shown = {**common, "client_id": delivery["client_id"]}
            yield Event(delivery["response_end"], "fetched_again", who(delivery["client_id"]), text, **shown, **link)
    if row["committed"] is not None:
        took = later(row["fetched"], row["committed"])
        text = f"{of_group(row['group_id'])} committed an offset behind it, {took}"
        yield Event(row["committed"], "committed", who(row["reader_client"]), text, **common)
    elif row["kind"] == "consumer" and row["group_id"] is not None and first:
        text = f"{of_group(row['group_id'])} was not captured committing an offset behind it"
        yield Event(row["fetched"], "not_committed", actor, text, **common)


def _deliveries(source: Source, row: Row, topic: str, offset: int) -> list[Row]:
    """Answers to this reader that span the record, in order of time."""
    groups = _groups(source)

    def same(exchange: Row) -> bool:
        if row["group_id"] is not None:
            return row["group_id"] in groups.get((exchange["client_id"], exchange["client_ip"]), ())
        return bool(exchange["client_id"] == row["reader_client"])

    return [exchange for exchange in _spanning(source, topic, row["partition"], offset) if same(exchange)]


def _brought(source: Source, topic: str, partition: int) -> Any:
    """The condition for topic-partitions of answers to Fetch that brought records."""
    return (
        _there(source, topic)
        & (pc.field("partition") == partition)
        & (pc.field("offset_kind") == "fetch")
        & (pc.field("record_count") != 0)
        & (pc.field("high_watermark") - pc.field("lag") > pc.field("offset"))
    )


def _spanning(source: Source, topic: str, partition: int, offset: int) -> list[Row]:
    """Fetch exchanges whose answers span an offset, in order of time. `sparse`: the batch
    there lacks offsets up to the next one, so it may not hold this one."""
    behind = pc.field("high_watermark") - pc.field("lag")
    where = _brought(source, topic, partition) & (pc.field("offset") <= offset) & (behind > offset)
    columns = ("connection", "exchange", "reply", "offset", "high_watermark", "lag", "record_count")
    answers = {_key(answer): answer for answer in source.rows("partitions", columns, where)}
    if not answers:
        return []
    names = sorted({connection for connection, _, _ in answers})
    there = _there(source, topic) & (pc.field("partition") == partition) & pc.field("connection").isin(names)
    batches: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for batch in source.rows("batches", ("connection", "exchange", "reply", "base_offset", "record_count"), there):
        if batch["base_offset"] is not None and _key(batch) in answers:
            batches.setdefault(_key(batch), []).append((batch["base_offset"], batch["record_count"] or 0))
    of_exchanges = ("connection", "exchange", "reply", "client_id", "client_ip", "response_end")
    out = []
    for exchange in source.rows(
        "exchanges", of_exchanges, pc.field("connection").isin(names) & (pc.field("api") == "Fetch")
    ):
        answer = answers.get(_key(exchange))
        if answer is None or exchange["response_end"] is None:
            continue
        end = answer["high_watermark"] - answer["lag"]
        parts = [(answer["offset"], answer["record_count"] or 0)]
        parts = sorted(batches.get(_key(exchange), parts))
        begins = [base for base, _ in parts]
        at = max(bisect.bisect_right(begins, offset) - 1, 0)
        dense = parts[at][0] + parts[at][1] >= [*begins, end][at + 1]
        out.append({**exchange, "sparse": not dense and parts[at][0] != offset})
    return sorted(out, key=lambda exchange: exchange["response_end"])


def _groups(source: Source) -> dict[tuple[str | None, str | None], list[str]]:
    """Groups by client id and address."""
    return {
        (client["client_id"], client["client_ip"]): client["group_ids"] or []
        for client in source.rows("clients", ("client_id", "client_ip", "group_ids"))
    }


def _only_fetched(source: Source, topic: str, partition: int, offset: int) -> Iterator[Event]:
    """A record whose Produce was not captured, at those who fetched it, and the commits behind it."""
    groups = _groups(source)
    times: dict[tuple[str, str | None], int] = {}
    for exchange in _spanning(source, topic, partition, offset):
        client_id, ip = exchange["client_id"], exchange["client_ip"]
        follower = FETCHER.fullmatch(client_id or "")
        own = groups.get((client_id, ip), [])
        of = f" for {of_group(own[0])}" if len(own) == 1 and not follower else ""
        number = times[own[0] if of else "", client_id] = times.get((own[0] if of else "", client_id), 0) + 1
        verb = "replicated" if follower else "fetched"
        text = f"{verb} offset {offset}{of}"
        if number > 1:
            text += f" again ({number})"
        elif len(times) == 1:
            text += "; the Produce that wrote it was not captured"
        if exchange["sparse"]:
            text += "; the answer lacks some offsets of its range, and may not have held it"
        link = {name: exchange[name] for name in ("connection", "exchange", "reply")}
        about = {"topic": topic, "partition": partition, "client_id": client_id, "group_id": own[0] if of else None}
        actor = f"broker {follower[1]}" if follower else who(client_id, ip)
        kind = verb if number == 1 else f"{verb}_again"
        yield Event(exchange["response_end"], kind, actor, text, certain=not exchange["sparse"], **about, **link)
    committing = {group for group, _ in times if group}
    where = _there(source, topic) & (pc.field("partition") == partition) & (pc.field("offset") > offset)
    columns = ("time", "group_id", "kind", "client_id", "error", "connection", "exchange", "reply")
    for commit in sorted(source.rows("offsets", columns, where), key=lambda commit: commit["time"]):
        if commit["group_id"] in committing and "commit" in commit["kind"] and commit["error"] is None:
            committing.remove(commit["group_id"])
            text = f"{of_group(commit['group_id'])} committed an offset behind it"
            about = {name: commit[name] for name in ("group_id", "client_id", "connection", "exchange", "reply")}
            about |= {"topic": topic, "partition": partition}
            yield Event(commit["time"], "committed", who(commit["client_id"]), text, **about)
