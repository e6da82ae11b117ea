"""Run `kwire story` once the command line is parsed.

In: parsed options; a dataset, or captures, which become one first. Out: lines of text or JSON on stdout, progress and
notes on stderr. Errors of the user's input leave as `UsageError`.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

import pyarrow.compute as pc

from kwire.analyzer.cli import commands
from kwire.analyzer.cli.color import Paint, painter
from kwire.analyzer.cli.pager import paged
from kwire.analyzer.common import address_names
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import json_text, printable
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset.dataset import StoredDataset, is_dataset, open_dataset
from kwire.analyzer.frame import spill
from kwire.analyzer.payloads.options import check_captures
from kwire.analyzer.story import clients, cluster, groups, offsets, overview, record_journey, requests, transactions
from kwire.analyzer.story.events import JSON_FIELDS, Event, StoryQuery, between, count, some
from kwire.analyzer.story.sources import Source, names_in

if TYPE_CHECKING:
    from kwire.analyzer.options.questions import StoryOptions

_TELLERS = (clients.events, cluster.events, groups.events, offsets.events, transactions.events)

_WITHOUT_CONNECTIONS = ("connected", "disconnected")
"""Kinds of events only in stories about one client or connection."""


def story(options: StoryOptions) -> int:
    """Run `kwire story`."""
    wanted = StoryQuery(
        options.group,
        options.client,
        options.topic,
        options.transaction,
        options.connection,
        options.partition,
        options.offset,
    )
    notes: list[str] = []
    paint = painter(options.color)
    # The dataset goes before the pager is waited for.
    with paged() as out, contextlib.ExitStack() as stack:
        by_capture = stories(_opened(options, stack), wanted, notes)
        if options.json:
            every = [event for _, events in by_capture for event in events]
            _tell(notes)
            for event in sorted(every, key=lambda event: event.time):
                sys.stdout.write(_json(event) + "\n")
            return 0
        for number, (heading, events) in enumerate(by_capture):
            _tell(notes)
            _print(out, heading, events, wanted, paint, first=number == 0)
    return 0


def _tell(notes: list[str]) -> None:
    """Say what there is to note, each once."""
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
    notes.clear()


def stories(
    dataset: StoredDataset, query: StoryQuery, notes: list[str] | None
) -> Iterator[tuple[str, Iterable[Event]]]:
    """A heading and the events of each capture point; the events are worked out when they are asked for, so that the
    heading can be shown before. `notes` is filled with what is left out. Raises UsageError where the query names
    nothing that occurs."""
    _check(dataset, query)
    each = ((_heading(source), _events(source, query)) for source in _sources(dataset, notes))
    if query.offset is None:
        yield from each
        return
    every = [(heading, list(events)) for heading, events in each]
    if not any(events for _, events in every):
        raise _no_record(dataset, query)
    yield from every


def _events(source: Source, query: StoryQuery) -> Iterator[Event]:
    """Yield the selected events, with names, in order of time."""
    with spill.reuse():
        events = list(map(_named, _events_of(source, query)))
    yield from events


def _named(event: Event) -> Event:
    """The event with the names of the addresses that it names (`--names`)."""
    if not address_names.known_names():
        return event
    actor = address_names.in_text(event.actor, brief=True)
    return event._replace(actor=actor, text=address_names.in_text(event.text))


def highlights(dataset: StoredDataset, most: int) -> list[str]:
    """Lines of text: the events of most weight of a dataset, in order of time, for commands that end with them."""
    events = [
        event for _, chosen in stories(dataset, StoryQuery(), None) for event in chosen if event.kind != "finding"
    ]
    weightiest = sorted(events, key=lambda event: (-event.weight, event.time))[:most]
    return [
        f"{rfc3339(event.time)[11:23]}  {printable(event.actor)}  {printable(event.text)}"
        for event in sorted(weightiest, key=lambda event: event.time)
    ]


def _opened(options: StoryOptions, stack: contextlib.ExitStack) -> StoredDataset:
    """Open the named dataset, or one made of the captures."""
    datasets = [source for source in options.sources if is_dataset(source)]
    if datasets:
        if len(options.sources) > 1:
            raise UsageError(
                "a story is of one DATASET, or of captures", "kwire analyze --append puts captures together"
            )
        if options.port or options.rotated:
            raise UsageError("--port and --rotated go with a CAPTURE", "kwire analyze --port makes a DATASET")
        if options.keylog:
            raise UsageError("--keylog goes with a CAPTURE", "kwire analyze --keylog makes a DATASET")
        check_captures(options)
        return commands.named_dataset(datasets[0])
    folder = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-story-")), "dataset")
    commands.dataset_of(options.sources, folder, options)
    return open_dataset(folder)


def _sources(dataset: StoredDataset, notes: list[str] | None = None) -> Iterator[Source]:
    for capture in dataset.captures:
        if not capture.get("meaning", False) and not capture.get("log") and notes is not None:
            name = printable(capture["name"])
            notes.append(
                f"{name}: what its traffic means was not worked out: groups, offsets and "
                "transactions are not told (kwire analyze it again)"
            )
        yield Source(dataset, capture["name"])


def _events_of(source: Source, wanted: StoryQuery) -> list[Event]:
    """Return the selected events, in order of time."""
    if wanted.topic is not None and wanted.partition is not None and wanted.offset is not None:
        journey = record_journey.events(source, wanted.topic, wanted.partition, wanted.offset)
        return sorted(journey, key=lambda event: event.time)
    every = [event for teller in _TELLERS for event in teller(source)]
    if wanted.connection is not None:
        every += requests.dialogue(source, wanted.connection)
    elif wanted.client is not None:
        every += requests.lookups(source, wanted.client)
    told_elsewhere = {
        (event.connection, event.exchange, event.reply)
        for event in every
        if event.kind not in ("refused", "finding", "asked") and event.exchange is not None
    }
    every = [
        event
        for event in every
        if event.kind != "refused" or (event.connection, event.exchange, event.reply) not in told_elsewhere
    ]
    if wanted.everything:
        return overview.first_ten(every)
    summed = ("rebalances", "transactions")
    alone = wanted.client is None and wanted.connection is None
    hidden = (*summed, *(_WITHOUT_CONNECTIONS if alone else ()))
    chosen = [event for event in every if event.kind not in hidden and wanted.has(event)]
    return sorted(chosen, key=lambda event: event.time)


# --- names ------------------------------------------------------------------------------------------------------------


def _no_record(dataset: StoredDataset, wanted: StoryQuery) -> UsageError:
    """The error for an offset that no captured batch holds."""
    topic, partition = wanted.topic or "", wanted.partition or 0
    sources = list(_sources(dataset))
    ranges = [
        offsets for source in sources if (offsets := record_journey.known_offsets(source, topic, partition)) is not None
    ]
    place = f"{topic}-{partition}"
    there = f"nothing that was written to or read from {place} was captured with its offset"
    if any(record_journey.lacks_journeys(source, topic, partition) for source in sources):
        there = "the dataset has no journeys: kwire analyze, without --no-journeys, makes them"
    elif ranges:
        first, last = min(first for first, _ in ranges), max(last for _, last in ranges)
        there = f"what was captured of {place} lies from {first} to {last}"
    return UsageError(f"--offset {wanted.offset}: no captured Produce wrote it, no Fetch brought it", there)


def _check(dataset: StoredDataset, wanted: StoryQuery) -> None:
    """Raise UsageError if a selected name does not occur."""
    if wanted.offset is not None and wanted.partition is None:
        raise UsageError("--offset goes with --topic and --partition", "an offset is a record's place in a partition")
    if wanted.partition is not None and wanted.topic is None:
        raise UsageError("--partition goes with --topic", "kwire story --topic T --partition P --offset N")
    for option, value, columns in (
        ("--group", wanted.group, (("exchanges", "group_id"), ("groups", "group_id"), ("offsets", "group_id"))),
        ("--client", wanted.client, (("exchanges", "client_id"),)),
        ("--topic", wanted.topic, (("partitions", "topic"), ("topic_ids", "topic"), ("leaders", "topic"))),
        (
            "--transaction",
            wanted.transaction,
            (("exchanges", "transactional_id"), ("transactions", "transactional_id")),
        ),
        ("--connection", wanted.connection, (("connections", "connection"),)),
    ):
        if value is None:
            continue
        known = sorted({name for table, column in columns for name in names_in(getattr(dataset, table), column)})
        if value in known:
            continue
        what = option.removeprefix("--")
        near = difflib.get_close_matches(value, known, 1)
        there = f"there are {some(known)}" if known else f"this capture has no {what}"
        raise UsageError(f"{option} {value}: no such {what}", f"did you mean {near[0]}? {there}" if near else there)


# --- printing ---------------------------------------------------------------------------------------------------------

_ACTOR_WIDTH = 24
"""Of the column of actors; names of clients and groups that are longer are cut."""


def _json(event: Event) -> str:
    row: dict[str, Any] = {name: getattr(event, name) for name in JSON_FIELDS}
    return json_text({**row, "time": rfc3339(event.time)})


def _print(out: IO[str], heading: str, each: Iterable[Event], wanted: StoryQuery, paint: Paint, *, first: bool) -> None:
    width = commands.reading_width()
    out.write(("" if first else "\n") + "\n".join(commands.folded(printable(heading), "", width)) + "\n\n")
    out.flush()  # it says at once that the capture was read
    events = list(each)
    if not events:
        out.write("  nothing happened that a story tells of\n")
        return
    numbers: dict[str, int] = {}
    actors = min(max(len(printable(event.actor)) for event in events), _ACTOR_WIDTH)
    for event in events:
        lines = _line(event, numbers, actors, width)
        out.write("\n".join([_with_severity(lines[0], event, paint), *lines[1:]]) + "\n")
    if numbers:
        out.write("\nexchanges, as kwire show --follow CONNECTION lists them:\n")
        out.writelines(f"  c{number} {printable(name)}\n" for name, number in numbers.items())
        out.write(
            "[c1 #4] is exchange 4 of c1: kwire show CAPTURE --filter 'connection == \"NAME\" and exchange == 4'\n"
        )
    if wanted.everything and first:
        out.write("\nkwire story with --group, --client, --topic, --transaction or --connection tells all of one.\n")


def _with_severity(line: str, event: Event, paint: Paint) -> str:
    """The first line of an event, with the severity that its actor begins with, if it has one, in colour."""
    before, severity, after = line.partition(event.severity or "\n")
    return before + paint(severity, event.severity) + after


def _heading(source: Source) -> str:
    """Headline of a capture: its time, duration and size."""
    exchanges = source.dataset.exchanges
    here = pc.field("capture") == source.capture
    number = exchanges.count_rows(filter=here)
    [entry] = [capture for capture in source.dataset.captures if capture["name"] == source.capture][:1]
    ids = source.table("connections", ("client_ip", "client_id", "broker_ip", "broker_port", "first_time", "last_time"))
    rows = ids.to_pylist()
    if not rows:
        return f"{source.capture}: no Kafka connection"
    ends = {(row["broker_ip"], row["broker_port"]) for row in rows}
    brokers = {source.nodes.get(end, end) for end in ends}  # a node may listen at several
    clients_seen = {(row["client_id"], row["client_ip"]) for row in rows}
    least = "at least " if any(client_id is None for client_id, _ in clients_seen) else ""
    times = [row[name] for row in rows for name in ("first_time", "last_time")]
    start, end = min(times), max(times)
    when = rfc3339(start)[:19].replace("T", " ")
    return (
        f"{entry['name']}: {when} UTC, {between(start, end)}; {count(number, 'exchange')} of "
        f"{least}{count(len(clients_seen), 'client')} with {count(len(brokers), 'broker')}"
    )


def _line(event: Event, numbers: dict[str, int], actors: int, width: int | None) -> list[str]:
    """One event: time of day, who, what, and the exchange that shows it."""
    actor = printable(event.actor)
    if len(actor) > actors and event.severity is None:  # a finding's code is what one looks up: it stays whole
        actor = actor[: actors - 1] + "…"
    head = f"{rfc3339(event.time)[11:23]}  {actor:<{actors}}  "
    link = ""
    if event.connection is not None and event.exchange is not None:
        number = numbers.setdefault(event.connection, len(numbers) + 1)
        link = f" [c{number} #{event.exchange}]"
    unsure = "" if event.certain or "probably" in event.text.lower() else "probably "
    return commands.folded(head + unsure + printable(event.text) + link, " " * len(head), width)
