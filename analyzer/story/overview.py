"""Choose the ten events of a capture that are worth knowing first.

In: events with weights. Out: those, in order of time. Pure. Rule: no kind of event takes more than a few of the places,
what one line sums up is not told line by line beside it, and of what one exchange shows only the weightiest is told (a
finding, and not the refusals that it is about).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kwire.analyzer.story.events import Event

FIRST = 10
_OF_ONE_KIND = 3
_SUMMED = {"rebalances": ("rebalance",), "transactions": ("transaction_committed", "transaction_aborted")}
"""Kinds of events that summarise others."""


def first_ten(events: Sequence[Event]) -> list[Event]:
    """Return the events of most weight, in order of time; of equal weight the earlier."""
    summed = {(kind, _subject(event)) for event in events for kind in _SUMMED.get(event.kind, ())}
    ranked = sorted(events, key=lambda event: (-event.weight, event.time))
    alone = [event for event in ranked if event.weight and (event.kind, _subject(event)) not in summed]
    chosen: list[Event] = []
    by_kind: Counter[str] = Counter()
    for most in (_OF_ONE_KIND, FIRST):  # where there is little else to tell, more of a kind
        for event in alone:
            same = any(
                (other.actor, other.text) == (event.actor, event.text) or _shown(other, event) for other in chosen
            )
            if len(chosen) < FIRST and not same and by_kind[event.kind] < most:
                by_kind[event.kind] += 1
                chosen.append(event)
    return sorted(chosen, key=lambda event: event.time)


def _shown(first: Event, other: Event) -> bool:
    """Whether both events have the same exchange as evidence."""
    shows = first.exchange is not None and (first.connection, first.exchange) == (other.connection, other.exchange)
    return shows and first.kind != other.kind


def _subject(event: Event) -> tuple[str | None, ...]:
    """Subject of a summary: a group, or a transactional id."""
    return (event.group_id,) if event.kind.startswith("rebalance") else (event.transactional_id,)
