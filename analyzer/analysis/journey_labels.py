"""Find the offsets of batches that no broker acknowledged (acks=0), by answers that held them.

A label is a batch's size and checksum, which brokers leave as they were produced unless they write it anew. In: columns
of `journey_columns`. Rule: never a guess. As many batches with one label as the answers held at different offsets of
the partition are placed in their order; where the numbers differ, none of them is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kwire.analyzer.analysis.journey_columns import (
    B_BASE,
    B_COLUMNS,
    B_LABEL,
    B_ORIGIN,
    B_RECEIVED,
    L_BASE,
    L_LABEL,
    L_ORIGIN,
    L_TIME,
    R_BEGIN,
    R_LABEL,
    R_ORIGIN,
    R_TIME,
)
from kwire.analyzer.bulk import row_groups
from kwire.analyzer.frame import arrow
from kwire.captures.kernels import NULL


def placed(
    silent: np.ndarray, parts: Sequence[np.ndarray], reads: np.ndarray, labels: np.ndarray, partition: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return int64[B_COLUMNS, n], batches whose offsets are known now, and the others, as `silent` has them.

    silent      int64[B_COLUMNS + 1, n]: batches with acks=0
    parts       batches that were acknowledged
    reads, labels   int64[R_COLUMNS or L_COLUMNS, n]
    partition   of each origin
    """
    held = _held(arrow.distinct(silent[B_LABEL]), reads, labels, partition)
    held = _without_acknowledged(held, parts, partition)
    base = np.full(silent.shape[1], NULL)
    of = partition[silent[B_ORIGIN]]
    if held.shape[1]:
        count = silent.shape[1]
        _, which = row_groups.numbered(np.concatenate([of, held[0]]), np.concatenate([silent[B_LABEL], held[1]]))
        own, others = which[:count], which[count:]
        groups = int(which.max()) + 1
        own_count, other_count = np.bincount(own, minlength=groups), np.bincount(others, minlength=groups)
        order = np.lexsort((silent[B_RECEIVED], own))
        order = order[(own_count == other_count)[own[order]]]
        other_order = np.lexsort((held[2], others))
        other_order = other_order[(own_count == other_count)[others[other_order]]]
        early = held[3][other_order] < silent[B_RECEIVED][order]
        wrong = np.zeros(groups, np.bool_)
        wrong[own[order[early]]] = True
        right = ~wrong[own[order]]
        base[order[right]] = held[2][other_order[right]]
    there = base != NULL
    chosen = silent[:B_COLUMNS, there]
    chosen[B_BASE] = base[there]
    return chosen, silent[:, ~there]


def _held(wanted: np.ndarray, reads: np.ndarray, labels: np.ndarray, partition: np.ndarray) -> np.ndarray:
    """Return int64[4, n]: partition, label, base offset and first time of batches with these labels in answers."""
    rows = np.flatnonzero((reads[R_LABEL] != NULL) & arrow.among(reads[R_LABEL], wanted))
    more = np.flatnonzero(arrow.among(labels[L_LABEL], wanted))
    every = np.array(
        [
            np.concatenate([partition[reads[R_ORIGIN][rows]], partition[labels[L_ORIGIN][more]]]),
            np.concatenate([reads[R_LABEL][rows], labels[L_LABEL][more]]),
            np.concatenate([reads[R_BEGIN][rows], labels[L_BASE][more]]),
            np.concatenate([reads[R_TIME][rows], labels[L_TIME][more]]),
        ]
    )
    every = every[:, np.lexsort((every[3], every[2], every[1], every[0]))]
    if every.shape[1]:
        first = np.append(True, (every[:3, 1:] != every[:3, :-1]).any(axis=0))
        every = every[:, first]
    return every


def _without_acknowledged(held: np.ndarray, parts: Sequence[np.ndarray], partition: np.ndarray) -> np.ndarray:
    """Leave out batches that lie where an acknowledgement says another one does."""
    for part in parts:
        if not held.shape[1]:
            break
        of = partition[part[B_ORIGIN]]
        rows = np.flatnonzero(arrow.among(of, held[0]) & (part[B_BASE] != NULL))
        if len(rows):
            count = held.shape[1]
            _, which = row_groups.numbered(
                np.concatenate([held[0], of[rows]]), np.concatenate([held[2], part[B_BASE][rows]])
            )
            held = held[:, ~arrow.among(which[:count], arrow.distinct(which[count:]))]
    return held
