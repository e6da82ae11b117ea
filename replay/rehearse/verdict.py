"""Judges a rehearsal: one verdict, the exit code, and the reasons for it, the most important first.

In: what is known of each run, the comparison of new with old, expectations. Out: a `Verdict`, as text, as plain values
for JSON, as a short summary in Markdown. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.cli.color import Paint, unpainted
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.markdown import literal
from kwire.analyzer.options.replay import ANY, NEVER, SLOWER, UNEXPECTED
from kwire.replay.diff import text
from kwire.replay.diff.audit_results import is_of_records
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import Grouped, grouped
from kwire.replay.diff.latencies import SLOWER as SLOWER_KIND
from kwire.replay.rehearse.expectations import Expectations

SIDES: Final = ("old", "new")
EXIT_DIFFERS: Final = 1
EXIT_UNKNOWN: Final = 3
_INTERRUPTED: Final = 130
_SHOWN: Final = 5
"""Reasons, kinds of differences or expectations that a summary lists of each."""

REASONS: Final[dict[str, tuple[int, str]]] = {
    "interrupted": (_INTERRUPTED, "the rehearsal was interrupted"),
    "records": (EXIT_DIFFERS, "the new target does not hold what it acknowledged, or not as it was sent"),
    "differences": (EXIT_DIFFERS, "the new target answers otherwise than the old one"),
    "new-ended": (EXIT_UNKNOWN, "the run at the new target ended before all was sent"),
    "old-ended": (
        EXIT_UNKNOWN,
        "a run at the old target ended before all was sent: there is no measure",
    ),
    "nothing-compared": (EXIT_UNKNOWN, "no request was answered on both sides"),
    "old-records": (EXIT_UNKNOWN, "the old target does not hold what it acknowledged: it is no measure"),
    "not-audited": (EXIT_UNKNOWN, "what the new target acknowledged could not be read back"),
    "slower": (EXIT_DIFFERS, "the new target is slower beyond what the old one differs from itself"),
    "latency-unknown": (
        EXIT_UNKNOWN,
        "the replayer itself was late: latencies say nothing (--fail-on slower only)",
    ),
}
"""Why a rehearsal is not good, in order of importance: the exit code, and what it means."""


@dataclass(frozen=True, slots=True)
class RanOnce:
    """One run. `ended`: why it ended before all was sent; `lost`: the audit found less, or otherwise, than was
    acknowledged; `unread`: partitions that could not be read, or why nothing was audited; `late`: why its latencies
    say nothing; `counts`: as `kwire replay --json` has them."""

    name: str
    target: str
    run: str
    prefix: str
    seconds: float
    counts: dict[str, Any]
    audit: str
    ended: str = ""
    lost: bool = False
    unread: str = ""
    late: str = ""

    @property
    def is_old(self) -> bool:
        return self.name.startswith("old")

    def text(self) -> str:
        """For a person, in a line."""
        actions = self.counts["actions"]
        done = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in actions.items() if count)
        late = f"; {self.late}" if self.late else ""
        ended = f"; ended: {self.ended}" if self.ended else ""
        return f"{self.name:<6} at {self.target}: {done}, {self.seconds:.1f} s; audit: {self.audit}{late}{ended}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "target": self.target,
            "run": self.run,
            "prefix": self.prefix,
            "seconds": round(self.seconds, 3),
            "ended": self.ended or None,
            "audit": self.audit,
            "audit_clean": not self.lost,
            "not_audited": self.unread or None,
            "late": self.late or None,
            "counts": self.counts,
        }


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rehearsal is not good: a name of `REASONS`, and what exactly."""

    name: str
    text: str

    @property
    def exit_code(self) -> int:
        return REASONS[self.name][0]


