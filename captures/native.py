"""Compiled kernels called without Numba: from a shared library, or as object code that LLVM loads.

In: a Numba dispatcher and arguments. Out: an `ObjectCode` that can be stored, read back and linked into this process,
or that `tools/object_code.py` links into the shared library of a wheel; and a Python callable of either. Rule: whatever
is not plainly sound (an argument of another form than here, a symbol that this process may not have, a platform whose
object files we cannot check) gives `None`, and Numba does the call itself.

The call is Numba's own between compiled functions, which knows nothing of Python:
`int32 status = f(result *, exception **, arguments ...)`. An array is seven or more arguments: two owners (null: the
caller keeps it alive), number of items, size of an item, address, shape, strides; a tuple is its parts one after the
other. What LLVM says the function takes is compared with that.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.captures.cache import opened, sealed

_POINTER: Final = "ptr"
_PARAMETERS: Final[dict[str, Any]] = {
    _POINTER: ctypes.c_void_p,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "i16": ctypes.c_int16,
    "i8": ctypes.c_int8,
    "double": ctypes.c_double,
}
_RESULTS: Final[dict[str, Any]] = {
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "bool": ctypes.c_bool,
    "float64": ctypes.c_double,
}
_LIBRARY_CALLS: Final = frozenset({"memcpy", "memmove", "memset", "memcmp"})
"""What object code may ask of the process. LLVM ends the process where it cannot find a symbol, so nothing else may."""

_OK: Final = (0, -2)  # Numba's status of a function that returned: a value, or None

_ALIGNED, _WRITEABLE, _C_ORDER, _F_ORDER = 0x100, 0x400, 0x1, 0x2  # NumPy's flags, as in `array.flags.num`
_MAX_PARAMETERS: Final = 1000  # of ctypes, which takes 1024


_names: Final[dict[np.dtype[Any], str]] = {}


def _name(dtype: np.dtype[Any]) -> str:
    """Return NumPy's name of a type of plain numbers. Raises NotPlain."""
    if dtype.kind not in "iufb":
        raise NotPlain(f"an array of {dtype}")
    _names[dtype] = dtype.str
    return _names[dtype]


_DATA_AT: Final = object.__basicsize__


def address(array: np.ndarray) -> int:
    """Return where an array's first item lies. That is the first field of NumPy's own structure, behind what every
    object begins with (NumPy C-API, PyArrayObject); to ask for `__array_interface__` takes six times as long, and
    kernels of a window are given hundreds of arrays."""
    return ctypes.c_size_t.from_address(id(array) + _DATA_AT).value


class NotPlain(TypeError):
    """An argument that only Numba itself can take."""


def flatten(value: Any, key: list[Any], values: list[Any]) -> None:
    """Append what tells the type of an argument to `key`, and the argument as machine values to `values`.

    Equal keys mean that Numba would compile the same code. Raises NotPlain.
    """
    kind = type(value)
    if kind is np.ndarray:
        dtype = value.dtype
        name = _names.get(dtype) or _name(dtype)
        flags = value.flags.num
        order = flags & _C_ORDER or flags & _F_ORDER  # one dimension has both: Numba calls that C
        shape = value.shape
        key.append((name, len(shape), order, flags & (_ALIGNED | _WRITEABLE)))
        values += (None, None, value.size, dtype.itemsize, address(value), *shape, *value.strides)
    elif kind is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise NotPlain("an integer of more than 64 bits")
        key.append("int64")
        values.append(value)
    elif kind is bool or kind is np.bool_:
        key.append("bool")
        values.append(int(value))
    elif isinstance(value, tuple):
        key.append((f"{kind.__module__}.{kind.__qualname__}", len(value)))
        for part in value:
            flatten(part, key, values)
    elif isinstance(value, np.integer):
        key.append(value.dtype.name)
        values.append(int(value))
    elif kind is float or kind is np.float64:
        key.append("float64")
        values.append(float(value))
    else:
        raise NotPlain(f"a {kind.__name__}")


