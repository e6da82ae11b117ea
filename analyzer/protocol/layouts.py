"""Layouts as the builders of bodies and trees want them, and one message's fields as a tape of Python integers.

In: an API's version or the name of a definition; bytes. Out: a `Compiled` layout; the tape that the kernel writes with
every field selected. Rule: a tape ends where the bytes do, or at `max_rows`, and costs no more than they hold.
"""

from __future__ import annotations

import base64
import functools
import threading
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol import decoding, program, schema
from kwire.analyzer.protocol.decoding import FULL
from kwire.analyzer.protocol.schema import Field, Layout
from kwire.captures.kernels import Held, holding

# --- the tape -------------------------------------------------------------------------------------------------------


class _Scratch(threading.local):
    """Buffers to which the kernel writes; one a thread, because the kernel runs without the GIL."""

    def __init__(self) -> None:
        self.tape = np.empty((_SMALL_ROWS, decoding.TAPE_COLUMNS), np.int64)
        self.stack = np.empty((program.STACK_DEPTH, decoding.STACK_COLUMNS), np.int64)
        self.small = np.empty(_SMALL_BYTES, np.uint8)
        self.view = self.small.data
        self.rows = np.empty((_SMALL_ROWS, decoding.TAPE_COLUMNS), np.int64)
        self.held: dict[program.Program, Held] = {}

    def of_small(self, loaded: program.Program) -> Held:
        """The kernel for a message in `small`, its rows in `rows`: takes where it starts and ends, and `pc`."""
        held = self.held.get(loaded)
        if held is None:
            everything = _everything(loaded)
            arguments = self.small, 0, 0, 0, *loaded.arrays, everything, self.rows, 0, 0, self.stack
            held = self.held[loaded] = holding(decoding.decode, arguments, (1, 2, 3))
        return held


_SMALL_ROWS: Final = 1024
_SMALL_BYTES: Final = 1 << 14
"""Messages up to here have a buffer and a tape that stay: most time goes into telling the kernel where these are."""

_scratch = _Scratch()
MAX_ROWS: Final = 8_000_000
"""What one message may have of fields and elements. A hostile frame of 100 MB may claim an element for each byte; here
each costs some 200 bytes. The largest honest messages (metadata of 100,000 partitions) have a tenth of it."""

_KEPT_ROWS: Final = 1 << 16
"""A tape larger than this is not kept for the next message."""


@functools.cache
def _everything(loaded: program.Program) -> Any:
    return loaded.everything()


def as_buffer(data: bytes | memoryview) -> Any:
    """The bytes as the kernels want them: writable, so that they are compiled for one kind of array only. A view of
    what can be written is not copied."""
    return np.frombuffer(data if isinstance(data, memoryview) and not data.readonly else bytearray(data), np.uint8)


def run(
    data: bytes | memoryview, at: int, loaded: program.Program, pc: int, max_rows: int
) -> tuple[Any, int, int, int]:
    """Run the kernel over [at, end of data) with everything selected -> (rows int64[n, 5], at, status, fail_pc). The
    rows are this thread's until it decodes something else."""
    if len(data) <= _SMALL_BYTES and max_rows >= _SMALL_ROWS:
        _scratch.view[: len(data)] = data
        at_end, used, status, fail_pc = _scratch.of_small(loaded)(at, len(data), pc)
        if status != FULL:
            return _scratch.rows[:used], int(at_end), int(status), int(fail_pc)
    buffer = as_buffer(data)
    tape = _scratch.tape[:max_rows]
    while True:
        at_end, used, status, fail_pc = decoding.decode(
            buffer, at, len(buffer), pc, *loaded.arrays, _everything(loaded), tape, 0, 0, _scratch.stack
        )
        if status != FULL or len(tape) == max_rows:
            return tape[:used], int(at_end), int(status), int(fail_pc)
        # A row takes at least a byte of the message, so this comes to an end.
        tape = np.empty((min(len(tape) * 8, len(buffer) + 1, max_rows), decoding.TAPE_COLUMNS), np.int64)
        if len(tape) <= _KEPT_ROWS:
            _scratch.tape = tape


