"""Tell what happened to offsets: commits of groups, commits that went back, and readers that lost their position.

In: the tables `offsets` and `partitions`. Out: events. Rule: commits come in thousands, so a group's are told as where
it began, where it ended, and whatever was not the ordinary step ahead.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.story.events import WHY, Event, Row, count, of_group, places, who, within
from kwire.analyzer.story.sources import Source

_TOGETHER = datetime.timedelta(seconds=2)
"""Actions of a client on its partitions within this time are one event."""

_ONE_RESET = ("client_id", "topic", "error")
_STEADY = ("commit", "txn_commit", "zookeeper")


def events(source: Source) -> Iterator[Event]:
    """Events of commits and resets."""
    yield from _commits(source)
    yield from _replicated(source)
    yield from _back(source)
    yield from _refused(source)
    yield from _resets(source)


def _common(row: Row) -> dict[str, Any]:
    names = ("topic", "partition", "group_id", "connection", "exchange", "reply", "client_id")
    return {name: row[name] for name in names}


def _where(row: Row) -> str:
    if row["kind"] == "zookeeper":
        return " to ZooKeeper" if _itself(row) else " to ZooKeeper (OffsetCommit v0)"
    return " in a transaction" if row["kind"] == "txn_commit" else ""


def _itself(row: Row) -> bool:
    """Whether the client itself wrote to ZooKeeper."""
    return row["kind"] == "zookeeper" and row["exchange"] is None


def _actor(row: Row) -> str:
    """The client that commits. A connection to ZooKeeper names no client: its own end has to do."""
    return row["connection"].partition("-")[0] if _itself(row) else who(row["client_id"])


def _commits(source: Source) -> Iterator[Event]:
    """Where each group's commits by one client began and ended."""
    wanted = pc.field("kind").isin(_STEADY) & ~pc.is_valid(pc.field("error"))
    columns = (
        "time",
        "group_id",
        "topic",
        "topic_id",
        "partition",
        "offset",
        "step",
        "kind",
        "client_id",
        "connection",
        "exchange",
        "reply",
    )
    commits = source.table("offsets", columns, wanted)
    itself = pc.and_(pc.equal(commits["kind"], "zookeeper"), pc.invert(pc.is_valid(commits["exchange"])))
    commits = commits.append_column("writer", pc.if_else(itself, commits["connection"].cast(pa.string()), None))
    keys = ["group_id", "client_id", "kind", "writer"]
    for key in commits.select(keys).group_by(keys).aggregate([]).to_pylist():
        chosen = commits.filter(_same(key))
        firsts, lasts = _ends(source, chosen, "first"), _ends(source, chosen, "last")
        if key["writer"] is None:
            number = chosen.group_by(["connection", "exchange"]).aggregate([]).num_rows
        else:  # a node each partition
            nodes = chosen.group_by(["topic", "partition"]).aggregate([([], "count_all")])
            number = pc.max(nodes["count_all"]).as_py()
        head, tail = chosen.slice(0, 1).to_pylist()[0], chosen.slice(len(chosen) - 1).to_pylist()[0]
        topics = tuple(dict.fromkeys(row["topic"] for row in firsts if row["topic"]))
        actor = _actor(head)
        at = _offsets(firsts)
        text = f"committed {at} for {of_group(key['group_id'])}{_where(head)}"
        of_all = {"topics": topics, "topic": topics[0] if len(topics) == 1 else None, "partition": None}
        if number > 1 or (head["step"] or 0) >= 0:  # a step back is told by itself
            yield Event(head["time"], "commit", actor, text, 4, **{**_common(head), **of_all})
        if number > 1:
            text = (
                f"made its last commit for {of_group(key['group_id'])}: {_offsets(lasts)}; "
                f"{count(number, 'commit')}{within(head['time'], tail['time'])}"
            )
            yield Event(tail["time"], "commit", actor, text, 6, **{**_common(tail), **of_all})


