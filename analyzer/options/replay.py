"""`kwire replay` and `kwire diff`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.options import values
from kwire.analyzer.options.common import CaptureOptions, CommandOptions, color
from kwire.analyzer.options.declare import argument, flag, option, repeated, yes_or_no

SILENCE_SECONDS = 60.0
"""Default of --give-up-after."""

ANY, UNEXPECTED, SLOWER, NEVER = FAIL_ON = ("any", "unexpected", "slower", "never")
"""Values of --fail-on."""

_PACE, _SELECTION, _NAMES, _SEEDING, _TARGET = (
    "pace",
    "selection",
    "names on the target",
    "seeding",
    "access to the target",
)


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """Options that select what is sent, its pace and its users: of `kwire replay` and of `kwire rehearse`.

    speed: a number, None for as fast as answers allow, or text of --speed. topics: names or patterns, also with commas
    between them. since, until: as `90s`, or a time of RFC 3339. allow: names of APIs, or `admin`.
    """

    speed: float | str | None = option(
        "--speed",
        default=1,
        metavar="X|max|TIME:X,...",
        group=_PACE,
        help="1: as captured (default); max: as answers allow; 0s:1,60s:5: changing with the capture",
    )
    longest_pause: float | None = option(
        "--longest-pause",
        parse=values.duration,
        metavar="TIME",
        group=_PACE,
        help="cut pauses between captured requests to this, as 60s (default: as captured)",
    )
    give_up_after: float = option(
        "--give-up-after",
        parse=values.duration,
        default=SILENCE_SECONDS,
        metavar="TIME",
        group=_PACE,
        help="end the run, exit code 3, after so long without an answer of use (default: 60s)",
    )
    clients: str | None = option(
        "--clients",
        metavar="EXPR",
        group=_SELECTION,
        help="only clients of which an exchange matches (kwire help filter), with all that they said",
    )
    topics: str | Iterable[str] | None = option(
        "--topics", metavar="A,B*", group=_SELECTION, help="only clients that touch these topics (* and ? fit)"
    )
    since: str | None = option(
        "--from",
        metavar="TIME",
        group=_SELECTION,
        help="only what was sent from then on: 90s, 5m after the start, or a time of RFC 3339",
    )
    until: str | None = option("--until", metavar="TIME", group=_SELECTION, help="only what was sent before then")
    allow: Iterable[str] = repeated(
        "--allow",
        metavar="API",
        group=_SELECTION,
        help="also send this API, which changes the cluster (repeatable)",
    )
    principals: str | os.PathLike[str] | None = option(
        "--principals",
        metavar="FILE",
        group=_TARGET,
        help="log in as each captured user: TOML, a table per user (mechanism, username, password)",
    )


@dataclass(frozen=True, kw_only=True)
class SendOptions(SelectOptions):
    """Options of sending, by the command line or in Python: all but captures, target and RUN.

    README.md says what each does. map_topic, map_group: a mapping, or texts A=B. audit: read back at the end what was
    acknowledged.
    """

    rate: float | None = option(
        "--rate",
        parse=values.rate,
        metavar="N",
        group=_PACE,
        help="N requests a second on average, spaced as captured",
    )
    times: int = option(
        "--times",
        parse=values.count,
        default=1,
        metavar="N",
        group=_PACE,
        help="N copies of the capture, side by side",
    )
    workers: int = option(
        "--workers",
        parse=values.count,
        default=1,
        metavar="N",
        group=_PACE,
        help="processes that send (default: 1)",
    )
    map_topic: Mapping[str, str] | Iterable[str] = repeated(
        "--map-topic",
        metavar="A=B",
        group=_NAMES,
        help="captured topic A (or an id that has no name there) is B on the target (repeatable)",
    )
    prefix_topics: str | None = option(
        "--prefix-topics", metavar="P", group=_NAMES, help="all topics have this before their names on the target"
    )
    map_group: Mapping[str, str] | Iterable[str] = repeated(
        "--map-group", metavar="A=B", group=_NAMES, help="group A is B (repeatable)"
    )
    prefix_groups: str | None = option(
        "--prefix-groups",
        metavar="P",
        group=_NAMES,
        help="groups, transactional ids and client ids have this before their names",
    )
    offsets: str = option(
        "--offsets",
        choices=("shift", "as-is", "position"),
        default="shift",
        help="how captured offsets become the target's (default: shift, as answers teach)",
    )
    timestamps: str = option(
        "--timestamps",
        choices=("keep", "shift"),
        default="keep",
        help="shift: records are as old now as they were when captured",
    )
    seed_topics: bool = flag("--seed-topics", group=_SEEDING, help="create the captured topics that the target lacks")
    seed_fetched: bool = flag(
        "--seed-fetched",
        group=_SEEDING,
        help="first write the records that the capture shows being read and not produced",
    )
    seed_config: str = option(
        "--seed-config",
        choices=("surviving", "as-captured"),
        default="surviving",
        group=_SEEDING,
        help="surviving (default): what --seed-topics makes deletes nothing by age or size",
    )
    partial: bool = flag("--partial", help="send what fits, where topics have fewer partitions")
    missing_topics_ok: bool = flag(
        "--missing-topics-ok", help="send all the same where the target lacks topics (without it: exit code 2)"
    )
    yes: bool = flag("--yes", help="write to topics that are not empty")
    same_cluster: bool = flag(
        "--same-cluster", help="replay at the very cluster that was captured (without it: exit code 2)"
    )
    in_windows: bool | None = yes_or_no(
        "--in-windows",
        help="read, plan, send and record a capture in windows, in little memory (default: one of 256 MiB or more)",
    )
    survey: bool = flag(
        "--no-survey",
        default=True,
        help="send as it reads, and look at nothing before (stdin always, as in tcpdump -U -w - | kwire replay -)",
    )
    audit: bool = flag("--no-audit", default=True, help="do not read back what the target acknowledged")


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """How the target is reached."""

    sasl: str | None = option(
        "--sasl", metavar="MECHANISM", group=_TARGET, help="log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    sasl_file: str | None = option(
        "--sasl-file",
        metavar="FILE",
        group=_TARGET,
        help="lines username=... and password=...; default: KWIRE_SASL_USERNAME, KWIRE_SASL_PASSWORD",
    )
    tls: bool = flag("--tls", group=_TARGET, help="the target's listener speaks TLS")
    tls_ca: str | None = option(
        "--tls-ca", metavar="PEM", group=_TARGET, help="authorities to trust; default: the system's"
    )
    tls_cert: str | None = option("--tls-cert", metavar="PEM", group=_TARGET, help="certificate of our own")
    tls_key: str | None = option("--tls-key", metavar="PEM", group=_TARGET, help="its key, in the clear")
    follow_advertised: bool = flag(
        "--follow-advertised",
        group=_TARGET,
        help="also dial brokers that the target names on other hosts than --to's, login included",
    )
    map_host: list[str] = repeated(
        "--map-host",
        metavar="A=B",
        group=_TARGET,
        help="a broker named at host A (or A:PORT) is dialled at B (or B:PORT) (repeatable)",
    )
    plaintext_login: bool = flag(
        "--plaintext-login",
        group=_TARGET,
        help="SASL PLAIN without TLS to another host: the password goes there in the clear",
    )


def fail_on() -> str:
    """The field of --fail-on."""
    field: str = option("--fail-on", choices=FAIL_ON, default="any", help="what is exit code 1 (default: any)")
    return field


def slower() -> float:
    """The field of --slower."""
    field: float = option(
        "--slower",
        parse=values.factor,
        default=values.SLOWER_FACTOR,
        metavar="FACTOR",
        help="an API is slower from so many times the latency on, as 1.5 (default: 1.2)",
    )
    return field


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(AccessOptions, CaptureOptions, SendOptions, CommandOptions):
    """Options of `kwire replay`. `assumed`: versions of each API, by key, that the release `assume` offers."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire replay orders.pcap --to localhost:9092 --dry-run", "what would be sent"),
        ("kwire replay orders.pcap --to localhost:9092 -o run1 --seed-topics", "send it, and keep the answers"),
    )

    captures: list[str] = argument("CAPTURE|DATASET", nargs="*")
    to: str | None = option("--to", metavar="HOST:PORT", help="a broker of the target")
    out: str | None = option("-o", "--out", metavar="RUN", help="folder to write; a RUN there is replaced")
    wait: bool = flag("--wait", help="wait for another process that is writing the RUN")
    dry_run: bool = flag("--dry-run", help="say what would be sent, and send nothing")
    assume: str | None = option(
        "--assume", metavar="VERSION", help="with --dry-run and without --to: a target of this Kafka release, as 4.3"
    )
    loop: bool = flag(
        "--loop",
        help="again and again, until Ctrl-C or a round that is not as it must be; RUN is the last one",
    )
    audit_run: str | None = option(
        "--audit", metavar="RUN", help="send nothing: audit this RUN again, at the target --to"
    )
    fail_on: str = fail_on()
    json: bool = flag("--json", help="the summary (or the plan) as JSON")
    assumed: dict[int, tuple[int, int]] | None = None


@dataclass(frozen=True, kw_only=True)
class DiffOptions(CommandOptions):
    """Options of `kwire diff`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire diff run1", "the target against the capture"),
        ("kwire diff run-3.9 run-4.3 -o diff.html", "one target against another"),
    )

    run_a: str = argument("RUN_A", help="a RUN that kwire replay wrote")
    run_b: str | None = argument("RUN_B", nargs="?", help="another of the same capture; default: the capture")
    noise: str | None = option(
        "--noise",
        metavar="RUN_A2",
        help="another replay where RUN_A was made: what differs from A by itself is no difference",
    )
    slower: float = slower()
    json: bool = flag("--json", help="as JSON (--format json)")
    format: str | None = option(
        "--format",
        choices=("text", "json", "html", "junit"),
        help="text (default), JSON, one page of HTML, or JUnit XML for builds",
    )
    out: str | None = option("-o", "--out", metavar="FILE", help="write it there, not to stdout")
    fail_on: str = fail_on()
    color: str = color()
