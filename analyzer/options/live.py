"""`kwire record` and `kwire watch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.options import common, values
from kwire.analyzer.options.common import CommandOptions, LiveOptions, ReadArguments
from kwire.analyzer.options.declare import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class RecordOptions(LiveOptions, CommandOptions):
    """Options of `kwire record`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("sudo kwire record -i eth0 -o today/ --rotate-seconds 3600", "a file an hour"),
        ('sudo kwire record -i any -f "tcp port 9092" -o one.pcapng --for 60s', "one minute"),
        ("sudo kwire record -i eth0 -o days/ --no-payload --rotate-bytes 1GB --keep 50", "days, without records"),
    )

    interface: str = common.interface(required=True)
    out: str = option(
        "-o",
        "--out",
        metavar="FILE|DIR",
        required=True,
        help="a capture file (pcap; pcapng where it ends so), a folder for several, or - for stdout",
    )
    rotate_bytes: int | None = common.rotate_bytes("file", "before one is so large")
    rotate_seconds: float | None = common.rotate_seconds("file")
    keep: int | None = common.keep("file")
    no_payload: bool = flag(
        "--no-payload",
        help="leave out keys, values and headers of records: of a record batch its header is kept, and so is all else",
    )


@dataclass(frozen=True, kw_only=True)
class WatchOptions(ReadArguments, LiveOptions, CommandOptions):
    """Options of `kwire watch`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("sudo kwire watch -i eth0", "what happens now"),
        ("kwire watch today/", "a folder that kwire record fills"),
    )

    source: str | None = argument(
        "FOLDER|CAPTURE|-",
        nargs="?",
        help="in place of -i: a folder where captures rotate (the oldest file first), a capture, or - for stdin",
    )
    json: bool = flag(
        "--json",
        help="one JSON object a line: each second, and each finding (the default where stdout is no terminal)",
    )
    once: bool = flag(
        "--once", help="one line or screen, of the last 10 s: at the end of a capture or folder, or after --for"
    )
    from_start: bool = flag(
        "--from-start",
        help="of a folder: begin at the oldest file, not where the last watch of it in this way was",
    )
    metrics: tuple[str, int] | None = option(
        "--metrics",
        parse=values.address,
        metavar="[HOST:]PORT",
        help="answer Prometheus there, at /metrics (HOST: 127.0.0.1), also after a capture has ended",
    )
