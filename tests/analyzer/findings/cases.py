"""What wrong looks like, a case a rule: a function that makes traffic; told `True`, what is wrong, told `False`, what
is nearly so."""

from __future__ import annotations

from collections.abc import Callable

from tests.analyzer.findings.judging import Traffic

Case = Callable[[Traffic, bool], None]

CASES: dict[str, Case] = {}


def case(code: str) -> Callable[[Case], Case]:
    """The function is the case of this code."""

    def take(make: Case) -> Case:
        assert code not in CASES
        CASES[code] = make
        return make

    return take
