"""The shared library that came with the installation is used where the sources and the machine are those that it was
made for, and nobody else could have written it; otherwise there are words that say why not.

(proves: captures/shipped.py; what is built and installed: tests/test_wheel.py)
"""

from __future__ import annotations

import _ctypes
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire.captures import shipped
from kwire.captures.shipped import DESCRIPTION, LEVELS, Shipped, chosen

SOURCES = "hash of the sources"


@pytest.fixture(autouse=True)
def _no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in shipped.switches():
        monkeypatch.delenv(name)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed file that says who may write to the installation."""
    path = tmp_path / "shipped.py"
    path.touch()
    path.chmod(0o644)
    monkeypatch.setattr(shipped, "__file__", str(path))
    return path


@pytest.fixture
def along(tmp_path: Path, code: Path) -> Path:
    """A folder of libraries for processors that do not exist, and for this one. (Python's own extensions are some.)"""
    folder = tmp_path / "object_code"
    folder.mkdir()
    targets = {"elsewhere": {"no such feature"}, "here": shipped.features()}
    (folder / DESCRIPTION).write_bytes(shipped.description(SOURCES, targets))
    for name in ("here", *LEVELS):
        shutil.copyfile(_ctypes.__file__, folder / f"{name}.so")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def target(choice: Shipped) -> str | None:
    """The target of the library that was chosen."""
    return choice.library.target if choice.library is not None else None


def described(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / DESCRIPTION).read_bytes())
    change(content)
    (folder / DESCRIPTION).write_text(json.dumps(content))


def test_the_first_that_this_processor_can_run_is_chosen(along: Path) -> None:
    choice = chosen(SOURCES, along)
    assert (target(choice), choice.reason) == ("here", "")


def test_where_nothing_came_along_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert chosen(SOURCES, tmp_path / "object_code") == Shipped(None, "")


def test_other_sources_need_other_object_code(along: Path) -> None:
    assert chosen("another hash", along) == Shipped(None, "the sources were changed")


@pytest.mark.parametrize("name", ["platform"])
def test_what_it_was_made_with_has_to_be_what_is_here(along: Path, name: str) -> None:
    here = shipped.conditions(SOURCES)[name]
    described(along, lambda content: content.update({name: "another"}))
    assert chosen(SOURCES, along) == Shipped(None, f"for {name} another, this is {here}")


def test_a_processor_that_lacks_something_is_told(along: Path) -> None:
    described(along, lambda content: content["targets"].pop("here"))
    assert chosen(SOURCES, along) == Shipped(None, "this processor is none of elsewhere")


@pytest.mark.parametrize(
    ("lacks", "name"), [(set(), "x86-64-v3"), ({"avx2"}, "x86-64-v2"), ({"movbe"}, "x86-64-v2"), ({"sse4_2"}, None)]
)
def test_the_best_level_of_a_processor_is_chosen(
    along: Path, monkeypatch: pytest.MonkeyPatch, lacks: set[str], name: str | None
) -> None:
    (along / DESCRIPTION).write_bytes(shipped.description(SOURCES, LEVELS))
    monkeypatch.setattr(shipped, "features", lambda: frozenset({*LEVELS["x86-64-v3"], "cmov", "sse2"} - lacks))
    assert target(chosen(SOURCES, along)) == name


def test_levels_are_what_the_dynamic_linker_takes_them_for() -> None:
    """glibc tells the levels of this processor by itself (ld.so --help, from 2.33 on)."""
    linker = Path("/lib64/ld-linux-x86-64.so.2")
    output = subprocess.run([linker, "--help"], capture_output=True, text=True).stdout if linker.exists() else ""
    lines = [line.split(maxsplit=1) for line in output.splitlines() if line.strip().startswith("x86-64-v")]
    if not lines:
        pytest.skip("no dynamic linker that tells the levels of x86-64")
    levels = {level: any("supported" in part for part in rest) for level, *rest in lines if level in LEVELS}
    assert levels == {level: shipped.features() >= set(needed) for level, needed in LEVELS.items()}


def test_switches_of_numba_that_change_code_leave_it_out(along: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/somewhere")
    assert target(chosen(SOURCES, along)) == "here"
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert chosen(SOURCES, along) == Shipped(None, "NUMBA_OPT is set")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"targets": []}',
        b'{"targets": {"here": 3}}',
        b'{"targets": {}, "kernels": 3}',
    ],
)
def test_a_description_that_is_damaged_is_said(along: Path, content: bytes) -> None:
    (along / DESCRIPTION).write_bytes(content)
    assert chosen(SOURCES, along) == Shipped(None, f"{DESCRIPTION} is damaged")
    (along / DESCRIPTION).unlink()
    assert chosen(SOURCES, along) == Shipped(None, f"{DESCRIPTION} is damaged")


def test_a_target_is_a_file_beside_its_description(along: Path) -> None:
    shutil.copyfile(along / "here.so", along.parent / "other.so")
    described(along, lambda content: content.update(targets={"../other": []}))
    assert chosen(SOURCES, along).library is None


@pytest.mark.parametrize("content", [None, b"", b"\x7fELF"])
def test_a_library_that_cannot_be_loaded_is_said(along: Path, content: bytes | None) -> None:
    library = along / "here.so"
    library.unlink() if content is None else library.write_bytes(content)
    choice = chosen(SOURCES, along)
    assert choice.library is None
    assert str(library) in choice.reason


@pytest.mark.parametrize("what", ["", DESCRIPTION, "here.so"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_nothing_is_read_that_others_may_write_to(along: Path, code: Path, what: str, mode: int) -> None:
    """Others than those who may write to the code beside it."""
    place = along / what
    place.chmod(place.stat().st_mode | mode)
    choice = chosen(SOURCES, along)
    assert choice.library is None
    assert "may be written to by others" in choice.reason
    code.chmod(0o644 | mode)
    assert target(chosen(SOURCES, along)) == "here"


def test_features_are_those_of_the_first_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t: x\n\nprocessor\t: 1\nflags\t: sse\n")
    assert shipped.features(str(path)) == {"fpu", "avx2"}
    path.write_text("processor\t: 0\nFeatures\t: asimd\n")
    assert shipped.features(str(path)) == shipped.features(str(tmp_path / "absent")) == frozenset()
