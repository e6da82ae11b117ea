"""Compiled kernels: called without Numba they do what Numba's own dispatch does; a bad file in the cache, several first
runs at once and Numba's switches change no result; an edit of anything that a kernel is made from compiles it anew.

(proves: captures/kernels.py, captures/native.py)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kwire.captures import kernels, native
from kwire.captures.cache import python_files
from kwire.captures.extras import install
from kwire.captures.kernels import big16, big32, inline, kernel, prefetch, shared
from kwire.captures.shipped import Library
from tests.captures.reaching import kernels_of, reached
from tests.programs import printed
from tests.shared import ROOT, SAMPLES
from tools.object_code import link

SAMPLE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"


class Pair(NamedTuple):
    """Arrays that travel together."""

    first: np.ndarray
    second: np.ndarray


@inline
def at_or_zero(values: Any, i: Any) -> Any:
    """values[i], 0 outside."""
    return values[i] if 0 <= i < len(values) else values.dtype.type(0)


@shared
def total(values: Any) -> Any:
    """The sum of one dimension."""
    result = np.int64(0)
    for i in range(len(values)):
        result += np.int64(values[i])
    return result


@kernel
def numbers_at(array: Any, at: Any) -> Any:
    """(the 16-bit number, the 32-bit number) in network order at a place of an array of bytes."""
    prefetch(array, at + 1_000_000)  # beyond the array, which no harm comes of
    return big16(array, at), big32(array, at)


@kernel
def total_of(pair: Any, i: Any) -> Any:
    """(sum of both, item i of the first, whether that is negative); the second gets the first's items added."""
    for j in range(min(len(pair.first), len(pair.second))):
        pair.second[j] += pair.first[j]
    item = np.int64(at_or_zero(pair.first, i))
    return total(pair.first) + total(pair.second), item, item < 0


@kernel
def nothing(values: Any) -> None:
    """Doubles each value; returns None."""
    for i in range(len(values)):
        values[i] *= 2


@kernel
def seen(value: Any, flag: Any, unsigned: Any, real: Any) -> Any:
    """Scalars as they come in."""
    return value * 3, not flag, unsigned, real / 2


@kernel
def corner(table: Any) -> Any:
    """The sum of a table by its two indices, whatever its layout."""
    result = np.int64(0)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            result += np.int64(table[i, j]) * (3 * i + j + 1)
    return result


@kernel
def past_the_end(values: Any) -> Any:
    """Reads one item too far."""
    return values[len(values)]


def by_numba(function: Any) -> Any:
    """Call a function by Numba's own dispatch. (A kernel has the type of what it was made of.)"""
    return function.by_numba


def test_numbers_are_read_in_network_order_wherever_they_begin() -> None:
    data = bytes(range(120, 140)) + b"\xff" * 8
    array = np.frombuffer(data, np.uint8)
    for at in range(len(data) - 3):
        expected = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at : at + 4], "big")
        assert numbers_at(array, at) == expected


def test_a_kernel_does_what_numbas_own_dispatch_does() -> None:
    for dtype in (np.uint8, np.int8, np.int32, np.uint16, np.int64):
        first = np.array([-3, 5, 120], np.int64).astype(dtype)
        compiled_pair, numba_pair = (Pair(first.copy(), np.arange(3, dtype=np.int64)) for _ in range(2))
        for i in (-1, 0, 2, 3, 1 << 40):
            assert total_of(compiled_pair, i) == by_numba(total_of)(numba_pair, i)
            assert (compiled_pair.second == numba_pair.second).all()


def test_results_are_pythons_own_values() -> None:
    result = total_of(Pair(np.array([-1]), np.array([7])), 0)
    assert result == (5, -1, True)
    assert [type(part) for part in result] == [int, int, bool]
    assert nothing(np.ones(3, np.int64)) is None


def test_scalars_keep_all_their_bits() -> None:
    for arguments in [
        (-5, True, np.uint64((1 << 64) - 1), 1.5),
        (np.int64(-(1 << 61)), np.bool_(False), np.uint64(1), np.float64(-0.0)),
        (np.int8(-128), False, np.uint8(255), float("inf")),
    ]:
        assert seen(*arguments) == by_numba(seen)(*arguments)


