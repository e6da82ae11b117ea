"""Times as people and JSON get them: RFC 3339 in UTC.

In: whole microseconds or milliseconds since 1970, or a datetime (one without a zone is in UTC, as in the tables). Out:
datetimes and text, and of text microseconds again. Pure.
"""

from __future__ import annotations

import datetime
from typing import Any, TypeVar

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)

Other = TypeVar("Other")


def moment(micros: int) -> datetime.datetime:
    """A time as the tables have it."""
    return EPOCH + datetime.timedelta(microseconds=micros)


def moment_of_millis(millis: int) -> datetime.datetime | None:
    """Like `moment`, of Kafka's timestamps: None for -1, which is none, and for one that no calendar has."""
    try:
        return EPOCH + datetime.timedelta(milliseconds=millis) if millis != -1 else None
    except OverflowError:
        return None


def utc(when: datetime.datetime) -> datetime.datetime:
    """A time in UTC, whatever zone it is given in."""
    return when.replace(tzinfo=datetime.UTC) if when.tzinfo is None else when.astimezone(datetime.UTC)


def rfc3339(when: datetime.datetime | int) -> str:
    """RFC 3339 in UTC with six decimals; an int is microseconds since 1970."""
    return utc(moment(when) if isinstance(when, int) else when).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def micros(text: Any, none: Other) -> int | Other:
    """Microseconds since 1970 of a time as RFC 3339 writes it; `none` where it is none: files may say anything."""
    try:
        return (utc(datetime.datetime.fromisoformat(text)) - EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, TypeError, OverflowError):
        return none
