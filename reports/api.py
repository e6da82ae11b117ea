"""The Python functions that ask: `kwire.findings`, `story`, `sql`, `report` and `compare`, as the commands do.

In: datasets or captures, and what to ask. Out: values, nothing printed. Rules: captures are analysed into a dataset
that is gone afterwards; what a command would say on stderr goes into `notes`; whatever a command refuses raises
`KwireError`, whose text ends with the hint.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kwire.analyzer import api
from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset.dataset import StoredDataset, is_dataset, open_dataset
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from kwire.analyzer.story.events import Event
    from kwire.reports.compare.comparison import Comparison

Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A dataset or a capture, or several."""
EngineName = Literal["auto", "embedded", "spark"]


class Evidence(NamedTuple):
    """An exchange that shows what a finding says; `reply` where no request was seen, None for both: the connection."""

    connection: str
    exchange: int | None
    reply: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong or worth knowing: a row of the table `findings`, whose columns these are."""

    capture: str
    severity: str
    code: str
    family: str
    text: str
    who: Mapping[str, str]
    what: Mapping[str, str]
    count: int
    since: datetime.datetime | None
    until: datetime.datetime | None
    cause: str | None
    proven: bool
    advice: str
    first: Evidence | None
    worst: Evidence | None
    last: Evidence | None


def findings(
    sources: Sources,
    *,
    only: Sequence[str] = (),
    ignore: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
    target: str | None = None,
    policies: Sequence[str] = (),
    rotated: bool = False,
    ports: Sequence[int] = (),
    keylogs: Sequence[str | os.PathLike[str]] = (),
    notes: list[str] | None = None,
) -> list[Finding]:
    """Return what is wrong in datasets or captures, worst first.

    only: codes; ignore: CODE or CODE:WHO, as of `kwire findings --ignore`; thresholds: by CODE.NAME, as
    `{"tcp-retransmission.share": 0.02}`; target: a Kafka release, of which what it has removed is an error; policies:
    NAME=VALUE. rotated, ports, keylogs: of captures, as of `kwire.analyze`. Raises KwireError."""
    from kwire.analyzer.cli import finding_lines
    from kwire.analyzer.options.questions import FindingsOptions
    from kwire.reports import releases

    released = None
    if target is not None:
        released = _release(target).apis
        target = releases.bare(target)
    options = FindingsOptions(
        sources=[],
        only=list(only),
        ignore=list(ignore),
        threshold=[f"{name}={value!r}" for name, value in (thresholds or {}).items()],
        target=target,
        policy=list(policies),
        released=released,
    )
    how = ReadOptions(rotated, ports, keylogs=keylogs)
    with _opened(sources, how, notes) as datasets:
        _, rows = finding_lines.selected(datasets, options, [] if notes is None else notes)
    return [Finding(**{**row, **{name: _evidence(row[name]) for name in ("first", "worst", "last")}}) for row in rows]


def _evidence(row: Mapping[str, Any] | None) -> Evidence | None:
    return None if row is None else Evidence(row["connection"], row["exchange"], row["reply"])


def story(
    sources: Sources,
    *,
    group: str | None = None,
    client: str | None = None,
    topic: str | None = None,
    transaction: str | None = None,
    connection: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    keylogs: Sequence[str | os.PathLike[str]] = (),
    notes: list[str] | None = None,
) -> list[Event]:
    """Return what happened in one dataset, or in captures, in order of time: the ten events worth knowing, or all of
    one group, client id, topic, transactional id or connection. partition, offset: of `topic`; with both, the journey
    of that record. rotated, ports, keylogs: as of `kwire.analyze`. Raises KwireError."""
    from kwire.analyzer.story.command import stories
    from kwire.analyzer.story.events import StoryQuery

    query = StoryQuery(group, client, topic, transaction, connection, partition, offset)
    with _opened(sources, ReadOptions(rotated, ports, keylogs=keylogs), notes) as datasets:
        every = [event for dataset in datasets for _, events in stories(dataset, query, notes) for event in events]
    return sorted(every, key=lambda event: event.time)


def sql(
    sources: Sources,
    query: str,
    *,
    engine: EngineName = "auto",
    views: str | os.PathLike[str] | None = None,
    zones: str | os.PathLike[str] | None = None,
    notes: list[str] | None = None,
) -> pa.Table:
    """Return the answer to a query over the tables and views of datasets or captures, in Spark's SQL, as an Arrow
    table (`.to_pandas()`). `engine`: `embedded` answers inside this process, `spark` with Spark; by default the former
    where it is installed. `views`: a folder of questions of your own, as of `kwire sql --views`; `zones`: a file of
    zones of addresses, as of `--zones`. Raises KwireError."""
    from kwire.reports import own_views
    from kwire.reports import zones as zone_files

    with own_views.opened(views), zone_files.opened(zones):
        return _answer(sources, query, engine, notes)


def _answer(sources: Sources, query: str, engine: EngineName, notes: list[str] | None) -> pa.Table:
    from kwire.analyzer.options.questions import SqlOptions
    from kwire.reports import catalog, engines, query_errors

    query_errors.check(query)
    options = SqlOptions(dataset="", query=query, engine=engine)
    with (
        _opened(sources, ReadOptions(), notes) as datasets,
        engines.opened(options, [str(dataset.path) for dataset in datasets], catalog.needed(query)) as running,
    ):
        from kwire.reports.sql import answer

        return answer(running, query, None)[0]


def report(
    sources: Sources,
    out: str | os.PathLike[str] | None = None,
    *,
    format: Literal["html", "md", "json"] | None = None,
    target: str | None = None,
    engine: EngineName = "auto",
    views: str | os.PathLike[str] | None = None,
    zones: str | os.PathLike[str] | None = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    keylogs: Sequence[str | os.PathLike[str]] = (),
    notes: list[str] | None = None,
) -> str:
    """Return a report on datasets or captures, and write it to the file `out`, if given.

    format: by default as `out` ends, else html; target: a Kafka release to check an upgrade to; engine: as of
    `kwire.sql`, views and zones too; rotated, ports, keylogs: as of `kwire.analyze`. Raises KwireError."""
    from kwire.analyzer.options.questions import ReportOptions
    from kwire.reports import commands, output, own_views
    from kwire.reports import zones as zone_files

    if target is not None:
        target = _release(target).name
    path = None if out is None else os.fspath(out)
    if path is not None:
        output_file.check(path)
    form = format or (output.form(path, commands.ENDINGS) if path is not None else "html")
    options = ReportOptions(sources=_paths(sources), target=target, engine=engine)
    with (
        own_views.opened(views),
        zone_files.opened(zones),
        _opened(sources, ReadOptions(rotated, ports, keylogs=keylogs), notes) as datasets,
    ):
        result = commands.report_on(options, [str(dataset.path) for dataset in datasets], target)
    text = commands.rendered(result, form)
    if path is not None:
        with output.written(path) as beside:
            Path(beside).write_text(text, encoding="utf-8")
    return text


def compare(
    before: Sources,
    after: Sources,
    *,
    noise: Sources | None = None,
    filter: str | None = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    keylogs: Sequence[str | os.PathLike[str]] = (),
    notes: list[str] | None = None,
) -> Comparison:
    """Return what changed on the wire between two sides of the same job, each a dataset or captures: clients paired by
    what they do, their settings, versions, figures with intervals, and a verdict.

    noise: another run of the job before; what the two runs differ in as much is no change. filter: only exchanges that
    match, of captures; rotated, ports, keylogs: as of `kwire.analyze`. Raises KwireError, also where a side has no
    exchange of Kafka."""
    from kwire.analyzer.frame import spill
    from kwire.reports.compare import bodies, comparison
    from kwire.reports.compare.side import Side, names_of

    how = ReadOptions(rotated, ports, keylogs=keylogs)
    with contextlib.ExitStack() as stack, spill.reuse():
        datasets = []
        every = [before, after, *([noise] if noise is not None else [])]
        for sources in every:
            opened = stack.enter_context(_opened(sources, how, notes, filter))
            if len(opened) > 1:
                raise UsageError("a side is one dataset, or captures", "kwire.analyze(..., append=True) joins them")
            datasets += opened
        names = names_of(*(_paths(sources)[0] for sources in every))
        captures = [[path for path in _paths(sources) if not is_dataset(path)] for sources in every]
        settings = [bodies.settings(paths, how, filter) if paths else None for paths in captures]
        sides = [Side(*each) for each in zip(datasets, names, settings, strict=True)]
        result = comparison.compare(*sides[:2])
        if noise is not None:
            result = comparison.beyond(result, comparison.compare(sides[0], sides[2]))
    if notes is not None:
        notes += result.notes
    return result


def _release(version: str) -> Any:
    """A Kafka release by its number. Raises UsageError."""
    from kwire.reports import releases

    try:
        return releases.find(version)
    except LookupError:
        raise UsageError(f"target {version}: no Kafka release that is known", releases.hint(version)) from None


def _paths(sources: Sources) -> list[str]:
    if isinstance(sources, str | os.PathLike):
        return [os.fspath(sources)]
    return [os.fspath(source) for source in sources]


@contextlib.contextmanager
def _opened(
    sources: Sources, how: ReadOptions, notes: list[str] | None, filter: str | None = None
) -> Iterator[list[StoredDataset]]:
    """The datasets among the sources, and one of all captures among them, which is gone afterwards."""
    paths = _paths(sources)
    if not paths:
        raise UsageError("neither a dataset nor a capture was given", "give the path of one")
    stored = [open_dataset(path) for path in paths if is_dataset(path)]
    captures = [path for path in paths if not is_dataset(path)]
    if not captures:
        yield stored
        return
    with tempfile.TemporaryDirectory(prefix="kwire-") as folder:
        written = os.path.join(folder, "dataset")
        result = api.decode(captures, written, how, AnalysisOptions.of(filter))
        if notes is not None:
            notes += result.notes
        yield [*stored, open_dataset(written)]
