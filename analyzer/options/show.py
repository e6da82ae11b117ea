"""`kwire show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.options import values
from kwire.analyzer.options.common import CommandOptions, PayloadArguments, ReadArguments, color
from kwire.analyzer.options.declare import argument, flag, option

_FORM = "form"
"""The options that exclude each other."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(PayloadArguments, ReadArguments, CommandOptions):
    """Options of `kwire show`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ('kwire show orders.pcap --filter "api == Produce and latency > 100ms"', "slow writes"),
        ("kwire show orders.pcap --tree --limit 1", "every field of the first exchange"),
    )

    epilog: ClassVar[str] = (
        "A line begins with ! where the answer holds an error, does not come or cannot be decoded, with ~ where "
        "it took 100 ms or longer (a fetch may wait on purpose). kwire help filter explains --filter."
    )

    captures: list[str] = argument("CAPTURE", nargs="+")
    json: bool = flag("--json", exclusive=_FORM, help="one JSON object a line: all columns and both bodies")
    tree: bool = flag("--tree", exclusive=_FORM, help="all fields of each message, with their bytes' places")
    fields: str | None = option(
        "--fields",
        metavar="A,B,C",
        exclusive=_FORM,
        help="these columns or fields of the bodies (names: kwire help filter), tab-separated; with --records: columns "
        "of records, and fields of keys and values, as value.order.id",
    )
    count_by: str | None = option(
        "--count-by", metavar="A,B,C", exclusive=_FORM, help="how many exchanges for each combination of these"
    )
    hex: bool = flag("--hex", help="with --tree: the bytes too")
    budget: int | None = option(
        "--budget",
        parse=values.count,
        metavar="BYTES",
        help="with --tree and --json: what the records of one message may become (default: 64 MiB)",
    )
    page: int | None = option(
        "--page",
        parse=values.count,
        metavar="N",
        help="with --tree and --json: which 10,000 nodes of a large message (default: the first)",
    )
    records: bool = flag("--records", help="records, one a line, with keys and values (datasets too)")
    format: str | None = option(
        "--format",
        metavar="FORMAT",
        help="with --records: as kcat's, of %%t %%p %%o %%k %%s %%T %%h %%K %%S and \\n, \\t",
    )
    frames: bool = flag("--frames", help="requests and responses apart, each at its own time")
    follow: str | None = option(
        "--follow",
        metavar="CONNECTION",
        help="one connection (name as --json shows it) as a dialogue; #5 is its exchange 5",
    )
    write: str | None = option(
        "-w",
        "--write",
        metavar="FILE.pcapng",
        help="write the packets of these exchanges there, for Wireshark, with comments; - is stdout",
    )
    sort: str | None = option(
        "--sort", metavar="NAME", help="by this column or field, largest first (--sort=-NAME: smallest first)"
    )
    limit: int | None = option(
        "--limit", parse=values.count, metavar="N", help="stop after N exchanges, lines or records"
    )
    time: str = option(
        "--time",
        choices=("relative", "absolute", "local"),
        default="relative",
        help="how times are shown: since the first packet, in UTC, or as this machine's clock",
    )
    color: str = color()
    wide: bool = flag("--wide", help="every column, however wide the terminal is; so it is where stdout is no terminal")
    no_pager: bool = flag("--no-pager", help="do not page on a terminal")


def run_by(options: ShowOptions) -> str:
    """MODULE:FUNCTION that does it."""
    return "kwire.analyzer.export.command:export" if options.write is not None else "kwire.analyzer.cli.commands:show"
