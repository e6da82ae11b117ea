"""What is asked of a replay, by the command line or in Python, as `Options`.

In: parsed options of `kwire replay`, or keywords of `replay.replay`. Out: `Options`. `Asked` is the one place that
names them for both. What cannot be taken, alone or together, leaves as UsageError: one line and a hint.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, Unpack, cast

from analyzer.common.errors import UsageError
from analyzer.filter.evaluation import parse
from analyzer.protocol import api_keys
from replay.options import Options
from replay.plan import apis
from replay.plan import schedule as schedules
from replay.plan.renaming import Renaming
from replay.plan.selection import Moment, Selection, moment
from replay.plan.topic_partitions import is_id, is_topic
from replay.remap import offsets, remap
from replay.send import login, principals, reach, workers
from replay.send.settings import Settings

ADMIN: Final = "admin"
"""`--allow admin`: whatever creates and alters, and deletes nothing."""
_LONGEST_PREFIX: Final = 200
"""Of a topic's name, which has 249 characters at most."""
_TOPIC_RULE: Final = "at most 249 letters, digits, dots, _ and -, and neither . nor .."


_MOST: Final = (1 << 16) - 1
"""Copies of a capture, and processes: more are a slip of the hand."""
_FASTEST: Final = 1e9
"""Requests a second: times are nanoseconds."""


class Asked(TypedDict, total=False):
    """What a replay may be asked for besides captures, target and RUN: the options of `kwire replay`, by their long
    names (`--from` is `since`). `speed`: a number, None for as fast as answers allow, or what `--speed` takes;
    `clients`: an expression of `--filter`'s language; `topics`: names or patterns, also with commas between them;
    `since`, `until`: as `90s`, or a time of RFC 3339; `allow`: names of APIs, `admin`; `audit`: read back at the end
    what was acknowledged; `access`: TLS and login; `principals`: a file. README.md says what each does."""

    speed: float | str | None
    rate: float | None
    times: int
    clients: str | None
    topics: str | Iterable[str] | None
    since: str | None
    until: str | None
    allow: Iterable[str]
    map_topic: Mapping[str, str]
    prefix_topics: str | None
    map_group: Mapping[str, str]
    prefix_groups: str | None
    offsets: str
    timestamps: str
    seed_topics: bool
    seed_config: str
    seed_fetched: bool
    in_windows: bool | None
    survey: bool
    yes: bool
    partial: bool
    same_cluster: bool
    audit: bool
    workers: int
    access: workers.Access
    principals: str | os.PathLike[str] | None


_CHOICES: Final = {
    "offsets": (offsets.SHIFT, offsets.AS_IS, offsets.POSITION),
    "timestamps": (remap.KEEP, remap.SHIFT),
    "seed_config": ("surviving", "as-captured"),
}
"""Options that are one of a few words, the first by default. The command line refuses others by itself."""


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--to {text}: not HOST:PORT", "as in --to localhost:9092")
    return host.strip("[]"), int(port)


def _speed(asked: float | str | None) -> tuple[float | None, schedules.Schedule | None]:
    hint = "1 is as captured, 20 is 20 times faster; 0s:1,60s:5,120s:max changes at these times of the capture"
    text = "max" if asked is None else str(asked)
    try:
        if ":" not in text:
            return schedules.speed(text), None
        found = schedules.schedule(text)
    except ValueError:
        raise UsageError(f"--speed {text}: neither a positive number nor max", hint) from None
    return found.pieces[0][1], found


def _allowed(wanted: Iterable[str]) -> frozenset[int]:
    keys: set[int] = set()
    for name in wanted:
        if name == ADMIN:
            keys |= apis.ADMIN
            continue
        key = api_keys.key(name)
        if key is None or apis.api(key).policy is not apis.Policy.ALLOW:
            allowed = (one for one, api in apis.APIS.items() if api.policy is apis.Policy.ALLOW)
            may = ", ".join(sorted(map(api_keys.name, allowed)))
            why = "no such API" if key is None else "not an API to allow"
            raise UsageError(f"--allow {name}: {why}", f"{ADMIN}, or one of {may}")
        keys.add(key)
    return frozenset(keys)


