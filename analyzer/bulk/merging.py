"""The tables of several shards into one.

In: columns of rows, and each row's place in the whole. Out: the whole, filled in. Apart from other kernels, because
editing a file with kernels makes all of them compile again.
"""

from __future__ import annotations

from captures.kernels import Table, kernel


@kernel
def move_columns(columns: Table, place: Table, out: Table) -> None:
    """out[:, place[i]] = columns[:, i]; places outside `out` are left out."""
    for column in range(min(columns.shape[0], out.shape[0])):
        for row in range(min(columns.shape[1], len(place))):
            to = place[row]
            if 0 <= to < out.shape[1]:
                out[column, to] = columns[column, row]