def test_a_kernel_that_holds_its_arrays_sees_what_is_in_them_now() -> None:
    for function in (total_of, by_numba(total_of)):
        pair = Pair(np.array([-1, 5]), np.array([7, 0]))
        held = kernels.holding(function, (pair, 0), (1,))
        assert held(0) == (15, -1, True)
        pair.first[:] = 1, 2
        assert held(1) == (17, 2, False)
        assert pair.second.tolist() == [7, 7]


def test_layouts_and_read_only_arrays_are_kinds_of_their_own() -> None:
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    frozen = table.copy()
    frozen.setflags(write=False)
    unaligned = np.frombuffer(b"x" + table.tobytes(), np.uint8)[1:].view(np.int32).reshape(3, 4)
    for array in (table, table.T, table[:, ::2], table[::-1], frozen, unaligned, table[:0], table[:, :1]):
        expected = sum(int(array[i, j]) * (3 * i + j + 1) for i in range(array.shape[0]) for j in range(array.shape[1]))
        assert corner(array) == by_numba(corner)(array) == expected


def test_where_an_array_is_is_what_numpy_tells() -> None:
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    for array in (
        table,
        table[1:],
        table[:, ::2],
        table[::-1],
        table[:0],
        np.zeros(0),
        np.frombuffer(b"abc", np.uint8),
    ):
        assert native.address(array) == array.ctypes.data


def test_what_is_no_plain_argument_is_left_to_numba() -> None:
    pairs = np.zeros(2, [("a", np.int64), ("b", np.int64)])
    with pytest.raises(native.NotPlain, match="an array of"):
        native.flatten(pairs, [], [])
    with pytest.raises(native.NotPlain, match="more than 64 bits"):
        native.flatten(1 << 63, [], [])
    with pytest.raises(native.NotPlain, match="a str"):
        native.flatten("text", [], [])
    assert seen(1, False, 1 << 63, 0.0) == (3, True, 1 << 63, 0.0)


def test_object_code_with_a_symbol_that_may_be_absent_is_not_used() -> None:
    """LLVM would end the process when it links it. `sin` comes from the C library's mathematics."""
    numba = kernels.with_numba()
    sine = numba.njit(lambda values: np.sin(values[0]), no_cpython_wrapper=True, _nrt=False)
    values: list[Any] = []
    arguments = (np.zeros(1),)
    native.flatten(arguments[0], [], values)
    assert native.compiled(sine, arguments, values) is None
    assert "sin" in (native.undefined_symbols(sine.overloads[sine.signatures[0]].library._get_compiled_object()) or ())


def compiled_code(kernel: Any, *arguments: Any, symbol: str = "") -> native.ObjectCode:
    """The object code of a kernel for such arguments."""
    values: list[Any] = []
    for argument in arguments:
        native.flatten(argument, [], values)
    code = native.compiled(kernels.Kernel(kernel.py_func).dispatcher, arguments, values, symbol)
    assert code is not None
    return code


def test_object_code_is_loaded_by_llvm() -> None:
    """It does what it does where Numba loads it; code with constants and calls of the C library among it."""
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    values: list[Any] = []
    native.flatten(table, [], values)
    assert native.linked(compiled_code(corner, table))(values) == by_numba(corner)(table)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a linker for ELF")
def test_kernels_are_linked_into_a_shared_library_under_names_of_ours(tmp_path: Path) -> None:
    table, unsigned = np.arange(12, dtype=np.int32).reshape(3, 4), np.arange(12, dtype=np.uint32).reshape(3, 4)
    symbols = {"a.corner-1": table, "another": unsigned}
    codes = {symbol: compiled_code(corner, array, symbol=symbol) for symbol, array in symbols.items()}
    link(codes, tmp_path / "here.so", tmp_path / "entries")
    library = Library(tmp_path / "here.so", json.loads((tmp_path / "entries").read_bytes()))
    for symbol, array in symbols.items():
        values: list[Any] = []
        native.flatten(array, [], values)
        linked = library.kernel(symbol)
        assert linked is not None
        assert linked(values) == by_numba(corner)(array)
    assert library.kernel("none of them") is None


