"""Lines in order of their keys, in bounded memory: as `sorted` says, whatever has to wait in files.

proves: kwire.analyzer.cli.sorted_lines.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.analyzer.cli import sorted_lines
from kwire.analyzer.cli.sorted_lines import Sorter
from kwire.analyzer.common.errors import UsageError

Keys = list[int | None]


def expected(keys: Keys, descending: bool, limit: int | None) -> list[str]:
    """By Python's own sort: equal keys as they came, those without one last."""
    having = sorted(
        ((key, i) for i, key in enumerate(keys) if key is not None), key=lambda pair: pair[0], reverse=descending
    )
    order = [i for _, i in having] + [i for i, key in enumerate(keys) if key is None]
    return [f"line {i}" for i in order][:limit]


@given(
    st.lists(st.none() | st.integers(-5, 5), max_size=200),
    st.booleans(),
    st.none() | st.integers(1, 30),
    st.sampled_from((1, 1000, 5000, sorted_lines.HELD)),
)
def test_the_order_is_that_of_sorted_whatever_has_to_wait(
    keys: Keys, descending: bool, limit: int | None, held: int
) -> None:
    sorter = Sorter(descending, limit, held)
    for i, key in enumerate(keys):
        if sorter.wants(key):
            sorter.put(key, f"line {i}")
    assert list(sorter) == expected(keys, descending, limit)


def test_more_runs_than_may_be_open_become_one() -> None:
    keys: Keys = [(i * 7919) % 1009 for i in range(3 * sorted_lines.RUNS)]
    sorter = Sorter(held=1)
    for i, key in enumerate(keys):
        sorter.put(key, f"line {i}")
        assert len(sorter._runs) <= sorted_lines.RUNS
    assert list(sorter) == expected(keys, False, None)


def test_with_a_limit_little_is_kept_and_what_comes_too_late_is_not_wanted() -> None:
    sorter = Sorter(descending=True, limit=10)
    for i in range(100_000):
        if sorter.wants(i % 1000):
            sorter.put(i % 1000, "x" * 1000)
        assert len(sorter._waiting) < 2000
    assert not sorter._runs
    assert [sorter.wants(5), sorter.wants(5000)] == [False, True]
    assert len(list(sorter)) == 10


def test_keys_of_every_kind() -> None:
    for keys in (["b", "", "a"], [(1, "x"), (0, "y")], [2.5, -1.0], [True, False]):
        sorter = Sorter(held=1)
        for key in keys:
            sorter.put(key, repr(key))
        assert list(sorter) == [repr(key) for key in sorted(keys)]


def test_a_folder_that_cannot_hold_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class File:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", File)
    sorter = Sorter(held=1)
    with pytest.raises(UsageError, match="cannot hold what is sorted: No space left on device") as caught:
        sorter.put(1, "line")
    assert "TMPDIR" in caught.value.hint
