"""How kwire compiles its kernels: one decorator, one cache folder a machine.

A *kernel* is a Numba function from arrays to arrays: no I/O, no Python objects, every load widened and every
bound checked before the read. Use `@kernel` on what Python calls, `@inline` on small helpers that other kernels call
and `@shared` on larger ones.

A kernel's code comes from the first of these that has it:

1. the shared library that came with the installation, if it fits (`shipped.py`): then nothing is compiled at all;
2. this user's cache: object code (`native.py`) in a folder named by a hash of every file that code may come from
   (`SOURCES`), because Numba itself does not notice an edit of a function that is called from another module;
3. Numba, the extra `compile`, which is imported only to compile;
4. Python: what is read is so little (`expect`) that compiling would take longer.

`NUMBA_DISABLE_JIT=1` leaves plain Python functions, and with `NUMBA_BOUNDSCHECK=1` (a read past an array raises
IndexError) Numba does all of it, its own cache included. Nothing is printed here: who wants to say that kernels are
being compiled, and how many, asks to be told (`tell`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import numpy

from kwire.captures import native, shipped
from kwire.captures.cache import cache_root, content_of, ours_alone, python_files, replace
from kwire.captures.errors import KwireError
from kwire.captures.extras import install

# What kernels take and give. Numba infers its own types; these let mypy check the calls between kernels.
Int: TypeAlias = Any
"""A whole number: an int, or NumPy's of any width. (Kernels mix them, which NumPy's own types do not allow.)"""
Flag: TypeAlias = Any
"""True or False: a bool, or NumPy's."""
Bytes: TypeAlias = "numpy.ndarray[Any, numpy.dtype[numpy.uint8]]"
Table: TypeAlias = "numpy.ndarray[Any, numpy.dtype[numpy.int64]]"
"""One row a thing, or one number a thing."""
Array: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
"""Numbers of another width, said where the array is made."""

NULL: Final = -(1 << 63)
"""Absent, in a table of int64."""

F = TypeVar("F", bound=Callable[..., Any])
Tables = TypeVar("Tables", bound=tuple[Any, ...])
"""A NamedTuple of arrays."""

_ROOT = Path(__file__).resolve().parent.parent

SOURCES = ("captures", "analyzer/protocol", "analyzer/records", "analyzer/bulk")
"""The folders that kernels, and what is compiled into them (helpers, names of columns, roles, operations), come from:
all of their files, whether a kernel reaches them or not. A kernel elsewhere would run stale code: tests look for one,
and for a name that a kernel takes from elsewhere."""


def _set(variable: str) -> bool:
    """As Numba reads its switches."""
    return os.environ.get(variable, "0") not in ("", "0")


_PLAIN_PYTHON = _set("NUMBA_DISABLE_JIT")
_BOUNDS_CHECKED = _set("NUMBA_BOUNDSCHECK")