class Entry(NamedTuple):
    """How to call one kernel compiled for one signature.

    symbol      name of its function
    parameters  LLVM's type of each parameter after the result and the exception, as `ptr` or `i64`
    returns     type of the result, or of each part of it; empty: it returns None
    several     the result is a tuple
    """

    symbol: str
    parameters: tuple[str, ...]
    returns: tuple[str, ...]
    several: bool

    @classmethod
    def of(cls, content: Sequence[Any]) -> Entry:
        """Restore an entry from JSON. Raises ValueError, TypeError or KeyError if it is none."""
        symbol, parameters, returns, several = content
        if not set(parameters) <= _PARAMETERS.keys() or not set(returns) <= _RESULTS.keys():
            raise ValueError(f"{symbol}: parameters or results of unknown types")
        return cls(str(symbol), tuple(parameters), tuple(returns), bool(several))


class ObjectCode(NamedTuple):
    """An object file with one kernel compiled for one signature."""

    entry: Entry
    code: bytes

    def to_bytes(self) -> bytes:
        """For a file: the size of the description, the description, the object file, all under a checksum."""
        described = json.dumps(self.entry).encode()
        return sealed(struct.pack("<I", len(described)) + described + self.code)

    @classmethod
    def from_bytes(cls, data: bytes) -> ObjectCode:
        """The reverse. Raises ValueError where the bytes are not whole."""
        content = opened(data)
        end = 4 + struct.unpack_from("<I", content)[0]
        return cls(Entry.of(json.loads(bytes(content[4:end]))), bytes(content[end:]))


def compiled(
    dispatcher: Any, arguments: Sequence[Any], values: Sequence[Any], library_symbol: str = ""
) -> ObjectCode | None:
    """Let Numba compile for these arguments; None where the result cannot be used without Numba.

    `library_symbol`: compile for a shared library, with this name of the function."""
    import numba

    if len(values) > _MAX_PARAMETERS:
        return None
    signature = tuple(numba.typeof(argument) for argument in arguments)
    dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    returns = _returns(result.fndesc.restype)
    symbol = result.fndesc.llvm_func_name
    function = result.library.get_function(symbol)
    result_at, exception_at, *parameters = [str(argument.type) for argument in function.arguments]
    code = result.library._get_compiled_object()
    if (
        returns is None
        or (result_at, exception_at) != (_POINTER, _POINTER)
        or len(parameters) != len(values)
        # Owners and addresses of arrays must be where we put them, and so must all else.
        or any((kind == _POINTER) != expected for kind, expected in zip(parameters, _pointers(arguments), strict=True))
        or not set(parameters) <= set(_PARAMETERS)
        or (undefined := undefined_symbols(code)) is None
        or not undefined <= _LIBRARY_CALLS
    ):
        return None
    entry = Entry(symbol, tuple(parameters), returns, "Tuple" in type(result.fndesc.restype).__name__)
    if library_symbol:
        return ObjectCode(entry._replace(symbol=library_symbol), _position_independent(result, library_symbol))
    return ObjectCode(entry, code)


