"""A comparison in the forms that people and builds take: text, a page, JUnit XML, GitHub annotations, Markdown.

In: `Comparison`. Out: text. Rule: what others named (clients, topics, files) is data in each of these forms, never
markup or a command.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kwire.analyzer.cli.color import Paint
from kwire.analyzer.common import junit, page, workflow
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.markdown import literal
from kwire.analyzer.findings.query import SEVERITIES
from kwire.analyzer.findings.wording import count
from kwire.reports.compare.change import Change, rank
from kwire.reports.compare.comparison import SAME, WORSE, Comparison, Pair

_UNJUDGED: Final = 4
"""Figures that were too little to judge which a line names."""
_CLUSTER: Final = "cluster and clients"
"""The test, and the heading, of what is about no pair of clients."""
_SUMMARY_ROWS: Final = 100
"""Changes that a summary lists."""
_NEVER: Final = len(SEVERITIES)


def verdict(comparison: Comparison) -> str:
    """The verdict, with how many changes of which severity there are."""
    if comparison.verdict == SAME:
        figures = count(comparison.compared, "figure")
        return f"{SAME} ({count(len(comparison.pairs), 'role')}, {figures} compared)"
    counts = [(name, sum(change.severity == name for change in comparison.changes)) for name in reversed(SEVERITIES)]
    listed = ", ".join(count(number, name) for name, number in counts if number)
    return f"{comparison.verdict}: {listed}"


def as_text(comparison: Comparison) -> Iterator[str]:
    """Yield lines: the sides, the verdict, then the changes by client, each begun by its severity."""
    yield f"before  {comparison.before.text()}"
    yield f"after   {comparison.after.text()}"
    yield f"verdict: {verdict(comparison)}"
    of_cluster = _of_cluster(comparison)
    if of_cluster:
        yield ""
        yield from map(_line, of_cluster)
    for pair in comparison.pairs:
        if pair.changes:
            yield ""
            yield _heading(pair)
            yield from map(_line, pair.changes)
    unjudged = list(_unjudged(comparison))
    if unjudged:
        yield ""
        yield "looks different, but there is too little of it to be sure:"
        yield from (f"  {printable(line)}" for line in unjudged)


def _unjudged(comparison: Comparison) -> Iterator[str]:
    for pair in comparison.pairs:
        if pair.unjudged:
            more = f" and {len(pair.unjudged) - _UNJUDGED} more" if len(pair.unjudged) > _UNJUDGED else ""
            yield f"{pair.name}: {'; '.join(pair.unjudged[:_UNJUDGED])}{more}"


def _of_cluster(comparison: Comparison) -> list[Change]:
    """Changes that are about no pair, in the order of the comparison."""
    paired = {id(change) for pair in comparison.pairs for change in pair.changes}
    return [change for change in comparison.changes if id(change) not in paired]


def _heading(pair: Pair) -> str:
    """A role, what it does, and how many clients it had."""
    sides = [count(max(len(role.clients), 1), "client") for role in (pair.before, pair.after)]
    clients = sides[0] if sides[0] == sides[1] else f"{sides[0]} before, {sides[1]} after"
    return f"{printable(pair.name)} ({printable(pair.after.task())}; {clients})"


def colored_line(line: str, paint: Paint) -> str:
    """Return a line of the text with the severity that it begins with, if it does, in colour."""
    word = line.strip().partition(" ")[0]
    before, severity, after = line.partition(word if word.lower() in SEVERITIES and word.isupper() else "\n")
    return before + paint(severity, word.lower()) + after


def _line(change: Change) -> str:
    return f"  {change.severity.upper():<8}{printable(change.text)}"


def as_json(comparison: Comparison) -> str:
    """Return one JSON object."""
    return json.dumps(comparison.as_dict(), indent=1, ensure_ascii=False) + "\n"


def as_html(comparison: Comparison) -> str:
    """Return a page: the changes by client, and every figure that was compared."""
    parts = [
        page.headline("kwire compare", verdict(comparison), comparison.verdict == WORSE),
        *(
            f'<p class="soft">{name}: {page.text(side.text())}</p>'
            for name, side in (("before", comparison.before), ("after", comparison.after))
        ),
        *(f'<p class="soft">note: {page.text(note)}</p>' for note in comparison.notes),
    ]
    of_cluster = _of_cluster(comparison)
    if of_cluster:
        parts += [f"<h2>{page.text(_CLUSTER.capitalize())}</h2>", _table(of_cluster)]
    for pair in comparison.pairs:
        parts.append(f"<h2>{page.text(_heading(pair))}</h2>")
        parts.append(_table(pair.changes) if pair.changes else '<p class="soft">no difference</p>')
        rows = [
            (
                figure.what,
                figure.about or "",
                *map(_shown, (figure.before, figure.after, figure.low, figure.high)),
                word,
            )
            for figure in pair.figures
            for word in (_JUDGED[figure.changed],)
        ]
        columns = ("figure", "API", "before", "after", "change at least", "at most", "")
        parts.append(f"<details><summary>{count(len(rows), 'figure')}</summary>{page.table(columns, rows)}</details>")
    unjudged = list(_unjudged(comparison))
    if unjudged:
        items = "".join(f"<li>{page.text(line)}</li>" for line in unjudged)
        parts += ["<h2>Looks different, but there is too little of it to be sure</h2>", f"<ul>{items}</ul>"]
    return page.document("kwire compare", parts)


_JUDGED: Final = {True: "changed", False: "", None: "too little"}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _table(changes: Sequence[Change]) -> str:
    rows = [(change.severity, change.text, change.before, change.after) for change in changes]
    return page.table(("severity", "what changed", "before", "after"), rows)


def as_junit(comparison: Comparison, fail_on: str | None) -> str:
    """Return a suite: a test for each role, and one for the cluster and for clients of one side alone. fail_on: the
    severity from which a change fails its test; None: none does."""
    least = _NEVER if fail_on is None else rank(fail_on)
    tests = [_test(_CLUSTER, _of_cluster(comparison), least)]
    names: dict[str, int] = {}
    for pair in comparison.pairs:
        name = f"{pair.name} ({pair.after.task()})"
        names[name] = names.get(name, 0) + 1
        tests.append(_test(name if names[name] == 1 else f"{name} {names[name]}", pair.changes, least))
    output = "; ".join([f"verdict: {verdict(comparison)}", *comparison.notes])
    return junit.as_xml("kwire compare", tests, output=output)


def _test(name: str, changes: Sequence[Change], least: int) -> junit.TestCase:
    test = junit.TestCase("kwire.compare", name)
    bad = [change for change in changes if rank(change.severity) >= least]
    if bad:
        worst = max(bad, key=lambda change: rank(change.severity))
        lines = [f"{change.severity}: {change.text}" for change in changes]
        return test._replace(outcome="failure", kind=worst.severity, message=worst.text, lines=lines)
    return test


def as_github(comparison: Comparison) -> Iterator[str]:
    """Yield commands that a runner of GitHub Actions shows as annotations, then the verdict."""
    for change in comparison.changes:
        title = change.what if change.client is None else f"{change.what} ({change.client})"
        yield workflow.annotation(change.severity, title, [change.text])
    yield f"verdict: {verdict(comparison)}"


def as_markdown(comparison: Comparison) -> str:
    """Return the summary: the verdict, both sides, and a table of the changes."""
    lines = [f"## kwire compare: {literal(verdict(comparison))}", ""]
    lines += [f"Before: {literal(comparison.before.text())}<br>", f"After: {literal(comparison.after.text())}", ""]
    if comparison.changes:
        lines += ["| severity | client | what changed |", "|---|---|---|"]
    for change in comparison.changes[:_SUMMARY_ROWS]:
        lines.append(f"| {change.severity} | {literal(change.client or '')} | {literal(change.text)} |")
    if len(comparison.changes) > _SUMMARY_ROWS:
        lines += ["", f"{count(len(comparison.changes) - _SUMMARY_ROWS, 'change')} more."]
    lines += _notes(comparison.notes)
    return "\n".join(lines).rstrip() + "\n"


def _notes(notes: Iterable[str]) -> Iterator[str]:
    for note in notes:
        yield ""
        yield f"Note: {literal(note)}"
