"""Hypothesis strategies: a body for any layout, in the exact form of `kwire.analyzer.protocol.tree`."""

from __future__ import annotations

import base64
import functools
from typing import Any

from hypothesis import strategies as st

from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.tree import UNKNOWN_TAGS

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


@functools.cache
def scalar(kind: str) -> st.SearchStrategy[Any]:
    if kind in _BITS:
        high = 1 << (_BITS[kind] - 1)
        return st.integers(-high, high - 1)
    if kind == "uint16":
        return st.integers(0, 0xFFFF)
    if kind == "uint32":
        return st.integers(0, 0xFFFFFFFF)
    if kind == "bool":
        return st.booleans()
    if kind == "float64":
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind == "uuid":
        return st.binary(min_size=16, max_size=16).map(lambda b: base64.urlsafe_b64encode(b)[:22].decode())
    if kind == "string":
        return st.text(max_size=12) | st.just("n" * 200)
    return st.binary(max_size=12) | st.just(bytes(200))


def field(item: schema.Field, flexible: bool) -> st.SearchStrategy[Any]:
    value: st.SearchStrategy[Any]
    if item.kind == "struct":
        value = struct(item.fields, flexible)
    elif item.kind == "array":
        element = struct(item.fields, flexible) if item.element == "struct" else scalar(item.element or "")
        value = st.lists(element, max_size=2)
    else:
        value = scalar(item.kind)
    return st.none() | value if item.nullable else value


def struct(fields: tuple[schema.Field, ...], flexible: bool) -> st.SearchStrategy[dict[str, Any]]:
    mandatory = {item.name: field(item, flexible) for item in fields if item.tag is None}
    optional = {item.name: field(item, flexible) for item in fields if item.tag is not None}
    if flexible:
        known = {item.tag for item in fields}
        numbers = st.integers(0, 0xFFFFFFFF).filter(lambda number: number not in known)
        optional[UNKNOWN_TAGS] = st.dictionaries(numbers, st.binary(max_size=5), min_size=1, max_size=2)
    return st.fixed_dictionaries(mandatory, optional=optional)


def bodies(layout: schema.Layout) -> st.SearchStrategy[dict[str, Any]]:
    return struct(layout.fields, layout.flexible)
