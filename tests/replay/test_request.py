"""Options of the command line become those of a replay.

Proves: replay/request.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.cli import parser
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.protocol import api_keys
from kwire.captures.errors import KwireError
from kwire.replay import request
from kwire.replay.options import Options
from kwire.replay.plan import apis
from kwire.replay.plan.selection import Moment


def options(*arguments: str) -> Options:
    return request.resolve_command(parser.parse(["replay", "x.pcap", *arguments])[1], "h", 1)


def test_what_is_asked_for_is_what_is_done() -> None:
    plain = options()
    assert (plain.settings.speed, plain.settings.schedule, plain.times, plain.rate) == (1.0, None, 1, None)
    assert not plain.selection
    assert not plain.renaming
    resolved = options(
        "--clients",
        "client_id == billing",
        "--topics",
        "orders, b*",
        "--from",
        "90s",
        "--until",
        "3m",
        "--times",
        "4",
        "--prefix-topics",
        "t.",
        "--map-group",
        "a=b",
        "--prefix-groups",
        "g-",
        "--speed",
        "0s:1,60s:max",
        "--allow",
        "admin",
        "--allow",
        "DeleteTopics",
    )
    assert str(resolved.selection.clients) == "client_id == billing"
    assert resolved.selection.topics == ("orders", "b*")
    assert (resolved.selection.since, resolved.selection.until) == (Moment(90 * 10**9), Moment(180 * 10**9))
    assert (resolved.times, resolved.prefix_topics) == (4, "t.")
    assert (resolved.renaming.prefix, resolved.renaming.groups) == ("g-", {"a": "b"})
    assert resolved.settings.schedule is not None
    assert (resolved.settings.speed, resolved.settings.schedule.text) == (1.0, "0s:1,60s:max")
    assert resolved.allow == apis.ADMIN | {api_keys.DELETE_TOPICS}
    assert options("--speed", "max").settings.speed is None
    assert options("--rate", "250.5").rate == 250.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--speed 0s:1,0s:2", "--speed 0s:1,0s:2: neither a positive number nor max"),
        ("--speed 5s:2", "--speed 5s:2: neither a positive number nor max"),
        ("--rate 1e9", "--rate 1000000000.0: not below 1e+09"),
        ("--times 1000000000", "--times 1000000000: more than 65,535"),
        ("--workers 65536", "--workers 65536: more than 65,535"),
        ("--topics ,", "--topics: names no topic"),
        ("--topics=", "--topics: names no topic"),
        ("--rate 5 --speed 2", "--rate and --speed say both how fast"),
        ("--from yesterday", "--from yesterday: no time"),
        ("--until 5x", "--until 5x: no time"),
        ("--prefix-topics a/b", "--prefix-topics a/b: no topic's name begins so"),
        ("--map-group a", "--map-group a: not A=B"),
        ("--map-topic a=b/c", "--map-topic a=b/c: no name of a topic"),
        ("--map-topic a=..", "--map-topic a=..: no name of a topic"),
        (f"--map-topic a={'b' * 250}", f"--map-topic a={'b' * 250}: no name of a topic"),
        ("--map-topic a=x --map-topic b=x", "--map-topic: a and b would both be x"),
        ("--map-topic a=x --map-topic a=y", "--map-topic: a is both x and y"),
        ("--map-group a=x --map-group a=y", "--map-group: a is both x and y"),
        ("--same-cluster --times 2", "--same-cluster does not go with --times"),
        ("--same-cluster --allow admin", "--same-cluster does not go with --allow"),
        ("--same-cluster --loop", "--same-cluster does not go with --loop"),
    ],
)
def test_what_cannot_be_asked_for_is_a_line_and_a_hint(arguments: str, message: str) -> None:
    with pytest.raises(UsageError) as failed:
        options(*arguments.split())
    assert failed.value.message == message
    assert failed.value.hint


def test_several_ids_may_be_of_one_topic() -> None:
    """It was deleted and made again; and one pair may be said twice."""
    ids = [f"{letter * 22}=orders" for letter in "ab"]
    assert options(*(word for pair in [*ids, ids[0]] for word in ("--map-topic", pair))).map_topic == dict(
        pair.split("=") for pair in ids
    )


def test_a_filter_of_clients_that_is_none_says_where() -> None:
    with pytest.raises(KwireError, match="column"):
        options("--clients", "client_id ==")
