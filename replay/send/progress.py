"""Formats how far a run is, in one line for the user. Pure.

In: what the engine has counted. Out: text. Rule: if nothing moves, the line says what everything waits for.
"""

from __future__ import annotations

from typing import NamedTuple


class Standing(NamedTuple):
    """The state of a run at a moment.

    - `planned`, `sent`, `answered`: requests; `errors`: answers with an error that the capture does not have
    - `in_flight`: requests without their answer
    - `behind`: seconds by which the next request is late, None at full speed, which has no schedule
    - `awaited`: what has been in flight longest, and for how many seconds
    - `moves`: whether anything has been sent or answered since the moment before
    - `dead`: why the target is taken for dead; empty: it is not
    """

    planned: int
    sent: int
    answered: int
    errors: int
    in_flight: int
    behind: float | None
    awaited: tuple[str, float] | None
    moves: bool
    dead: str = ""


def line(standing: Standing) -> str:
    """Format it in a line."""
    parts = [f"sent {standing.sent:,} of {standing.planned:,}", f"answered {standing.answered:,}"]
    if standing.errors:
        parts.append(f"errors {standing.errors:,}")
    if standing.behind is not None and standing.behind >= 1:
        parts.append(f"{standing.behind:,.0f} s behind the schedule")
    if not standing.moves and standing.awaited is not None:
        what, seconds = standing.awaited
        parts.append(f"waits for {what} for {seconds:,.0f} s")
    elif not standing.moves:
        parts.append("nothing is due")
    else:
        parts.append(f"in flight {standing.in_flight:,}")
    return ", ".join(parts)
