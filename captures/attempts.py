"""Attempts to connect that came to nothing: SYNs that were refused, or that nobody answered, by who asked whom.

In: `Flows` at the end of a capture point, or several that had a share of it. Out: `Attempt`s, most frequent first.
Rules: a four-tuple counts once, for a client that tries again takes a port of its own each time; what happened once
between two hosts is left out, and of the rest `MOST` are kept; so a scan of a million ports adds numbers for a moment
and no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kwire.captures import flow_tables as ft
from kwire.captures.flows import Flows

WAITED_NS = 3_000_000_000
"""A SYN that has no answer for so long will hardly get one: TCP sends it again after 1 and 3 s, and a path that is
longer than the second of these is none."""
MOST: Final = 10_000
"""Pairs of client and server that are kept: 200 bytes each."""
MINUTE_NS: Final = 60_000_000_000
PAUSE_NS: Final = 45_000_000_000
"""Who goes on trying does so sooner: librdkafka waits 30 s for a connection and at most 10 s before the next try,
others less. What comes later has another reason."""


class Attempt(NamedTuple):
    """A client's failed attempts to connect to one end point, in a row without a pause.

    client, server: addresses as 128-bit integers, IPv4 as ::ffff:a.b.c.d; refused and unanswered: how often; most:
    how often within a minute; times of SYNs, in ns."""

    client: int
    server: int
    port: int
    refused: int
    unanswered: int
    most: int
    first_ns: int
    last_ns: int


class Unmet(NamedTuple):
    """SYNs that became no connection, the last of each four-tuple that is known.

    keys uint64[n, 5]: the two ends, as in `FlowTables.keys`; swapped bool[n]: side 1 sent it; time_ns int64[n]; refused
    bool[n]: the other side refused it, else nobody answered for `WAITED_NS`."""

    keys: np.ndarray
    swapped: np.ndarray
    time_ns: np.ndarray
    refused: np.ndarray


def unmet(flows: Flows) -> Unmet:
    """Return the SYNs without a connection of all packets read so far."""
    tables = flows.tables
    known = tables.flows[: int(tables.state[ft.S_FLOWS])]
    shape = known[:, ft.FLOW_SYN_SHAPE]
    refused = shape & ft.SYN_REFUSED != 0
    waited = tables.state[ft.S_CLOCK] - known[:, ft.FLOW_SYN_NS] >= WAITED_NS
    rows = np.flatnonzero((known[:, ft.FLOW_SERIAL] >= 0) & (shape & ft.SYN_ANSWERED == 0) & (refused | waited))
    return Unmet(tables.keys[rows], shape[rows] & ft.WOKEN_SIDE != 0, known[rows, ft.FLOW_SYN_NS], refused[rows])


def attempts(of: Sequence[Unmet]) -> list[Attempt]:
    """Group failed attempts by client and end point, most frequent first.

    of: results of `unmet` that have no four-tuple in common."""
    keys, swapped, times, refused = (np.concatenate(parts) for parts in zip(*of, strict=True))
    if len(times) < 2:
        return []
    side = swapped[:, None]
    client = np.where(side, keys[:, 2:4], keys[:, 0:2])
    server = np.where(side, keys[:, 0:2], keys[:, 2:4])
    port = np.where(swapped, keys[:, 4] >> np.uint64(16), keys[:, 4] & np.uint64(0xFFFF))
    columns = (port, server[:, 1], server[:, 0], client[:, 1], client[:, 0])
    order = np.lexsort((times, *columns))
    change = np.zeros(len(order), np.bool_)
    change[0] = True
    for column in columns:
        ordered = column[order]
        change[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(change)
    counts = np.diff(np.append(starts, len(order)))
    several = np.flatnonzero(counts > 1)
    several = several[np.argsort(-counts[several], kind="stable")][:MOST]
    results = []
    for start, count in zip(starts[several].tolist(), counts[several].tolist(), strict=True):
        rows = order[start : start + count]
        for run in np.split(rows, np.flatnonzero(np.diff(times[rows]) > PAUSE_NS) + 1):
            when, first_row = times[run], run[0]
            most = int((np.searchsorted(when, when + MINUTE_NS, side="left") - np.arange(len(run))).max())
            ends = _address(client[first_row]), _address(server[first_row]), int(port[first_row])
            no = int(refused[run].sum())
            results.append(Attempt(*ends, no, len(run) - no, most, int(when[0]), int(when[-1])))
    return sorted(results, key=lambda attempt: -(attempt.refused + attempt.unanswered))[:MOST]


def _address(halves: np.ndarray) -> int:
    return int(halves[0]) << 64 | int(halves[1])
