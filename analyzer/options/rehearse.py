"""`kwire rehearse`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.options import values
from kwire.analyzer.options.common import CaptureOptions, CommandOptions, color
from kwire.analyzer.options.declare import argument, flag, option
from kwire.analyzer.options.replay import AccessOptions, SelectOptions, fail_on, slower

_TARGETS = "targets"


@dataclass(frozen=True, kw_only=True)
class RehearseOptions(AccessOptions, CaptureOptions, SelectOptions, CommandOptions):
    """Options of `kwire rehearse`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "kwire rehearse day.pcap --old old-test:9092 --new new-test:9092 -o DIR",
            "replay at old twice and at new once, compare, one verdict",
        ),
        (
            "kwire rehearse day.pcap --old localhost:9092 --new localhost:9093 -o DIR "
            "--start-new 'docker run --rm -p 9093:9092 apache/kafka:4.3.1'",
            "start the new target, and end it afterwards",
        ),
    )

    captures: list[str] = argument("CAPTURE|DATASET", nargs="+")
    old: str = option("--old", metavar="HOST:PORT", required=True, group=_TARGETS, help="a broker of the old release")
    new: str = option("--new", metavar="HOST:PORT", required=True, group=_TARGETS, help="a broker of the new one")
    start_old: str | None = option(
        "--start-old",
        metavar="COMMAND",
        group=_TARGETS,
        help="starts the old target and stays in the foreground; it is ended after its runs",
    )
    start_new: str | None = option(
        "--start-new", metavar="COMMAND", group=_TARGETS, help="likewise of the new target, once the old one has ended"
    )
    start_within: float = option(
        "--start-within",
        parse=values.duration,
        default=120.0,
        metavar="TIME",
        group=_TARGETS,
        help="for so long a started target is waited for (default: 120s)",
    )
    beside_production: bool = flag(
        "--beside-production",
        group=_TARGETS,
        help="also at a target that has the captured topics (without it: exit code 2)",
    )
    clean: bool = flag(
        "--clean", group=_TARGETS, help="afterwards delete the topics and groups that the runs made, by their prefix"
    )
    out: str = option("-o", "--out", metavar="DIR", required=True, help="folder of the RUNs, the page and the verdict")
    expect: str | None = option(
        "--expect", metavar="FILE", help="known differences, which are counted as accepted: TOML, [[difference]] each"
    )
    summary: str | None = option(
        "--summary", metavar="FILE.md", help="also write a summary of 20 lines in Markdown, for a build's page"
    )
    fail_on: str = fail_on()
    slower: float = slower()
    json: bool = flag("--json", help="print verdict.json")
    color: str = color()
