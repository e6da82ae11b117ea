"""Differences by exchange are those of `kwire diff`, no more and no less.

Proves: replay/diff/by_exchange.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.replay.diff import by_exchange, pairs, text
from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import grouped
from tests.replay.replaying import replayed_at_less


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RUN of a real capture, most of which its target does not offer."""
    return replayed_at_less(tmp_path_factory.mktemp("runs") / "real")


def test_they_are_those_of_the_comparison(real: Path) -> None:
    comparison = compare(pairs.from_run(real))
    groups = grouped(comparison.differences)
    verdict, by_exchange_ = by_exchange.differing(real)
    assert verdict == text.verdict(comparison, [group for group in groups if group.unexpected])
    assert sum(group.count for group in groups) == sum(map(len, by_exchange_.values())) > 0
    assert {(key[0], key[2]) for each in by_exchange_.values() for key in each} == {
        (key.path, key.kind) for key in groups
    }


def test_how_much_is_listed_has_an_end(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, by_exchange_ = by_exchange.differing(real)
    assert len(by_exchange_) > 2
    monkeypatch.setattr(by_exchange, "MOST", 2)
    monkeypatch.setattr(by_exchange, "OF_ONE", 1)
    less, few = by_exchange.differing(real)
    assert less == verdict, "what is counted is everything"
    assert few == {key: by_exchange_[key][:1] for key in list(by_exchange_)[:2]}