def _replicated(source: Source) -> Iterator[Event]:
    """Events of groups whose commits were not captured: their offsets, as replicated between brokers."""
    columns = ("time", "group_id", "topic", "topic_id", "partition", "offset", "connection", "exchange", "reply")
    copies = source.table("offsets", columns, (pc.field("kind") == "replica") & pc.is_valid(pc.field("offset")))
    if not len(copies):
        return
    steady = source.table("offsets", ("group_id",), pc.field("kind").isin(_STEADY))
    captured = set(pc.unique(steady["group_id"]).to_pylist())
    for group in pc.unique(copies["group_id"]).to_pylist():
        if group in captured:
            continue
        chosen = copies.filter(pc.field("group_id") == group)
        lasts, tail = _ends(source, chosen, "last"), chosen.slice(len(chosen) - 1).to_pylist()[0]
        topics = tuple(dict.fromkeys(row["topic"] for row in lasts if row["topic"]))
        text = f"wrote down where {of_group(group)} stands: {_offsets(lasts)}; {count(len(chosen), 'record')}"
        common = {
            **_common({**tail, "client_id": None}),
            "partition": None,
            "topics": topics,
            "topic": topics[0] if len(topics) == 1 else None,
        }
        yield Event(tail["time"], "commit", "the coordinator", f"{text} that replicas were sent", 6, **common)


def _same(key: Row) -> Any:
    """Rows that have these values, null included."""
    wanted = None
    for name, value in key.items():
        condition = pc.field(name) == value if value is not None else ~pc.is_valid(pc.field(name))
        wanted = condition if wanted is None else wanted & condition
    return wanted


def _ends(source: Source, chosen: pa.Table, which: str) -> list[Row]:
    """The first or last offset of each partition."""
    grouped = chosen.group_by(["topic", "topic_id", "partition"], use_threads=False).aggregate([("offset", which)])
    rows: list[Row] = grouped.rename_columns(["topic", "topic_id", "partition", "offset"]).to_pylist()
    for row in rows:
        row["topic"] = row["topic"] or source.topics.get(row["topic_id"] or "", row["topic_id"])
    return sorted(rows, key=lambda row: (row["topic"] or "", row["partition"] or 0))


def _offsets(rows: list[Row]) -> str:
    """`orders-0 at 12, orders-1 at 7`, or how many where they are many."""
    known = [row["offset"] for row in rows if row["offset"] is not None]
    committed = places((row["topic"], row["partition"]) for row in rows)
    if len(rows) > 1 and not known:
        return f"{committed} at offsets that were not captured"
    if len(rows) <= 3:
        return ", ".join(f"{row['topic']}-{row['partition']} at {_offset(row['offset'])}" for row in rows)
    total = f" ({sum(known):,} in sum)" if len(known) == len(rows) else ""
    return f"{count(len(rows), 'offset')} of {committed}{total}"


def _offset(offset: int | None) -> str:
    return f"{offset:,}" if offset is not None else "an offset that was not captured"


def _span(offsets: Iterable[int]) -> str:
    """`30`, or `30 to 35`."""
    every = sorted(set(offsets))
    return f"{every[0]:,}" if len(every) == 1 else f"{every[0]:,} to {every[-1]:,}"


def _back(source: Source) -> Iterator[Event]:
    """Events of commits before the previous offset."""
    behind = (pc.field("step") < 0) & pc.field("kind").isin(_STEADY) & ~pc.is_valid(pc.field("error"))
    for row in source.rows("offsets", where=behind):
        anew = row["topic"] in source.remade
        again = "the topic was made anew" if anew else f"{count(-row['step'], 'offset')} will be read again"
        text = (
            f"committed {row['topic']}-{row['partition']} at {row['offset']:,}, behind the {row['previous']:,} "
            f"committed before, for {of_group(row['group_id'])}{_where(row)}: {again}"
        )
        yield Event(row["time"], "commit_back", _actor(row), text, 10 if anew else 45, **_common(row))


def _refused(source: Source) -> Iterator[Event]:
    """Commits that the coordinator refused, those of one exchange together."""
    refused = pc.field("kind").isin(_STEADY) & pc.is_valid(pc.field("error"))
    by_exchange: dict[Any, list[Row]] = defaultdict(list)
    for row in source.rows("offsets", where=refused):
        by_exchange[row["connection"], row["exchange"], row["reply"], row["error"]].append(row)
    for rows in by_exchange.values():
        row = rows[0]
        why = f": {WHY[row['error']]}" if row["error"] in WHY else ""
        text = (
            f"could not commit {places((commit['topic'], commit['partition']) for commit in rows)} for "
            f"{of_group(row['group_id'])}: {row['error']}{why}"
        )
        topics = tuple(dict.fromkeys(commit["topic"] for commit in rows if commit["topic"]))
        yield Event(
            row["time"], "commit_refused", who(row["client_id"]), text, 32, **{**_common(row), "topics": topics}
        )


