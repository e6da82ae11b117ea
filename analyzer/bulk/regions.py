"""Bytes of a direction that wait: kept in one region of the slab each, with marks that say which packet brought them.

In: pieces of segments. Out: a region [F_FROM, F_HAVE) that grows at its end and is used up from its front, and
descriptions of frames that lie in one. Rules: a region moves when it must grow, so nobody keeps an address; what is
given up counts as free at once, and the caller moves the others together when the slab is full. Bytes that were cut off
of packets may be bridged by zeros; their marks say where.
"""

from __future__ import annotations

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.captures.kernels import Bytes, Int, Table, copy_bytes, inline, shared
from kwire.captures.stream_tables import SEG_FILE, SEG_NUMBER, SEG_PACKET_INDEX, SEG_RECORD_AT, SEG_TIME_NS

IN_WINDOW, IN_WAITING, IN_SLAB = 0, 1, 2  # which bytes a frame lies in


@shared
def release(fr: s.Framing, key: Int) -> None:
    """Give up a direction's region of the slab, and its marks."""
    f = fr.f
    v = fr.v
    v[s.V_SLAB_LIVE] -= f[key, s.F_ROOM]
    if v[s.V_SLAB_LIVE] == 0:
        v[s.V_SLAB] = 0
    f[key, s.F_AT] = 0
    f[key, s.F_ROOM] = 0
    f[key, s.F_FROM] = 0
    f[key, s.F_HAVE] = 0
    f[key, s.F_NEED] = 0
    f[key, s.F_SCANNED] = 0
    f[key, s.F_ANSWER] = -1
    f[key, s.F_BRIDGED] = 0
    mark = f[key, s.F_MARKS]
    while mark >= 0:
        following = fr.marks[mark, s.MARK_NEXT]
        fr.marks[mark, s.MARK_NEXT] = v[s.V_MARK_FREE]
        v[s.V_MARK_FREE] = mark
        mark = following
    f[key, s.F_MARKS] = -1
    f[key, s.F_LAST_MARK] = -1


@shared
def append(fr: s.Framing, key: Int, source: Bytes, at: Int, length: Int, segment: Table, wanted: Int) -> Int:
    """Collect source[at:at + length], or as many zeros if `at` is negative: they stand for what was cut off of the
    segment's packet. `wanted` is how large the region will have to be as far as known."""
    f = fr.f
    v = fr.v
    have = f[key, s.F_HAVE]
    if have + length > f[key, s.F_ROOM]:
        room = max(have + length, min(wanted, max(np.int64(1 << 20), 2 * have)))
        if v[s.V_SLAB] + room > len(fr.slab):
            return s.NEED_SLAB
    if v[s.V_MARK_FREE] < 0 and v[s.V_MARKS] >= len(fr.marks):
        return s.NEED_MARKS
    if have + length > f[key, s.F_ROOM]:
        into = v[s.V_SLAB]
        old = f[key, s.F_AT]
        copy_bytes(fr.slab, into, fr.slab, old, have)
        v[s.V_SLAB] = into + room
        v[s.V_SLAB_LIVE] += room - f[key, s.F_ROOM]
        f[key, s.F_AT] = into
        f[key, s.F_ROOM] = room
    target = f[key, s.F_AT] + have
    if at >= 0:
        copy_bytes(fr.slab, target, source, at, length)
    else:
        fr.slab[target : target + length] = 0
    f[key, s.F_HAVE] = have + length
    f[key, s.F_LAST_NS] = segment[SEG_TIME_NS]
    last = f[key, s.F_LAST_MARK]
    same = last >= 0 and fr.marks[last, s.MARK_PACKET_INDEX] == segment[SEG_PACKET_INDEX]
    if same and fr.marks[last, s.MARK_CUT] < 0:
        if at < 0:
            fr.marks[last, s.MARK_CUT] = have
        return s.OK
    mark = v[s.V_MARK_FREE]
    if mark >= 0:
        v[s.V_MARK_FREE] = fr.marks[mark, s.MARK_NEXT]
    else:
        mark = v[s.V_MARKS]
        v[s.V_MARKS] = mark + 1
    m = fr.marks
    m[mark, s.MARK_NEXT] = -1
    m[mark, s.MARK_AT] = have
    m[mark, s.MARK_NS] = segment[SEG_TIME_NS]
    m[mark, s.MARK_NUMBER] = segment[SEG_NUMBER]
    m[mark, s.MARK_FILE] = segment[SEG_FILE]
    m[mark, s.MARK_RECORD_AT] = segment[SEG_RECORD_AT]
    m[mark, s.MARK_PACKET_INDEX] = segment[SEG_PACKET_INDEX]
    m[mark, s.MARK_CUT] = have if at < 0 else -1
    if last >= 0:
        m[last, s.MARK_NEXT] = mark
    else:
        f[key, s.F_MARKS] = mark
    f[key, s.F_LAST_MARK] = mark
    return s.OK


