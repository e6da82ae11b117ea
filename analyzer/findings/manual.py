"""The rules as documentation: `FINDINGS.md`, and what `kwire findings --explain` says of one.

In: `RULES`. Out: Markdown, and text. Rule: nothing is said here that does not stand with its rule; a test compares the
file with what this makes of the rules (`python -m kwire.analyzer.findings.manual` writes it).
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.rules import FAMILIES, POLICIES, RULES, Rule

FILE = Path(__file__).resolve().parent / "FINDINGS.md"

_HEAD = """# Findings

What `kwire findings` looks for: {count} rules. `error`: data lost, refused or unreadable, or work stopped;
`warning`: to be seen to this week; `note`: a fact worth knowing. This file is made of the rules (`python -m
kwire.analyzer.findings.manual`).

Of all rules:

- What passes by itself is judged as a run of answers without a good one between, never as an event: three over the
  error's grace, or ten over a second.
- A client is its address and client id, not its connection: coordinators answer on one connection what is mended on
  another.
- Clients whose ids were not captured (cut packets, captures that begin midway) are told as a set, never as one client:
  rules that count what a client does, or follow where it reads, leave them out.
- Percentiles need 100 answers (99th) or 30 (95th). Fewer: no finding, not a weak one.
- What the broker held on purpose, a quota's pause, the client's own queue and the network are subtracted before a
  broker is blamed; where holding cannot be told, the exchange is not judged.
- A broker that went away, or leaders that moved, are told once: errors that passed within ten seconds of it, and
  connections that broke off with it, are not told again.
- Bytes that the capture lacks are not bytes that Kafka lost: rules that argue from absence leave out connections
  with holes, cut packets, or a beginning that was not captured.
- Where the capture's clock was set back, rules that argue with the order or the length of times are not asked.
- Of one code and severity at most {most} findings of a capture point are told one by one; the rest is counted.

Thresholds (`--threshold CODE.NAME=VALUE`, or `--thresholds FILE`, TOML: a table a code) are named with each rule.
`--policy` makes a fact a rule: {policies}. Findings are the table `findings`; rules that are asked otherwise than
`kwire analyze` asks them look at the dataset again.
"""


def markdown() -> str:
    """All rules of kwire itself, family by family."""
    policies = ", ".join(f"`{name}={value}`" for name, value in POLICIES.items())
    own = [rule for rule in RULES.values() if rule.package is None]
    parts = [_HEAD.format(count=len(own), most=evaluate.MOST, policies=policies)]
    for family, about in FAMILIES.items():
        family_rules = [rule for rule in own if rule.family == family]
        parts.append(f"\n## {family.capitalize()}\n\n{about}\n")
        parts += [_section(rule) for rule in family_rules]
    return "".join(parts)


def of_packages() -> str:
    """Rules of installed packages, package by package; empty: there are none."""
    by_package: dict[str, list[Rule]] = {}
    for rule in RULES.values():
        if rule.package is not None:
            by_package.setdefault(rule.package, []).append(rule)
    return "".join(
        "".join([f"\n## Rules of the package {package}\n", *map(_section, rules)])
        for package, rules in sorted(by_package.items())
    )


def _section(rule: Rule) -> str:
    lines = [f"\n### {rule.code}\n", f"*{rule.severity}*: {rule.sentence}\n"]
    if rule.limits:
        lines.append("- Thresholds: " + ", ".join(f"`{name}` = {value:g}" for name, value in rule.limits.items()) + ".")
    for title, text in (
        ("Why", rule.why),
        ("Not when", rule.suppressed_when),
        ("Do", rule.advice),
        ("Judged by", rule.evidence),
    ):
        ended = text if text.endswith(".") else text + "."
        filled = textwrap.wrap(f"- {title}: {ended}", 119, subsequent_indent="  ", break_on_hyphens=False)
        lines.append("\n".join(filled))
    return "\n".join(lines) + "\n"


def explained(rule: Rule) -> str:
    """One rule, for a terminal."""
    limits = ", ".join(f"{name} = {value:g}" for name, value in rule.limits.items())
    parts = (
        ("says", rule.sentence),
        ("why", rule.why),
        ("not when", rule.suppressed_when),
        ("do", rule.advice),
        ("judged by", rule.evidence),
        ("thresholds", limits or "none"),
    )
    package = f", of the package {rule.package}" if rule.package is not None else ""
    out = [f"{rule.code}: {rule.severity}, family {rule.family}{package}"]
    for title, text in parts:
        first, *rest = textwrap.wrap(text, 86, break_on_hyphens=False)
        out += [f"  {title:<10}  {first}", *(f"{'':14}{line}" for line in rest)]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    FILE.write_text(markdown(), encoding="utf-8")
