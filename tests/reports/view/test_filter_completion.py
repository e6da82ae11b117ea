"""Completion of filters, against the filter language itself.

Proves: reports/view/filter_completion
"""

from __future__ import annotations

from typing import Any

import pytest

from kwire.analyzer.filter import evaluation
from kwire.reports.view.filter_completion import value_word
from tests.reports.view.conftest import Asking


def offered(txn: Asking, text: str, **query: Any) -> list[str]:
    return [candidate["text"] for candidate in txn("complete", text=text, **query)["candidates"]]


@pytest.mark.parametrize(
    ("text", "what", "first"),
    [
        ("", "name", "api"),
        ("lat", "name", "latency"),
        ("api == Fetch and ", "name", "api"),
        ("not (", "name", "api"),
        ("api ", "operator", "=="),
        ("api =", "operator", "=="),
        ("latency >= ", "value", "1ms"),
        ("api == ", "value", "AddPartitionsToTxn"),
        ("api == fe", "value", "Fetch"),
        ("topic == ", "value", "tx-out"),
        ("topic ~ ", "value", "tx-out"),
        ("topic in (", "value", "tx-out"),
        ("topic in (idem, ", "value", "tx-out"),
        ("error == ", "value", "CONCURRENT_TRANSACTIONS"),
        ("broker == ", "value", "127.0.0.1:9092"),
        ("status == ", "value", "answered"),
        ('client_id == "lab-t', "value", "lab-tx"),
        ("api == Fetch ", "joining", "and"),
        ("topic in (a) ", "joining", "and"),
        ("error is null ", "joining", "and"),
        ("request.topicD", "name", None),
    ],
)
def test_what_may_come_next(txn: Asking, text: str, what: str, first: str | None) -> None:
    answer = txn("complete", text=text)
    assert answer["what"] == what
    assert answer["candidates"]
    if first is not None:
        assert answer["candidates"][0]["text"] == first


def test_taking_what_is_offered_gives_a_filter(txn: Asking) -> None:
    """Taking the first candidate each time gives a valid comparison, for every name."""
    names = offered(txn, "")
    for name in names + offered(txn, "request.topicD"):
        if name == "not":
            continue
        for sign in offered(txn, f"{name} "):
            text = f"{name} {sign} "
            if sign.endswith("("):
                text = f"{name} {sign}{(offered(txn, text[:-1]) or ['1'])[0]})"
            elif not sign.startswith("is"):
                text += (offered(txn, text) or ["2026-01-01" if name.endswith(("time", "_end")) else "1"])[0]
            evaluation.parse(text)


def test_counts_are_those_of_the_filter(txn: Asking) -> None:
    for name in ("api", "topic", "client_id", "error", "status", "broker", "group"):
        for candidate in txn("complete", text=f"{name} == ")["candidates"]:
            assert txn("rows", filter=f"{name} == {candidate['text']}", count=0)["total"] == candidate["count"], (
                name,
                candidate,
            )


def test_the_word_under_the_cursor_is_replaced(txn: Asking) -> None:
    answer = txn("complete", text="api == Fetch and latency > 1ms", at=10)
    assert (answer["start"], answer["end"]) == (7, 12)
    assert [candidate["text"] for candidate in answer["candidates"]] == ["Fetch", "OffsetFetch"]


@pytest.mark.parametrize("value", ["orders", "a b", 'say "hi"', "topic", "and", "x(y)", "", "\u202e", "a,b", "10ms"])
def test_a_value_is_written_so_that_it_means_itself(value: str) -> None:
    row = {"client_id": value, "api_key": None}
    assert evaluation.parse(f"client_id == {value_word(value)}").matches(row)
    assert not evaluation.parse(f"client_id == {value_word(value)}").matches({**row, "client_id": value + "x"})
