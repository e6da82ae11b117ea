"""What the command line asks of a replay, as `Options`.

In: parsed options of `kwire replay`. Out: `Options`. What cannot be taken, alone or together, leaves as Failure: one
line and a hint.
"""

from __future__ import annotations

import argparse
import re
from typing import Final

from analyzer.failure import Failure
from analyzer.filter.evaluation import parse
from analyzer.protocol import names
from replay.options import Options
from replay.plan import apis
from replay.plan import schedule as schedules
from replay.plan.renaming import Renaming
from replay.plan.selection import Moment, Selection, moment
from replay.send import login, reach, workers
from replay.send.settings import Settings

ADMIN: Final = "admin"
"""`--allow admin`: whatever creates and alters, and deletes nothing."""
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
"""What a topic's name may begin with (Kafka: at most 249 characters in all)."""


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Failure(f"--to {text}: not HOST:PORT", "as in --to localhost:9092")
    return host.strip("[]"), int(port)


def _speed(text: str) -> tuple[float | None, schedules.Schedule | None]:
    hint = "1 is as captured, 20 is 20 times faster; 0s:1,60s:5,120s:max changes at these times of the capture"
    try:
        if ":" not in text:
            return schedules.speed(text), None
        found = schedules.schedule(text)
    except ValueError:
        raise Failure(f"--speed {text}: neither a positive number nor max", hint) from None
    return found.pieces[0][1], found


def _allowed(wanted: list[str]) -> frozenset[int]:
    keys: set[int] = set()
    for name in wanted:
        if name == ADMIN:
            keys |= apis.ADMIN
            continue
        key = names.key(name)
        if key is None or apis.api(key).policy is not apis.Policy.ALLOW:
            allowed = (one for one, api in apis.APIS.items() if api.policy is apis.Policy.ALLOW)
            may = ", ".join(sorted(map(names.name, allowed)))
            why = "no such API" if key is None else "not an API to allow"
            raise Failure(f"--allow {name}: {why}", f"{ADMIN}, or one of {may}")
        keys.add(key)
    return frozenset(keys)


def _mapped(option: str, pairs: list[str]) -> dict[str, str]:
    renamed = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not equals or not old or not new:
            raise Failure(f"{option} {pair}: not A=B", f"as in {option} orders=orders-copy")
        renamed[old] = new
    return renamed


def _hosts(pairs: list[str]) -> dict[str, str]:
    mapped = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        try:
            reach.parsed(old)
            reach.parsed(new)
        except ValueError:
            equals = ""
        if not equals:
            raise Failure(
                f"--map-host {pair}: not A=B", "a host or HOST:PORT each, as in --map-host kafka-1:9092=localhost:19092"
            )
        mapped[old] = new
    return mapped


def access(options: argparse.Namespace) -> workers.Access:
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if getattr(options, name) and not options.tls:
            raise Failure(f"--{name.replace('_', '-')} goes with --tls", "add --tls")
    if options.sasl_file and not options.sasl:
        raise Failure("--sasl-file goes with --sasl", "as in --sasl SCRAM-SHA-512")
    credentials = login.credentials(options.sasl, options.sasl_file) if options.sasl else None
    return workers.Access(
        options.tls, options.tls_ca, options.tls_cert, options.tls_key, credentials, options.follow_advertised,
        _hosts(options.map_host), options.plaintext_login,
    )  # fmt: skip


def _moment(option: str, text: str | None) -> Moment | None:
    if text is None:
        return None
    try:
        return moment(text)
    except ValueError:
        hint = "90s, 1.5m or 2h after the capture's first request, or a time as 2026-01-31T12:00:00Z"
        raise Failure(f"{option} {text}: no time", hint) from None


def _selection(options: argparse.Namespace) -> Selection:
    return Selection(
        parse(options.clients) if options.clients is not None else None,
        tuple(one.strip() for one in (options.topics or "").split(",") if one.strip()),
        _moment("--from", options.since),
        _moment("--until", options.until),
    )


def _checked(options: argparse.Namespace) -> None:
    """Options that do not go together."""
    if options.same_cluster:
        for name, given in (("--allow", options.allow), ("--times", options.times > 1)):
            if given:
                raise Failure(f"--same-cluster does not go with {name}", "a cluster is not changed by its own replay")
    if options.rate is not None and options.speed != "1":
        raise Failure("--rate and --speed say both how fast", "one of them")
    if options.prefix_topics is not None and not _TOPIC.fullmatch(options.prefix_topics):
        hint = "letters, digits, dots, _ and -"
        raise Failure(f"--prefix-topics {options.prefix_topics}: no topic's name begins so", hint)


def options_of(options: argparse.Namespace, host: str, port: int) -> Options:
    """All that a replay takes."""
    _checked(options)
    speed, schedule = _speed(options.speed)
    return Options(
        host,
        port,
        _allowed(options.allow),
        Settings(speed=speed, schedule=schedule),
        _mapped("--map-topic", options.map_topic),
        options.offsets,
        options.timestamps,
        options.seed_topics,
        options.yes,
        options.partial,
        not options.no_audit,
        options.seed_config == "as-captured",
        processes=options.workers,
        access=access(options),
        same_cluster=options.same_cluster,
        selection=_selection(options),
        renaming=Renaming(_mapped("--map-group", options.map_group), options.prefix_groups or ""),
        prefix_topics=options.prefix_topics or "",
        times=options.times,
        rate=options.rate,
    )
