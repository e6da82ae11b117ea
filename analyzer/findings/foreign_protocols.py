"""Facts about what is not Kafka: other protocols at brokers' ports, end points that never answer, impossible lengths.

In: a capture point. Out: connections and exchanges with what they show, for rules that tell of them (`not_kafka`,
`malformed`) and for those that leave them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import ANSWERED, UNANSWERED, CaptureFrame, once
from kwire.analyzer.findings.root_causes import explained_links, oversized, refused_versions
from kwire.analyzer.findings.rules import RULES, limits_of
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import split
from kwire.analyzer.protocol import api_keys


@once
def _answered_links(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: whether a request of Kafka was answered on each connection."""
    answered = np.zeros(len(capture.links), np.bool_)
    for block in spill.blocks(len(capture.exchanges)):
        answered[capture.exchanges.link[block][capture.exchanges.status[block] == ANSWERED]] = True
    return answered


@once
def answering(capture: CaptureFrame) -> set[str]:
    """End points that answered a request of Kafka."""
    answered = arrow.distinct(capture.broker_of[_answered_links(capture)])
    return {capture.brokers[broker] for broker in answered.tolist()}


def probes(capture: CaptureFrame) -> Iterator[Mapping[str, Any]]:
    """Connections to end points that answer in Kafka, which say something else. Of what begins with TLS those that
    nobody answered; those with a whole hello are told by not-tls and tls-alert. Of what is not told apart those that
    nobody answered, and of which no byte is missing: others may be Kafka that was not recognised."""
    spoken = answering(capture)
    if not spoken:
        return
    prefixed = capture.link_numbers("opaque_prefix_bytes") > 0
    spoken = spoken - {capture.brokers[broker] for broker in arrow.distinct(capture.broker_of[prefixed]).tolist()}
    for connection in capture.source.unrecognised:
        if connection["capture"] != capture.name or ends(connection)[1] not in spoken:
            continue
        like = connection["looks_like"]
        if like in ("unknown", "TLS") and not connection.get("unanswered"):
            continue
        if like != "nothing said" and "tls_failure" not in (connection.get("tls") or {}):
            yield connection


def ends(connection: Mapping[str, Any]) -> tuple[str, str]:
    """The address that asked, and the end point that it asked."""
    asking, _, broker_end = connection["connection"].rpartition("#")[0].partition("-")
    return asking.rpartition(":")[0], broker_end


@once
def unheard_hellos(capture: CaptureFrame) -> set[str]:
    """Connections that begin with TLS at an end point that speaks Kafka in the clear, which did not answer them."""
    return {connection["connection"] for connection in probes(capture) if connection["looks_like"] == "TLS"}


@once
def impossible_lengths(capture: CaptureFrame) -> dict[int, tuple[str, int]]:
    """By row, exchanges with a message whose length field holds an impossible number: (`request` or `response`, it).
    Left out where bytes are missing, and behind a message that cannot be decoded."""
    reasons, texts = capture.table("exchanges").text("reason")
    known = {code: match for code, text in enumerate(texts) if (match := _IMPOSSIBLE.search(text))}
    if not known:
        return {}
    whole = capture.link_numbers("gaps") + capture.link_numbers("gap_bytes") + capture.link_numbers("snaplen_bytes")
    out = {}
    for row in np.flatnonzero(arrow.among(reasons, list(known))).tolist():
        link = int(capture.exchanges.link[row])
        before = capture.row_of(capture.links[link], int(capture.exchanges.exchange[row]) - 1)
        if whole[link] == 0 and not (before is not None and "malformed" in _text_at(reasons, texts, before)):
            out[row] = known[int(reasons[row])][1], int(known[int(reasons[row])][2])
    return out


_IMPOSSIBLE = re.compile(r"(request|response): its length field holds (-?\d+)")


def _text_at(codes: np.ndarray, texts: list[str], row: int) -> str:
    return texts[codes[row]] if codes[row] >= 0 else ""


@once
def broken_links(capture: CaptureFrame) -> np.ndarray:
    """Connections on which an impossible length was sent, or that were answered in another protocol: bytes that were
    skipped there, and requests without an answer, are told with it."""
    lengths = [int(capture.exchanges.link[row]) for row in impossible_lengths(capture)]
    return arrow.distinct(np.array([*lengths, *answered_otherwise(capture)], np.int64))


@once
def answered_otherwise(capture: CaptureFrame) -> dict[int, str]:
    """By connection, what the answers to requests of Kafka look like where they are none of Kafka."""
    known = {connection["connection"]: connection["looks_like"] for connection in _listed_otherwise(capture)}
    return {link: known[name] for link, name in enumerate(capture.links) if name in known} if known else {}


def _listed_otherwise(capture: CaptureFrame) -> list[Mapping[str, str]]:
    return [*capture.entry.get("answered_otherwise", ())]


class WithoutAnswers(NamedTuple):
    """A client's connections to an end point from which no byte came.

    rows: the requests; before_asked: the end point had closed before; zookeeper: it is ZooKeeper; limited: meanwhile it
    answers others, or this client elsewhere, and not even ApiVersions here; after_us: how long after the request the
    connection ended, the median."""

    links: np.ndarray
    rows: np.ndarray
    before_asked: bool
    zookeeper: bool
    limited: bool
    after_us: int | None


