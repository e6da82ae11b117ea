"""Numbers and names as findings say them. Pure; names are others' text and come out printable."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.listing import listed as listed


def count(number: int, singular: str, many: str = "") -> str:
    """`1 exchange`, `2,000 exchanges`."""
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def share(part: float, whole: float) -> str:
    """`3.7 %`; `under 0.1 %` rather than a zero that is none."""
    percent = 100 * part / whole if whole else 0
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 or part == whole else "99.9 %"


def lasting(micros: float) -> str:
    """`0.4 ms`, `173 ms`, `4.2 s`, `6 min`."""
    if micros < 10_000:
        return f"{micros / 1000:.1f} ms"
    if micros < 1_000_000:
        return f"{micros / 1000:.0f} ms"
    if micros < 120_000_000:
        return f"{micros / 1e6:.1f} s"
    return f"{micros / 60e6:.0f} min"


def exactly(micros: float) -> str:
    """Like `lasting`, with the seconds of minutes: `4 min 5 s`."""
    minutes, seconds = divmod(round(micros / 1e6), 60)
    return (
        lasting(micros) if micros < 120_000_000 else f"{minutes:,} min {seconds} s" if seconds else f"{minutes:,} min"
    )


def size(amount: float) -> str:
    """`1 byte`, `310 bytes`, `1.3 MB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= scale:
            return f"{amount / scale:.1f} {unit}"
    return "1 byte" if f"{amount:.0f}" == "1" else f"{amount:.0f} bytes"


def moment(micros: int) -> str:
    """`10:01:03` (UTC)."""
    try:
        return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)).strftime("%H:%M:%S")
    except OverflowError:
        return "at no time"


UNREAD = "unread"
"""Key of `CaptureFrame.who`: the client id was not captured, and it is `one` client or `several`."""

_NAMELESS = {"one": "a client whose id was not captured", "several": "a set of clients whose ids were not captured"}


def client(who: Mapping[str, Any]) -> str:
    """`orders (10.0.0.1)`; with its software where that is known: `orders (librdkafka 2.16.0, 10.0.0.1)`."""
    nameless = _NAMELESS.get(who.get(UNREAD) or "", "a client without id")
    named = printable(who["client_id"]) if who.get("client_id") else nameless
    parts = [printable(str(who[name])) for name in ("software", "client_ip") if who.get(name)]
    return f"{named} ({', '.join(parts)})" if parts else named


def name(text: str | None) -> str:
    """Somebody's text, fit for a line."""
    return printable(text) if text else "(without a name)"


def partition_name(where: tuple[str, int]) -> str:
    """`orders-3`."""
    return f"{name(where[0])}-{where[1]}"


def unsaid_cause(finding: Mapping[str, Any]) -> str | None:
    """The cause of a finding, a row of the table, if its sentence does not say it already."""
    cause: str | None = finding["cause"]
    return cause if cause and cause not in finding["text"] else None


def some(names: list[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    return listed([*map(name, names[:most])], len(names))
