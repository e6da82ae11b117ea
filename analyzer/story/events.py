"""Define events of stories, how they are selected, and the wording that all kinds of events share.

In: values of the tables. Out: `Event`s and pieces of sentences. Pure. Rules: a sentence says what was seen; what is
concluded, and could be otherwise, begins with "probably" and its event is not `certain`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from kwire.analyzer.cli.text import duration
from kwire.analyzer.protocol.errors import label

Row = dict[str, Any]

MOST_NAMED = 4
"""Topics, members or partitions that a sentence names; it counts the others."""


class Event(NamedTuple):
    """An event. `actor`: who caused it; `weight`: its importance in the capture (0 to 100); `client_id`: the client
    concerned; `topics`: all topics concerned; `severity`: of a finding."""

    time: datetime.datetime
    kind: str
    actor: str
    text: str
    weight: int = 0
    certain: bool = True
    topic: str | None = None
    partition: int | None = None
    group_id: str | None = None
    transactional_id: str | None = None
    connection: str | None = None
    exchange: int | None = None
    reply: int | None = None
    client_id: str | None = None
    topics: tuple[str, ...] = ()
    severity: str | None = None


JSON_FIELDS = (
    "time",
    "kind",
    "actor",
    "text",
    "certain",
    "topic",
    "partition",
    "group_id",
    "transactional_id",
    "connection",
    "exchange",
    "reply",
)
"""Keys of a line of `kwire story --json`."""


class StoryQuery(NamedTuple):
    """Subject of a story; None: everything. `partition` of `topic`, and `offset` of a record in it."""

    group: str | None = None
    client: str | None = None
    topic: str | None = None
    transaction: str | None = None
    connection: str | None = None
    partition: int | None = None
    offset: int | None = None

    @property
    def everything(self) -> bool:
        return self == StoryQuery()

    def has(self, event: Event) -> bool:
        """Whether an event concerns the subject of the story."""
        return (
            self.group in (None, event.group_id)
            and self.client in (None, event.client_id)
            and (self.topic is None or self.topic == event.topic or self.topic in event.topics)
            and self.partition in (None, event.partition)
            and self.transaction in (None, event.transactional_id)
            and self.connection in (None, event.connection)
        )


def who(client_id: str | None, ip: str | None = None) -> str:
    """A client as a sentence names it."""
    return client_id or (f"client at {ip}" if ip else "a client")


def of_group(group_id: str | None) -> str:
    """A group as a sentence names it."""
    return f"group {group_id}" if group_id is not None else "a group whose name was not captured"


def count(number: int, singular: str, many: str = "") -> str:
    """`1 record`, `3 records`."""
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def some(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    every = list(dict.fromkeys(names))
    if len(every) <= MOST_NAMED:
        return " and ".join(filter(None, (", ".join(every[:-1]), every[-1]))) if every else "nothing"
    return f"{', '.join(every[: MOST_NAMED - 1])} and {len(every) - MOST_NAMED + 1} more"


def places(pairs: Iterable[tuple[str | None, int | None]]) -> str:
    """Topic-partitions: `orders-0`, `orders partitions 0 to 5`, `orders partitions 0, 2 and payments-1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in pairs:
        by_topic.setdefault(topic or "a topic", []).append(partition if partition is not None else -1)
    return some(_of_topic(topic, sorted(set(numbers))) for topic, numbers in by_topic.items())


def _of_topic(topic: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{topic}-{numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{topic} partitions {numbers[0]} to {numbers[-1]}"
    few = len(numbers) <= 6
    return f"{topic} partitions {', '.join(map(str, numbers))}" if few else f"{len(numbers)} partitions of {topic}"


def between(first: datetime.datetime, last: datetime.datetime) -> str:
    """Duration between two times, or None if they are not in order, as packets of a clock that was set back, or of two
    clocks, may be."""
    return span((last - first) // datetime.timedelta(microseconds=1))


def later(first: datetime.datetime, last: datetime.datetime) -> str:
    """`3.1 ms later`; `later` if the times contradict the order."""
    return f"{between(first, last)} later" if last >= first else "later"


def within(first: datetime.datetime, last: datetime.datetime) -> str:
    """` in 3.1 ms`; nothing where it took no time."""
    return f" in {between(first, last)}" if last > first else ""


def span(micros: int) -> str:
    """A duration as a sentence says it."""
    if micros < 60_000_000:
        return duration(micros)
    seconds = micros // 1_000_000
    return f"{seconds // 60} min {seconds % 60} s"


def error(code: int | None, name: str | None) -> str:
    """`NOT_COORDINATOR (16)`."""
    return label(code) if code is not None else name or "an error"


WHY: Final = {
    "MEMBER_ID_REQUIRED": "the broker gave it a member id to join with",
    "CONCURRENT_TRANSACTIONS": "what was asked for that transactional id before was still being completed",
    "NOT_COORDINATOR": "this broker is not the coordinator (any more, or yet)",
    "COORDINATOR_NOT_AVAILABLE": "there was no coordinator yet",
    "COORDINATOR_LOAD_IN_PROGRESS": "the coordinator was still loading",
    "REBALANCE_IN_PROGRESS": "the group rebalances, and it is to join again",
    "UNKNOWN_TOPIC_OR_PARTITION": "the broker has no such topic or partition",
    "LEADER_NOT_AVAILABLE": "the partition had no leader then",
    "NOT_LEADER_OR_FOLLOWER": "another broker leads the partition now",
    "OFFSET_OUT_OF_RANGE": "the log does not have that offset",
    "INVALID_PRODUCER_EPOCH": "another producer has its transactional id now, or its transaction timed out",
    "PRODUCER_FENCED": "another producer has its transactional id now, or its transaction timed out",
    "UNKNOWN_MEMBER_ID": "the group has no such member: it was thrown out, or never in",
    "ILLEGAL_GENERATION": "the group has moved on without it",
    "FENCED_INSTANCE_ID": "another member has taken its group.instance.id",
    "UNSUPPORTED_VERSION": "the broker does not speak that version",
    "FETCH_SESSION_ID_NOT_FOUND": "the broker has forgotten its fetch session",
    "SASL_AUTHENTICATION_FAILED": "the login was refused",
    "UNSUPPORTED_SASL_MECHANISM": "the broker does not offer that mechanism",
    "TOPIC_AUTHORIZATION_FAILED": "it may not use that topic",
    "GROUP_AUTHORIZATION_FAILED": "it may not use that group",
    "MESSAGE_TOO_LARGE": "the batch is larger than the topic takes",
    "RECORD_TOO_LARGE": "the batch is larger than the topic takes",
    "TOPIC_ALREADY_EXISTS": "there is such a topic already",
}
"""What well-known errors mean, as the end of a sentence."""
