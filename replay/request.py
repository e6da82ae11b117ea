"""Turn what a caller asks of a replay, by the command line or in Python, into `Options`.

In: options of `kwire replay`, or a `ReplayRequest`. Out: `Options`. Values that cannot be used, alone or together, are
a UsageError: one line and a hint.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.filter.evaluation import parse
from kwire.analyzer.options.replay import AccessOptions, ReplayOptions, SendOptions
from kwire.analyzer.options.values import MOST_SECONDS
from kwire.analyzer.protocol import api_keys
from kwire.replay.options import Options
from kwire.replay.plan import apis
from kwire.replay.plan import schedule as schedules
from kwire.replay.plan.renaming import Renaming
from kwire.replay.plan.selection import Moment, Selection, moment
from kwire.replay.plan.topic_partitions import is_id, is_topic
from kwire.replay.remap import offsets, remap
from kwire.replay.send import login, principals, reach, workers
from kwire.replay.send.settings import Settings

ADMIN: Final = "admin"
"""`--allow admin`: whatever creates and alters, and deletes nothing."""
_LONGEST_PREFIX: Final = 200
"""Of a topic's name, which has 249 characters at most."""
_TOPIC_RULE: Final = "at most 249 letters, digits, dots, _ and -, and neither . nor .."


_MOST: Final = (1 << 16) - 1
"""Copies of a capture, and processes: more are a slip of the hand."""
_FASTEST: Final = 1e9
"""Requests a second: times are nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest(SendOptions):
    """The options of sending (`SendOptions`), and how workers, which are processes of their own, open connections."""

    access: workers.Access = field(default_factory=workers.Access)


_CHOICES: Final = {
    "offsets": (offsets.SHIFT, offsets.AS_IS, offsets.POSITION),
    "timestamps": (remap.KEEP, remap.SHIFT),
    "seed_config": ("surviving", "as-captured"),
}
"""Options that are one of a few words, the first by default. The command line refuses others by itself."""


def address(text: str, option: str = "--to") -> tuple[str, int]:
    """Parse HOST:PORT. Raises UsageError, which names the option."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{option} {text}: not HOST:PORT", f"as in {option} localhost:9092")
    return host.strip("[]"), int(port)


def _speed(speed: float | str | None) -> tuple[float | None, schedules.Schedule | None]:
    hint = "1 is as captured, 20 is 20 times faster; 0s:1,60s:5,120s:max changes at these times of the capture"
    text = "max" if speed is None else str(speed)
    try:
        if ":" not in text:
            return schedules.speed(text), None
        schedule = schedules.schedule(text)
    except ValueError:
        raise UsageError(f"--speed {text}: neither a positive number nor max", hint) from None
    return schedule.pieces[0][1], schedule


def _allowed(names: Iterable[str]) -> frozenset[int]:
    keys: set[int] = set()
    for name in names:
        if name == ADMIN:
            keys |= apis.ADMIN
            continue
        key = api_keys.key(name)
        if key is None or apis.api(key).policy is not apis.Policy.ALLOW:
            allowed = (key for key, api in apis.APIS.items() if api.policy is apis.Policy.ALLOW)
            may = ", ".join(sorted(map(api_keys.name, allowed)))
            why = "no such API" if key is None else "not an API to allow"
            raise UsageError(f"--allow {name}: {why}", f"{ADMIN}, or one of {may}")
        keys.add(key)
    return frozenset(keys)


def _mapped(option: str, pairs: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    if isinstance(pairs, Mapping):
        return dict(pairs)
    renamed: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"{option} {pair}: not A=B", f"as in {option} orders=orders-copy")
        if renamed.setdefault(old, new) != new:
            raise UsageError(f"{option}: {old} is both {renamed[old]} and {new}", "one of them")
    return renamed


def _hosts(pairs: Iterable[str]) -> dict[str, str]:
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


def access(options: AccessOptions) -> workers.Access:
    """How the command line says that the target is reached. Raises UsageError."""
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


def _topics(topics: str | Iterable[str] | None) -> tuple[str, ...]:
    listed = topics.split(",") if isinstance(topics, str) else topics or ()
    return tuple(topic.strip() for topic in listed if topic.strip())


def _need_whole_capture(request: SendOptions, without_first_pass: bool) -> list[str]:
    """Options that are used and need the whole capture first; `without_first_pass`: or a first pass over it."""
    names = ["clients", "topics", "since", "until", "rate", "seed_fetched"]
    names += ["principals"] if without_first_pass else []
    used = [name for name in names if getattr(request, name)]
    used += [name for name in ("times", "workers") if int(getattr(request, name)) > 1]
    return [{"since": "from"}.get(name, name).replace("_", "-") for name in used]


def _in_windows(request: SendOptions) -> bool | None:
    """Whether the capture is read in windows; None: its size decides."""
    if not request.survey:
        return True
    if request.in_windows is None and _need_whole_capture(request, False):
        return False
    return request.in_windows