def _mapped(option: str, pairs: list[str]) -> dict[str, str]:
    renamed: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"{option} {pair}: not A=B", f"as in {option} orders=orders-copy")
        if renamed.setdefault(old, new) != new:
            raise UsageError(f"{option}: {old} is both {renamed[old]} and {new}", "one of them")
    return renamed


def _hosts(pairs: list[str]) -> dict[str, str]:
    mapped: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        try:
            reach.parsed(old)
            reach.parsed(new)
        except ValueError:
            equals = ""
        if not equals or "=" in new:
            raise UsageError(
                f"--map-host {pair}: not A=B", "a host or HOST:PORT each, as in --map-host kafka-1:9092=localhost:19092"
            )
        if mapped.setdefault(old, new) != new:
            raise UsageError(f"--map-host: {old} is both {mapped[old]} and {new}", "one of them")
    return mapped


def access(options: argparse.Namespace) -> workers.Access:
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if getattr(options, name) and not options.tls:
            raise UsageError(f"--{name.replace('_', '-')} goes with --tls", "add --tls")
    if options.tls_key and not options.tls_cert:
        raise UsageError("--tls-key goes with --tls-cert", "--tls-cert names the certificate that the key is of")
    if options.sasl_file and not options.sasl:
        raise UsageError("--sasl-file goes with --sasl", "as in --sasl SCRAM-SHA-512")
    credentials = login.credentials(options.sasl, options.sasl_file) if options.sasl else None
    return workers.Access(
        options.tls,
        options.tls_ca,
        options.tls_cert,
        options.tls_key,
        credentials,
        options.follow_advertised,
        _hosts(options.map_host),
        options.plaintext_login,
    )


def _moment(option: str, text: str | None) -> Moment | None:
    if text is None:
        return None
    try:
        return moment(text)
    except ValueError:
        hint = "90s, 1.5m or 2h after the capture's first request, or a time as 2026-01-31T12:00:00Z"
        raise UsageError(f"{option} {text}: no time", hint) from None


def _topics(asked: str | Iterable[str] | None) -> tuple[str, ...]:
    listed = asked.split(",") if isinstance(asked, str) else asked or ()
    return tuple(one.strip() for one in listed if one.strip())


def _of_the_whole(asked: Asked, unlooked: bool) -> list[str]:
    """Options that are given and need the whole capture first; `unlooked`: or a look at it."""
    some = ["clients", "topics", "since", "until", "rate", "seed_fetched"]
    some += ["principals"] if unlooked else []
    given = [name for name in some if asked.get(name)]
    given += [name for name in ("times", "workers") if int(asked.get(name, 1)) > 1]  # type: ignore[call-overload]
    return [{"since": "from"}.get(name, name).replace("_", "-") for name in given]


def _in_windows(asked: Asked) -> bool | None:
    """As asked; what needs the whole capture first has it, and the size of the capture decides about the rest."""
    if not asked.get("survey", True):
        return True
    given = asked.get("in_windows")
    return False if given is None and _of_the_whole(asked, False) else given


def _checked(asked: Asked) -> None:
    """Options that do not go together, or are none of the words that they may be."""
    for name, words in _CHOICES.items():
        if asked.get(name, words[0]) not in words:
            raise UsageError(
                f"--{name.replace('_', '-')} {asked.get(name)}: no such word", f"one of {', '.join(words)}"
            )
    for name in ("times", "workers"):
        number = int(asked.get(name, 1))  # type: ignore[call-overload]
        if not 0 < number <= _MOST:
            why = "not a number from 1 on" if number <= 0 else f"more than {_MOST:,}"
            raise UsageError(f"--{name} {asked.get(name)}: {why}", "a small number, as in 4")
    if asked.get("same_cluster"):
        for name, given in (("--allow", asked.get("allow")), ("--times", asked.get("times", 1) > 1)):
            if given:
                raise UsageError(
                    f"--same-cluster does not go with {name}", "a cluster is not changed by its own replay"
                )
    unlooked = not asked.get("survey", True)
    if asked.get("in_windows") or unlooked:
        option = "--no-survey" if unlooked else "--in-windows"
        for name in _of_the_whole(asked, unlooked):
            raise UsageError(f"{option} does not go with --{name}", "that one needs the whole capture first")
    rate = asked.get("rate")
    if rate is not None and str(asked.get("speed", 1.0)) not in ("1", "1.0"):
        raise UsageError("--rate and --speed say both how fast", "one of them")
    if rate is not None and not 0 < rate < _FASTEST:
        why = f"not below {_FASTEST:g}" if rate >= _FASTEST else "not a positive number"
        raise UsageError(f"--rate {rate}: {why}", "requests a second, on average")
    if asked.get("topics") is not None and not _topics(asked.get("topics")):
        raise UsageError("--topics: names no topic", "as in --topics orders,pay*; without it all are sent")
    _check_topics(asked.get("map_topic", {}))
    prefix = asked.get("prefix_topics")
    if prefix is not None and not (0 < len(prefix) <= _LONGEST_PREFIX and is_topic(f"{prefix}x")):
        hint = "letters, digits, dots, _ and -"
        raise UsageError(f"--prefix-topics {prefix}: no topic's name begins so", hint)