@once
def without_answers(capture: CaptureFrame) -> list[WithoutAnswers]:
    """Clients with connections to an end point that closed each of them without a byte."""
    rows = np.flatnonzero(capture.exchanges.status == UNANSWERED)
    if not len(rows) or capture.loses:
        return []
    quiet = capture.whole & (capture.link_numbers("broker_bytes") == 0)
    quiet &= np.array([end != "open" for end in capture.closed], bool) & ~explained_links(capture)
    rows = rows[quiet[capture.exchanges.link[rows]]]
    for others in (
        refused_versions(capture),
        oversized(capture),
        np.array(list(impossible_lengths(capture)), np.int64),
    ):
        rows = rows[~arrow.among(rows, others)]
    closes = limits_of(RULES["no-kafka-answer"], capture.query).closes
    if not len(rows):
        return []
    speaking = (capture.link_numbers("broker_bytes") > 0) | _answered_links(capture)
    pairs = capture.client_of.astype(np.int64) << 32 | capture.broker_of
    brokers, first = arrow.distinct(capture.broker_of[speaking]), capture.link_times("first_time")
    out = []
    asking = arrow.distinct(capture.broker[rows]).tolist()
    refusing = {broker: _refused_at_once(capture, rows, broker, int(closes)) for broker in asking}
    for group_rows in split(rows, capture.client[rows], capture.broker[rows]):
        links = arrow.distinct(capture.exchanges.link[group_rows])
        shut_out = group_rows[arrow.among(group_rows, refusing[int(capture.broker[group_rows[0]])])]
        if len(shut_out):
            shut_links = arrow.distinct(capture.exchanges.link[shut_out])
            out.append(WithoutAnswers(shut_links, shut_out, False, False, True, _median_wait(capture, shut_out)))
            continue
        if len(links) < closes:
            continue
        answered = first[(pairs == pairs[links[0]]) & speaking]
        if ((answered >= first[links].min()) & (answered <= first[links].max())).any():
            continue
        early = arrow.distinct(capture.exchanges.link[group_rows[_came_too_late(capture, group_rows)]])
        before_asked = 2 * len(early) > len(links)
        known = bool(capture.broker_of[links[0]] in brokers)
        limited = known and bool((capture.exchanges.api[group_rows] == api_keys.API_VERSIONS).all())
        limited = limited and _answers_meanwhile(capture, group_rows)
        if (known and not before_asked and not limited) or (len(answered) and not limited):
            continue  # it answers others: request-unanswered tells of it
        zookeeper = _is_zookeeper(capture, capture.brokers[capture.broker_of[links[0]]])
        wait = _median_wait(capture, group_rows)
        out.append(WithoutAnswers(links, group_rows, before_asked, zookeeper, limited, wait))
    return out


def _refused_at_once(capture: CaptureFrame, rows: np.ndarray, broker: int, closes: int) -> np.ndarray:
    """ApiVersions without an answer at a broker that closed connections of several clients on them and answered others
    meanwhile, so often together that one limit explains them, however often each client tried; else none."""
    versions = capture.exchanges.api[rows] == api_keys.API_VERSIONS
    refused = rows[versions & (capture.broker[rows] == broker) & ~_came_too_late(capture, rows)]
    enough = len(refused) >= closes and len(arrow.distinct(capture.client[refused])) > 1
    none: np.ndarray = refused[:0]
    return refused if enough and _answers_meanwhile(capture, refused) else none


def _came_too_late(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool: which of some requests the broker had closed the connection before."""
    reasons, texts = capture.table("exchanges").text("reason")
    shut = [code for code, text in enumerate(texts) if "had closed the connection before" in text]
    return arrow.among(reasons[rows], shut)


def _median_wait(capture: CaptureFrame, rows: np.ndarray) -> int | None:
    """The median time from a request to the end of its connection, us."""
    ended = capture.link_times("last_time")[capture.exchanges.link[rows]]
    after = (ended - capture.exchanges.request_time[rows])[ended != NULL]
    return int(np.median(after)) if len(after) else None


def _answers_meanwhile(capture: CaptureFrame, rows: np.ndarray) -> bool:
    """Whether the end point of some requests answered others from the first of them to the last."""
    requested, answered = capture.exchanges.request_time[rows], capture.exchanges.response_end
    since, until, broker = int(requested.min()), int(requested.max()), int(capture.broker[rows[0]])

    def meanwhile(block: slice) -> np.ndarray:
        return (answered[block] >= since) & (answered[block] <= until)

    between: np.ndarray = spill.where(len(answered), meanwhile)
    return bool((capture.broker[between] == broker).any())


def _is_zookeeper(capture: CaptureFrame, end: str) -> bool:
    """Whether an end point has a port that is usual for ZooKeeper, or others spoke to it as to ZooKeeper."""
    spoken = {row["connection"].rpartition("#")[0].partition("-")[2] for row in capture.unrecognised("ZooKeeper")}
    port = end.rpartition(":")[2]
    return port.endswith("2181") or port in ("2182", "2183") or end in spoken
