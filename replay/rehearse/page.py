"""A rehearsal as one page of HTML, and as JUnit XML: the verdict, its reasons, the runs, then what differs.

In: a `Verdict`, and the pairs that were compared. Out: text. Rules are those of `kwire diff`'s page and suite.
"""

from __future__ import annotations

from kwire.analyzer.common.page import document, headline, table
from kwire.replay.diff import junit
from kwire.replay.diff.page import body
from kwire.replay.diff.pairs import Pairs
from kwire.replay.rehearse.verdict import SIDES, Verdict

_TITLE = "kwire rehearse"


def as_html(verdict: Verdict, pairing: Pairs | None) -> str:
    """The page."""
    parts = [headline(_TITLE, verdict.line, bool(verdict.exit_code))]
    if verdict.reasons:
        rows = [(reason.name, reason.text, reason.exit_code) for reason in verdict.reasons]
        parts += ["<h2>Reasons, the most important first</h2>", table(("reason", "what", "exit code"), rows, 1)]
    runs = [
        (run.name, run.target, run.prefix, run.audit, run.ended or run.late, run.counts["total"], f"{run.seconds:.1f}")
        for run in verdict.runs
    ]
    columns = ("run", "target", "prefix of its names", "audit", "remark", "exchanges", "seconds")
    parts += ["<h2>Runs</h2>", table(columns, runs, 2)]
    if verdict.known.like_capture:
        parts.append(table(("", ""), [("old against the capture", verdict.known.like_capture)]))
    known = [(each.get("comment", ""), *_what(each), each.get("count", 0)) for each in verdict.accepted]
    known += [(each["comment"], *_what(each), "no longer there") for each in verdict.unused]
    if known:
        about = ("comment", "API", "field", "kind", "value", "differences")
        parts += ["<h2>Expected differences</h2>", table(about, known, 1)]
    if verdict.comparison is not None and pairing is not None:
        parts += ["<h2>New against old</h2>", *body(verdict.comparison, SIDES, pairing)]
    return document(_TITLE, parts)


def _what(known: dict[str, str]) -> tuple[str, ...]:
    return tuple(known.get(name, "") for name in ("api", "field", "kind", "value"))


def as_junit(verdict: Verdict) -> str:
    """The suite."""
    counted = [(reason.name, reason.text) for reason in verdict.reasons] if verdict.exit_code else []
    return junit.of_rehearsal(verdict.line, counted, verdict.comparison)