def _check_topics(renamed: Mapping[str, str]) -> None:
    """Names that captured topics have on the target: those that Kafka takes, and each of one topic. (Ids may be several
    of one: it was made again.)"""
    by_name: dict[str, str] = {}
    for old, new in renamed.items():
        if not is_topic(new):
            raise UsageError(f"--map-topic {old}={new}: no name of a topic", _TOPIC_RULE)
        if not is_id(old) and by_name.setdefault(new, old) != old:
            raise UsageError(
                f"--map-topic: {by_name[new]} and {old} would both be {new}", "another name for one of them"
            )


def wanted(host: str, port: int, **asked: Unpack[Asked]) -> Options:
    """All that a replay takes, at this target. Raises UsageError, and FilterError for `clients`."""
    _checked(asked)
    speed, schedule = _speed(asked.get("speed", 1.0))
    clients = asked.get("clients")
    chosen = Selection(
        parse(clients) if clients is not None else None,
        _topics(asked.get("topics")),
        _moment("--from", asked.get("since")),
        _moment("--until", asked.get("until")),
    )
    reached, users = asked.get("access", workers.Access()), asked.get("principals")
    if users is not None:
        reached = dataclasses.replace(reached, principals=principals.read(os.fspath(users)))
    return Options(
        host,
        port,
        _allowed(asked.get("allow", ())),
        Settings(speed=speed, schedule=schedule),
        dict(asked.get("map_topic", {})),
        asked.get("offsets", offsets.SHIFT),
        asked.get("timestamps", remap.KEEP),
        asked.get("seed_topics", False),
        asked.get("yes", False),
        asked.get("partial", False),
        asked.get("audit", True),
        asked.get("seed_config") == "as-captured",
        processes=asked.get("workers", 1),
        access=reached,
        same_cluster=asked.get("same_cluster", False),
        selection=chosen,
        renaming=Renaming(dict(asked.get("map_group", {})), asked.get("prefix_groups") or ""),
        prefix_topics=asked.get("prefix_topics") or "",
        times=asked.get("times", 1),
        rate=asked.get("rate"),
        seed_fetched=asked.get("seed_fetched", False),
        in_windows=_in_windows(asked),
        survey=asked.get("survey", True),
    )


def options_of(options: argparse.Namespace, host: str, port: int) -> Options:
    """What the command line asks for."""
    given: dict[str, Any] = {name: getattr(options, name) for name in Asked.__annotations__ if hasattr(options, name)}
    given["map_topic"] = _mapped("--map-topic", options.map_topic)
    given["map_group"] = _mapped("--map-group", options.map_group)
    given["audit"] = not options.no_audit  # `--audit RUN` is something else
    alone = options.loop or options.dry_run
    whole = alone or bool(_of_the_whole(cast(Asked, given), True))
    if options.captures == ["-"] and options.in_windows is None and not whole:
        given["survey"] = False  # it may go on for days, and cannot be read twice
    if (options.in_windows and options.loop) or (not options.survey and alone):
        name = "--loop" if options.loop else "--dry-run"
        option = "--in-windows" if options.in_windows else "--no-survey"
        raise UsageError(f"{option} does not go with {name}", "that one needs the whole capture first")
    if options.loop:
        given["in_windows"] = False
    if options.loop and options.same_cluster:
        raise UsageError("--same-cluster does not go with --loop", "a cluster would be filled with its own replay")
    given["access"] = access(options)
    return wanted(host, port, **given)
