"""The cache folder: what can be made again is kept, and whatever happens to it there costs time only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer import conversation, program, schema
from captures import cache, native


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that something is made of."""
    (tmp_path / "source").write_text("first")
    return tmp_path / "source"


def counting(source: Path, made: list[str]) -> Callable[[], str]:
    """Makes the text of a file; notes each time that it does."""

    def make() -> str:
        cache._digest.cache_clear()
        made.append(source.read_text())
        return made[-1]

    return make


def test_a_value_is_made_once_for_each_state_of_its_sources(folder: Path, source: Path) -> None:
    made: list[str] = []
    for text in ("first", "first", "second", "second", "first"):
        source.write_text(text)
        cache._digest.cache_clear()  # files do not change while a process runs
        assert cache.kept("text", [source], counting(source, made)) == text
    assert made == ["first", "second"]


def test_a_damaged_value_is_made_again(folder: Path, source: Path) -> None:
    made: list[str] = []
    cache.kept("text", [source], counting(source, made))
    (stored,) = folder.rglob("text.*")
    whole = stored.read_bytes()
    for damaged in (b"", whole[:31], whole[:-1], whole[:-1] + b"x", cache.sealed(b"no pickle")):
        stored.write_bytes(damaged)
        assert cache.kept("text", [source], counting(source, made)) == "first"
        assert stored.read_bytes() == whole
    assert len(made) == 6


def test_a_cache_that_cannot_be_written_only_costs_time(folder: Path, source: Path) -> None:
    folder.write_text("a file, not a folder")
    made: list[str] = []
    for _ in range(2):
        assert cache.kept("text", [source], counting(source, made)) == "first"
    assert len(made) == 2


def test_sealed_content_is_whole_or_refused() -> None:
    stored = cache.sealed(b"content")
    assert bytes(cache.opened(stored)) == b"content"
    for at in range(len(stored)):
        for damaged in (stored[:at], stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]):
            with pytest.raises(ValueError, match="damaged"):
                cache.opened(damaged)


def test_what_is_kept_of_the_layouts_is_what_they_say(folder: Path) -> None:
    for _ in range(2):  # made, then read back
        for load, build in ((program.load, program.build), (program.load_data, program.build_data)):
            kept, built = load.__wrapped__(), build()
            for name in program.Program.__dataclass_fields__:
                assert np.array_equal(getattr(kept, name), getattr(built, name)), name
        kinds: tuple[list[Any], list[Any]] = ([], [])
        for kept_array, made in zip(conversation.layouts(), conversation._layouts(), strict=True):
            assert np.array_equal(kept_array, made)
            native.flatten(kept_array, kinds[0], [])
            native.flatten(made, kinds[1], [])
        assert kinds[0] == kinds[1], "kernels would be compiled for another kind of array"
        assert schema.apis.__wrapped__() == schema._apis()


def test_temporary_files_of_others_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has no cache folder, everybody's temporary folder serves; a folder there may be a trap."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours = cache._temporary()
    assert ours == cache._temporary()
    assert ours.stat().st_mode & 0o077 == 0
    ours.chmod(0o777)  # somebody else may have put code there
    assert cache._temporary() not in (ours, cache._temporary())
    ours.rmdir()
    ours.symlink_to(tmp_path)
    assert cache._temporary() != ours
