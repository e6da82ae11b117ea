"""Objects of known classes as plain values, and back.

In: objects whose classes the inventory lists, and what they hold: numbers, text, bytes, NumPy arrays of numbers,
lists, tuples, sets, dicts, deques of these. Out: trees of JSON's values with arrays in them, one after the other, which
`kwire.captures.cache.packed` makes bytes of. Rules

- A value that is none of these is an error where it is written: what cannot be stored is never left out silently.
- What is one object or one array in several places is one again after reading.
- Reading makes objects of the inventory's classes alone, calls nothing else, and fills what is already there: an
  object of the same class in the place is kept, so whoever refers to it sees what was stored. Of an array in its place
  type and columns must be the same.

A node is a plain JSON value (None, bool, int, str), an array, or a list that begins with its tag:

    ["l", node ...] list            ["t", node ...] tuple            ["s", node ...] set      ["e", node ...] frozenset
    ["d", [key, value] ...] dict    ["c", [key, count] ...] Counter  ["q", most, node ...] deque
    ["a", array] array in rows      ["F", array] array in columns    ["z", type, shape] array of zeros
    ["b", array] bytes              ["y", array] bytearray           ["f", text] float        ["n", type, number]
    ["o", class, node ...] object: number of its class, its attributes in the inventory's order
    ["r", number] what was described before: arrays, containers that may change and objects count, from 0
    ["m", tag, most, count] a list, dict, Counter, set or deque of more than `MOST_AT_ONCE`: what is in it comes later,
                            in trees of its own, each a list of so many nodes, or of pairs of them

So of much that is known little is there as nodes at a time, which take five times the memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.captures.errors import KwireError

_NUMBERS: Final = "iufb"
MOST_AT_ONCE: Final = 1000
"""Of a container, in one tree."""


class CheckpointError(KwireError):
    """A snapshot that cannot be used."""


def damaged() -> CheckpointError:
    """It is not what this version writes."""
    return CheckpointError(
        "the checkpoint is not one that this kwire wrote", "begin anew: analyse the captures into a new dataset"
    )


class Kind(NamedTuple):
    """How objects of a class are stored: their attributes, in order, and how a new one is made."""

    of: type
    names: tuple[str, ...]
    make: Callable[[], Any]


def kind_of(of: type, without: tuple[str, ...], names: tuple[str, ...], make: Callable[[], Any] | None) -> Kind:
    """A dataclass, a named tuple or a class with slots names its attributes itself; of others `names` does."""
    if not names:
        if dataclasses.is_dataclass(of):
            names = tuple(field.name for field in dataclasses.fields(of))
        else:
            names = tuple(getattr(of, "_fields", ()) or getattr(of, "__slots__", ()))
    stored_names = tuple(name for name in names if name not in without)
    return Kind(of, stored_names, make or (lambda: object.__new__(of)))


class Encoder:
    """Makes nodes. `kinds`: by class."""

    def __init__(self, kinds: Mapping[type, tuple[int, Kind]]) -> None:
        self._kinds = kinds
        self._known: dict[int, int] = {}
        self._alive: list[Any] = []  # no other object may get the place of one that was described
        self._later: deque[Any] = deque()

    def trees(self, value: Any) -> Iterator[Any]:
        """The nodes of a value, for `Decoder.filled`. Raises TypeError for what cannot be stored."""
        yield self.node(value)
        while self._later:
            many = self._later.popleft()
            pairs = type(many) in _PAIRS
            entries = iter(many.items() if pairs else many)
            while some := list(itertools.islice(entries, MOST_AT_ONCE)):
                yield [[self.node(key), self.node(item)] for key, item in some] if pairs else [*map(self.node, some)]

    def node(self, value: Any) -> Any:
        """The node of a value. Raises TypeError for what cannot be stored."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is tuple:
            return ["t", *map(self.node, value)]
        if kind is float:
            return ["f", value.hex()]
        if kind is bytes:
            return ["b", np.frombuffer(value, np.uint8)] if value else ["z", "b", []]
        if isinstance(value, np.generic):
            if value.dtype.kind not in _NUMBERS:
                raise TypeError(f"a checkpoint does not hold {value.dtype}")
            return ["n", value.dtype.str, value.item()]
        if kind not in self._kinds or not issubclass(kind, tuple):
            number = self._known.get(id(value))
            if number is not None:
                return ["r", number]
            self._known[id(value)] = len(self._known)
            self._alive.append(value)
        return self._described(kind, value)

    def _described(self, kind: type, value: Any) -> Any:
        node = self.node
        if kind is np.ndarray:
            return _array_node(value)
        if kind in _LATER and len(value) > MOST_AT_ONCE:
            self._later.append(value)
            return ["m", _LATER[kind], value.maxlen if kind is deque else None, len(value)]
        if kind in _MANY:
            return [_MANY[kind], *map(node, value)]
        if kind in _PAIRS:
            return [_PAIRS[kind], *([node(key), node(item)] for key, item in value.items())]
        if kind is deque:
            return ["q", value.maxlen, *map(node, value)]
        if kind is bytearray:
            return ["y", np.frombuffer(bytes(value), np.uint8)] if value else ["y", None]
        number, known = self._kinds.get(kind, (None, None))
        if known is None:
            raise TypeError(f"a checkpoint does not hold {kind.__module__}.{kind.__qualname__}")
        return ["o", number, *(node(getattr(value, name)) for name in known.names)]


_MANY: Final = {list: "l", set: "s", frozenset: "e"}
_PAIRS: Final = {dict: "d", Counter: "c"}
_LATER: Final = {list: "l", set: "s", deque: "q", **_PAIRS}
"""Those that may be filled after they were made."""


