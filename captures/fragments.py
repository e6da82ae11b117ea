"""IP fragments -> whole IP packets.

In: a fragment in the window. Out: when it is the last one that its packet needed, the packet, written whole into the
spare room of the window's buffer; its time and number are those of this fragment.

Rules: the first copy of a byte counts (RFC 791 leaves it open, RFC 5722 forbids overlaps). Lengths that contradict
each other spoil the fragment, never the packet. What is kept is bounded in number, size and time. Outer packets of
tunnels are put together like others. A fragment that the snap length cut lacks bytes, so its packet stays incomplete.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kwire.captures.kernels import Bytes, Int, Table, shared
from kwire.captures.links import FRAGMENT, MALFORMED, REASSEMBLED, net16, net32

IN_PROGRESS = 128
"""Fragmented packets in progress. Each takes up to 128 KiB; the oldest makes room. Fragments of one packet travel
together: more than a few at once come only from loss or from hostile senders."""

LINGER_NS = 30_000_000_000
"""Capture time after which an incomplete packet is given up, as Linux does: IPv4 numbers packets with 16 bits only,
and fragments of two packets with the same number must not be mixed."""

COPIES_NS = 100_000_000
"""Capture time for which a completed packet is remembered, so that copies of its fragments (several capture
interfaces) do not begin another one."""

_LONGEST_HEADER = 40

LARGEST_BYTES = 65_535
"""An IP packet's length has 16 bits."""

# Slots of Fragments.state: where the next whole packet goes in the window's buffer and where that room ends, the serial
# number of the newest entry, and LINGER_NS or what the caller says instead.
SPARE_AT, SPARE_END, SERIAL, LINGER = 0, 1, 2, 3
_STATE_SLOTS = 4

# Columns of Fragments.entries. USE: FREE, OPEN or DONE; NAME: identification, protocol and version; BORN: its serial
# number.
USE, NAME, TIME_NS, TOTAL, HIGHEST, BYTES, PACKETS, NEXT, BORN, _ENTRY_COLUMNS = range(10)
FREE, OPEN, DONE = 0, 1, 2


