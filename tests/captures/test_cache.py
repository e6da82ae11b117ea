"""The cache folder: what can be made again is kept, whatever happens to it there costs time only, and nothing of others
is used, let alone run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.bulk import shard as conversation
from kwire.analyzer.protocol import program, schema
from kwire.captures import cache, kernels, native
from tests.captures.reaching import reached
from tests.programs import printed


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


def counting(source: Path, builds: list[str]) -> Callable[[], str]:
    """Makes the text of a file; notes each time that it does."""

    def make() -> str:
        cache._digest.cache_clear()
        builds.append(source.read_text())
        return builds[-1]

    return make


def test_a_value_is_made_once_for_each_state_of_its_sources(folder: Path, source: Path) -> None:
    builds: list[str] = []
    for text in ("first", "first", "second", "second", "first"):
        source.write_text(text)
        cache._digest.cache_clear()  # files do not change while a process runs
        assert cache.cached("text", [source], counting(source, builds)) == text
    assert builds == ["first", "second"]


def test_a_damaged_value_is_made_again(folder: Path, source: Path) -> None:
    builds: list[str] = []
    cache.cached("text", [source], counting(source, builds))
    (stored,) = folder.rglob("text.*")
    whole = stored.read_bytes()
    for damaged in (b"", whole[:31], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), cache.sealed(b"none of ours")):
        stored.write_bytes(damaged)
        assert cache.cached("text", [source], counting(source, builds)) == "first"
        assert stored.read_bytes() == whole
    assert len(builds) == 6


def test_a_cache_that_cannot_be_written_only_costs_time(folder: Path, source: Path) -> None:
    folder.write_text("a file, not a folder")
    builds: list[str] = []
    for _ in range(2):
        assert cache.cached("text", [source], counting(source, builds)) == "first"
    assert len(builds) == 2


def test_sealed_content_is_whole_or_refused() -> None:
    stored = cache.sealed(b"content")
    assert bytes(cache.opened(stored)) == b"content"
    for at in range(len(stored)):
        for damaged in (stored[:at], stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]):
            with pytest.raises(ValueError, match="damaged"):
                cache.opened(damaged)


def test_what_is_kept_of_the_layouts_goes_by_all_that_they_are_made_from() -> None:
    """But for the cache itself: how something is stored changes nothing of what it is."""
    listed = set(schema.sources())
    assert set(schema.FOLDER.glob("*.json")) <= listed
    for module, makes in ((schema, "_apis"), (program, "build"), (program, "build_data"), (conversation, "_layouts")):
        assert module.__file__ is not None
        # (Modules are found through the links in `kwire/`, sources where they lie.)
        files = {path.resolve() for path in reached(Path(module.__file__), makes)}
        assert Path(schema.__file__).resolve() in files
        assert files - {Path(cache.__file__).resolve()} <= {path.resolve() for path in listed}


def test_what_is_kept_of_the_layouts_is_what_they_say(folder: Path) -> None:
    for _ in range(2):  # made, then read back
        for load, build in ((program.load, program.build), (program.load_data, program.build_data)):
            loaded, built = load.__wrapped__(), build()
            for name in program.Program.__dataclass_fields__:
                assert np.array_equal(getattr(loaded, name), getattr(built, name)), name
        kinds: tuple[list[Any], list[Any]] = ([], [])
        for kept_array, built_array in zip(conversation.layouts(), conversation._layouts(), strict=True):
            assert np.array_equal(kept_array, built_array)
            native.flatten(kept_array, kinds[0], [])
            native.flatten(built_array, kinds[1], [])
        assert kinds[0] == kinds[1], "kernels would be compiled for another kind of array"
        assert schema.apis.__wrapped__() == schema._apis()


def test_temporary_files_of_others_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has no cache folder, everybody's temporary folder serves; a folder there may be a trap."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder_of_user = cache._temporary()
    assert folder_of_user == cache._temporary()
    assert folder_of_user.stat().st_mode & 0o077 == 0
    folder_of_user.chmod(0o777)  # somebody else may have put code there
    another = cache._temporary()
    assert another != folder_of_user
    assert another.stat().st_mode & 0o077 == 0
    folder_of_user.rmdir()
    folder_of_user.symlink_to(tmp_path)
    assert cache._temporary() == another


# --- whose a cache is -----------------------------------------------------------------------------------------------


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Every folder that may be the cache, each in a place of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cache, "_passed_over", set())
    places = {name: tmp_path / name for name in ("KWIRE_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
    for variable, place in places.items():
        monkeypatch.setenv(variable, str(place))
    return {
        "KWIRE_CACHE_DIR": places["KWIRE_CACHE_DIR"],
        "XDG_CACHE_HOME": places["XDG_CACHE_HOME"] / "kwire",
        "HOME": places["HOME"] / ".cache" / "kwire",
        "temporary": tmp_path / f"kwire-{os.getuid()}",
    }


def without(monkeypatch: pytest.MonkeyPatch, *variables: str) -> None:
    for variable in variables:
        monkeypatch.delenv(variable)


ROOTS = pytest.mark.parametrize(
    ("root", "unset"),
    [
        ("KWIRE_CACHE_DIR", ()),
        ("XDG_CACHE_HOME", ("KWIRE_CACHE_DIR",)),
        ("HOME", ("KWIRE_CACHE_DIR", "XDG_CACHE_HOME")),
    ],
)


@ROOTS
@pytest.mark.parametrize("part", ["", "data", "kernels", "spark"])
def test_a_cache_that_others_may_write_to_is_passed_over_and_a_line_says_so(
    root: str,
    unset: tuple[str, ...],
    part: str,
    roots: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without(monkeypatch, *unset)
    assert cache.cache_root() == roots[root], "it is ours, and new"
    for mode in (0o720, 0o702):
        (roots[root] / part).mkdir(exist_ok=True)
        (roots[root] / part).chmod(mode)
        assert cache.cache_root() != roots[root]
        assert cache.cache_root() != roots[root]
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == [f"kwire: '{roots[root] / part}' may be written to by others: this cache is not used"], "once"


@ROOTS
def test_a_cache_of_another_user_is_passed_over_and_a_line_says_so(
    root: str,
    unset: tuple[str, ...],
    roots: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without(monkeypatch, *unset)
    roots[root].mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: roots[root].stat().st_uid + 1)
    assert cache.cache_root() != roots[root]
    assert f"'{roots[root]}' belongs to another user: this cache is not used" in capsys.readouterr().err


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_folders_of_the_cache_are_ours_alone_whatever_the_umask(
    umask: int, source: Path, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "KWIRE_CACHE_DIR", "XDG_CACHE_HOME")
    before = os.umask(umask)
    try:
        cache.cached("text", [source], source.read_text)
        cache.replace(cache.cache_root() / "kernels" / "version" / "machine" / "code", b"")
    finally:
        os.umask(before)
    for folder in (roots["HOME"], *(path for path in roots["HOME"].rglob("*") if path.is_dir()), roots["HOME"].parent):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


def test_only_absolute_folders_are_the_users_cache(
    roots: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG's specification: relative paths are to be ignored. A cache in the folder one happens to be in is a trap."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    without(monkeypatch, "KWIRE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_root() == roots["HOME"]
    monkeypatch.setenv("HOME", "relative")
    assert cache.cache_root() == roots["temporary"]
    assert not list(Path().iterdir())


def test_without_a_home_the_cache_is_a_temporary_folder(
    roots: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's user may have no HOME and no line in the file of users: `~` stays `~` then."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    without(monkeypatch, "KWIRE_CACHE_DIR", "XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache.cache_root() == roots["temporary"]
    assert not list(Path().iterdir())


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("sprung",)


def test_what_is_kept_cannot_run_code(
    folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache.cached("text", [source], source.read_text)
    (stored,) = folder.rglob("text.*")
    stored.write_bytes(cache.sealed(pickle.dumps(Trap())))
    assert cache.cached("text", [source], source.read_text) == "first"
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(TypeError, match="does not keep object"):
        cache.packed(object())
    objects = cache.packed(np.arange(3)).replace(b"<i8", b"|O8")
    with pytest.raises(ValueError, match="not kept"):
        cache.unpacked(memoryview(objects))


def test_values_come_back_as_they_were() -> None:
    value = {"a": [1, None, True, "\u2028", -(1 << 62)], "array": [1], "": {}, "b": [[1.5, "x"]]}
    assert cache.unpacked(memoryview(cache.packed(value))) == value
    for array in (np.arange(6, dtype="<i2").reshape(2, 3), np.zeros((2, 0, 3), np.uint8), np.array([True]), np.ones(2)):
        back = cache.unpacked(memoryview(cache.packed([array])))[0]
        assert np.array_equal(back, array)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.flags.writeable


def test_a_file_that_others_could_have_written_is_not_read(folder: Path, source: Path, tmp_path: Path) -> None:
    builds: list[str] = []
    cache.cached("text", [source], counting(source, builds))
    (stored,) = folder.rglob("text.*")
    whole = stored.read_bytes()
    stored.chmod(0o602)
    cache.cached("text", [source], counting(source, builds))
    stored.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    stored.symlink_to(tmp_path / "elsewhere")
    cache.cached("text", [source], counting(source, builds))
    assert len(builds) == 3
    assert not cache.ours_alone(tmp_path / "absent")
    assert not cache.ours_alone(stored.parent)


def test_object_code_comes_only_from_files_that_are_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = native.ObjectCode(native.Entry("f", (), (), False), b"code")
    monkeypatch.setattr(native, "linked", lambda stored: stored)
    (tmp_path / "code").write_bytes(code.to_bytes())
    (tmp_path / "code").chmod(0o600)
    stored: Any = kernels._cached(str(tmp_path / "code"))
    assert stored == code
    (tmp_path / "code").chmod(0o622)
    assert kernels._cached(str(tmp_path / "code")) is None


def test_kernels_are_not_kept_where_others_may_write(tmp_path: Path) -> None:
    """The whole way, in a process of its own: what lies in an open folder is neither linked nor added to."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    where = printed(
        "from kwire.captures import kernels; print(kernels.CACHE_FOLDER)", KWIRE_CACHE_DIR=str(tmp_path / "open")
    )
    assert not Path(where.strip()).is_relative_to(tmp_path)
    assert not list((tmp_path / "open").iterdir())