def test_only_object_files_whose_symbols_we_can_read_are_used() -> None:
    assert native.undefined_symbols(b"\xcf\xfa\xed\xfe" + bytes(60)) is None  # Mach-O
    assert native.undefined_symbols(b"") is None


def test_object_code_is_stored_whole_or_not_at_all() -> None:
    code = native.ObjectCode(native.Entry("f", ("ptr", "i64"), ("int64", "bool"), True), b"code")
    stored = code.to_bytes()
    assert native.ObjectCode.from_bytes(stored) == code
    for cut in range(len(stored)):
        with pytest.raises(ValueError, match="damaged"):
            native.ObjectCode.from_bytes(stored[:cut])
    for i in range(len(stored)):
        with pytest.raises(ValueError, match="damaged"):
            native.ObjectCode.from_bytes(stored[:i] + bytes([stored[i] ^ 1]) + stored[i + 1 :])


# ---------------------------------------------------------------------------------- what the cache's name depends on

PROJECT = python_files(*(ROOT / package for package in ("captures", "analyzer", "replay", "reports")))
HASHED = set(python_files(*(ROOT / folder for folder in kernels.SOURCES)))


def test_every_kernel_lies_where_an_edit_is_noticed() -> None:
    with_kernels = {path for path in PROJECT if any(kernels_of(path))}
    assert len(with_kernels) > 10
    assert with_kernels <= HASHED


def test_all_that_a_kernel_is_made_from_lies_where_an_edit_is_noticed() -> None:
    for path in PROJECT:
        for function in kernels_of(path):
            outside = reached(path, function.name) - HASHED
            assert not outside, f"{path.name}: {function.name} takes names from there: add it to kernels.SOURCES"


def test_a_kernel_is_followed_through_imports_aliases_and_constants() -> None:
    """The test above sees what it should: of `scan`, the layers below it."""
    files = {path.name for path in reached(ROOT / "captures" / "packets.py", "scan")}
    assert {"packets.py", "windows.py", "layouts.py", "links.py", "fragments.py"} <= files
    assert "streams.py" not in files


def cache_folder(sources: Path) -> Path:
    """The cache of the kernels of sources that lie there."""
    return kernels.cache_folder(kernels.sources_hash(sources))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the packages' Python files, to edit."""
    for path in HASHED:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return tmp_path


def test_any_edit_gives_another_cache_folder(copied: Path) -> None:
    assert cache_folder(copied) == kernels.CACHE_FOLDER
    names = {kernels.CACHE_FOLDER}
    for path in python_files(copied):
        whole = path.read_text(encoding="utf-8")
        path.write_text(whole + "# edited\n", encoding="utf-8")
        names.add(cache_folder(copied))
        path.write_text(whole, encoding="utf-8")
    assert len(names) == len(HASHED) + 1
    assert cache_folder(copied) == kernels.CACHE_FOLDER


def test_a_file_added_moved_or_removed_gives_another_cache_folder(copied: Path) -> None:
    file = copied / kernels.SOURCES[0] / "deeper" / "added.py"
    file.parent.mkdir()
    file.write_text("")
    added = cache_folder(copied)
    file.rename(file.with_name("moved.py"))
    moved = cache_folder(copied)
    assert len({kernels.CACHE_FOLDER, added, moved}) == 3
    file.with_name("moved.py").unlink()
    assert cache_folder(copied) == kernels.CACHE_FOLDER


def test_only_kernels_from_elsewhere_go_by_their_own_file() -> None:
    """Ours go by the folder's name. Where a file lies, not how deep, tells the two apart."""
    name = kernels._full_name(nothing)
    source = kernels._source_of(nothing)
    assert (name, source) == ("tests.captures.test_kernels.nothing", Path(__file__))
    from kwire.captures.packets import scan

    assert kernels._source_of(scan) is None


# ----------------------------------------------------------------------------------------- in processes of their own


def run(code: str, cache: Path, **environment: str) -> str:
    """Return the output of a program with a cache folder of its own."""
    return printed(code, **{"KWIRE_CACHE_DIR": str(cache), **environment})


