"""Positions of readers are those of a plain dictionary.

(proves: analyzer/analysis/reader_positions.py)
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.analysis import reader_positions
from kwire.analyzer.analysis.reader_positions import LEFT, Positions
from kwire.captures.kernels import NULL


@pytest.mark.parametrize("seed", range(20))
def test_readers_are_followed_as_a_dictionary_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_positions, "_FEW_PLACES", 2)  # places are forgotten and numbered again now and then
    rng = np.random.default_rng(seed)
    positions, known = Positions(), dict[tuple[int, ...], int]()
    clients: dict[int, int] = {}
    names: Any = SimpleNamespace(
        serials={n: 100 + n for n in range(30)}, ends={n: (200 + n, 0, 0, 0) for n in range(30)}
    )
    for step in range(60):
        connections = np.sort(rng.integers(0, 30, 12))
        columns = rng.integers(0, 6 + step, 12), np.where(rng.random(12) < 0.5, NULL, 7), rng.integers(-2, 3, 12)
        keys = list(dict.fromkeys(zip(connections.tolist(), *(column.tolist() for column in columns), strict=True)))
        key_columns = [np.array(column, np.int64) for column in zip(*keys, strict=True)]
        positions._learn(key_columns[0], key_columns[0] + step)
        clients |= {number: number + step for number in key_columns[0].tolist()}
        wanted = key_columns[0] << 32 | positions._places.numbers(key_columns[1:3], key_columns[3])
        now, there = positions._looked_up(wanted)
        assert now.tolist() == [known.get(key, NULL) for key in keys]
        after = np.where(rng.random(len(keys)) < 0.2, now, rng.integers(0, 1000, len(keys)))
        positions._put(wanted, after, there)
        known |= {key: offset for key, offset in zip(keys, after.tolist(), strict=True) if offset != NULL}
        strings = {number for key in known for number in (clients[key[0]], *key[1:3])}
        assert strings <= set(positions.named().tolist())

        over = rng.permutation(30)[: rng.integers(0, 6)]
        left = [*positions._left(SimpleNamespace(over=(over, over + 1000), names=names))]  # type: ignore[arg-type]
        rows = [
            row
            for some in left
            for row in zip(*(some[name].tolist() for name in reader_positions.MOVE_COLUMNS), strict=True)
        ]
        gone = {key: offset for key, offset in known.items() if key[0] in over}
        assert len(rows) == len(gone)
        assert set(rows) == {
            (n + 1000, 100 + n, 0, n, NULL, NULL, clients[n], 200 + n, LEFT, *place, offset, NULL, NULL, NULL)
            for (n, *place), offset in gone.items()
        }
        known = {key: offset for key, offset in known.items() if key not in gone}
        assert len(positions._keys) == len(known)
        assert len(positions._places) <= 2 * len(known) + 2 + 12
