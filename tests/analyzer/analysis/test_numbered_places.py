"""Numbers of places against a dictionary.

(proves: analyzer/analysis/numbered_places.py)
"""

from __future__ import annotations

import numpy as np
import pytest

from kwire.analyzer.analysis.numbered_places import NumberedPlaces
from kwire.captures.kernels import NULL


@pytest.mark.parametrize("seed", range(10))
def test_equal_places_have_equal_numbers_and_numbers_say_their_places(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbered, known = NumberedPlaces(2), dict[tuple[int, ...], int]()
    assert numbered.places(np.zeros(0, np.int64)).shape == (0, 3)
    for _ in range(30):
        columns = [rng.choice([NULL, 1, 2, 1 << 40], 20), rng.integers(-3, 3, 20)]
        partition = rng.choice([NULL, 0, 1, -1, (1 << 31) - 1, -(1 << 31)], 20)
        numbers = numbered.numbers(columns, partition)
        places = list(zip(*(column.tolist() for column in (*columns, partition)), strict=True))
        for place, number in zip(places, numbers.tolist(), strict=True):
            assert known.setdefault(place, number) == number
        assert sorted(known.values()) == list(range(len(known))) == list(range(len(numbered)))
        assert [tuple(place) for place in numbered.places(numbers).tolist()] == places
