"""The documentation of findings is made of the rules."""

from __future__ import annotations

from kwire.analyzer.findings import manual
from kwire.analyzer.findings.rules import FAMILIES, RULES


def test_the_file_is_what_the_rules_say() -> None:
    again = "python -m kwire.analyzer.findings.manual"
    assert manual.FILE.read_text(encoding="utf-8") == manual.markdown(), f"write it again: {again}"


def test_every_rule_says_why_when_not_and_what_to_do() -> None:
    assert set(FAMILIES) >= {rule.family for rule in RULES.values()}
    for rule in RULES.values():
        for text in (rule.sentence, rule.why, rule.suppressed_when, rule.advice, rule.evidence):
            assert len(text) > 5, rule.code
        assert rule.sentence.endswith("."), rule.code
        assert all(f"`{name}`" in manual.markdown() for name in rule.limits), rule.code