PROGRESS = (
    "import sys, numpy as np; from kwire.captures import kernels;"
    "from tests.captures.test_kernels import nothing, corner;"
    "told = []; kernels.tell(told.append);"
    "nothing(np.arange(4)); nothing(np.arange(4)); nothing(np.arange(4, dtype=np.int8));"
    "print([now and (now.kernel.rpartition('.')[2], now.number) for now in told], len(kernels.compiled_here()),"
    " told[0] and told[0].most == len(kernels._known), told[2] and told[2].most == len(kernels._known) + 1)"
)


def test_who_asks_is_told_what_is_compiled_and_of_how_many(tmp_path: Path) -> None:
    """A kernel that is compiled for arguments of another kind counts once more."""
    assert run(PROGRESS, tmp_path) == "[('nothing', 1), None, ('nothing', 2), None] 2 True True\n"


def test_what_compiles_in_advance_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "object_folder", lambda: tmp_path)
    done: list[str] = []

    def fails() -> None:
        done.append("failed")
        raise ValueError

    with pytest.raises(ValueError):
        kernels.once("watch", fails)
    for name in ("watch", "watch", "record", "watch"):
        kernels.once(name, lambda: done.append("done"))
    assert done == ["failed", "done", "done"]
    monkeypatch.setattr(kernels, "needs_no_compiler", lambda: True)
    kernels.once("another", lambda: done.append("needless"))
    assert "needless" not in done


DOUBLE = (
    "import sys, numpy as np; from tests.captures.test_kernels import nothing;"
    "values = np.arange(4); nothing(values); print(values.tolist(), 'numba' in sys.modules)"
)


def test_numba_is_imported_to_compile_only(tmp_path: Path) -> None:
    assert run(DOUBLE, tmp_path) == "[0, 2, 4, 6] True\n"
    assert run(DOUBLE, tmp_path) == "[0, 2, 4, 6] False\n"


def double_apart() -> None:
    """Double an array in a process of its own, as `compile_apart` does."""
    nothing(np.arange(4))


def test_a_kernel_is_compiled_in_a_process_of_its_own_on_the_first_run(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from kwire.captures import kernels; from tests.captures.test_kernels import *;"
        "kernels.compile_apart(nothing, double_apart);"
        "print(list(kernels._apart)); values = np.arange(4); nothing(values);"
        "print(values.tolist(), 'numba' in sys.modules, list(kernels._apart))"
    )
    name = "tests.captures.test_kernels.nothing"
    assert run(code, tmp_path) == f"['{name}']\n[0, 2, 4, 6] False []\n", "taken over from that process"
    assert run(code, tmp_path) == "[]\n[0, 2, 4, 6] False []\n", "not the first run"


def test_what_is_compiled_apart_is_a_function_that_another_process_can_name() -> None:
    with pytest.raises(ValueError, match="another process can only call what a module names"):
        kernels.compile_apart(nothing, lambda: None)


def test_a_damaged_cache_is_compiled_again(tmp_path: Path) -> None:
    run(DOUBLE, tmp_path)
    (stored,) = tmp_path.rglob("tests.captures.test_kernels.nothing.*")
    whole = stored.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], whole[:-50] + bytes(50)):
        stored.write_bytes(damaged)
        assert run(DOUBLE, tmp_path) == "[0, 2, 4, 6] True\n"
        assert run(DOUBLE, tmp_path) == "[0, 2, 4, 6] False\n"


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert run(DOUBLE, tmp_path / "file") == "[0, 2, 4, 6] True\n"


def test_first_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    # They begin at a word: on a busy machine one might else find what another has compiled.
    code = DOUBLE.replace("values =", "print('ready', flush=True); sys.stdin.readline(); values =")
    variables = {**os.environ, "KWIRE_CACHE_DIR": str(tmp_path)}
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=variables, stdin=pipe, stdout=pipe, text=True)
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert {process.communicate()[0] for process in started} == {"[0, 2, 4, 6] True\n"}
    assert run(DOUBLE, tmp_path) == "[0, 2, 4, 6] False\n"
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()], "nothing half-written stays"


