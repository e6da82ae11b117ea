"""Tell what happened to transactions: outcome, contents, and ids that another client took over.

In: the tables `transactions`, and `exchanges` of InitProducerId. Out: events.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterator

import pyarrow.compute as pc

from kwire.analyzer.analysis.producers import OFFSETS_TOPIC
from kwire.analyzer.story.events import Event, Row, between, count, places, some, span, who
from kwire.analyzer.story.sources import Source, moments

_LONG_US = 1_000_000
"""The beginning of a longer transaction is an event too, because other records wait behind it (read_committed)."""

_NO_LINK = {"connection": None, "exchange": None, "reply": None}
_WEIGHT = {"fenced": 65, "aborted": 20, "unknown": 35, "open": 30, "committed": 2}


def events(source: Source) -> Iterator[Event]:
    """Events of transactions."""
    yield from _taken_over(source)
    by_id: dict[str, list[Row]] = defaultdict(list)
    for row in source.rows("transactions"):
        by_id[row["transactional_id"] or f"producer {row['producer_id']}"].append(row)
        yield from _transaction(source, row)
    for name, rows in by_id.items():
        yield from _all(name, rows)


def _transaction(source: Source, row: Row) -> Iterator[Event]:
    evidence = row["evidence"] or {}
    common = {
        "transactional_id": row["transactional_id"],
        "client_id": row["client_id"],
        "topics": tuple(dict.fromkeys(place["topic"] for place in row["partitions"] or ())),
        "connection": evidence.get("connection"),
        "exchange": evidence.get("exchange"),
        "reply": evidence.get("reply"),
        "group_id": next((offset["group_id"] for offset in row["offsets"] or ()), None),
    }
    name = row["transactional_id"]
    actor = who(row["client_id"]) if name is not None else f"producer {row['producer_id']}"
    # What only markers say is the coordinator's word, not its producer's.
    subject = f"a transaction of {name}" if name is not None else "a transaction (told by markers alone)"
    times = moments((row["ended"], row["began"]))
    if not times:
        times = moments([_time_of(source, evidence)])
    if not times:
        return
    inside = _inside(row)
    what = f": {inside}" if inside else ""
    outcome, took = row["outcome"], row["duration_us"]
    long = took is not None and took >= _LONG_US
    if row["began"] is not None and (long or outcome in ("open", "unknown")):
        yield Event(row["began"], "transaction_began", actor, f"began {subject}", 1, **{**common, **_NO_LINK})
    after = f" after {span(took)}" if took is not None else ""
    if row["began"] is None:
        after = "; its beginning was not captured"
    if outcome == "committed":
        text = f"committed {subject}{what}{after}"
    elif outcome == "aborted" and _timed_out(source, row):
        limit = f"over its timeout of {span(1000 * row['timeout_ms'])}"
        text = f"had {subject}{what and what + ' given up'}: the coordinator aborted it{after}, {limit}"
    elif outcome == "aborted":
        text = f"aborted {subject}{what and what + ' given up'}{after}"
    elif outcome == "fenced":
        by = f"{row['fenced_by']} has taken its id" if row["fenced_by"] else "probably the transaction timed out"
        text = f"was fenced out of {name or subject}: {by}" + (f"; {inside} lost" if row["records"] else "")
    elif outcome == "open":
        text = f"left {subject} open{what}; the capture ends before it does"
    else:
        text = f"had {subject}{what}; how it ended was not captured"
    certain = outcome != "fenced" or row["fenced_by"] is not None
    weight = _WEIGHT[outcome] + (15 if long else 0)
    yield Event(times[0], f"transaction_{outcome}", actor, text, weight, certain, **common)


def _timed_out(source: Source, row: Row) -> bool:
    """Whether the coordinator aborted it: it lasted for its timeout, and its end is not shown by an EndTxn."""
    took, limit, evidence = row["duration_us"], row.get("timeout_ms"), row["evidence"] or {}
    if took is None or limit is None or took < 1000 * limit:
        return False
    ended = source.rows(
        "exchanges",
        ("api", "exchange"),
        (pc.field("connection") == (evidence.get("connection") or "")) & (pc.field("api") == "WriteTxnMarkers"),
    )
    return any(end["exchange"] == evidence.get("exchange") for end in ended)


def _inside(row: Row) -> str:
    """Describe the contents of a transaction, empty if they were not captured."""
    parts = []
    # Where the offsets of its groups are kept holds none of its records.
    wrote = [
        partition for partition in row["partitions"] or () if partition["topic"] != OFFSETS_TOPIC or not row["offsets"]
    ]
    if wrote:
        written = places((place["topic"], place["partition"]) for place in wrote)
        parts.append(f"{count(row['records'], 'record')} to {written}" if row["records"] is not None else written)
    if row["offsets"]:
        groups = some(offset["group_id"] for offset in row["offsets"])
        parts.append(f"{count(len(row['offsets']), 'offset')} of group {groups}")
    return " and ".join(parts) or ("" if row["records"] is None else "nothing")


def _all(name: str, rows: list[Row]) -> Iterator[Event]:
    """One line for all transactions of an id, for the capture as a whole."""
    ended = moments(row["ended"] for row in rows)
    if len(rows) < 2 or not ended:
        return
    outcomes = Counter(row["outcome"] for row in rows)
    durations = [row["duration_us"] for row in rows if row["duration_us"] is not None]
    outcomes_text = ", ".join(f"{number:,} {outcome}" for outcome, number in outcomes.most_common())
    longest = f"; the longest took {span(max(durations))}" if durations else ""
    clients = some(row["client_id"] for row in rows if row["client_id"] is not None)
    actor = clients if clients != "nothing" else name
    text = f"{count(len(rows), 'transaction')} of {name}: {outcomes_text}{longest}"
    yield Event(max(ended), "transactions", actor, text, 30, transactional_id=rows[0]["transactional_id"])


def _taken_over(source: Source) -> Iterator[Event]:
    """Clients that took over a transactional id."""
    rows = source.rows(
        "exchanges",
        (
            "connection",
            "exchange",
            "reply",
            "client_id",
            "client_ip",
            "response_end",
            "request_time",
            "transactional_id",
            "error",
        ),
        (pc.field("api") == "InitProducerId") & pc.is_valid(pc.field("transactional_id")),
    )
    before: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row["request_time"]):
        if row["error"] is not None or row["response_end"] is None:
            continue
        name = row["transactional_id"]
        last = before.get(name)
        text = f"took the transactional id {name}"
        other = last is not None and (last["client_id"], last["client_ip"]) != (row["client_id"], row["client_ip"])
        if last is not None and other:
            first, then = last["response_end"], row["response_end"]
            held = f"had it for {between(first, then)} and " if then >= first else ""
            text += f" from {who(last['client_id'], last['client_ip'])}, which {held}is fenced now"
        elif last is not None:
            text += " again: it started anew, or raised its epoch after a failure"
        before[name] = row
        yield Event(
            row["response_end"],
            "producer",
            who(row["client_id"], row["client_ip"]),
            text,
            55 if other else 4,
            transactional_id=name,
            client_id=row["client_id"],
            connection=row["connection"],
            exchange=row["exchange"],
            reply=row["reply"],
        )


def _time_of(source: Source, evidence: Row) -> datetime.datetime | None:
    """The time of the request of an exchange."""
    rows = source.rows(
        "exchanges",
        ("request_time", "exchange"),
        pc.field("connection") == (evidence.get("connection") or ""),
    )
    return next((row["request_time"] for row in rows if row["exchange"] == evidence.get("exchange")), None)