def _position_independent(result: Any, symbol: str) -> bytes:
    """Compile what Numba has optimized once more, as code that may lie anywhere, with `symbol` as its only new name."""
    import llvmlite.binding as llvm

    codegen = result.library.codegen
    module = result.library._final_module.clone()
    module.get_function(result.fndesc.llvm_func_name).name = symbol
    machine = llvm.Target.from_triple(module.triple).create_target_machine(
        cpu=codegen._get_host_cpu_name(),
        features=codegen._tm_features,
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    machine.set_asm_verbosity(False)
    code: bytes = machine.emit_object(module)
    return code


def _pointers(values: Sequence[Any]) -> list[bool]:
    """Which of the machine values of some arguments are addresses."""
    pointers: list[bool] = []
    for value in values:
        if isinstance(value, np.ndarray):
            pointers += [True, True, False, False, True] + [False] * (2 * value.ndim)
        elif isinstance(value, tuple):
            pointers += _pointers(value)
        else:
            pointers.append(False)
    return pointers


def _returns(kind: Any) -> tuple[str, ...] | None:
    """Numba's type of a result as names in `_RESULTS`; None where it is another."""
    from numba import types

    if kind == types.none:
        return ()
    parts = tuple(str(part) for part in (kind if isinstance(kind, types.UniTuple | types.Tuple) else (kind,)))
    return parts if set(parts) <= set(_RESULTS) else None


_SYMBOL_TABLE: Final = 2


def undefined_symbols(code: bytes) -> set[str] | None:
    """The symbols that an object file expects elsewhere; None where it is not a 64-bit little-endian ELF file.

    (System V ABI, "Object Files": the section header table at e_shoff, with entries of e_shentsize; a symbol takes 24
    bytes, and its table links to the section of names.)"""
    if code[:6] != b"\x7fELF\x02\x01":
        return None
    table, entry_size, count = (*struct.unpack_from("<Q", code, 0x28), *struct.unpack_from("<HH", code, 0x3A))
    sections = [struct.unpack_from("<IIQQQQI", code, table + number * entry_size) for number in range(count)]
    undefined = set()
    for _, kind, _, _, at, size, link in sections:
        names = sections[link][4]
        for symbol in range(at, at + size, 24) if kind == _SYMBOL_TABLE else ():
            name, _, _, section = struct.unpack_from("<IBBH", code, symbol)
            if name and not section:
                undefined.add(code[names + name : code.index(b"\0", names + name)].decode())
    return undefined


# --- linking --------------------------------------------------------------------------------------------------------

_lock = threading.Lock()  # LLVM's engine takes one object file at a time


@functools.cache
def _numba() -> Path | None:
    """Find Numba's folder without importing it; None if it or llvmlite is not installed."""
    spec = importlib.util.find_spec("numba") if importlib.util.find_spec("llvmlite") else None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def has_compiler() -> bool:
    """Whether kernels can be compiled, and loaded once they are."""
    return _numba() is not None


@functools.cache
def machine() -> str:
    """Return the conditions of object code beside its sources: the compilers and the processor."""
    import llvmlite
    import llvmlite.binding as llvm

    folder = _numba()
    release = (folder / "_version.py").read_text(encoding="utf-8") if folder is not None else ""
    compilers = f"Numba {release} llvmlite {llvmlite.__version__}"
    features = llvm.get_host_cpu_features().flatten()
    return f"{compilers} {llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"


@functools.cache
def _engine() -> Any:
    """LLVM's linker of object code into this process. It lives as long as the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)


class Linked:
    """A kernel in this process. Called with the machine values of `flatten`; ctypes lets go of the GIL meanwhile."""

    def __init__(self, entry: Entry, address: int, memory: object = None) -> None:
        self._memory = memory  # where the code is, for as long as it may be called
        self._kinds = [_PARAMETERS[name] for name in entry.parameters]
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *self._kinds)(address)
        # The result is a C structure, whose layout is that of `struct` with native sizes and alignment.
        result = struct.Struct("@" + "".join(_RESULTS[name]._type_ for name in entry.returns))
        self._space = ctypes.c_char * (result.size + 8)
        self._unpack = result.unpack_from
        self._several = entry.several
        self._symbol = entry.symbol

    def __call__(self, values: Sequence[Any]) -> Any:
        returned = self._space()
        exception = ctypes.c_void_p()
        status = self._function(ctypes.byref(returned), ctypes.byref(exception), *values)
        if status not in _OK:
            raise AssertionError(f"{self._symbol} raised ({status}): kernels must not")
        parts = self._unpack(returned)
        if self._several:
            return parts
        return parts[0] if parts else None

    def machine_values(self, values: Sequence[Any]) -> list[Any]:
        """Machine values that can be handed over again and again, in a fraction of the time that numbers take."""
        return [kind(value) for kind, value in zip(self._kinds, values, strict=True)]


def linked(native: ObjectCode) -> Linked:
    """Load object code into this process by LLVM."""
    import llvmlite.binding as llvm

    with _lock:
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(native.code))
        engine.finalize_object()
        address = engine.get_function_address(native.entry.symbol)
    return Linked(native.entry, address)


def exported(library: ctypes.CDLL, entry: Entry) -> Linked:
    """Find a kernel in a shared library. Raises AttributeError if it has none of this name."""
    address = ctypes.cast(library[entry.symbol], ctypes.c_void_p).value or 0
    return Linked(entry, address, library)
