"""Compiled kernels as files of object code, called without Numba.

Importing Numba and letting it restore what it compiled earlier takes half a second and more, which is most of the time
that a small capture needs. So what Numba compiles is kept as plain object code, and put into memory by ourselves, or
where that is not what we know, by LLVM alone (llvmlite).

In: a Numba dispatcher and arguments. Out: an `ObjectCode` that can be stored, read back and linked into this process as
a Python callable. Rule: whatever is not plainly sound (an argument of another form than here, a symbol that this
process may not have, a platform whose object files we cannot check) gives `None`, and Numba does the call itself.

The call is Numba's own between compiled functions: `int32 status = f(result *, exception **, arguments ...)`. An array
is seven or more arguments: two owners (null: the caller keeps it alive), number of items, size of an item, address,
shape, strides; a tuple is its parts one after the other. What LLVM says the function takes is compared with that.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.captures.cache import opened, sealed
from kwire.captures.host import host, version

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


def _address_by_interface(array: np.ndarray) -> int:
    """Return an array's address by NumPy's interface, a dict of all its properties."""
    address: int = array.__array_interface__["data"][0]
    return address


def _looked_up(array: np.ndarray) -> int:
    """Return an array's address as code compiled against NumPy reads it.

    That is `PyArray_DATA`: the first field of an array behind the object's head. A window takes hundreds of arrays
    apart, and asking for addresses is half of that."""
    return _pointer(id(array) + _HEAD).value or 0


_pointer: Final = ctypes.c_void_p.from_address
_HEAD: Final = object.__basicsize__
_SAMPLE: Final = np.zeros(3)
address: Final = (
    _looked_up
    if sys.implementation.name == "cpython" and _looked_up(_SAMPLE) == _address_by_interface(_SAMPLE)
    else _address_by_interface
)


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


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """One kernel compiled for one signature.

    symbol      name of its function
    parameters  LLVM's type of each parameter after the result and the exception, as `ptr` or `i64`
    returns     type of the result, or of each part of it; empty: it returns None
    several     the result is a tuple
    code        the object file
    """

    symbol: str
    parameters: tuple[str, ...]
    returns: tuple[str, ...]
    several: bool
    code: bytes

    def to_bytes(self) -> bytes:
        """For a file: the size of the description, the description, the object file, all under a checksum."""
        about = {name: value for name, value in asdict(self).items() if name != "code"}
        described = json.dumps(about).encode()
        return sealed(struct.pack("<I", len(described)) + described + self.code)

    @classmethod
    def from_bytes(cls, data: bytes) -> ObjectCode:
        """The reverse. Raises ValueError where the bytes are not whole."""
        content = opened(data)
        end = 4 + struct.unpack_from("<I", content)[0]
        about = json.loads(bytes(content[4:end]))
        parameters, returns = tuple(about["parameters"]), tuple(about["returns"])
        return cls(about["symbol"], parameters, returns, about["several"], bytes(content[end:]))


def compiled(dispatcher: Any, arguments: Sequence[Any], values: Sequence[Any]) -> ObjectCode | None:
    """Let Numba compile for these arguments; None where the result cannot be used without Numba."""
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
    return ObjectCode(symbol, tuple(parameters), returns, "Tuple" in type(result.fndesc.restype).__name__, code)


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


class _Section(NamedTuple):
    """A section header of an ELF file, as far as it matters here."""

    kind: int
    flags: int
    at: int
    size: int
    link: int
    info: int
    alignment: int


_SYMBOLS: Final = 2
_RELOCATIONS: Final = 4
_RELOCATIONS_ELSEWHERE: Final = 9
_NO_BITS: Final = 8
_IN_MEMORY: Final = 2
_THREADS_OWN: Final = 0x400


def _sections(code: bytes) -> list[_Section] | None:
    """The sections of a 64-bit little-endian ELF file, None where it is none. (System V ABI, "Object Files": the
    section header table at e_shoff, with entries of e_shentsize.)"""
    if code[:6] != b"\x7fELF\x02\x01":
        return None
    table, entry_size, count = (*struct.unpack_from("<Q", code, 0x28), *struct.unpack_from("<HH", code, 0x3A))
    sections = []
    for section in range(count):
        header = struct.unpack_from("<IIQQQQIIQQ", code, table + section * entry_size)
        sections.append(_Section(header[1], header[2], *header[4:9]))
    return sections


def _symbols(code: bytes, sections: list[_Section], table: _Section) -> Iterator[tuple[str, int, int]]:
    """Name, section and value of the symbols in a table. (Entries have 24 bytes, and link to the section of names.)"""
    names = sections[table.link].at
    for at in range(table.at, table.at + table.size, 24):
        name, _, _, where, value = struct.unpack_from("<IBBHQ", code, at)
        yield code[names + name : code.index(b"\0", names + name)].decode(), where, value


def undefined_symbols(code: bytes) -> set[str] | None:
    """The symbols that an object file expects elsewhere; None where it is not a 64-bit little-endian ELF file."""
    sections = _sections(code)
    if sections is None:
        return None
    tables = [section for section in sections if section.kind == _SYMBOLS]
    return {name for table in tables for name, where, _ in _symbols(code, sections, table) if name and not where}


# --- linking --------------------------------------------------------------------------------------------------------

_lock = threading.Lock()  # LLVM's engine takes one object file at a time


def machine() -> str:
    """Return the conditions of object code beside its sources: the compiler and the processor."""
    here = host()
    return f"llvmlite {version('llvmlite')} {here.triple} {here.processor} {here.features}"


class _Placed(NamedTuple):
    """Object code in memory of its own, which it keeps: where its function begins."""

    memory: mmap.mmap
    address: int


_PAGE: Final = mmap.PAGESIZE
_X86_64: Final = 62
_ADDRESS: Final = 1
"""R_X86_64_64, the one kind of place to be filled in that code of Numba has: the address of a symbol, and so much."""


def _placed(native: ObjectCode) -> _Placed | None:
    """Load object code without LLVM, whose import alone takes a tenth of a start.

    None if the code has parts that this loader does not know, or if the system does not allow it: then LLVM loads
    it."""
    code = native.code
    sections = _sections(code)
    if sections is None or sys.platform != "linux" or struct.unpack_from("<H", code, 0x12)[0] != _X86_64:
        return None
    starts: dict[int, int] = {}
    size = 0
    for number, section in enumerate(sections):
        if section.flags & _THREADS_OWN or section.kind == _RELOCATIONS_ELSEWHERE:
            return None
        if section.flags & _IN_MEMORY:
            alignment = max(section.alignment, 1)
            starts[number] = size = -(-size // alignment) * alignment
            size += section.size
    memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    for number, start in starts.items():
        section = sections[number]
        if section.kind != _NO_BITS:
            memory[start : start + section.size] = code[section.at : section.at + section.size]
    address = None
    for number, table in enumerate(sections):
        if table.kind != _SYMBOLS:
            continue
        names, values = [], []
        for name, where, value in _symbols(code, sections, table):
            names.append(name)
            values.append(_value(name, where, value, base, starts))
        if native.symbol in names:
            address = values[names.index(native.symbol)]
        for places in sections:
            if places.kind == _RELOCATIONS and places.link == number and places.info in starts:
                room = memoryview(memory)[starts[places.info] :][: sections[places.info].size]
                if not _fill(room, code[places.at : places.at + places.size], values):
                    return None
    if not address or _system().mprotect(base, -(-size // _PAGE) * _PAGE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        return None
    return _Placed(memory, address)


def _value(name: str, where: int, value: int, base: int, starts: Mapping[int, int]) -> int | None:
    """Return a symbol's address; None if it has none here, as Numba's own notes."""
    if where in starts:
        return base + starts[where] + value
    if where:
        return None
    return _library_call(name) if name in _LIBRARY_CALLS else None


def _fill(room: memoryview, relocations: bytes, values: Sequence[int | None]) -> bool:
    """Fill in the places that a section leaves open; False: there is one that this does not know."""
    for at, what, more in struct.iter_unpack("<QQq", relocations):
        symbol = values[what >> 32]
        if what & 0xFFFFFFFF != _ADDRESS or symbol is None or at + 8 > len(room):
            return False
        struct.pack_into("<Q", room, at, (symbol + more) % (1 << 64))
    return True


@functools.cache
def _system() -> Any:
    """The C library that the process has loaded."""
    library = ctypes.CDLL(None)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


@functools.cache
def _library_call(name: str) -> int:
    """The address of one of `_LIBRARY_CALLS`."""
    return ctypes.cast(getattr(_system(), name), ctypes.c_void_p).value or 0


@functools.cache
def _engine() -> Any:
    """LLVM's linker of object code into this process. It lives as long as the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)


class Linked:
    """Object code in this process. Called with the machine values of `flatten`; ctypes lets go of the GIL meanwhile."""

    def __init__(self, native: ObjectCode, address: int, memory: object = None) -> None:
        self._memory = memory  # where the code is, for as long as it may be called
        self._kinds = [_PARAMETERS[name] for name in native.parameters]
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *self._kinds)(address)
        # The result is a C structure, whose layout is that of `struct` with native sizes and alignment.
        result = struct.Struct("@" + "".join(_RESULTS[name]._type_ for name in native.returns))
        self._space = ctypes.c_char * (result.size + 8)
        self._unpack = result.unpack_from
        self._several = native.several
        self._symbol = native.symbol

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
    """Link object code into this process."""
    placed = _placed(native)
    if placed is not None:
        return Linked(native, placed.address, placed.memory)
    import llvmlite.binding as llvm

    with _lock:
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(native.code))
        engine.finalize_object()
        address = engine.get_function_address(native.symbol)
    return Linked(native, address)
