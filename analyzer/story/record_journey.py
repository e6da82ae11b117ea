"""Tell the journey of one record: produced, replicated, acknowledged, fetched by whom and how often, committed.

In: the tables `journeys`, `partitions`, `exchanges` and `transactions`, and the record's topic, partition and offset.
Out: events. Rule: what was not captured is said, never guessed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.story.events import Event, Row, count, later, of_group, span, who
from kwire.analyzer.story.sources import Source

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


def known_offsets(source: Source, topic: str, partition: int) -> tuple[int, int] | None:
    """The first and the last offset of a partition that a captured Produce wrote."""
    where = _there(source, topic) & (pc.field("partition") == partition) & pc.is_valid(pc.field("base_offset"))
    rows = source.table("journeys", ("base_offset", "last_offset"), where)
    if not len(rows):
        return None
    last = pc.max(pc.coalesce(rows.column("last_offset"), rows.column("base_offset")))
    return pc.min(rows.column("base_offset")).as_py(), last.as_py()


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
    where = (
        _there(source, topic)
        & (pc.field("partition") == row["partition"])
        & (pc.field("offset_kind") == "fetch")
        & (pc.field("record_count") != 0)
        & (pc.field("offset") <= offset)
        & (pc.field("high_watermark") - pc.field("lag") > offset)
    )
    answers = {_key(answer) for answer in source.rows("partitions", ("connection", "exchange", "reply"), where)}
    if not answers:
        return []
    names = sorted({connection for connection, _, _ in answers})
    columns = ("connection", "exchange", "reply", "client_id", "client_ip", "response_end")
    exchanges = source.rows("exchanges", columns, pc.field("connection").isin(names) & (pc.field("api") == "Fetch"))
    groups = {
        (client["client_id"], client["client_ip"]): client["group_ids"] or []
        for client in source.rows("clients", ("client_id", "client_ip", "group_ids"))
    }

    def same(exchange: Row) -> bool:
        if row["group_id"] is not None:
            return row["group_id"] in groups.get((exchange["client_id"], exchange["client_ip"]), ())
        return bool(exchange["client_id"] == row["reader_client"])

    brought = [exchange for exchange in exchanges if _key(exchange) in answers and exchange["response_end"] is not None]
    return sorted((exchange for exchange in brought if same(exchange)), key=lambda exchange: exchange["response_end"])
