"""Find when brokers stood still, and which exchanges had to wait for that, there and at other brokers.

In: a capture point. Out: `Stall`s, used by the rule `broker-stall` and by every rule that must not blame who waited.
Rule: a broker is silent while requests that it answers at once are open; requests that wait for replicas show nothing
alone, because another broker may keep them waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kwire.analyzer.findings import undelivered
from kwire.analyzer.findings.capture import IN_FLIGHT, SECOND, UNANSWERED, CaptureFrame, once
from kwire.analyzer.findings.rules import RULES, Limits, limits_of
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import first_rows, rows_by_key
from kwire.analyzer.protocol import api_keys as apis

PROMPT = (
    apis.API_VERSIONS,
    apis.METADATA,
    apis.HEARTBEAT,
    apis.CONSUMER_GROUP_HEARTBEAT,
    apis.FIND_COORDINATOR,
    apis.OFFSET_FETCH,
    apis.LIST_OFFSETS,
)
"""APIs that wait for nobody: a broker that is well answers them within milliseconds."""

_REPLICATED = (
    apis.OFFSET_COMMIT,
    apis.TXN_OFFSET_COMMIT,
    apis.OFFSET_DELETE,
    apis.DELETE_GROUPS,
    apis.INIT_PRODUCER_ID,
    apis.ADD_PARTITIONS_TO_TXN,
    apis.ADD_OFFSETS_TO_TXN,
    apis.END_TXN,
)
"""APIs that are answered once replicas have what the coordinator wrote."""

FETCHES = (apis.FETCH, apis.SHARE_FETCH)


class Stall(NamedTuple):
    """A time without any answer of a broker, us.

    end        its first answer after, or the end of the capture
    is_over    whether it answered again
    waited     exchanges there that waited for half a second of it or more, those without an answer among them
    elsewhere  exchanges at other brokers that waited for its replicas
    is_clear   whether enough clients and answers show it (the rule's thresholds)
    """

    broker: int
    begin: int
    end: int
    is_over: bool
    waited: np.ndarray
    elsewhere: np.ndarray
    is_clear: bool


def waits_for_replicas(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: answered once replicas have what it writes: Produce with acks=all, commits, transactions."""
    api = capture.exchanges.api[rows]
    every = (api == apis.PRODUCE) & (spill.take(capture.column("acks"), rows) == -1)
    result: np.ndarray = every | arrow.among(api, _REPLICATED)
    return result


@once
def stalls(capture: CaptureFrame) -> list[Stall]:
    """Stalls of all brokers in order of time; also those that too few clients saw (`is_clear`)."""
    at = limits_of(RULES["broker-stall"], capture.query)
    rows = capture.exchanges
    pause = int(at.pause_ms * 1000)
    if capture.set_back is not None or capture.span[1] - capture.span[0] < pause:
        return []
    every = spill.true_rows(rows.request_time != NULL)
    gaps: list[tuple[int, int, int, bool]] = []
    for (broker,), broker_rows in rows_by_key(every, capture.broker[every]).items():
        answered = np.sort(rows.response_end[broker_rows], kind="stable")  # nearly in order: a fifth of the time
        answered = answered[answered != NULL]
        if not len(answered):
            continue
        times = np.append(answered, capture.span[1])
        for gap in np.flatnonzero(times[1:] - times[:-1] >= pause).tolist():
            gaps.append((broker, int(times[gap]), int(times[gap + 1]), gap + 1 < len(answered)))
    if not gaps:
        return []
    by_broker = rows_by_key(every, capture.broker[every])
    requested = np.sort(rows.request_time[every], kind="stable")
    result = []
    for broker, begin, end, is_over in gaps:
        inside = np.searchsorted(requested, [begin + pause // 10, end - pause // 10])
        if inside[1] > inside[0]:
            stall = _stall(capture, at, by_broker[(broker,)], every, (broker, begin, end, is_over))
            if stall is not None:
                result.append(stall)
    return sorted(result, key=lambda stall: stall.begin)


def _stall(
    capture: CaptureFrame, at: Limits, rows: np.ndarray, every: np.ndarray, gap: tuple[int, int, int, bool]
) -> Stall | None:
    """The stall that a gap between answers of a broker is, if it is one. rows: all exchanges of that broker."""
    broker, begin, end, is_over = gap
    pause = int(at.pause_ms * 1000)
    exchanges = capture.exchanges
    answered, status = exchanges.response_end[rows], exchanges.status[rows]
    # A connection that broke off meanwhile shows a broker that died, or a client that went.
    last = capture.link_times("last_time")[exchanges.link[rows]]
    open_ = (status == IN_FLIGHT) | ((status == UNANSWERED) & (last >= end))
    # Requested before the middle of the pause: whoever asks at its end waits for nobody.
    since = np.maximum(exchanges.request_time[rows], begin)
    late = ((answered != NULL) & (answered >= end)) | ((answered == NULL) & open_)
    waiting = rows[late & (end - since >= pause // 2)]
    waiting = waiting[~arrow.among(waiting, undelivered.rows(capture))]  # the path's fault, not the broker's
    if not len(waiting):
        return None
    heads = waiting[np.lexsort((exchanges.exchange[waiting], exchanges.link[waiting]))]
    heads = heads[first_rows(exchanges.link[heads])]
    if not is_over:  # a broker that died closes connections, and one that cannot be reached is sent packets again
        again = capture.link_numbers("retransmissions")[exchanges.link[heads]] > 0
        closed = np.array([capture.closed[link] != "open" for link in exchanges.link[heads].tolist()], bool)
        if (again | closed).any() or not capture.unbroken[exchanges.link[heads]].any():
            return None
    is_prompt = _is_prompt(capture, heads, end, pause)
    is_replica = waits_for_replicas(capture, heads)
    others = _answered_elsewhere(capture, every, broker, (begin, end)) if not is_prompt.any() else 0
    if not is_prompt.any() and (not is_replica.any() or others < at.answers):
        return None
    links = exchanges.link[heads[is_prompt | is_replica]]
    waited = waiting[arrow.among(exchanges.link[waiting], links)]
    burst = ((answered != NULL) & (answered >= end) & (answered <= end + SECOND)).sum()
    clients = len(arrow.distinct(capture.client[waited]))
    is_clear = clients >= at.clients and (not is_over or burst >= at.answers)
    return Stall(broker, begin, end, is_over, waited, _elsewhere(capture, every, gap, pause), bool(is_clear))


def _is_prompt(capture: CaptureFrame, heads: np.ndarray, end: int, pause: int) -> np.ndarray:
    """bool[heads]: requests that wait for nobody, and fetches whose time was over."""
    exchanges = capture.exchanges
    api = exchanges.api[heads]
    acks, longest = (spill.take(capture.column(name), heads) for name in ("acks", "max_wait_ms"))
    prompt = arrow.among(api, PROMPT) | ((api == apis.PRODUCE) & (acks != -1))
    overdue = end - exchanges.request_time[heads] - 1000 * np.maximum(longest, 0) >= pause // 2
    result: np.ndarray = prompt | (arrow.among(api, FETCHES) & (longest != NULL) & overdue)
    return result


def _answered_elsewhere(capture: CaptureFrame, every: np.ndarray, broker: int, gap: tuple[int, int]) -> int:
    """Requests that wait for replicas which other brokers took and answered within a gap: their replicas are well."""
    rows = capture.exchanges
    inside = (rows.request_time[every] >= gap[0]) & (rows.response_end[every] < gap[1])
    inside &= (rows.response_end[every] != NULL) & (capture.broker[every] != broker)
    return int(waits_for_replicas(capture, every[inside]).sum())


def _elsewhere(capture: CaptureFrame, every: np.ndarray, gap: tuple[int, int, int, bool], pause: int) -> np.ndarray:
    """Exchanges at other brokers that waited for a replica at this one until its stall was over."""
    broker, begin, end, is_over = gap
    rows = capture.exchanges
    requested, answered = rows.request_time[every], rows.response_end[every]
    until = end + SECOND if is_over else end
    late = np.where(answered == NULL, rows.status[every] == IN_FLIGHT, (answered >= end) & (answered <= until))
    some = every[late & (capture.broker[every] != broker) & (end - np.maximum(requested, begin) >= pause // 2)]
    result: np.ndarray = some[waits_for_replicas(capture, some)]
    return result


def overlapping(capture: CaptureFrame, rows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """bool[rows]: exchanges that were open within one of the spans (us), or waited behind such on their connection
    until all of those were answered, for as long again as the span lasted."""
    out = np.zeros(len(rows), bool)
    if not spans:
        return out
    exchanges = capture.exchanges
    requested, answered = exchanges.request_time[rows], exchanges.response_end[rows]
    for begin, end in spans:
        inside = (requested <= end) & ((answered == NULL) | (answered >= begin))
        out |= inside
        behind = np.full(len(capture.links), NULL, np.int64)
        np.maximum.at(behind, exchanges.link[rows[inside]], answered[inside])
        after = np.flatnonzero(
            (requested > end) & (requested <= 2 * end - begin) & (behind[exchanges.link[rows]] != NULL)
        )
        for place in after[np.argsort(requested[after], kind="stable")].tolist():
            link = exchanges.link[rows[place]]
            if requested[place] <= behind[link]:
                out[place] = True
                behind[link] = max(behind[link], answered[place])
    return out


def in_stalls(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: exchanges that a stall made wait: at that broker, or for its replicas, or behind such a request."""
    clear = [stall for stall in stalls(capture) if stall.is_clear]
    return overlapping(capture, rows, [(stall.begin, stall.end) for stall in clear])