def _check(request: SendOptions, map_topic: Mapping[str, str]) -> None:
    """Raise UsageError for options that do not go together, or have a value that is none of theirs."""
    for name, words in _CHOICES.items():
        value = getattr(request, name)
        if value not in words:
            raise UsageError(f"--{name.replace('_', '-')} {value}: no such word", f"one of {', '.join(words)}")
    for name in ("times", "workers"):
        value = getattr(request, name)
        if not 0 < int(value) <= _MOST:
            why = "not a number from 1 on" if int(value) <= 0 else f"more than {_MOST:,}"
            raise UsageError(f"--{name} {value}: {why}", "a small number, as in 4")
    if request.same_cluster:
        for name, is_used in (("--allow", bool(request.allow)), ("--times", request.times > 1)):
            if is_used:
                raise UsageError(
                    f"--same-cluster does not go with {name}", "a cluster is not changed by its own replay"
                )
    if request.in_windows or not request.survey:
        option = "--in-windows" if request.survey else "--no-survey"
        for name in _need_whole_capture(request, not request.survey):
            raise UsageError(f"{option} does not go with --{name}", "that one needs the whole capture first")
    rate = request.rate
    if rate is not None and str(request.speed) not in ("1", "1.0"):
        raise UsageError("--rate and --speed say both how fast", "one of them")
    if rate is not None and not 0 < rate < _FASTEST:
        why = f"not below {_FASTEST:g}" if rate >= _FASTEST else "not a positive number"
        raise UsageError(f"--rate {rate}: {why}", "requests a second, on average")
    for option, seconds in (("--longest-pause", request.longest_pause), ("--give-up-after", request.give_up_after)):
        if seconds is not None and not 0 < seconds < MOST_SECONDS:
            raise UsageError(f"{option} {seconds:g}: no positive number of seconds", "as in 60s or 5m")
    if request.topics is not None and not _topics(request.topics):
        raise UsageError("--topics: names no topic", "as in --topics orders,pay*; without it all are sent")
    _check_topics(map_topic)
    prefix = request.prefix_topics
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


def resolve(host: str, port: int, request: ReplayRequest) -> Options:
    """Check a request, and read its expressions and files. Raises UsageError, and FilterError for `clients`."""
    map_topic = _mapped("--map-topic", request.map_topic)
    map_group = _mapped("--map-group", request.map_group)
    _check(request, map_topic)
    speed, schedule = _speed(request.speed)
    selection = Selection(
        parse(request.clients) if request.clients is not None else None,
        _topics(request.topics),
        _moment("--from", request.since),
        _moment("--until", request.until),
    )
    access = request.access
    if request.principals is not None:
        access = dataclasses.replace(access, principals=principals.read(os.fspath(request.principals)))
    return Options(
        host,
        port,
        _allowed(request.allow),
        Settings(speed=speed, schedule=schedule, silence=request.give_up_after),
        map_topic,
        request.offsets,
        request.timestamps,
        request.seed_topics,
        request.yes,
        request.partial,
        request.missing_topics_ok,
        request.audit,
        request.seed_config == "as-captured",
        processes=request.workers,
        access=access,
        same_cluster=request.same_cluster,
        selection=selection,
        renaming=Renaming(map_group, request.prefix_groups or ""),
        prefix_topics=request.prefix_topics or "",
        times=request.times,
        rate=request.rate,
        longest_pause_ns=None if request.longest_pause is None else round(request.longest_pause * 1e9),
        seed_fetched=request.seed_fetched,
        in_windows=_in_windows(request),
        survey=request.survey,
    )


def resolve_command(options: ReplayOptions, host: str, port: int) -> Options:
    """Resolve the options of the command line. Raises as `resolve`."""
    mapped = {
        "map_topic": _mapped("--map-topic", options.map_topic),
        "map_group": _mapped("--map-group", options.map_group),
    }
    shared = {each.name: getattr(options, each.name) for each in dataclasses.fields(SendOptions)}
    request = ReplayRequest(**{**shared, **mapped})
    is_alone = options.loop or options.dry_run
    needs_whole = is_alone or bool(_need_whole_capture(request, True))
    if options.captures == ["-"] and options.in_windows is None and not needs_whole:
        request = dataclasses.replace(request, survey=False)  # it may go on for days, and cannot be read twice
    if (options.in_windows and options.loop) or (not options.survey and is_alone):
        name = "--loop" if options.loop else "--dry-run"
        option = "--in-windows" if options.in_windows else "--no-survey"
        raise UsageError(f"{option} does not go with {name}", "that one needs the whole capture first")
    if options.loop:
        request = dataclasses.replace(request, in_windows=False)
    if options.loop and options.same_cluster:
        raise UsageError("--same-cluster does not go with --loop", "a cluster would be filled with its own replay")
    return resolve(host, port, dataclasses.replace(request, access=access(options)))
