"""Findings as text for people, and in the forms that builds take: JUnit XML, GitHub annotations, Markdown.

In: rows of `findings`, worst first. Out: text. Rule: what others named (clients, topics, hosts) is data in each of
these forms, never markup or a command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from kwire.analyzer.common import junit, workflow
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.markdown import literal
from kwire.analyzer.findings.query import SEVERITIES
from kwire.analyzer.findings.rules import RULES
from kwire.analyzer.findings.wording import count, lasting, moment, unsaid_cause

Row = dict[str, Any]

_FAILS_FROM: Final = "warning"
"""Severity from which a finding fails its test, unless `--fail-on` says: a note is a fact."""
_CHANGING: Final = ("connection", "software", "client_name", "broker_name")
"""What a finding is about that is another in each run: a test keeps its name, so that builds know it again."""
_SUMMARY_ROWS: Final = 200
"""Findings that a summary lists: GitHub shows 1 MiB of it."""


def as_text(rows: Sequence[Row], ignored: int) -> Iterator[str]:
    """Yield lines for people: a paragraph a finding, then how many there are."""
    several = _several(rows)
    for row in rows:
        capture = f"  [{printable(row['capture'])}]" if several else ""
        yield f"{row['severity'].upper()} {row['code']}{capture}"
        yield f"  {row['text']}"
        for line in _details(row):
            yield f"  {line}"
        yield ""
    yield _total(rows, ignored)


def as_junit(
    rows: Sequence[Row], shown: Sequence[Row], only: Collection[str], fail_on: str | None, notes: Sequence[str]
) -> str:
    """Return a suite: a test for each finding, and one for each rule that reports nothing.

    rows: with those that are ignored; shown: without. only: codes that were asked for, none: all. notes: what could not
    be evaluated; a rule that reports nothing is then no passed test.
    """
    several, bar = _several(rows), SEVERITIES.index(fail_on or _FAILS_FROM)
    listed = {id(row) for row in shown}
    tests = [_test(row, several, bar, id(row) in listed) for row in rows]
    reported = {row["code"] for row in rows}
    for code, rule in RULES.items():
        if code in reported or (only and code not in only):
            continue
        test = junit.TestCase(_class_of(rule.family), code)
        tests.append(test._replace(outcome="skipped", message=notes[0]) if notes else test)
    output = "; ".join([_total(shown, len(rows) - len(shown)), *notes])
    return junit.as_xml("kwire findings", tests, output=output)


def _class_of(family: str) -> str:
    return f"kwire.findings.{family}"


def _test(row: Row, several: bool, bar: int, is_shown: bool) -> junit.TestCase:
    concerned = {**({"capture": row["capture"]} if several else {}), **row["who"], **row["what"]}
    words = ", ".join(f"{name} {value}" for name, value in concerned.items() if name not in _CHANGING)
    test = junit.TestCase(_class_of(row["family"]), row["code"] + (f" ({words})" if words else ""))
    text = f"{row['severity']}: {row['text']}"
    if not is_shown:
        return test._replace(outcome="skipped", message=f"ignored (--ignore): {text}")
    if SEVERITIES.index(row["severity"]) < bar:
        return test._replace(outcome="skipped", message=text)
    return test._replace(outcome="failure", kind=row["severity"], message=row["text"], lines=[text, *_details(row)])


def as_github(rows: Sequence[Row], ignored: int) -> Iterator[str]:
    """Yield commands that a runner of GitHub Actions shows as annotations, then a line that says how many they are."""
    several = _several(rows)
    for row in rows:
        capture = f" [{row['capture']}]" if several else ""
        yield workflow.annotation(row["severity"], row["code"] + capture, [row["text"], *_details(row)])
    yield _total(rows, ignored)


def as_markdown(rows: Sequence[Row], ignored: int, notes: Sequence[str]) -> str:
    """Return the summary: how many, and a table."""
    several = _several(rows)
    lines = [f"## kwire findings: {_total(rows, ignored)}", ""]
    if rows:
        columns = ["severity", "finding", *(["capture"] if several else []), "what happened", "what to do"]
        lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows[:_SUMMARY_ROWS]:
        happened = literal(row["text"])
        if cause := unsaid_cause(row):
            happened += f"<br>{_because(row)}: {literal(cause)}"
        if row["since"] is not None:
            happened += f"<br>{_since(row)}"
        cells = [row["severity"], f"`{row['code']}`", *([literal(row["capture"])] if several else [])]
        lines.append(f"| {' | '.join([*cells, happened, literal(row['advice'])])} |")
    if len(rows) > _SUMMARY_ROWS:
        lines += ["", f"{count(len(rows) - _SUMMARY_ROWS, 'finding')} more."]
    for note in notes:
        lines += ["", f"Note: {literal(note)}"]
    return "\n".join(lines).rstrip() + "\n"


def _several(rows: Iterable[Row]) -> bool:
    return len({row["capture"] for row in rows}) > 1


def _details(row: Row) -> Iterator[str]:
    """Yield what follows the sentence of a finding: its cause, the advice, when, and which exchanges show it."""
    if cause := unsaid_cause(row):
        yield f"{_because(row)}: {printable(cause)}"
    yield f"do: {row['advice']}"
    if row["since"] is not None:
        yield _since(row)
    if shown := dict.fromkeys(filter(None, (_key(row[name]) for name in ("first", "worst", "last")))):
        yield f"see {'; '.join(shown)}"


def _because(row: Row) -> str:
    return "cause" if row["proven"] else "probably"


def _since(row: Row) -> str:
    lasted = row["until"] is not None and row["until"] > row["since"]
    return f"since {moment(row['since'])} UTC" + (f", for {lasting(row['until'] - row['since'])}" if lasted else "")


def _total(rows: Iterable[Row], ignored: int) -> str:
    """`2 errors, 1 note; 3 ignored (--ignore)`, or that nothing was found."""
    by_severity = Counter(row["severity"] for row in rows)
    counts = [count(by_severity[severity], severity) for severity in reversed(SEVERITIES) if by_severity[severity]]
    return (", ".join(counts) or "nothing found") + (f"; {ignored} ignored (--ignore)" if ignored else "")


def _key(evidence: Row | None) -> str:
    if evidence is None:
        return ""
    number = "" if evidence["exchange"] is None else f" exchange {evidence['exchange']}"
    if not number and evidence["reply"] is not None:
        number = f" reply {evidence['reply']}"
    return printable(evidence["connection"]) + number
