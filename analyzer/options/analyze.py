"""`kwire analyze`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.options import common, values
from kwire.analyzer.options.common import CommandOptions, LiveOptions, PayloadArguments, ReadArguments, SparkOptions
from kwire.analyzer.options.declare import argument, flag, option

LIVE = ("bpf", "snaplen", "one_of", "duration", "via", "spool", "rotate_bytes", "rotate_seconds", "keep")
"""Options that mean nothing without an interface."""


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(SparkOptions, LiveOptions, PayloadArguments, ReadArguments, CommandOptions):
    """Options of `kwire analyze`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire analyze orders.pcap", "a summary"),
        ("kwire analyze day1/ -o day1.kwire --records meta", "a dataset with a row a record"),
    )

    captures: list[str] = argument("CAPTURE", nargs="*")
    color: str = common.color()
    rotate_bytes: int | None = common.rotate_bytes(
        "dataset", "after so many captured bytes (with --append: another capture point)"
    )
    rotate_seconds: float | None = common.rotate_seconds("dataset")
    keep: int | None = common.keep("dataset")
    out: str = option(
        "-o",
        "--out",
        metavar="DATASET",
        default="",
        help="folder to write; a dataset is replaced (default: none, the summary alone)",
    )
    records: str = option(
        "--records",
        choices=("none", "batches", "meta", "full"),
        default="batches",
        help="how far record batches are opened: not at all; headers and checksums (the default); a row a record, "
        "without content; with keys, values and headers (which options about keys and values imply)",
    )
    decompressed_limit: int | None = option(
        "--decompressed-limit",
        parse=values.count,
        metavar="BYTES",
        help="bytes that one record batch may become (default: 256 MiB)",
    )
    decompressed_ratio: int | None = option(
        "--decompressed-ratio",
        parse=values.count,
        metavar="N",
        help="how many times larger one may become, beyond 1 MiB (default: 1000)",
    )
    keep_bytes: bool = flag("--keep-bytes", help="also keep the raw messages, secrets overwritten")
    meaning: bool = flag(
        "--no-analysis",
        default=True,
        old=["--no-meaning"],
        help="leave out what the traffic means (clients, groups, transactions, findings ...)",
    )
    journeys: bool = flag(
        "--no-journeys", default=True, help="leave out the table journeys: who read each produced batch, and when"
    )
    same_clock: bool = flag(
        "--same-clock",
        help="the clocks of all capture points agree, and they are of one cluster: the table journeys also has batches "
        "produced at one and read at another (else each point stands for itself)",
    )
    keep_secrets: bool = flag(
        "--keep-secrets", help="with --keep-bytes: secrets too, so that the dataset holds passwords"
    )
    append: bool = flag("--append", help="add to the dataset that is there")
    follow: bool = flag(
        "--follow",
        help="the CAPTURE is a folder where another tool rotates captures: add what comes to the "
        "dataset, each row once, over restarts too; until Ctrl-C, or --for",
    )
    wait: bool = flag("--wait", help="wait for another process that is writing the dataset")
    json: bool = flag("--json", help="the summary as JSON")
    engine: str = option(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="where the work is done: in this process, or in tasks of Spark (default: local)",
    )
    split_bytes: int | None = option(
        "--split-bytes",
        parse=values.count,
        metavar="BYTES",
        help="with --engine spark: larger captures are read in chunks (default: 16 GiB, from 5 cores on)",
    )
    chunk_bytes: int | None = option(
        "--chunk-bytes",
        parse=values.count_or_zero,
        metavar="BYTES",
        help="with --engine spark: the size of a chunk, each read by one task; 0: one task reads a capture whole "
        "(default: 1 to 4 GiB, one chunk a core or several)",
    )
    summary_only: bool = False
    """`out` is a temporary folder: the command line had no -o."""


def check_payloads(options: AnalyzeOptions) -> None:
    """Raise UsageError for options about keys and values where these are not read."""
    if options.records in ("none", "meta"):
        for name in ("schemas", "registry", "payloads"):
            if getattr(options, name):
                raise UsageError(
                    f"--{name} does not go with --records {options.records}",
                    "keys and values are read with --records full",
                )


NEEDS_DATASET = ("append", "follow", "keep", "keep_bytes", "rotate_bytes", "rotate_seconds", "wait")
"""Options that mean nothing without a dataset to write."""


def run_by(options: AnalyzeOptions) -> str:
    """MODULE:FUNCTION that does it. Raises UsageError for options that do not go together."""
    check_payloads(options)
    if options.interface is None and not options.captures:
        raise UsageError("the following arguments are required: CAPTURE, or -i IFACE", "kwire analyze --help")
    for name in NEEDS_DATASET if not options.out else ():
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} goes with -o DATASET", "add -o DATASET")
    if options.same_clock:
        apart = {
            "--engine spark": options.engine == "spark",
            "--follow": options.follow,
            "--no-journeys": not options.journeys,
            "--no-analysis": not options.meaning,
            "--filter": options.filter is not None,
            "-i": options.interface is not None,
        }
        for spelled in (name for name, chosen in apart.items() if chosen):
            hint = "it joins the journeys of several captures that are read whole, in this process"
            raise UsageError(f"--same-clock does not go with {spelled}", hint)
    if options.interface is not None and options.engine == "spark":
        hint = "leave out --engine spark, or kwire record first"
        raise UsageError("-i is captured and decoded in this process", hint)
    if options.interface is not None:
        return "kwire.analyzer.live.startup:analyze"
    for name in LIVE:
        if getattr(options, name) is not None and not (options.follow and name == "duration"):
            spelled = {"bpf": "-f", "duration": "--for", "one_of": "--sample"}.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(f"{spelled} goes with -i", "it is about capturing; add -i IFACE")
    if options.follow:
        return "kwire.analyzer.live.startup:follow"
    return "kwire.reports.commands:analyze" if options.engine == "spark" else "kwire.analyzer.cli.commands:analyze"
