"""Load rules of findings from installed packages: entry points of the group `kwire.rules`.

In: packages beside kwire. Out: their rules in `RULES`, each with its package's name, evaluated after kwire's own. An
entry point names a module, and whatever that module declares with `@rule` when it is imported is a rule. Raises
ExtensionError, one line that names the package: a package that cannot be imported, or declares a code that exists,
adds none of its rules. `KWIRE_EXTENSIONS=0` leaves all packages out.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.extensions import RULES as GROUP
from kwire.analyzer.common.extensions import VARIABLE, installed, package
from kwire.analyzer.findings.query import SEVERITIES
from kwire.analyzer.findings.rules import RULES, Finding, Match, Rule, replaced
from kwire.captures.errors import KwireError

_OWN: Final = str(Path(__file__).resolve().parent.parent) + os.sep
"""The analyzer's files: what a rule calls with wrong arguments fails there, and the fault is the rule's."""


class ExtensionError(KwireError):
    """An installed package whose rules cannot be loaded."""


def load() -> None:
    """Import what entry points name; kwire's own rules must be there already. Raises ExtensionError."""
    for entry in installed(GROUP):
        before = dict(RULES)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for data
                entry.load()
        except (Exception, SystemExit) as failure:
            RULES.clear()
            RULES.update(before)
            raise ExtensionError(
                f"the rules of the package {package(entry)} cannot be loaded: {describe(failure)}",
                f"update or uninstall {package(entry)}; {VARIABLE}=0 leaves out the rules of all packages",
            ) from failure
        for code in RULES.keys() - before.keys():
            RULES[code] = RULES[code]._replace(package=package(entry))


def codes() -> frozenset[str]:
    """Codes of the rules that packages declare."""
    return frozenset(code for code, rule in RULES.items() if rule.package is not None)


def describe(failure: BaseException, rule: Rule | None = None) -> str:
    """An exception in one line: its kind, its text, and the line of the package that raised it; of a rule whose match
    is wrong, the rule's first line."""
    kind = type(failure).__name__
    text = printable(" ".join(str(failure).split()))
    code = getattr(inspect.unwrap(rule.check), "__code__", None) if rule is not None else None
    place = _place(failure.__traceback__, code)
    return f"{kind}{f': {text}' if text else ''}{f' ({place})' if place else ''}"


def _place(trace: TracebackType | None, rule: CodeType | None) -> str:
    """The innermost line of a traceback that is not kwire's own, as FILE:LINE; else the rule's first line."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<frozen")]
    others = [frame for frame in frames if not os.path.realpath(frame.filename).startswith(_OWN)]
    if not others and rule is not None:
        return f"{os.path.basename(rule.co_filename)}:{rule.co_firstlineno}"
    last = (others or frames)[-1:]
    return f"{os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""


def checked(match: Match) -> Match:
    """A package's match with plain values, its text in one line. Raises TypeError or ValueError."""
    if not isinstance(match, Match):
        raise TypeError(f"the rule yields {type(match).__name__}, not Match")
    if match.severity is not None and match.severity not in SEVERITIES:
        raise ValueError(f"severity {match.severity!r} is none of {', '.join(SEVERITIES)}")
    if match.text is None:
        raise TypeError("text is None")
    changes: dict[str, Any] = {name: _line(name, getattr(match, name)) for name in ("text", "cause", "advice")}
    for name in ("who", "what"):
        changes[name] = {key: str(value) for key, value in getattr(match, name).items() if value is not None}
    for name in ("since", "until"):
        changes[name] = None if (time := getattr(match, name)) is None else int(time)
    for name in ("rows", "links"):
        changes[name] = tuple(map(int, getattr(match, name)))
        if min(changes[name], default=0) < 0:
            raise ValueError("rows and links count from 0")
    proven = None if match.proven is None else bool(match.proven)
    return replaced(match, **changes, count=int(match.count), proven=proven)


def _line(name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not a text")
    return None if value is None else printable(value)


def unfinished(rule: Rule, failure: Exception) -> Finding:
    """The finding that takes the place of a package's rule that failed, so that no reader takes silence for health."""
    return Finding(
        "warning",
        rule.code,
        rule.family,
        f"This rule of the package {rule.package} failed, so what it looks for is unknown: {describe(failure, rule)}.",
        {},
        {"error": type(failure).__name__},
        1,
        None,
        None,
        f"a fault in {rule.package}",
        True,
        f"Update {rule.package}, or report it to its authors; --ignore {rule.code} leaves it out.",
        None,
        None,
        None,
    )