def test_threads_that_need_a_kernel_at_once_get_the_same(tmp_path: Path) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor as Pool; import numpy as np;"
        "from tests.captures.test_kernels import corner; tables = [np.full((2, 2), i) for i in range(8)];"
        "print(list(Pool(8).map(corner, tables)) == [corner(table) for table in tables])"
    )
    assert run(code, tmp_path) == "True\n"


def test_without_the_compiler_kernels_are_plain_functions(tmp_path: Path) -> None:
    assert run(DOUBLE, tmp_path, NUMBA_DISABLE_JIT="1") == "[0, 2, 4, 6] False\n"
    assert not list(tmp_path.iterdir())


LITTLE = (
    "import sys, numpy as np; from kwire.captures import kernels; from tests.captures.test_kernels import nothing;"
    "kernels.expect({}); values = np.arange(4); nothing(values); print(values.tolist(), 'numba' in sys.modules)"
)


def test_what_is_little_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    most = kernels.PLAIN_BYTES
    assert run(LITTLE.format(most), tmp_path) == "[0, 2, 4, 6] False\n"
    assert not list(tmp_path.rglob("*.nothing.*"))
    assert run(LITTLE.format(most + 1), tmp_path) == "[0, 2, 4, 6] True\n"
    assert run(LITTLE.format(most), tmp_path) == "[0, 2, 4, 6] False\n", "compiled before"


def test_many_small_captures_are_worth_compiling(tmp_path: Path) -> None:
    twice = LITTLE.replace("kernels.expect({});", "kernels.expect({0}); kernels.expect({0});")
    assert run(twice.format(kernels.PLAIN_BYTES), tmp_path) == "[0, 2, 4, 6] True\n"
    assert run(twice.replace("{0}", "None", 1).format(1), tmp_path / "live") == "[0, 2, 4, 6] True\n"


WITHOUT_NUMBA = "from kwire.captures import native; native._numba = lambda: None\n"


def test_without_numba_what_is_little_is_read_and_what_is_more_is_refused(tmp_path: Path) -> None:
    assert run(WITHOUT_NUMBA + LITTLE.format(1), tmp_path) == "[0, 2, 4, 6] False\n"
    code = (
        "import numpy as np; from kwire.captures import kernels; from tests.captures.test_kernels import nothing\n"
        "try: nothing(np.arange(4))\nexcept kernels.CompilerMissingError as error: print(error)"
    )
    assert run(WITHOUT_NUMBA + code, tmp_path) == (
        "kernels have to be compiled, and Numba is not installed (this installation brought none for this machine)"
        f"\nhint: {install('compile')}\n"
    )


@shared
def wrapped(value: Any) -> Any:
    """A hash, which wraps."""
    return np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)


@kernel
def hash_of(value: Any) -> Any:
    """The hash of a number."""
    return np.int64(wrapped(value) >> np.uint64(1))


def test_a_plain_kernel_calls_helpers_and_warns_of_nothing(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from kwire.captures import kernels; from tests.captures.test_kernels import hash_of\n"
        "kernels.expect(1); plain = hash_of(1 << 62); kernels.expect(None); print(plain == hash_of(1 << 62))"
    )
    assert printed(code, "-W", "error", KWIRE_CACHE_DIR=str(tmp_path)) == "True\n"


def test_with_bounds_checks_a_read_past_an_array_raises(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from tests.captures.test_kernels import past_the_end\n"
        "try: past_the_end(np.zeros(3))\nexcept IndexError: print('IndexError')"
    )
    for _ in range(2):  # a warm cache must not forget it
        assert run(code, tmp_path, NUMBA_BOUNDSCHECK="1") == "IndexError\n"


def test_analyze_and_show_do_without_numba(tmp_path: Path) -> None:
    """Once compiled. A capture is read, decoded and written without its half second of imports."""
    code = (
        "import sys; from kwire.analyzer.cli.parser import main\n"
        f"main(['analyze', {str(SAMPLE)!r}, '-o', {str(tmp_path / 'dataset')!r}]); main(['show', {str(SAMPLE)!r}])\n"
        "print('numba' in sys.modules, file=sys.stderr)"
    )
    for _ in range(2):  # the first may have to compile
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"
