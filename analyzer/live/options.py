"""The options of live capture, for all commands that have them.

In: a parser, then what it parsed. Out: `captures.live`'s `Asked`. Imports nothing heavy: every start of kwire reads it.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from captures.live.open_interface import CaptureOptions

LIVE = ("bpf", "snaplen", "duration", "via", "spool", "rotate_bytes", "rotate_seconds", "keep")
"""Options that mean nothing without an interface."""

WAYS = ("libpcap", "ring", "tcpdump", "dumpcap", "scapy")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def duration(text: str) -> float:
    """Seconds, as 60s, 500ms, 5m, 1h, or a bare number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip(), re.ASCII)
    if found is None or (found[2] or "s") not in _SECONDS or not 0 < float(found[1]) < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, as 60s, 5m or 1h")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def size(text: str) -> int:
    """Bytes, as 100MB, 64MiB or a bare number."""
    found = re.fullmatch(r"(\d{1,15}) ?([kmgt]?i?)b?", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _BYTES or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, as 100MB or 64MiB")
    return int(found[1]) * _BYTES[found[2]]


def count(text: str) -> int:
    """A number from 1 on."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return value


def add_live(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """What to capture, and how."""
    parser.add_argument(
        "-i",
        "--interface",
        metavar="IFACE",
        required=required,
        help="capture on this network interface; any: on all of them (Linux)",
    )
    parser.add_argument(
        "-f",
        "--bpf",
        metavar="BPF",
        help="which packets, in tcpdump's language, as 'tcp port 9092' (default: TCP but for one's own "
        "ssh session; '' is everything)",
    )
    parser.add_argument("--snaplen", type=count, metavar="BYTES", help="kept of each packet (default: 262,144)")
    parser.add_argument(
        "--for",
        dest="duration",
        type=duration,
        metavar="TIME",
        help="end after so long, as 60s or 5m (default: with Ctrl-C)",
    )
    parser.add_argument(
        "--via", choices=WAYS, help="what captures: libpcap (where it is installed), Linux's own ring, or another tool"
    )
    parser.add_argument(
        "--spool",
        metavar="DIR",
        help="packets that come faster than they are worked off wait there, instead of being dropped and counted",
    )


def add_rotation(parser: argparse.ArgumentParser, what: str, large: str) -> None:
    """When the next one of a row begins."""
    parser.add_argument("--rotate-bytes", type=size, metavar="N", help=f"begin another {what} {large}")
    parser.add_argument("--rotate-seconds", type=duration, metavar="S", help=f"begin another {what} after so long")
    parser.add_argument(
        "--keep", type=count, metavar="N", help=f"keep the last N {what}s of the row, delete older ones"
    )


def add_record(record: argparse.ArgumentParser) -> None:
    """`kwire record`."""
    add_live(record, required=True)
    record.add_argument(
        "-o",
        "--out",
        metavar="FILE|DIR",
        required=True,
        help="a capture file (pcap; pcapng where it ends so), a folder for several, or - for stdout",
    )
    add_rotation(record, "file", "before one is so large")
    record.set_defaults(run="analyzer.live.startup:record")


def add_watch(watch: argparse.ArgumentParser) -> None:
    """`kwire watch`, but for the options of reading."""
    watch.add_argument(
        "source",
        nargs="?",
        metavar="FOLDER|CAPTURE|-",
        help="in place of -i: a folder where captures rotate (the oldest file first), a capture, or - for stdin",
    )
    add_live(watch)
    watch.add_argument(
        "--json",
        action="store_true",
        help="one JSON object a line: each second, and each finding (the default where stdout is no terminal)",
    )
    watch.add_argument(
        "--once",
        action="store_true",
        help="one line or screen, of the last 10 s: at the end of a capture, or after --for",
    )
    watch.add_argument(
        "--from-start",
        action="store_true",
        help="of a folder: begin at the oldest file, not where the last watch of it in this way was",
    )
    watch.set_defaults(run="analyzer.live.startup:watch")


def asked(options: argparse.Namespace) -> CaptureOptions:
    """What is to be captured."""
    from captures.live.open_interface import CaptureOptions
    from captures.live.taps import SNAPLEN

    return CaptureOptions(options.interface, options.bpf, options.snaplen or SNAPLEN, options.via)