def sources_hash(root: Path = _ROOT) -> str:
    """Hash the sources of all kernels in `root`."""
    digest = hashlib.sha256()
    for path in python_files(*(root / folder for folder in SOURCES)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def cache_folder(sources: str) -> Path:
    """The folder that holds the compiled kernels of sources with this hash. Bounds-checked builds get one of their own,
    because Numba ignores `NUMBA_BOUNDSCHECK` where a cache is warm."""
    digest = hashlib.sha256(f"{sys.version} {sources}".encode())
    return cache_root() / "kernels" / (digest.hexdigest()[:16] + ("-bounds" if _BOUNDS_CHECKED else ""))


_SOURCES_HASH: Final = sources_hash()
CACHE_FOLDER = cache_folder(_SOURCES_HASH)


@functools.cache
def came_along() -> shipped.Shipped:
    """Find the shared library of this installation that fits this process.

    None, and no reason, if kernels are not compiled, or if Numba alone compiles them."""
    return shipped.Shipped(None) if _PLAIN_PYTHON or _BOUNDS_CHECKED else shipped.chosen(_SOURCES_HASH)


@functools.cache
def object_folder() -> Path:
    """The part of it with object code of the installed Numba and LLVM for this processor, under the switches of Numba
    that are set."""
    digest = hashlib.sha256(native.machine().encode())
    for name in shipped.switches():
        digest.update(f"{name}={os.environ[name]}".encode())
    return CACHE_FOLDER / digest.hexdigest()[:16]


def needs_no_compiler() -> bool:
    """Whether kernels are not compiled, or came along compiled."""
    return _PLAIN_PYTHON or came_along().library is not None


def warm() -> bool:
    """Whether some kernels are compiled already."""
    if needs_no_compiler() or not native.has_compiler():
        return True
    folder = CACHE_FOLDER if _BOUNDS_CHECKED else object_folder()
    return folder.is_dir() and any(folder.iterdir())


def once(name: str, work: Callable[[], object]) -> None:
    """Run `work`, which calls kernels so that they are compiled, unless it ran before under this name.

    It does not run if nothing need be compiled, or nothing can be."""
    if needs_no_compiler() or not native.has_compiler():
        return
    mark = object_folder() / f"{name}.done"
    if not ours_alone(mark):
        work()
        replace(mark, b"")


# --- without a compiler ----------------------------------------------------------------------------------------------

PLAIN_BYTES: Final = 1 << 20
"""Bytes of captures that kernels read as plain Python where they would have to be compiled first: at most ten seconds,
against a minute and a half (`tests/bench/README.md`)."""

_expected_bytes = 0


def expect(size: int | None) -> None:
    """Say how many bytes kernels are about to read; None: nobody knows, so they are compiled.

    What a process reads adds up: one that reads many small captures compiles too."""
    global _expected_bytes
    _expected_bytes += PLAIN_BYTES + 1 if size is None else size


def runs_plain() -> bool:
    """Whether kernels that have no code run as plain Python, because what they read is known to be little."""
    return 0 < _expected_bytes <= PLAIN_BYTES


class CompilerMissingError(KwireError):
    """Kernels that came along do not fit, and nothing here can compile them."""

    def __init__(self) -> None:
        reason = came_along().reason or "this installation brought none for this machine"
        super().__init__(
            f"kernels have to be compiled, and Numba is not installed ({reason})",
            install("compile"),
        )


class Compiling(NamedTuple):
    """Progress of compilation: the kernel's name, its number in this process (from 1), and an upper bound.

    The bound is the number of kernels in the modules loaded so far that have no code yet."""

    kernel: str
    number: int
    most: int


Listener: TypeAlias = "Callable[[Compiling | None], object]"
_known: Final[list[Kernel]] = []
_compiled_names: Final[list[str]] = []


def _nobody(now: Compiling | None) -> None:
    """Default listener: does nothing."""


_listener: Listener = _nobody


def tell(listener: Listener) -> Listener:
    """Set the listener that is called before each kernel is compiled, and with None after it.

    Returns the previous one."""
    global _listener
    before, _listener = _listener, listener
    return before


def compiled_here() -> tuple[str, ...]:
    """The kernels that this process, or one on its behalf, has compiled, as often as each was."""
    return tuple(_compiled_names)


# No reference counts: kernels get their arrays and never allocate. Division as NumPy does it: no exceptions to raise.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}


@functools.cache
def with_numba() -> Any:
    """Import Numba and register our kernels and helpers with it."""
    if not native.has_compiler():
        raise CompilerMissingError
    if "NUMBA_CACHE_DIR" not in os.environ:
        # Numba reads the variable when it is imported; setting it afterwards would be too late.
        os.environ["NUMBA_CACHE_DIR"] = str(CACHE_FOLDER)
    import numba
    from numba.extending import typeof_impl

    @typeof_impl.register(Helper)
    def _(function: Helper, context: Any) -> Any:
        return numba.types.Dispatcher(function.dispatcher)

    @typeof_impl.register(Intrinsic)
    def _(intrinsic: Intrinsic, context: Any) -> Any:
        return intrinsic.numba_type

    return numba


_compiling = threading.RLock()
_apart: dict[str, Any] = {}  # processes, by the kernel that they compile


def _full_name(function: Callable[..., Any]) -> str:
    """Module and name of a function or kernel."""
    plain = getattr(function, "py_func", function)
    return f"{plain.__module__}.{plain.__qualname__}"


def _source_of(function: Callable[..., Any]) -> Path | None:
    """The file of a kernel outside `SOURCES`, which the cache folder's name does not stand for."""
    source = Path(getattr(function, "py_func", function).__code__.co_filename).resolve()
    return None if any(source.is_relative_to(_ROOT / folder) for folder in SOURCES) else source


def compile_apart(wanted: Callable[..., Any], work: Callable[[], object]) -> None:
    """On the first run ever, compile one kernel in a process of its own: `work`, a function of a module, calls it
    there, and this process goes on with the others. Nothing is lost where that fails: a kernel that is not there when
    it is needed is compiled then."""
    name = _full_name(wanted)
    if work.__qualname__ != work.__name__:
        raise ValueError(f"{work.__qualname__}: another process can only call what a module names")
    if warm() or runs_plain() or name in _apart or (os.cpu_count() or 1) < 2:
        return
    import subprocess  # not at every start

    statement = f"from {work.__module__} import {work.__name__} as work; work()"
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with contextlib.suppress(OSError):
        process = subprocess.Popen(
            [sys.executable, "-c", statement],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _apart[name] = process
        atexit.register(_end, process)


def _end(process: Any) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """For what makes millions of small objects and drops none that only the collector finds: it would look at all of
    them again and again, a tenth of the compiler's time and a fifth of a plan's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Helper:
    """A function that kernels call. Compiled code of its own has no entry for Python: Python runs it plain."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.py_func = function
        self._options = {"no_cpython_wrapper": True, **_OPTIONS, **options}
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher that compiles it."""
        return with_numba().njit(self.py_func, **self._options)

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)


class Intrinsic:
    """An operation that kernels express in LLVM's instructions.

    `make` builds Numba's intrinsic once something is compiled with it. `reference` is the same in Python, for
    kernels that run as plain Python."""

    def __init__(self, make: Callable[[], Any], reference: Callable[..., Any]) -> None:
        self._make = make
        self._reference = reference

    @functools.cached_property
    def numba_type(self) -> Any:
        """Numba's type of it."""
        with_numba()
        from numba.core.registry import cpu_target

        builder = self._make()
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(builder)

    def __call__(self, *arguments: Any) -> Any:
        return self._reference(*arguments)


def _call_at() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def call_at(typing_context: Any, address: Any, arguments: Any) -> Any:
        count = len(arguments)

        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            words = [builder.extract_value(values[1], number) for number in range(count)]
            kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * count)
            return builder.call(builder.inttoptr(values[0], kind.as_pointer()), words)

        return types.int32(types.int64, types.UniTuple(types.int64, count)), build

    return call_at


def _address_of() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def address_of(typing_context: Any, array: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            return builder.ptrtoint(data, ir.IntType(64))

        return types.int64(array), build

    return address_of


def _number_at(bits: int) -> Callable[[], Any]:
    def make() -> Any:
        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        @intrinsic
        def number_at(typing_context: Any, array: Any, at: Any) -> Any:
            if array.layout != "C":
                raise TypeError(f"{array}: its bytes do not lie one after the other")

            def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                data = context.make_array(signature.args[0])(context, builder, values[0]).data
                place = builder.bitcast(builder.gep(data, [values[1]]), ir.IntType(bits).as_pointer())
                return builder.zext(builder.bswap(builder.load(place, align=1)), ir.IntType(64))

            return types.int64(array, types.int64), build

        return number_at

    return make


def _prefetch() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def prefetch(typing_context: Any, array: Any, at: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            place = builder.gep(data, [values[1]])
            flag = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [place.type, flag, flag, flag])
            # To be read, as often as may be, as data (LLVM, "llvm.prefetch").
            how = [ir.Constant(flag, number) for number in (0, 3, 1)]
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0"), [place, *how])
            return context.get_dummy_value()

        return types.none(array, types.int64), build

    return prefetch


def _called_at(address: Int, arguments: tuple[Int, ...]) -> int:
    kinds = [ctypes.c_int64] * len(arguments)
    result: int = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(int(address))(*map(int, arguments))
    return result


call_at: Callable[[Int, tuple[Int, ...]], Int] = Intrinsic(_call_at, _called_at)
"""Call the C function at an address with whole numbers and addresses, all int64; it gives a C int. Nothing is checked:
who calls answers for the address and for what is behind those that it hands over."""

address_of: Callable[[Bytes], Int] = Intrinsic(_address_of, native.address)
"""Where an array's first item lies, for as long as the kernel's caller keeps the array."""


MACHINE_CODE: Final = not _PLAIN_PYTHON and not _BOUNDS_CHECKED
"""Kernels may read as processors do; else each byte is read by itself, so that Python or Numba checks where it is."""


def _read(size: int) -> Callable[[Bytes, Int], Int]:
    return lambda array, at: numpy.int64(int.from_bytes(array[at : at + size].tobytes(), "big"))


big16: Callable[[Bytes, Int], Int] = Intrinsic(_number_at(16), _read(2))
"""The unsigned 16-bit number in network order whose first byte is at a place of an array, as int64: one load, where
Numba would make two, and ask of each whether its place is negative. Nothing is checked: who calls has checked."""
big32: Callable[[Bytes, Int], Int] = Intrinsic(_number_at(32), _read(4))
"""The same of 32 bits."""
prefetch: Callable[[Array, Int], None] = Intrinsic(_prefetch, lambda array, at: None)
"""A place of an array, whose items lie one after the other, will be read soon: have it fetched from memory meanwhile.
Any place will do, also beyond the array."""


class Kernel(Helper):
    """A function that Python calls (and kernels may), compiled for each kind of arguments it is called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._ready: dict[tuple[Any, ...], native.Linked] = {}
        self._numba_only: set[tuple[Any, ...]] = set()
        self._no_code: set[tuple[Any, ...]] = set()
        _known.append(self)

    @functools.cached_property
    def by_numba(self) -> Any:
        """The function with Numba's own dispatch and cache."""
        return with_numba().njit(self.py_func, cache=True, **_OPTIONS)

    def __call__(self, *arguments: Any) -> Any:
        key: list[Any] = []
        values: list[Any] = []
        try:
            for argument in arguments:
                native.flatten(argument, key, values)
        except native.NotPlain:
            return self._otherwise(*arguments)
        kind = tuple(key)
        ready = self._ready.get(kind) or self._prepared(kind, arguments, values)
        return self._otherwise(*arguments) if ready is None else ready(values)

    def _otherwise(self, *arguments: Any) -> Any:
        """Call it where it has no code of ours: as plain Python, or by Numba's own dispatch."""
        if not runs_plain():
            return self.by_numba(*arguments)
        with numpy.errstate(over="ignore"):  # hashes wrap on purpose
            return self.py_func(*arguments)

    def holding(self, arguments: Sequence[Any], free: Sequence[int]) -> Held | None:
        """See `holding`; None where it has no code of ours."""
        key: list[Any] = []
        values: list[Any] = []
        places: list[int] = []
        for number, argument in enumerate(arguments):
            if number in free:
                places.append(len(values))
            native.flatten(argument, key, values)
        ready = self._ready.get(tuple(key)) or self._prepared(tuple(key), arguments, values)
        return None if ready is None else Held(ready, ready.machine_values(values), places, arguments)

    def _prepared(self, kind: tuple[Any, ...], arguments: Sequence[Any], values: Sequence[Any]) -> native.Linked | None:
        """The code for a kind of arguments: what came along, else from the cache folder, else compiled and put there.
        None: there is none, see `_otherwise`."""
        with _compiling:
            if kind in self._ready or kind in self._numba_only or (kind in self._no_code and runs_plain()):
                return self._ready.get(kind)
            name = self.file_name(kind)
            ready = _installed(name) or _cached(name)
            if ready is None and runs_plain():
                self._no_code.add(kind)
                return None
            ready = ready or self._made_anew(name, arguments, values)
            if ready is None:
                self._numba_only.add(kind)
            else:
                self._ready[kind] = ready
            return ready

    def _made_anew(self, name: str, arguments: Sequence[Any], values: Sequence[Any]) -> native.Linked | None:
        """Compiled, here or in the process that was started for it, and put into the cache folder."""
        if not native.has_compiler():
            raise CompilerMissingError
        others = [kernel for kernel in _known if kernel is not self and not kernel._ready and not kernel._numba_only]
        _listener(Compiling(_full_name(self), len(_compiled_names) + 1, len(_compiled_names) + 1 + len(others)))
        ready = None
        if (apart := _apart.pop(_full_name(self), None)) is not None:
            apart.wait()
            ready = _cached(name)
        if ready is None:
            with without_collection():
                code = native.compiled(self.dispatcher, arguments, values)
            if code is not None:
                replace(object_folder() / name, code.to_bytes())
                ready = native.linked(code)
        _compiled_names.append(_full_name(self))
        _listener(None)
        return ready

    @property
    def kinds(self) -> list[tuple[Any, ...]]:
        """Of arguments, as `native.flatten` says them, that it was called with in this process."""
        return list(self._ready)

    def file_name(self, kind: tuple[Any, ...]) -> str:
        """Of the code for a kind of arguments. Kernels outside `SOURCES` (tests have some) go by their file too."""
        digest = hashlib.sha256(repr(kind).encode())
        if (source := _source_of(self)) is not None:
            digest.update(source.read_bytes())
        return f"{_full_name(self)}.{digest.hexdigest()[:16]}"


class Held:
    """A kernel with arguments that stay, called with those alone that do not: whole numbers, at `free`. The rest is
    taken apart once, which for ten arrays takes longer than most messages do. What is in the arrays may change between
    calls; one thread at a time."""

    def __init__(
        self, call: Callable[[Sequence[Any]], Any], values: list[Any], free: Sequence[int], alive: object
    ) -> None:
        self._call, self._values, self._free = call, values, free
        self._alive = alive  # the arrays whose addresses are among the values

    def __call__(self, *changed: int) -> Any:
        values = self._values
        for place, value in zip(self._free, changed, strict=True):
            values[place] = value
        return self._call(values)


def holding(function: Callable[..., Any], arguments: Sequence[Any], free: Sequence[int]) -> Held:
    """A kernel that keeps its arguments but for those at the places `free`. Raises native.NotPlain."""
    ready = function.holding(arguments, free) if isinstance(function, Kernel) else None
    return ready or Held(lambda values: function(*values), list(arguments), free, arguments)


def _installed(name: str) -> native.Linked | None:
    """Code that came along; None where there is none."""
    library = came_along().library
    return library.kernel(name) if library is not None else None


def _cached(name: str) -> native.Linked | None:
    """Code from the cache folder; None where there is none, or none that is whole."""
    if native.has_compiler():
        with contextlib.suppress(OSError, ValueError, TypeError):
            return native.linked(native.ObjectCode.from_bytes(content_of(object_folder() / name)))
    return None


# The decorators give what they take, as far as mypy sees: so it checks every call of a kernel, and between kernels.
def kernel(function: F) -> F:
    """Compile `function` on first use, without the GIL, and keep the result on disk."""
    if _PLAIN_PYTHON:
        return function
    return cast(F, Kernel(function).by_numba if _BOUNDS_CHECKED else Kernel(function))


def inline(function: F) -> F:
    """For helpers that kernels call: compiled into their callers.

    Numba hands an array to a function as seven values, so a call with the tables of a stage costs hundreds of moves:
    more than what most helpers do. Python cannot call one (`NUMBA_DISABLE_JIT=1` runs all of them as plain Python).
    """
    return _helper(function, forceinline=True)


def shared(function: F) -> F:
    """Like `inline`, for larger helpers with several callers: one copy, called."""
    return _helper(function)


def _helper(function: F, **options: Any) -> F:
    if _PLAIN_PYTHON:
        return function
    helper = Helper(function, **options)
    return cast(F, helper.dispatcher if _BOUNDS_CHECKED else helper)


def doubled(table: numpy.ndarray, times: int = 2) -> numpy.ndarray:
    """A copy with room for twice the rows, or more; the new ones are zero."""
    larger = numpy.zeros((len(table) * times, *table.shape[1:]), table.dtype)
    larger[: len(table)] = table
    return larger


def grown(tables: Tables, status: int, full: Mapping[int, tuple[str, ...]]) -> Tables:
    """A stage's tables after a kernel stopped because some had no room for what comes next; it is called again, and
    goes on from there. `full` names them by the kernel's status. What a table needs besides (a hash table filled anew,
    a ring laid out anew) is its owner's."""
    if status not in full:
        raise AssertionError(f"kernel status {status}")
    replaced: Tables = cast(Any, tables)._replace(**{name: doubled(getattr(tables, name)) for name in full[status]})
    return replaced


PREFETCH_BYTES: Final = 1 << 11
"""Of one thing: more than a packet has, but for what offloading puts together, of which the processor sees the rest
coming by itself."""


@inline
def prefetch_all(array: Bytes, at: Int, count: Int) -> None:
    """Like `prefetch`, for `count` bytes from `at` on, at most `PREFETCH_BYTES`: for each cache line of them."""
    for place in range(at, at + min(count, PREFETCH_BYTES) + 64, 64):
        prefetch(array, place)


BLOCK: Final = 8
"""Rows moved at a time: what they fill of a column is a line of the cache or two, which are written once. (Row by row
is as fast, but not where columns are a multiple of 4 KiB apart: then all of them want the same places in the cache.)"""

_AHEAD: Final = 4 * BLOCK
"""Rows from the ones at hand to those that are fetched from memory meanwhile."""

_LINE: Final = 8
"""Numbers in a line of the cache."""


@inline
def prefetch_block(rows: Table, begin: Int) -> None:
    """Like `prefetch`, for a block of int64[n, columns], some blocks behind the one that begins at a row."""
    if MACHINE_CODE:
        width = rows.shape[1]
        for at in range((begin + _AHEAD) * width, (begin + _AHEAD + BLOCK) * width, _LINE):
            prefetch(rows, at)


@inline
def copy_bytes(into: Bytes, at: Int, source: Bytes, start: Int, count: Int) -> None:
    """into[at:at + count] = source[start:start + count], byte by byte: the two may overlap where bytes move down.
    Unsigned indices: with signed ones Numba minds negative ones at every byte, and the loop is ten times slower than a
    copy."""
    to = numpy.uint64(at)
    origin = numpy.uint64(start)
    for i in range(numpy.uint64(count)):
        into[to + i] = source[origin + i]