def _array_node(array: np.ndarray) -> Any:
    if array.dtype.kind not in _NUMBERS:
        raise TypeError(f"a checkpoint does not hold arrays of {array.dtype}")
    if not array.size or not array.any():
        return ["z", array.dtype.str, list(array.shape)]
    if array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous:
        return ["F", np.ascontiguousarray(array.T)]
    return ["a", np.ascontiguousarray(array)]


class Decoder:
    """Makes values of nodes. `kinds`: by number."""

    def __init__(self, kinds: list[Kind]) -> None:
        self._kinds = kinds
        self._known: list[Any] = []
        self._later: deque[tuple[Any, int, Any]] = deque()

    def filled(self, trees: Iterator[Any], like: Any = None) -> Any:
        """The value of `Encoder.trees`; see `value`."""
        filled = self.value(next(trees, None), like)
        while self._later:
            into, count, old = self._later.popleft()
            pairs = type(into) in _PAIRS
            while len(into) < count:
                before, some = len(into), next(trees, None)
                if pairs:
                    for key, value in some or ():
                        name = self.value(key)
                        into[name] = self.value(value)
                elif type(into) is list:
                    into += [
                        self.value(child, old[before + at] if old else None) for at, child in enumerate(some or ())
                    ]
                elif type(into) is set:
                    into.update(map(self.value, some or ()))
                else:
                    into.extend(map(self.value, some or ()))
                if len(into) == before:
                    raise damaged()
        return filled

    def value(self, node: Any, like: Any = None) -> Any:
        """The value of a node; `like`: what is in its place. Raises CheckpointError, and what comes of nodes that make
        no sense."""
        if type(node) is not list:
            return node
        tag = node[0]
        if tag == "r":
            return self._known[node[1]]
        if tag == "o":
            return self._object(node, like)
        if tag == "t":
            fresh = like if type(like) is tuple and len(like) == len(node) - 1 else [None] * (len(node) - 1)
            return tuple(self.value(child, old) for child, old in zip(node[1:], fresh, strict=True))
        if tag == "f":
            return float.fromhex(node[1])
        if tag == "b":
            return node[1].tobytes()
        if tag == "n":
            return np.dtype(node[1]).type(node[2])
        if tag == "z" and node[1] == "b":
            return b""
        if tag in ("a", "F", "z"):
            return self._remember(_as_in_place(_array(node), like))
        return self._container(tag, node, like)

    def _remember(self, value: Any) -> Any:
        self._known.append(value)
        return value

    def _container(self, tag: str, node: list[Any], like: Any) -> Any:
        place = len(self._known)
        if tag == "m":
            _, kind, most, count = node
            empty: Any = deque(maxlen=most) if kind == "q" else {"l": list, "s": set, "d": dict, "c": Counter}[kind]()
            old = like if kind == "l" and type(like) is list and len(like) == count else None
            self._later.append((self._remember(empty), count, old))
            return empty
        if tag == "l":
            children: list[Any] = self._remember([])
            old = like if type(like) is list and len(like) == len(node) - 1 else [None] * (len(node) - 1)
            children += [self.value(child, known) for child, known in zip(node[1:], old, strict=True)]
            return children
        if tag in ("d", "c"):
            pairs: dict[Any, Any] = self._remember({} if tag == "d" else Counter())
            for key, value in node[1:]:
                name = self.value(key)
                pairs[name] = self.value(value)
            return pairs
        if tag == "s":
            several: set[Any] = self._remember(set())
            several.update(map(self.value, node[1:]))
            return several
        if tag == "q":
            row: deque[Any] = self._remember(deque(maxlen=node[1]))
            row.extend(map(self.value, node[2:]))
            return row
        if tag == "y":
            return self._remember(bytearray(node[1].tobytes() if node[1] is not None else b""))
        if tag == "e":
            self._known.append(None)
            self._known[place] = frozenset(map(self.value, node[1:]))
            return self._known[place]
        raise damaged()

    def _object(self, node: list[Any], like: Any) -> Any:
        of, names, make = self._kinds[node[1]]
        if len(node) != len(names) + 2:
            raise damaged()
        same = type(like) is of
        if issubclass(of, tuple):
            old = like if same else (None,) * len(names)
            return of(*(self.value(child, known) for child, known in zip(node[2:], old, strict=True)))
        filled = self._remember(like if same else make())
        for name, child in zip(names, node[2:], strict=True):
            # Of frozen dataclasses too: nobody has them yet.
            object.__setattr__(filled, name, self.value(child, getattr(filled, name, None)))
        return filled


def _array(node: list[Any]) -> np.ndarray:
    if node[0] == "z":
        kind = np.dtype(node[1])
        if kind.kind not in _NUMBERS:
            raise damaged()
        return np.zeros(node[2], kind)
    array = node[1]
    if not isinstance(array, np.ndarray):
        raise damaged()
    return array.T if node[0] == "F" else array


def _as_in_place(array: np.ndarray, like: Any) -> np.ndarray:
    """A kernel goes by the type and the columns of a table, which a fresh one has."""
    if isinstance(like, np.ndarray):
        same = like.dtype == array.dtype and like.ndim == array.ndim
        # Tables of columns first grow to the right; rows that do not exist yet have no columns.
        unlike = like.ndim > 1 and like.shape[1:] != array.shape[1:] and like.shape[0] != array.shape[0]
        if not same or (unlike and any(like.shape)):
            raise damaged()
    return array
