"""Logs held against answers, by the content of its records: letters at offsets.

Proves: replay/audit/alignment.py
"""

from __future__ import annotations

import pytest

from kwire.replay.audit.alignment import align
from tests.replay.audit.test_acknowledged import audited, produce


@pytest.mark.parametrize(
    ("acknowledged", "log", "text"),
    [
        ("abcdef", "abdef", "1 missing at 2, 3 after it one lower"),
        ("abcdef", "ab", "4 missing at 2"),
        ("abcdef", "abdcef", "2 exchanged at 2"),
        ("abcdef", "abefcd", "4 exchanged at 2"),
        ("abcd", "aabcd", "3 from 1 on one higher, 1 more at 1"),
        ("abcd", "axcd", "1 missing at 1, 1 more at 1"),
        ("abcdefgh", "acdfgh", "1 missing at 1, 2 after it one lower, 1 missing at 4, 3 after it 2 lower"),
    ],
)
def test_a_log_is_held_against_what_was_said_of_it(acknowledged: str, log: str, text: str) -> None:
    wrong = [(at, value) for at, value in enumerate(acknowledged) if at >= len(log) or log[at] != value]
    strays = [(at, value) for at, value in enumerate(log) if at >= len(acknowledged) or acknowledged[at] != value]
    alignment = align(*([(at, value.encode()) for at, value in some] for some in (wrong, strays)))
    assert alignment.text() == text


def test_records_that_look_alike_are_taken_in_order() -> None:
    alignment = align([(1, b"x"), (2, b"x"), (3, b"y")], [(0, b"x"), (5, b"x")])
    assert (list(alignment.moved), list(alignment.missing), list(alignment.more)) == ([(1, 0), (2, 5)], [3], [])


def test_records_elsewhere_are_not_missing_in_an_audit() -> None:
    some = [produce(value, at, at) for at, value in enumerate("abcd")]
    row = audited(*some, log="acd")
    assert (row["missing"], row["displaced"], row["readable"], row["first_missing_offset"]) == (1, 2, 1, 1)
    # What was acknowledged to lie one higher than it does lies at no offset that nobody gave.
    higher = [produce(value, at, at + (at > 1)) for at, value in enumerate("abcd")]
    row = audited(*higher, log="abcd")
    assert (row["missing"], row["displaced"], row["unclaimed"]) == (0, 2, 0)
