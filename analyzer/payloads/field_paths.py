"""Fields of decoded keys and values by their path, as `--fields value.order.id` and filters name them.

In: decoded JSON and a path. Out: values. A path goes into objects by the names of their fields, and into all elements
of lists. Nothing raises, whatever the JSON is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

MOST_VALUES = 200_000
"""Of one path: as many as a payload may have fields."""


def values_at(value: Any, path: Sequence[str]) -> list[Any]:
    """Return the values at a path, elements of lists one by one, nulls among them."""
    values = _flat([value])
    for name in path:
        values = _flat([value[name] for value in values if isinstance(value, dict) and name in value])
    return values


def _flat(values: list[Any]) -> list[Any]:
    """Return values with the elements of lists in the place of these."""
    while any(isinstance(value, list) for value in values):
        values = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return values[:MOST_VALUES]


class DecodedFields:
    """Fields of one record. `decode`: gives its `key` or `value` as JSON, None where there is none; asked once."""

    def __init__(self, decode: Callable[[str], str | bytes | None]) -> None:
        self._decode = decode
        self._loaded: dict[str, Any] = {}

    def __call__(self, side: str, path: Sequence[str]) -> list[Any]:
        """Return the values at a path of `side`, without nulls; numbers are int or Decimal."""
        if side not in self._loaded:
            self._loaded[side] = _load(self._decode(side))
        return [value for value in values_at(self._loaded[side], path) if value is not None]


def _load(text: str | bytes | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=str)
    except (ValueError, RecursionError):  # also a number of more digits than Python reads
        return None
