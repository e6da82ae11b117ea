"""Commands that ask a dataset, or a capture: `kwire sql`, `report`, `findings`, `story`, `compare`, `view`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kwire.analyzer.options import values
from kwire.analyzer.options.common import (
    CommandOptions,
    EngineOptions,
    KeylogOptions,
    NamesOptions,
    PayloadArguments,
    ReadArguments,
    ViewsOptions,
    color,
)
from kwire.analyzer.options.declare import argument, flag, option, repeated


@dataclass(frozen=True, kw_only=True)
class SqlOptions(PayloadArguments, EngineOptions, ViewsOptions, NamesOptions, KeylogOptions, CommandOptions):
    """Options of `kwire sql`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ('kwire sql orders.pcap "SELECT * FROM latency_by_api"', "one of the views"),
        (
            'kwire sql day1.kwire "SELECT client_id, count(*) FROM exchanges GROUP BY 1" --format csv',
            "your own question",
        ),
    )

    dataset: str = argument("DATASET", help="a dataset, or a capture, - for one from stdin")
    query: str | None = argument("QUERY", nargs="?", help="SQL over the tables and views; SHOW VIEWS lists them")
    format: str | None = option(
        "--format", choices=("table", "csv", "json", "parquet"), help="of the answer (default: table)"
    )
    raw: bool = flag(
        "--raw", help="csv: text that begins with = + - @, a tab or a return as it is, without a ' before it"
    )
    out: str | None = option("-o", "--out", metavar="FILE", help="write the answer there")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(PayloadArguments, ReadArguments, EngineOptions, ViewsOptions, CommandOptions):
    """Options of `kwire report`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire report orders.pcap -o report.html", "a page"),
        ("kwire report day1.kwire --target 4.0 --format md", "would Kafka 4.0 refuse anything?"),
    )

    sources: list[str] = argument("DATASET|CAPTURE", nargs="+")
    out: str | None = option("-o", "--out", metavar="FILE", help="file to write, as report.html; default: stdout")
    format: str | None = option("--format", choices=("html", "md", "json"), help="default: as FILE ends, else html")
    target: str | None = option(
        "--target", metavar="VERSION", help="upgrade check: what this Kafka release would refuse"
    )


@dataclass(frozen=True, kw_only=True)
class FindingsOptions(PayloadArguments, ReadArguments, CommandOptions):
    """Options of `kwire findings`. `released`: versions of each API, by key, that the release `target` offers."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire findings orders.pcap", "what is wrong, worst first"),
        ("kwire findings day1.kwire --fail-on warning --ignore tiny-batches", "a gate for a test run"),
    )

    sources: list[str] = argument("DATASET|CAPTURE", nargs="*")
    fail_on: str | None = option(
        "--fail-on", choices=("note", "warning", "error"), help="exit 1 where one is as bad as this"
    )
    only: list[str] = repeated("--only", metavar="CODES", help="these alone, by commas")
    ignore: list[str] = repeated(
        "--ignore",
        metavar="CODE[:WHO]",
        help="not these (of this client id, address, broker or connection); they are counted",
    )
    explain: str | None = option(
        "--explain", metavar="CODE", help="what a finding means, and why its thresholds are so"
    )
    thresholds: str | None = option(
        "--thresholds", metavar="FILE", help="TOML: a table a code, as [reconnect-loop], opened = 60"
    )
    threshold: list[str] = repeated("--threshold", metavar="CODE.NAME=VALUE", help="one threshold (repeatable)")
    target: str | None = option(
        "--target",
        metavar="VERSION",
        help="what this Kafka release has removed is an error (what it is too old for: kwire report --target)",
    )
    policy: list[str] = repeated(
        "--policy",
        metavar="NAME=VALUE",
        help="a fact becomes a warning: acks=all, compression=required, tls=required (repeatable)",
    )
    look_for: list[str] = repeated(
        "--look-for",
        metavar="WHAT",
        help="pii: personal data in keys and values (e-mail, cards, phones, IBANs): fields and counts, no values",
    )
    filter: None = None
    json: bool = flag("--json", help="one JSON object a line: the columns of table findings (--format json)")
    format: str | None = option(
        "--format",
        choices=("text", "json", "junit", "github"),
        help="text (default), JSON, JUnit XML for builds, or annotations of GitHub Actions",
    )
    summary: str | None = option(
        "--summary", metavar="FILE.md", help="also write them there as Markdown, as for $GITHUB_STEP_SUMMARY"
    )
    released: dict[int, tuple[int, int]] | None = None
    color: str = color()


