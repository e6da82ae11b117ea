"""Brokers of two sides: the versions that they offer, the release that these are like, and how many there are.

In: two `Side`s. Out: changes. A release is named where nearly all of what is offered is what it offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.protocol import schema
from kwire.reports import releases
from kwire.reports.compare.change import Change
from kwire.reports.compare.side import Side

_AGREES: Final = 0.9
"""Share of the offered APIs that must have a release's versions for it to be named."""
_SHOWN: Final = 4

Offer = Mapping[int, tuple[int, int]]


def changes(before: Side, after: Side) -> Iterator[Change]:
    """Yield what the brokers of two sides offer differently."""
    first, second = offered(before), offered(after)
    if first and second and first != second:
        names = [_like(offer) for offer in (first, second)]
        rows = [
            f"{schema.api_name(key)} {_range(first.get(key))} to {_range(second.get(key))}"
            for key in sorted({*first, *second})
            if first.get(key) != second.get(key)
        ]
        more = f" and {len(rows) - _SHOWN} APIs more" if len(rows) > _SHOWN else ""
        text = (
            f"brokers: {names[0]} before, {names[1]} after, by the versions offered: {', '.join(rows[:_SHOWN])}{more}"
        )
        yield Change("note", "brokers", "offered", None, None, names[0], names[1], text)
    counts = [len(_nodes(side)) for side in (before, after)]
    if all(counts) and counts[0] != counts[1]:
        text = f"brokers in the cluster: {counts[0]} before, {counts[1]} after"
        yield Change("note", "brokers", "count", None, None, str(counts[0]), str(counts[1]), text)


def offered(side: Side) -> dict[int, tuple[int, int]]:
    """The versions that brokers offer to clients, by API: the widest range."""
    frame = side.frame("api_versions")
    offer: dict[int, tuple[int, int]] = {}
    keys = (frame[name].tolist() for name in ("api_key", "min", "max"))
    for key, low, high in set(zip(*keys, strict=True)):
        if NULL not in (key, low, high):
            known = offer.get(key, (low, high))
            offer[key] = min(known[0], low), max(known[1], high)
    return offer


def _nodes(side: Side) -> set[int]:
    return set(side.frame("brokers")["node_id"].tolist()) - {NULL}


def _like(offer: Offer) -> str:
    """The release whose versions agree with most of an offer; of several the newest. Brokers offer clients fewer APIs
    than a release has: those between brokers stay among these."""
    best, share = "", 0.0
    for release in releases.releases():
        same = sum(release.apis.get(key) == versions for key, versions in offer.items()) / len(offer)
        if same >= share:
            best, share = release.name, same
    return f"like Kafka {best}" if share >= _AGREES else "a release that is not known"


def _range(versions: tuple[int, int] | None) -> str:
    if versions is None:
        return "none"
    return str(versions[0]) if versions[0] == versions[1] else f"{versions[0]}-{versions[1]}"
