"""Objects of known classes as plain values, and back.

(proves: analyzer/checkpoints/codec.py, analyzer/checkpoints/inventory.py)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from kwire.analyzer.checkpoints import codec, inventory
from kwire.analyzer.checkpoints.codec import CheckpointError, Decoder, Encoder, kind_of
from kwire.captures.cache import packed, unpacked


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(slots=True)
class Holder:
    value: Any = None
    others: list[Any] = field(default_factory=list)


KINDS = [kind_of(class_, (), (), None) for class_ in (Pair, Holder)]


def through(value: Any, like: Any = None) -> Any:
    return Decoder(KINDS).filled((unpacked(memoryview(packed(tree))) for tree in trees(value)), like)


def trees(value: Any) -> Iterator[Any]:
    return Encoder({kind.of: (number, kind) for number, kind in enumerate(KINDS)}).trees(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -1,
        1 << 90,
        "ä\udcff",
        1.5,
        float("-inf"),
        b"",
        b"\0bytes",
        (),
        (1, ("a", b"b")),
        [],
        [1, [2]],
        {1, "a"},
        frozenset(((1, 2),)),
        {"a": 1, (1, None): [b"x"]},
        Counter({("a", 1): 3}),
        deque([1, 2], maxlen=4),
        bytearray(),
        bytearray(b"ab"),
        Pair(1, [Pair(2, 3)]),
        Holder({"x": 1}, [None]),
        np.int64(5),
        np.uint8(7),
    ],
)
@pytest.mark.parametrize("at_once", [1000, 1], ids=["at once", "one by one"])
def test_a_value_comes_back_as_it_was(value: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_AT_ONCE", at_once)
    decoded = through(value)
    assert decoded == value
    assert type(decoded) is type(value)
    if isinstance(value, deque):
        assert decoded.maxlen == value.maxlen


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4), np.int64),
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.zeros((0, 5), np.uint64),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(20)[::3],
        np.array([True, False]),
        np.arange(24).reshape(2, 3, 4),
        np.array([0.5, np.nan]),
    ],
)
def test_an_array_comes_back_as_it_was(array: np.ndarray) -> None:
    decoded = through(array)
    np.testing.assert_array_equal(decoded, array)
    assert (decoded.dtype, decoded.shape, decoded.flags.writeable) == (array.dtype, array.shape, True)


@pytest.mark.parametrize("at_once", [1000, 1])
def test_what_is_one_stays_one(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_AT_ONCE", at_once)
    shared, array = [1], np.arange(3)
    decoded = through(Holder((shared, array), [shared, array]))
    assert decoded.value[0] is decoded.others[0]
    assert decoded.value[1] is decoded.others[1]


@pytest.mark.parametrize("kind", [list, set, deque, Counter])
def test_of_much_little_is_there_as_nodes_at_a_time(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_AT_ONCE", 10)
    many = Holder(kind(range(95)), [kind(range(200, 225)), Holder({n: kind(range(11)) for n in range(12)})])
    nodes = list(trees(many))
    assert max(map(_size, nodes)) < 100
    assert through(many) == many


def _size(tree: Any) -> int:
    return 1 + sum(map(_size, tree)) if isinstance(tree, list) else 1


def test_a_container_that_is_not_all_there_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_AT_ONCE", 2)
    whole = list(trees([1, 2, 3, 4, 5]))
    for cut in (whole[:-1], [*whole[:-1], []]):
        with pytest.raises(CheckpointError):
            Decoder(KINDS).filled(iter(cut))


def test_what_is_in_its_place_is_filled() -> None:
    inner = Holder()
    place = Holder((inner,), [inner])
    filled = through(Holder((Holder(1),), [Holder(2)]), place)
    assert filled is place
    assert filled.value[0] is inner
    assert inner.value == 2  # it stands in two places, the later one counts


@pytest.mark.parametrize("value", [object(), lambda: None, [open], np.array(["a"]), np.array([object()]), 1j])
def test_what_is_not_known_is_not_stored(value: Any) -> None:
    with pytest.raises(TypeError):
        through(value)


@pytest.mark.parametrize("place", [np.zeros((2, 3), np.int32), np.zeros((2, 4), np.int64), np.zeros(2, np.int64)])
def test_a_table_of_another_form_is_refused(place: np.ndarray) -> None:
    with pytest.raises(CheckpointError):
        through(np.ones((5, 3), np.int64), place)


def test_every_class_of_the_inventory_has_the_attributes_that_are_listed() -> None:
    for kind in inventory.kinds(watch=True):
        assert kind.names, kind.of
        slots = getattr(kind.of, "__slots__", None)
        if slots and not issubclass(kind.of, tuple):
            assert set(kind.names) <= set(slots), kind.of