def values_of(tape: Any) -> list[list[int]]:
    """The rows' values, positions and lengths. Python's own, because the tape is scratch: what lies in an Envelope is
    decoded while its rows are still being read."""
    columns: list[list[int]] = tape[:, 2:5].T.tolist()
    return columns


# --- plans: layouts in the form that the body builder wants ----------------------------------------------------------

INTEGER, STRING, BOOL, STRUCTS, INTEGERS, OTHERS, STRUCT, UUID, BYTES, RECORDS, FLOAT = range(11)

SCALARS: Final = {
    "int8": INTEGER,
    "int16": INTEGER,
    "int32": INTEGER,
    "int64": INTEGER,
    "uint16": INTEGER,
    "uint32": INTEGER,
    "string": STRING,
    "bool": BOOL,
    "uuid": UUID,
    "bytes": BYTES,
    "records": RECORDS,
    "float64": FLOAT,
}


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A struct: its plain fields in wire order; its tagged fields by number, each as a struct of its own (None: not a
    flexible version)."""

    fields: tuple[tuple[str, int, Any, bool, str], ...]
    tagged: dict[int, tuple[Plan, str, Any]] | None


def _json_default(item: Field) -> Any:
    """The default as it looks in a body."""
    if item.kind == "struct":
        if item.default is None:
            return None
        return {inner.name: _json_default(inner) for inner in item.plain_fields}
    if item.kind == "array":
        return None if item.default is None else []
    return base64.b64encode(item.default).decode() if isinstance(item.default, bytes) else item.default


def _step(item: Field, flexible: bool) -> tuple[str, int, Any, bool, str]:
    """name, what it is, the plan of its structs or what its elements are, may the struct be null, secrecy"""
    what = SCALARS.get(item.kind, STRUCT)
    inner: Any = None
    if item.kind == "array" and item.element != "struct":
        inner = SCALARS[item.element or ""]
        what = INTEGERS if inner == INTEGER else OTHERS
    elif item.kind in ("array", "struct"):
        inner = _plan(item.fields, flexible)
        what = STRUCTS if item.kind == "array" else STRUCT
    return item.name, what, inner, item.kind == "struct" and item.nullable, item.secret


def _plan(fields: tuple[Field, ...], flexible: bool) -> Plan:
    tagged = None
    if flexible:
        tagged = {
            item.tag: (Plan((_step(item, flexible),), None), item.name, _json_default(item))
            for item in fields
            if item.tag is not None
        }
    return Plan(tuple(_step(item, flexible) for item in fields if item.tag is None), tagged)


class Compiled(NamedTuple):
    """A layout with all that it is decoded with; `pc` is where its code starts in the program."""

    layout: Layout
    plan: Plan
    program: program.Program
    pc: int


@functools.cache
def compiled_message(api_key: int, version: int, direction: int) -> Compiled | None:
    """A body's layout, compiled; None where Kafka never had it."""
    layout = schema.layout(api_key, version, direction)
    if layout is None:
        return None
    loaded = program.load()
    return Compiled(
        layout, _plan(layout.fields, layout.flexible), loaded, int(loaded.start[direction, api_key, version])
    )


def has_layout(api_key: int, version: int, direction: int) -> bool:
    """Whether Kafka ever had such a request or response."""
    start = program.load().start
    _, apis, versions = start.shape
    return 0 <= api_key < apis and 0 <= version < versions and bool(start[direction, api_key, version] >= 0)


@functools.cache
def compiled_data(name: str, version: int) -> Compiled | None:
    """Compile the layout of a header or a data definition; None where Kafka never had it."""
    layout = schema.data_layout(name, version)
    if layout is None:
        return None
    loaded = program.of_data(name)
    return Compiled(layout, _plan(layout.fields, layout.flexible), loaded, loaded.data_start[name, version])
