"""Numbers of places: a topic's partition, and who or what else tells one from another.

In: columns of places, many at a time. Out: the number of each, a new one for a new place. Rule: of places that differ
in their partition alone no object each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kwire.analyzer.analysis.combinations import few_combinations
from kwire.analyzer.frame.numbered_keys import NumberedKeys
from kwire.captures.kernels import NULL


@dataclass(slots=True)
class NumberedPlaces:
    """Places, and numbers from 0 on.

    columns   how many numbers a place has beside its partition
    _heads    numbers of these, as bytes: a third of a tuple's memory. The last says NULL where there is no partition
    _keys     the number of a head in the upper half, the partition in the lower
    """

    columns: int
    _heads: dict[bytes, int] = field(default_factory=dict)
    _keys: NumberedKeys = field(default_factory=NumberedKeys)

    def __len__(self) -> int:
        return len(self._keys)

    def numbers(self, columns: Sequence[np.ndarray], partition: np.ndarray) -> np.ndarray:
        """Return int64[n]: the number of each place."""
        heads = np.array([*columns, np.where(partition == NULL, NULL, 0)], np.int64)
        first, which = few_combinations([*heads])
        rows, width = heads[:, first].T.tobytes(), 8 * len(heads)
        given = [
            self._heads.setdefault(rows[start : start + width], len(self._heads))
            for start in range(0, len(rows), width)
        ]
        return self._keys.numbers(np.array(given, np.int64)[which] << 32 | partition & 0xFFFFFFFF)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Return int64[n, columns + 1]: places by their numbers, the partition last."""
        keys = self._keys.keys[numbers]
        heads = np.frombuffer(b"".join(self._heads), np.int64).reshape(-1, self.columns + 1)
        places: np.ndarray = heads[keys >> 32]
        places[:, -1] = np.where(places[:, -1] == NULL, NULL, keys << 32 >> 32)  # with its sign
        return places