@dataclass(frozen=True, kw_only=True)
class StoryOptions(PayloadArguments, ReadArguments, CommandOptions):
    """Options of `kwire story`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire story orders.pcap", "the ten things worth knowing"),
        ("kwire story day1.kwire --group billing", "all that happened in one group"),
        (
            "kwire story day1.kwire --topic orders --partition 0 --offset 4711",
            "one record: sent, replicated, read, committed",
        ),
    )

    epilog: ClassVar[str] = (
        "Without --group and the like: the ten things worth knowing first. Times are UTC; [c1 #12] is exchange "
        "12 of the connection that is listed as c1 at the end. What is not certain says probably."
    )

    sources: list[str] = argument("CAPTURE|DATASET", nargs="+")
    group: str | None = option("--group", metavar="G", help="what happened in this group")
    client: str | None = option("--client", metavar="C", help="what the client with this client id did")
    topic: str | None = option("--topic", metavar="T", help="what happened to this topic")
    partition: int | None = option(
        "--partition", metavar="P", parse=values.count_or_zero, help="with --topic: of this partition alone"
    )
    offset: int | None = option(
        "--offset",
        metavar="N",
        parse=values.offset,
        help="with --topic and --partition: the journey of this record, from its producer to each reader",
    )
    transaction: str | None = option("--transaction", metavar="X", help="what was done with this transactional id")
    connection: str | None = option(
        "--connection", metavar="C", help="what happened on this connection (a name of show --json)"
    )
    filter: None = None
    json: bool = flag("--json", help="one JSON object a line, in order of time")
    color: str = color()


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ReadArguments, CommandOptions):
    """Options of `kwire compare`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire compare before.pcap after.pcap", "we upgraded the client: what changed on the wire?"),
        ("kwire compare day1.kwire day2.kwire --fail-on warning", "a gate: exit 1 where something is worse"),
        ("kwire compare before.pcap after.pcap --noise again.pcap", "only what two runs before do not differ in"),
    )

    before: str = argument("BEFORE", help="a capture or a dataset, - for a capture from stdin")
    after: str = argument("AFTER", help="another one of the same job, after the change")
    noise: str | None = option(
        "--noise",
        metavar="AGAIN",
        help="another one of the job before the change: what BEFORE and this differ in as much is no change",
    )
    fail_on: str = option(
        "--fail-on",
        choices=("note", "warning", "error", "never"),
        default="warning",
        help="exit 1 where a change is as bad as this (default: warning)",
    )
    format: str | None = option(
        "--format",
        choices=("text", "json", "html", "junit", "github"),
        help="text, JSON, a page, JUnit XML for builds, GitHub annotations (default: as FILE ends, else text)",
    )
    out: str | None = option("-o", "--out", metavar="FILE", help="write it there, not to stdout")
    json: bool = flag("--json", help="as JSON (--format json)")
    color: str = color()
    summary: str | None = option(
        "--summary", metavar="FILE.md", help="also write it there as Markdown, as for $GITHUB_STEP_SUMMARY"
    )


@dataclass(frozen=True, kw_only=True)
class ViewOptions(PayloadArguments, ReadArguments, ViewsOptions, CommandOptions):
    """Options of `kwire view`. `judge`: tells how a RUN's exchanges differ from the captured ones."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire view orders.pcap", "a page in your browser"),
        ('kwire view day1.kwire --filter "error_code != 0"', "only exchanges that failed"),
    )

    sources: list[str] = argument("CAPTURE|DATASET", nargs="+")
    filter: str | None = option("--filter", metavar="EXPR", help="what the page shows first (kwire help filter)")
    listen: str | None = option(
        "--listen",
        metavar="[HOST:]PORT",
        help="where the page is served (default: a free port of 127.0.0.1, which nobody else reaches)",
    )
    token_file: str | None = option(
        "--token-file",
        metavar="FILE",
        help="who has the secret in FILE may look, as often as they like; needed for other hosts",
    )
    open: bool = flag("--no-open", default=True, help="print the address, open no browser")
    cache: bool = flag(
        "--no-cache", default=True, help="keep nothing on disk: what is made for the page goes when it ends"
    )
    judge: Callable[[str], Any] | None = None