class FragmentTables(NamedTuple):
    """Tables that the kernel reads and writes.

    state int64[_STATE_SLOTS]; entries int64[n, _ENTRY_COLUMNS]; seen and content uint8[n, 65536]."""

    state: Table
    entries: Table
    seen: Bytes
    content: Bytes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, and copied, it is no more than what still matters of it: the tables are 16 MiB, and of most packets
        nothing or, where they are whole, the header is looked at again."""
        entries = []
        for i in np.flatnonzero(self.entries[:, USE] != FREE).tolist():
            known = int(self.entries[i, HIGHEST]) if self.entries[i, USE] == OPEN else 0
            entries.append((i, self.seen[i, :known].tobytes(), self.content[i, : _LONGEST_HEADER + known].tobytes()))
        return _restored, (self.state, self.entries, entries)


def _restored(state: Table, entries: Table, contents: list[tuple[int, bytes, bytes]]) -> FragmentTables:
    seen = np.zeros((len(entries), LARGEST_BYTES + 1), np.uint8)
    content = np.empty_like(seen)
    for i, *parts in contents:
        for table, part in zip((seen, content), parts, strict=True):
            table[i, : len(part)] = np.frombuffer(part, np.uint8)
    return FragmentTables(state, entries, seen, content)


@shared
def gather(
    b: Bytes,
    ip: Int,
    at: Int,
    end: Int,
    ip_end: Int,
    version: Int,
    time: Int,
    tables: FragmentTables,
    counts: Table,
) -> tuple[Int, Int]:
    """Add the fragment whose IP header is at `ip`; `at`, `ip_end`, `version` are results of `walk_ip`.

    Returns (offset in b, bytes) of the packet that it completes, or (reason, 0). Invariant: of each entry, `kept` holds
    an IP header without options, then the payload bytes that `seen` tells of: BYTES of them, none from HIGHEST on.
    """
    state, entries, seen, content = tables.state, tables.entries, tables.seen, tables.content
    zero = np.int64(0)
    if version == 4:
        word = net16(b, ip + 6)
        begin = (word & 0x1FFF) * 8
        more = word & 0x2000
        protocol = np.int64(b[ip + 9])
        name = net16(b, ip + 4) | protocol << 32
        header, addresses = 20, 12
    else:
        word = net16(b, at + 2)
        begin = word & 0xFFF8
        more = word & 1
        protocol = np.int64(b[at])
        name = net32(b, at + 4) | np.int64(6) << 40
        header, addresses = 40, 8
        at += 8
    stop = begin + ip_end - at
    if stop <= begin or stop + header > LARGEST_BYTES or (more != 0 and stop & 7 != 0):
        return np.int64(MALFORMED), zero
    if ip_end > end:
        return np.int64(FRAGMENT), zero

    # Its packet's entry, else the oldest one, which is taken over.
    i, same = 0, False
    for other in range(entries.shape[0]):
        if entries[other, USE] != FREE and entries[other, NAME] == name:
            same = True
            for k in range(addresses, header):
                if content[other, k] != b[ip + k]:
                    same = False
            if same:
                i = other
                break
        if entries[other, BORN] < entries[i, BORN]:
            i = other
    if same:
        limit = np.int64(COPIES_NS) if entries[i, USE] == DONE else state[LINGER]
        # Halves, because the difference of two hostile times may not fit in 64 bits.
        same = abs((time >> 1) - (entries[i, TIME_NS] >> 1)) <= limit >> 1
    if not same:
        for k in range(entries[i, HIGHEST]):
            seen[i, k] = 0
        state[SERIAL] += 1
        entries[i, USE] = OPEN
        entries[i, NAME] = name
        entries[i, TIME_NS] = time
        entries[i, TOTAL] = -1
        entries[i, HIGHEST] = 0
        entries[i, BYTES] = 0
        entries[i, PACKETS] = 0
        entries[i, NEXT] = protocol
        entries[i, BORN] = state[SERIAL]
        for k in range(header):
            content[i, k] = b[ip + k]
    elif entries[i, USE] == DONE:
        return np.int64(REASSEMBLED), zero

    total = entries[i, TOTAL]
    if total < 0 and more == 0:
        total = stop
    if total >= 0 and (stop > total or (more == 0 and stop != total) or entries[i, HIGHEST] > total):
        return np.int64(MALFORMED), zero
    entries[i, TOTAL] = total
    entries[i, HIGHEST] = max(entries[i, HIGHEST], stop)
    if begin == 0:
        entries[i, NEXT] = protocol  # only the first fragment's counts (RFC 8200)
    fresh = np.int64(0)
    for k in range(begin, stop):
        if seen[i, k] == 0:
            seen[i, k] = 1
            content[i, header + k] = b[at + k - begin]
            fresh += 1
    entries[i, BYTES] += fresh
    if entries[i, BYTES] != total:
        entries[i, PACKETS] += 1
        return np.int64(FRAGMENT), zero

    counts[-FRAGMENT] -= entries[i, PACKETS]
    counts[-REASSEMBLED] += entries[i, PACKETS]
    entries[i, USE] = DONE
    entries[i, TIME_NS] = time
    into = state[SPARE_AT]
    total += header
    for k in range(total):
        b[into + k] = content[i, k]
    if version == 4:
        b[into] = 0x45
        b[into + 2] = total >> 8
        b[into + 3] = total & 255
        b[into + 6] = 0
        b[into + 7] = 0
    else:
        b[into + 4] = (total - 40) >> 8
        b[into + 5] = (total - 40) & 255
        b[into + 6] = entries[i, NEXT]
    state[SPARE_AT] = into + total
    return into, total


class Fragments:
    """Packets of which fragments came, in progress; one for each reader. The two large tables are not touched, so cost
    nothing, where nothing is fragmented."""

    def __init__(self, in_progress: int = IN_PROGRESS, linger_ns: int = LINGER_NS) -> None:
        if in_progress < 1:
            raise ValueError(f"in_progress is {in_progress}: at least one packet must have room")
        state = np.zeros(_STATE_SLOTS, np.int64)
        state[LINGER] = linger_ns
        self.tables = FragmentTables(
            state,
            entries=np.zeros((in_progress, _ENTRY_COLUMNS), np.int64),
            seen=np.zeros((in_progress, LARGEST_BYTES + 1), np.uint8),
            content=np.empty((in_progress, LARGEST_BYTES + 1), np.uint8),
        )