@shared
def drop_front(fr: s.Framing, key: Int) -> None:
    """Move what is not used up to the front of the region. Marks of used-up bytes go."""
    f = fr.f
    start = f[key, s.F_FROM]
    have = f[key, s.F_HAVE]
    if start == 0:
        return
    if start >= have:
        release(fr, key)
        return
    at = f[key, s.F_AT]
    for i in range(have - start):
        fr.slab[at + i] = fr.slab[at + start + i]
    m = fr.marks
    mark = f[key, s.F_MARKS]
    while m[mark, s.MARK_NEXT] >= 0 and m[m[mark, s.MARK_NEXT], s.MARK_AT] <= start:
        following = m[mark, s.MARK_NEXT]
        m[mark, s.MARK_NEXT] = fr.v[s.V_MARK_FREE]
        fr.v[s.V_MARK_FREE] = mark
        mark = following
    f[key, s.F_MARKS] = mark
    while mark >= 0:
        m[mark, s.MARK_AT] -= start  # below 0: the packet's first bytes are gone, and 0 is no segment's start
        if m[mark, s.MARK_CUT] >= 0:
            m[mark, s.MARK_CUT] = max(m[mark, s.MARK_CUT] - start, np.int64(0))
        mark = m[mark, s.MARK_NEXT]
    f[key, s.F_FROM] = 0
    f[key, s.F_HAVE] = have - start
    f[key, s.F_SCANNED] = max(np.int64(0), f[key, s.F_SCANNED] - start)
    f[key, s.F_ANSWER] = -1


@inline
def _latest(fr: s.Framing, mark: Int, stop: Int) -> Int:
    """The latest time of the packets from this mark on that brought bytes before offset `stop` of the region: a hole
    may have been filled after what follows it came, and a message is complete when its last missing byte is there."""
    m = fr.marks
    latest = m[mark, s.MARK_NS]
    while m[mark, s.MARK_NEXT] >= 0 and m[m[mark, s.MARK_NEXT], s.MARK_AT] < stop:
        mark = m[mark, s.MARK_NEXT]
        latest = max(latest, m[mark, s.MARK_NS])
    return latest


@inline
def _mark_at(fr: s.Framing, key: Int, offset: Int) -> Int:
    """The mark of the packet that brought the byte at `offset` of the region."""
    m = fr.marks
    mark = fr.f[key, s.F_MARKS]
    while m[mark, s.MARK_NEXT] >= 0 and m[m[mark, s.MARK_NEXT], s.MARK_AT] <= offset:
        mark = m[mark, s.MARK_NEXT]
    return mark


@inline
def next_cut(fr: s.Framing, key: Int, mark: Int) -> tuple[Int, Int, Int]:
    """Find the first bytes cut off from a mark on: (where their zeros begin and end in the region, the mark behind).

    Without any, both are where the region ends, and the mark is -1."""
    m = fr.marks
    end = fr.f[key, s.F_HAVE]
    while mark >= 0:
        following = m[mark, s.MARK_NEXT]
        if m[mark, s.MARK_CUT] >= 0:
            return m[mark, s.MARK_CUT], m[following, s.MARK_AT] if following >= 0 else end, following
        mark = following
    return end, end, mark


@shared
def bridged(fr: s.Framing, key: Int) -> tuple[Int, Int]:
    """Find what was cut off in a direction's region: (where its first zeros begin, how many there are in all).

    Without any: -1 and 0."""
    first, count = np.int64(-1), np.int64(0)
    if fr.f[key, s.F_BRIDGED] != 0:
        mark = fr.f[key, s.F_MARKS]
        while mark >= 0:
            begin, end, mark = next_cut(fr, key, mark)
            if end > begin:
                first = begin if first < 0 else first
                count += end - begin
    return first, count


@shared
def frame_from_region(fr: s.Framing, key: Int, have: Int, total: Int, held: Int, cause: Int, completed_by: Int) -> None:
    """Describe the frame at F_FROM of the region in `State.frame`. It has all zeros that are in the region: they come
    after its beginning, and it ends before anything is bridged behind it."""
    frame = fr.frame
    m = fr.marks
    start = fr.f[key, s.F_FROM]
    first = _mark_at(fr, key, start)
    frame[s.FR_AT] = fr.f[key, s.F_AT] + start
    frame[s.FR_HAVE] = have
    frame[s.FR_TOTAL] = total
    cut, missing = bridged(fr, key)
    frame[s.FR_BRIDGED] = cut - start if cut >= 0 else -1
    frame[s.FR_MARK] = first
    frame[s.FR_HELD] = held - missing
    frame[s.FR_FIRST_NS] = m[first, s.MARK_NS]
    frame[s.FR_NUMBER] = m[first, s.MARK_NUMBER]
    frame[s.FR_FILE] = m[first, s.MARK_FILE]
    frame[s.FR_RECORD_AT] = m[first, s.MARK_RECORD_AT]
    frame[s.FR_PACKET_INDEX] = m[first, s.MARK_PACKET_INDEX]
    if cause == 0:
        frame[s.FR_LAST_NS] = _latest(fr, first, start + have)
    else:
        frame[s.FR_LAST_NS] = fr.f[key, s.F_LAST_NS]
    frame[s.FR_COMPLETED_BY] = completed_by
    frame[s.FR_CAUSE] = cause
    frame[s.FR_TENTATIVE] = fr.f[key, s.F_TENTATIVE]
    frame[s.FR_SOURCE] = IN_SLAB


@shared
def begin_drop(fr: s.Framing, key: Int, seen: Int, cause: Int) -> None:
    """From here to its end the frame at hand is only counted: bytes of it are missing, or it is too large to keep.
    `seen` bytes of it are in the region, of which those before the first that was cut off stay."""
    f = fr.f
    drop_front(fr, key)
    first, missing = bridged(fr, key)
    f[key, s.F_MODE] = s.DROP
    f[key, s.F_CAUSE] = cause
    f[key, s.F_SEEN] = seen
    f[key, s.F_HELD] = seen - missing
    if f[key, s.F_MARKS] >= 0:
        f[key, s.F_LAST_NS] = max(f[key, s.F_LAST_NS], _latest(fr, f[key, s.F_MARKS], seen))
    if first >= 0:
        f[key, s.F_HAVE] = first
        f[key, s.F_BRIDGED] = 0
