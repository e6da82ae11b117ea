"""Options that several commands have: of captures, of live capture, of rows of files, of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kwire.analyzer.options import values
from kwire.analyzer.options.declare import HIDDEN, flag, option, repeated

_READING, _LIVE, _ROW, _SPARK = "reading captures", "live capture", "rows of files", "Spark"
_PAYLOADS = "keys and values"

TOOLS = ("libpcap", "ring", "tcpdump", "dumpcap", "scapy")
"""Values of --via."""


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """The base of every command's options. `epilog`: text below the command's --help; `examples`: at its end, a command
    line each, with what it is for."""

    epilog: ClassVar[str] = ""
    examples: ClassVar[tuple[tuple[str, str], ...]] = ()


@dataclass(frozen=True, kw_only=True)
class PortOptions:
    """Ports that are Kafka."""

    port: list[int] = repeated(
        "--port",
        parse=values.port,
        metavar="N",
        group=_READING,
        help="this server port is Kafka (repeatable); default: recognise it by content on any port",
    )


@dataclass(frozen=True, kw_only=True)
class KeylogOptions:
    """TLS key logs."""

    keylog: list[str] = repeated(
        "--keylog",
        metavar="FILE",
        group=_READING,
        help="TLS key log (SSLKEYLOGFILE) that opens what is encrypted (repeatable)",
    )


@dataclass(frozen=True, kw_only=True)
class NamesOptions:
    """Names of addresses."""

    names: list[str] = repeated(
        "--names",
        metavar="FILE",
        group=_READING,
        help="names of addresses (repeatable): a hosts file, CSV, kubectl get pods -o json or -o wide, or a capture, "
        "for its name blocks and DNS answers",
    )


@dataclass(frozen=True, kw_only=True)
class CaptureOptions(NamesOptions, KeylogOptions, PortOptions):
    """How captures are to be understood, for commands that keep the rest to themselves."""

    rotated: bool = flag("--rotated", group=_READING, help="the captures are one, rotated into several files")
    filter: str | None = option(
        "--filter", metavar="EXPR", group=_READING, help="only exchanges that match (kwire help filter)"
    )


@dataclass(frozen=True, kw_only=True)
class ReadArguments(CaptureOptions):
    """How captures are read (`kwire.analyzer.pipeline.read_options.Reading`)."""

    threads: int | None = option(
        "--threads",
        parse=values.threads,
        metavar="N",
        group=_READING,
        help="kernels at work at once, one a core at most (default: the cores that this process may use, 16 at most)",
    )
    window_bytes: int | None = option("--window-bytes", parse=values.count, metavar="N", help=HIDDEN)
    frame_limit: int | None = option(
        "--frame-limit",
        parse=values.count,
        metavar="BYTES",
        group=_READING,
        help="bytes of unfinished messages kept (default: 512 MiB)",
    )


@dataclass(frozen=True, kw_only=True)
class PayloadArguments:
    """How keys and values of records are decoded (`kwire.analyzer.payloads.options`)."""

    schemas: str | None = option(
        "--schemas",
        metavar="DIR",
        group=_PAYLOADS,
        help="decode keys and values with the schemas in this folder, files named by id or subject: 17.avsc, "
        "orders-value.proto",
    )
    registry: str | None = option(
        "--registry",
        metavar="URL",
        group=_PAYLOADS,
        help="decode them with the schemas of this registry, which is asked for ids that records name",
    )
    payloads: bool = flag(
        "--payloads",
        group=_PAYLOADS,
        help="decode them as far as no schema is needed (JSON, text, MessagePack)",
    )


def color() -> Any:
    """The field of --color."""
    return option(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="default: on a terminal (NO_COLOR, FORCE_COLOR)",
    )


def interface(required: bool = False) -> Any:
    """The field of -i."""
    return option(
        "-i",
        "--interface",
        metavar="IFACE",
        required=required,
        group=_LIVE,
        help="capture on this network interface; any: on all of them (Linux)",
    )


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """How an interface is captured."""

    interface: str | None = interface()
    bpf: str | None = option(
        "-f",
        "--bpf",
        metavar="BPF",
        group=_LIVE,
        help="which packets, in tcpdump's language, as 'tcp port 9092' (default: TCP but for one's own "
        "ssh session; '' is everything)",
    )
    snaplen: int | None = option(
        "--snaplen",
        parse=values.count,
        metavar="BYTES",
        group=_LIVE,
        help="kept of each packet (default: 262,144)",
    )
    one_of: int | None = option(
        "--sample",
        parse=values.share,
        metavar="1/N",
        group=_LIVE,
        help="one of N connections alone, each whole: where all are too much for this machine",
    )
    duration: float | None = option(
        "--for",
        parse=values.duration,
        metavar="TIME",
        group=_LIVE,
        help="end after so long, as 60s or 5m (default: with Ctrl-C)",
    )
    via: str | None = option(
        "--via",
        choices=TOOLS,
        group=_LIVE,
        help="what captures: libpcap (where it is installed), Linux's own ring, or another tool",
    )
    spool: str | None = option(
        "--spool",
        metavar="DIR",
        group=_LIVE,
        help="packets that come faster than they are worked off wait there, instead of being dropped and counted",
    )


def rotate_bytes(what: str, condition: str) -> Any:
    """The field of --rotate-bytes."""
    return option(
        "--rotate-bytes", parse=values.size, metavar="N", group=_ROW, help=f"begin another {what} {condition}"
    )


def rotate_seconds(what: str) -> Any:
    """The field of --rotate-seconds."""
    return option(
        "--rotate-seconds", parse=values.duration, metavar="S", group=_ROW, help=f"begin another {what} after so long"
    )


def keep(what: str) -> Any:
    """The field of --keep."""
    return option(
        "--keep",
        parse=values.count,
        metavar="N",
        group=_ROW,
        help=f"keep the last N {what}s of the row, delete older ones",
    )


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """How Spark is started."""

    master: str | None = option(
        "--master",
        metavar="URL",
        group=_SPARK,
        help="Spark's master: local[4], spark://HOST:7077, yarn ... (default: inside this process)",
    )
    conf: list[str] = repeated(
        "--conf",
        metavar="NAME=VALUE",
        group=_SPARK,
        help="a setting of Spark (repeatable), as spark.executor.memory=4g",
    )
    verbose: bool = flag("--verbose", group=_SPARK, help="show what Java and Spark warn of")


@dataclass(frozen=True, kw_only=True)
class EngineOptions(SparkOptions):
    """Which engine answers questions in SQL."""

    engine: str = option(
        "--engine",
        choices=("auto", "embedded", "spark"),
        default="auto",
        help="what answers: Spark, or an engine inside this process (default: this one, where it is installed)",
    )


@dataclass(frozen=True, kw_only=True)
class ViewsOptions:
    """Questions in SQL of one's own."""

    views: str | None = option(
        "--views", metavar="DIR", help="questions of your own beside kwire's views: a file NAME.sql each"
    )
    zones: str | None = option(
        "--zones", metavar="FILE", help="zones of addresses for the view zones: a line each, `10.1.0.0/16 eu-west-1a`"
    )