@dataclass(frozen=True, slots=True)
class Known:
    """Facts of a rehearsal. `comparison`: of new with old, None where a run ended too early; `like_capture`:
    the old target against the capture, in a line."""

    runs: Sequence[RanOnce]
    comparison: Comparison | None
    expectations: Expectations
    like_capture: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a rehearsal. `fail_on`: what counts for the exit code."""

    known: Known
    reasons: Sequence[Reason]
    fail_on: str

    @property
    def runs(self) -> Sequence[RanOnce]:
        return self.known.runs

    @property
    def comparison(self) -> Comparison | None:
        return self.known.comparison

    @property
    def exit_code(self) -> int:
        """0, or that of the first reason that counts."""
        counted = {ANY: None, UNEXPECTED: {"slower"}, SLOWER: {"records", "differences"}}
        if self.fail_on == NEVER:
            return next((reason.exit_code for reason in self.reasons if reason.name == "interrupted"), 0)
        left_out = counted[self.fail_on] or set()
        return next((reason.exit_code for reason in self.reasons if reason.name not in left_out), 0)

    @property
    def line(self) -> str:
        """The verdict, in a line: the first reason that counts."""
        if self.reasons and not self.exit_code:
            return f"passed, by --fail-on {self.fail_on}; {self.reasons[0].text}"
        if self.reasons:
            return next(reason.text for reason in self.reasons if reason.exit_code == self.exit_code)
        late = next((run.late for run in self.runs if run.late), "")
        return "same" + (f"; latencies not judged: {late}" if late else "")

    @property
    def groups(self) -> list[Grouped]:
        """Differences of new from old, the unexpected first."""
        return grouped(self.comparison.differences) if self.comparison is not None else []

    @property
    def unused(self) -> list[dict[str, str]]:
        """Expectations that no longer occur."""
        if self.comparison is None:
            return []
        every = enumerate(self.known.expectations.every)
        return [known.as_dict() for number, known in every if not self.comparison.accepted[number]]

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """Expectations that occurred, and how often."""
        if self.comparison is None:
            return []
        counts = self.comparison.accepted
        every = enumerate(self.known.expectations.every)
        return [{**known.as_dict(), "count": counts[number]} for number, known in every if counts[number]]

    def as_dict(self) -> dict[str, Any]:
        """For `verdict.json`."""
        return {
            "verdict": self.line,
            "exit_code": self.exit_code,
            "fail_on": self.fail_on,
            "reasons": [
                {"reason": reason.name, "exit_code": reason.exit_code, "text": reason.text} for reason in self.reasons
            ],
            "runs": [run.as_dict() for run in self.runs],
            "old_against_capture": self.known.like_capture or None,
            "accepted": self.accepted,
            "no_longer_occurring": self.unused,
            "comparison": None if self.comparison is None else text.as_json(self.comparison, SIDES),
        }

    def as_text(self, paint: Paint = unpainted) -> str:
        """For a person. paint: colours the verdict, and what is unexpected, by severity."""
        lines = [f"verdict: {self.line} (exit code {self.exit_code})"]
        lines += [f"  {number}. {reason.name}: {reason.text}" for number, reason in enumerate(self.reasons, 1)]
        lines += ["", *(run.text() for run in self.runs)]
        if self.known.like_capture:
            lines.append(f"old against the capture: {self.known.like_capture}")
        lines += _known(self.accepted, self.unused)
        severity = "error" if self.exit_code == EXIT_DIFFERS else "warning" if self.exit_code else None
        shown = [paint(printable(lines[0]), severity), *map(printable, lines[1:])]
        if self.comparison is not None:
            shown += ["", *text.as_text(self.comparison, SIDES, paint).splitlines()[1:]]
        return "\n".join(shown) + "\n"

    def as_markdown(self) -> str:
        """A summary of 20 lines at most, for a build's page."""
        mark = "passed" if not self.exit_code else "failed" if self.exit_code == EXIT_DIFFERS else "not known"
        lines = [f"### kwire rehearse: {mark}", "", literal(self.line), ""]
        for reason in self.reasons[:_SHOWN]:
            lines.append(f"- **{reason.name}** (exit code {reason.exit_code}): {literal(reason.text)}")
        lines += ["", "| run | target | requests | seconds | audit |", "|---|---|---|---|---|"] if self.runs else []
        for run in self.runs:
            cells = (run.name, run.target, f"{run.counts['total']:,}", f"{run.seconds:.1f}", run.audit)
            lines.append("| " + " | ".join(map(literal, cells)) + " |")
        known = _known(self.accepted, self.unused)
        return "\n".join([*lines, *(["", *(f"- {literal(line)}" for line in known[:2])] if known else [])]) + "\n"


def _known(accepted: Sequence[dict[str, Any]], unused: Sequence[dict[str, str]]) -> list[str]:
    lines = []
    if accepted:
        total = sum(each["count"] for each in accepted)
        comments = "; ".join(f"{each['comment']} ({each['count']:,})" for each in accepted[:_SHOWN])
        lines.append(f"accepted as expected: {total:,} difference{'s' * (total != 1)}: {comments}")
    if unused:
        comments = "; ".join(each["comment"] for each in unused[:_SHOWN])
        lines.append(f"expected, and no longer there: {len(unused)}: {comments}")
    return lines


def judge(known: Known, fail_on: str) -> Verdict:
    """Judge a rehearsal. `fail_on`: what counts for the exit code."""
    reasons = _reasons(known, fail_on)
    order = list(REASONS)
    reasons.sort(key=lambda reason: order.index(reason.name))
    return Verdict(known, reasons, fail_on)


def _is_of_records(group: Grouped) -> bool:
    """Whether a difference, or one that follows from it, is about records that the target acknowledged."""
    follows = any(is_of_records(each.path, each.kind) for each in group.consequences)
    return follows or is_of_records(group.path, group.kind)


def _reasons(known: Known, fail_on: str) -> list[Reason]:
    comparison = known.comparison
    reasons = []
    if known.interrupted:
        reasons.append(Reason("interrupted", "the rehearsal was interrupted"))
    for run in known.runs:
        if run.ended:
            reasons.append(Reason("old-ended" if run.is_old else "new-ended", f"{run.name} ended first: {run.ended}"))
        if run.is_old and run.lost:
            reasons.append(Reason("old-records", f"{run.name} does not hold what it acknowledged: {run.audit}"))
        if not run.is_old and run.unread and not run.ended and not known.interrupted:
            reasons.append(Reason("not-audited", f"{run.name} was not audited: {run.unread}"))
        if fail_on == SLOWER and run.late:
            reasons.append(Reason("latency-unknown", f"{run.name}: {run.late}"))
    if comparison is None:
        return reasons
    if not comparison.compared:
        reasons.append(Reason("nothing-compared", "nothing was compared"))
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    slower = [group for group in unexpected if group.kind == SLOWER_KIND]
    records = [group for group in unexpected if _is_of_records(group)]
    others = [group for group in unexpected if group not in slower and group not in records]
    for name, groups in (("records", records), ("differences", others), ("slower", slower)):
        if groups:
            reasons.append(Reason(name, text.kinds(groups)))
    return reasons
