"""Define a case for each rule: a function that makes traffic, with `True` wrong traffic, with `False` nearly wrong."""

from __future__ import annotations

from collections.abc import Callable

from tests.analyzer.findings.evaluating import Traffic

Case = Callable[[Traffic, bool], None]

CASES: dict[str, Case] = {}
"""By code, or `code: what else raises it`."""


def case(code: str, way: str = "") -> Callable[[Case], Case]:
    """The function is the case of this code, or of another way to it."""

    def take(make: Case) -> Case:
        key = f"{code}: {way}" if way else code
        assert key not in CASES
        CASES[key] = make
        return make

    return take
