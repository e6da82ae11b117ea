"""Keys and values against their schemas: what does not decode, ids without a schema, changes of schema.

In: a capture point whose keys and values were decoded (`--schemas`, `--registry`, `--payloads`, or registry traffic in
the capture); of others no rule reports anything. What a source of schemas lacks is never said to be the writer's fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kwire.analyzer.findings.capture import CaptureFrame, once
from kwire.analyzer.findings.decoded_records import Group, groups
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.wording import client, count, moment, name, partition_name, some

_Place = tuple[str, int, int]
"""Topic, partition, offset."""

_SILENT = "Keys and values were not decoded (--schemas, --registry, --payloads, or registry traffic in the capture)"


@rule(
    "produce",
    "payload-undecodable",
    "error",
    "svc-a (10.0.0.4) wrote a value that does not decode: orders-1@41 (avro of schema 17: the data ends too early); "
    "g-app (10.0.0.5) fetched it 12 times.",
    why="One record that a deserializer refuses stops its readers: a poison pill. Ours: three fetches of it by one "
    "client are a reader that comes back to it.",
    suppressed_when=f"{_SILENT}; the schema is not known (schema-unknown-id); bytes of no known format, unless at "
    "least ten other keys or values of the topic decode and nine in ten do; the broker refused the batch. Where none "
    "of the topic decodes with its schema it is a warning: the schema given may not be theirs.",
    advice="Find what wrote it, and fix its serializer. Readers: an error handler (ErrorHandlingDeserializer), a "
    "dead-letter topic, or commit past that offset. kwire story --offset tells the record's journey.",
    evidence="real serializers' values, one of them cut; forged: one of eleven of no known format, and one of ten",
    others=10,
    share=0.9,
    again=3,
)
def payload_undecodable(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    every = groups(capture)
    fine, bad = _by_topic(group for group in every if group.reason is None), _bad(every, at)
    for (topic, part), undecodable in bad.items():
        written = [group for group in undecodable if group.written]
        there = {_place(group) for group in written} - {None}
        fetched = [group for group in undecodable if not group.written and _place(group) not in there]
        lone = (topic, part) not in fine
        for by, is_written in ((written, True), (fetched, False)):
            for whose in _by_client(by).values():
                yield _undecodable(capture, whose, is_written, undecodable, lone, at)


def _bad(every: list[Group], at: Limits) -> dict[tuple[str, str], list[Group]]:
    """Groups that do not decode, by topic and part, without those that only lack a schema."""
    bad = _by_topic(group for group in every if group.reason is not None and not group.is_unknown_id)
    for key, others in _by_topic(every).items():
        unidentified = sum(group.count for group in others if not group.format_known)
        fine = sum(group.count for group in others if group.reason is None)
        if unidentified and (fine < at.others or fine < at.share * (fine + unidentified)):
            bad[key] = [group for group in bad[key] if group.format_known]
    return {key: others for key, others in bad.items() if others}


def _undecodable(
    capture: CaptureFrame, whose: list[Group], written: bool, every: list[Group], lone: bool, at: Limits
) -> Match:
    """The match of what one client wrote, or fetched where nobody was seen to write it."""
    first = whose[0]
    who = capture.who(first.client)
    # Of what was fetched, each offset counts once, however often it came.
    many = sum(group.count for group in whose) if written else len(whose)
    what = f"a {first.part} that does not decode" if many == 1 else f"{many:,} {first.part}s that do not decode"
    text = f"{client(who)} {'wrote' if written else 'fetched'} {what}: {_where(first)} ({first.reason})"
    text += f", and {many - 1:,} more" if many > 1 else ""
    text += "" if written else "; who wrote it was not captured" if many == 1 else "; who wrote them was not captured"
    places = {place for group in whose if (place := _place(group)) is not None}
    text += _came_back(capture, [group for group in every if _place(group) in places], at)
    stuck = _stuck(capture, places, every)
    causes = [f"{client(match.who)} does not get past it (partition-stuck)" for match in stuck]
    if lone:
        text += f"; no {first.part} of {name(first.topic)} decodes"
    return Match(
        f"{text}.",
        many,
        first.first,
        max(group.last for group in whose),
        who,
        {
            "topic": first.topic,
            "partition": str(first.partition),
            "offset": None if first.offset is None else str(first.offset),
            "part": first.part,
            "schema_id": first.schema_id,
        },
        (first.row, first.row, whose[-1].last_row),
        severity="warning" if lone and not stuck else None,
        cause=causes[0] if causes else "the schema that was given may not be that of the topic" if lone else None,
        proven=False if causes or lone else None,
    )


def _came_back(capture: CaptureFrame, same: list[Group], at: Limits) -> str:
    """Say who fetched one of these records again and again."""
    again = [group for group in same if not group.written and group.count >= at.again]
    if not again:
        return ""
    worst = max(again, key=lambda group: group.count)
    where = "it" if len({_place(group) for group in same}) == 1 else f"@{worst.offset:,}"
    return f"; {client(capture.who(worst.client))} fetched {where} {worst.count:,} times"


@rule(
    "produce",
    "schema-unknown-id",
    "warning",
    "svc-a (10.0.0.4) wrote 12 values of orders that name schema 99, which is not known; the first is orders-0@41.",
    why="A reader that asks its registry for the id fails as kwire did: an id of another registry, a schema that was "
    "deleted, or bytes of another framing.",
    suppressed_when=f"{_SILENT}; no source of schemas was given; the value is JSON, which needs none; a topic "
    "with four ids and more, none of them known, and hardly one twice: those are other bytes. Where the registry could "
    "not be asked it is a note.",
    advice="Ask the registry that writers use: curl $REGISTRY/schemas/ids/ID. In a folder of schemas it may be "
    "missing: add it, or use --registry.",
    evidence="an id that the folder has, and one that it has not; without any source of schemas; forged: four ids of "
    "eight values, and of seven",
    ids=4,
)
def schema_unknown_id(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if not capture.entry.get("schema_sources"):
        return
    by: dict[tuple[str, str, str | None], list[Group]] = defaultdict(list)
    for every in _by_topic(groups(capture)).values():
        unknown = [group for group in every if group.is_unknown_id]
        ids = {group.schema_id for group in unknown}
        known = any(group.schema_id is not None and not group.is_unknown_id for group in every)
        if known or len(ids) < at.ids or 2 * len(ids) <= sum(group.count for group in unknown):
            for group in unknown:
                by[group.topic, group.part, group.schema_id].append(group)
    for (topic, part, schema_id), named in by.items():
        written = [group for group in named if group.written]
        for whose in _by_client(written or named).values():
            first = whose[0]
            who = capture.who(first.client)
            many = sum(group.count for group in whose) if written else len(whose)
            not_asked = not (first.reason or "").endswith(" is not known")
            text = f"{client(who)} {'wrote' if written else 'fetched'} {count(many, part)} of {name(topic)} that "
            text += f"{'names' if many == 1 else 'name'} schema {name(schema_id)}, which "
            text += f"could not be looked up ({first.reason})" if not_asked else "is not known"
            yield Match(
                f"{text}; the first is {_where(first)}.",
                many,
                first.first,
                max(group.last for group in whose),
                who,
                {"topic": topic, "part": part, "schema_id": schema_id} | _place_of(first),
                (first.row, first.row, whose[-1].last_row),
                severity="note" if not_asked else None,
            )


@rule(
    "produce",
    "mixed-formats",
    "warning",
    "Topic orders has values that name a schema (avro: 1,200) and 3 that name none (json); the first of these is "
    "orders-0@41, by tool-b (10.0.0.9).",
    why="A deserializer takes values with a schema id or without, not both: its readers fail at the first of the "
    "other kind.",
    suppressed_when=f"{_SILENT}; values without a schema id that do not decode (payload-undecodable); tombstones.",
    advice="One serializer a topic. What writes without a schema id is often a script, a console producer or a "
    "connector with another converter. On a dead-letter topic it is to be expected.",
    evidence="forged: values with a schema id and one without; all with, of several ids",
)
def mixed_formats(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for (topic, part), every in _by_topic(groups(capture)).items():
        if part != "value":
            continue
        written = [group for group in every if group.written]
        known = [group for group in written or every if group.schema_id is not None or group.reason is None]
        framed = [group for group in known if group.schema_id is not None]
        bare = [group for group in known if group.schema_id is None]
        if not framed or not bare:
            continue
        many = [sum(group.count for group in kind) for kind in (framed, bare)]
        fewer = bare if many[1] <= many[0] else framed
        first = fewer[0]
        whose = capture.who(first.client)
        text = f"Topic {name(topic)} has values that name a schema ({_formats(framed)}: {many[0]:,}) and "
        text += f"{many[1]:,} that {'names' if many[1] == 1 else 'name'} none ({_formats(bare)}); the first of "
        text += f"{'these' if fewer is bare else 'the former'} is {_where(first)}, "
        text += f"{'by' if written else 'fetched by'} {client(whose)}."
        yield Match(
            text,
            min(many),
            first.first,
            max(group.last for group in fewer),
            whose,
            {"topic": topic} | _place_of(first),
            (first.row, first.row, fewer[-1].last_row),
        )


@rule(
    "produce",
    "schema-changed",
    "note",
    "svc-a (10.0.0.4) began to write values of orders under schema 18 (avro) at 10:01:03: 120 since, the first is "
    "orders-0@41; before it was schema 17.",
    why="What readers fail at after a deployment of a producer is often its new schema. A warning where a reader of "
    "the topic does not get on since then (partition-stuck).",
    suppressed_when=f"{_SILENT}; nothing of the topic was written before under another schema; the same connection "
    "goes on with an earlier one (types side by side).",
    advice="Compare the schemas (table schemas), and the subject's compatibility in the registry.",
    evidence="forged: a second id after the first, and with it; by one connection in turns",
)
def schema_changed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    framed = (group for group in groups(capture) if group.written and group.schema_id is not None)
    for written in _by_topic(framed).values():
        ids: dict[str | None, list[Group]] = defaultdict(list)
        for group in written:
            ids[group.schema_id].append(group)
        earlier: list[Group] = []
        for under in ids.values():  # in order of their first use
            first = under[0]
            side_by_side = any(other.link == first.link and other.last > first.first for other in earlier)
            if earlier and earlier[0].first < first.first and not side_by_side:
                yield _changed(capture, under, max(earlier, key=lambda other: other.first).schema_id)
            earlier += under


def _changed(capture: CaptureFrame, under: list[Group], before: str | None) -> Match:
    """The match of a new schema on a topic."""
    first = under[0]
    who = capture.who(first.client)
    many = sum(group.count for group in under)
    text = f"{client(who)} began to write {first.part}s of {name(first.topic)} under schema {name(first.schema_id)}"
    text += f" ({first.format})" if first.format else ""
    text += f" at {moment(first.first)}: {many:,} since, the first is {_where(first)}; before it was schema "
    text += f"{name(before)}"
    stuck = [match for match in _standing(capture) if match.what.get("topic") == first.topic]
    after = [match for match in stuck if match.since is not None and match.since >= first.first]
    if after:
        where = partition_name((first.topic, int(after[0].what["partition"] or 0)))
        text += f"; since {moment(after[0].since or 0)} {client(after[0].who)} does not get on in {where}"
    others = sorted({str(capture.clients[group.client][1] or "") for group in under if group.client != first.client})
    if others := [other for other in others if other]:
        text += f"; later {some(others)} too"
    return Match(
        f"{text}.",
        many,
        first.first,
        max(group.last for group in under),
        who,
        {"topic": first.topic, "part": first.part, "schema_id": first.schema_id, "before": before} | _place_of(first),
        (first.row, first.row, under[-1].last_row),
        severity="warning" if after else None,
    )


# ----------------------------------------------------------------------------------------------------------- readers


@once
def _standing(capture: CaptureFrame) -> list[Match]:
    """The matches of partition-stuck."""
    standing = RULES["partition-stuck"]
    if capture.set_back is not None:
        return []
    return list(standing.check(capture, limits_of(standing, capture.query)))


def _stuck(capture: CaptureFrame, places: set[_Place], every: list[Group]) -> list[Match]:
    """The matches of partition-stuck of readers that stand at one of these records, or fetched it from where they
    stand."""
    fetched = {(capture.clients[group.client], _place(group)) for group in every if not group.written}
    stuck = []
    for match in _standing(capture) if places else ():
        where, at = (match.what["topic"], match.what["partition"]), int(match.what["offset"] or 0)
        whose = (match.who["client_ip"] or "", match.who["client_id"])
        beyond = [place for place in places if (place[0], str(place[1])) == where and place[2] >= at]
        if any(place[2] == at or (whose, place) in fetched for place in beyond):
            stuck.append(match)
    return stuck


# ------------------------------------------------------------------------------------------------------------ groups


def _by_topic(some_groups: Iterable[Group]) -> dict[tuple[str, str], list[Group]]:
    by: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in some_groups:
        by[group.topic, group.part].append(group)
    return by


def _by_client(some_groups: Iterable[Group]) -> dict[int, list[Group]]:
    by: dict[int, list[Group]] = defaultdict(list)
    for group in some_groups:
        by[group.client].append(group)
    return by


def _place(group: Group) -> _Place | None:
    return None if group.offset is None else (group.topic, group.partition, group.offset)


def _place_of(group: Group) -> dict[str, str | None]:
    offset = None if group.offset is None else str(group.offset)
    return {"partition": str(group.partition), "offset": offset}


def _where(group: Group) -> str:
    """`orders-1@41`; without the offset where it is not known."""
    where = partition_name((group.topic, group.partition))
    return where if group.offset is None else f"{where}@{group.offset:,}"


def _formats(some_groups: list[Group]) -> str:
    return some(sorted({group.format for group in some_groups if group.format}) or ["not decoded"])
