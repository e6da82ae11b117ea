"""Numbers of keys against a dictionary.

(proves: analyzer/frame/numbered_keys.py)
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from kwire.analyzer.frame.numbered_keys import NumberedKeys


@pytest.mark.parametrize("most", [None, 0, 700])
def test_equal_keys_have_equal_numbers_in_the_order_in_which_they_came(most: int | None) -> None:
    random_ = random.Random(7)
    numbered, known = NumberedKeys(), dict[int, int]()
    for size in (0, 1, 300, 2, 2000, 5, 900):
        keys = [random_.choice((-1, 1)) * random_.randrange(3000) << random_.choice((0, 40)) for _ in range(size)]
        for key in sorted({*keys} - {*known}):
            if most is None or len(known) < most:
                known[key] = len(known)
        numbers = numbered.numbers(np.array(keys, np.int64), most)
        assert numbers.tolist() == [known.get(key, -1) for key in keys]
        assert numbered.keys.tolist() == [*known]
        assert len(numbered) == len(known)


def test_what_is_asked_for_without_room_is_not_known_later() -> None:
    numbered = NumberedKeys()
    numbered.numbers(np.array([5]))
    assert numbered.numbers(np.array([3, 5]), most=0).tolist() == [-1, 0]
    assert numbered.numbers(np.array([4, 3])).tolist() == [2, 1]