def _resets(source: Source) -> Iterator[Event]:
    """Events of readers that lost their position, or had none."""
    rows = source.rows("offsets", where=pc.field("kind") == "reset")
    if not rows:
        return
    ends = _bounds(source, rows)
    runs: list[tuple[str, list[Row]]] = []
    for row in sorted(rows, key=lambda row: row["time"]):
        what = _what(row, ends)
        last = runs[-1] if runs else None
        same = last is not None and last[0] == what and all(last[1][-1][name] == row[name] for name in _ONE_RESET)
        if last is not None and same and row["time"] - last[1][0]["time"] < _TOGETHER:
            last[1].append(row)
        else:
            runs.append((what, [row]))
    for what, run in runs:
        first = run[0]
        text, certain = _reset_text(what, run, source.remade)
        topics = tuple(dict.fromkeys(row["topic"] for row in run if row["topic"]))
        weight = 50 if first["error"] is not None else 16
        common = {**_common(first), "topics": topics}
        if len(run) > 1:
            common |= {"partition": None, "topic": topics[0] if len(topics) == 1 else None}
        yield Event(first["time"], "reset", who(first["client_id"]), text, weight, certain, **common)


def _bounds(source: Source, rows: list[Row]) -> dict[tuple[str | None, int], list[tuple[Any, Any]]]:
    """(log start offset, high watermark) in answers to fetches, by topic and partition."""
    wanted = sorted({row["partition"] for row in rows})
    bounds: dict[tuple[str | None, int], list[tuple[Any, Any]]] = defaultdict(list)
    stated = source.table(
        "partitions",
        ("topic", "topic_id", "partition", "log_start_offset", "high_watermark"),
        pc.field("partition").isin(wanted) & (pc.field("high_watermark") >= 0),
    )
    grouped = stated.group_by(["topic", "topic_id", "partition"], use_threads=False).aggregate(
        [("log_start_offset", "min"), ("high_watermark", "distinct")]
    )
    for row in grouped.to_pylist():
        topic = row["topic"] or source.topics.get(row["topic_id"] or "", row["topic_id"])
        for mark in row["high_watermark_distinct"]:
            bounds[topic, row["partition"]].append((row["log_start_offset_min"], mark))
    return bounds


def _what(row: Row, ends: dict[tuple[str | None, int], list[tuple[Any, Any]]]) -> str:
    """Describe the kind of a reset, as the end of its sentence."""
    if row["offset"] is None:
        return "nowhere"
    if row["target"] in _TARGETS:
        return _TARGETS[row["target"]]
    known_ends = ends.get((row["topic"], row["partition"]), [])
    if row["offset"] == 0 or any(start == row["offset"] for start, _ in known_ends):
        return "at the start"
    if any(mark == row["offset"] for _, mark in known_ends):
        return "at the end"
    return "at"


_TARGETS = {"earliest": "at the start", "latest": "at the end"}


def _reset_text(what: str, run: list[Row], remade: Container[str]) -> tuple[str, bool]:
    """The sentence, and whether all of it is certain. `remade`: names of topics that were made anew."""
    row = run[0]
    where = places((reset["topic"], reset["partition"]) for reset in run)
    offset = _span(reset["offset"] for reset in run) if row["offset"] is not None else ""
    target = {"at the start": "the start", "at the end": "the end"}.get(what, offset)
    before = [reset["previous"] for reset in run if reset["previous"] is not None]
    if row["error"] == "OFFSET_OUT_OF_RANGE":
        request = f"asked {where} for offset {_span(before)}" if before else f"read {where}"
        if row["offset"] is None:
            return f"{request}, which the log does not have, and was not seen to go elsewhere", True
        named = f"{target} ({offset})" if target != offset else offset
        lost = "the topic was made anew" if row["topic"] in remade else _lost(run)
        return f"{request}, which the log does not have, and went on at {named}: {lost}", True
    if row["error"] is not None:
        return f"asked for an offset of {where} to go on from, and was refused: {row['error']}", True
    if before:
        return f"moved on {where} from {_span(before)} to {target}", True
    if what == "at":
        is_told = row["target"] == "timestamp"
        return f"began {where} at {target}, {'' if is_told else 'probably '}by a timestamp", is_told
    return f"began to read {where} at {target}: it had no offset to go on from", True


def _lost(run: list[Row]) -> str:
    """Describe how far readers that lost their position moved."""
    steps = [loss["step"] or 0 for loss in run]
    over, again = sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0)
    losses = [f"{count(over, 'offset')} passed over"] if over else []
    return ", ".join([*losses, f"{count(again, 'offset')} back"] if again or not losses else losses)
