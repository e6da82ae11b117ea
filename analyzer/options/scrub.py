"""`kwire scrub`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.options.common import CommandOptions, PortOptions
from kwire.analyzer.options.declare import argument, flag, option, repeated


@dataclass(frozen=True, kw_only=True)
class ScrubOptions(PortOptions, CommandOptions):
    """Options of `kwire scrub`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire scrub orders.pcap -o clean.pcapng", "without names, addresses and content"),
        ("kwire scrub orders.pcap -o clean.pcapng --keep names", "but with the names of topics and groups"),
    )

    epilog: ClassVar[str] = (
        "The clean capture has the same packets with the same sizes and times, and analyses to the same "
        "exchanges, errors and latencies. It appears only after it was read again and no text of 4 bytes or more "
        "of the original was found in it."
    )

    capture: str = argument("CAPTURE")
    out: str = option("-o", "--out", metavar="CLEAN.pcapng", required=True, help="file to write")
    keep: list[str] = repeated(
        "--keep", metavar="A,B", help="what stays: names, addresses, ids, keys, values, headers (default: nothing)"
    )
    keep_schema: bool = flag(
        "--keep-schema",
        help="keep the ids of schemas in keys, values and headers, and the framing that holds them; fields never stay",
    )
    key: str | None = option(
        "--key",
        metavar="FILE",
        help="what pseudonyms come from: the same key makes the same ones in other captures "
        "(default: a new one, kept nowhere)",
    )
    dry_run: bool = flag("--dry-run", help="do all of it, and write nothing")
    json: bool = flag("--json", help="what was done as JSON")
