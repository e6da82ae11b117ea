"""A comparison as text for people.

In: `Comparison`. Out: lines. Names are others' text and come out printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.findings.query import SEVERITIES
from kwire.analyzer.findings.wording import count
from kwire.reports.compare.change import Change
from kwire.reports.compare.comparison import SAME, Comparison, Pair

_UNJUDGED = 4
"""Figures that were too little to judge which a line names."""


def verdict(comparison: Comparison) -> str:
    """The verdict, with how many changes of which severity there are."""
    if comparison.verdict == SAME:
        figures = count(comparison.compared, "figure")
        return f"{SAME} ({count(len(comparison.pairs), 'role')}, {figures} compared)"
    counts = [(name, sum(change.severity == name for change in comparison.changes)) for name in reversed(SEVERITIES)]
    listed = ", ".join(count(number, name) for name, number in counts if number)
    return f"{comparison.verdict}: {listed}"


def as_text(comparison: Comparison) -> Iterator[str]:
    """Yield lines: the sides, the verdict, then the changes by client."""
    yield f"before  {comparison.before.text()}"
    yield f"after   {comparison.after.text()}"
    yield f"verdict: {verdict(comparison)}"
    of_cluster = [change for change in comparison.changes if not _of_pair(comparison, change)]
    if of_cluster:
        yield ""
        yield from _lines(of_cluster)
    for pair in comparison.pairs:
        if pair.changes:
            yield ""
            yield heading(pair)
            yield from _lines(pair.changes)
    unjudged = [(pair.name, pair.unjudged) for pair in comparison.pairs if pair.unjudged]
    if unjudged:
        yield ""
        yield "looks different, but there is too little of it to be sure:"
        for name, figures in unjudged:
            more = f" and {len(figures) - _UNJUDGED} more" if len(figures) > _UNJUDGED else ""
            yield f"  {printable(name)}: {'; '.join(figures[:_UNJUDGED])}{more}"


def _of_pair(comparison: Comparison, change: Change) -> bool:
    return any(change in pair.changes for pair in comparison.pairs)


def heading(pair: Pair) -> str:
    """A role, what it does, and how many clients it had."""
    sides = [count(max(len(role.clients), 1), "client") for role in (pair.before, pair.after)]
    clients = sides[0] if sides[0] == sides[1] else f"{sides[0]} before, {sides[1]} after"
    return f"{printable(pair.name)} ({printable(pair.after.task())}; {clients})"


def _lines(changes: Iterable[Change]) -> Iterator[str]:
    for change in changes:
        yield f"  {change.severity.upper():<8}{printable(change.text)}"
