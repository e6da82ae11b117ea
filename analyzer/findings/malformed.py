"""Messages that are not as Kafka's protocol has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import ANSWERED, ORPHAN, CaptureFrame, api_name
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, name, partition_name, size
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import split
from kwire.analyzer.protocol import api_keys


@rule(
    "protocol",
    "correlation-mismatch",
    "error",
    "10.0.0.1:9092 gave svc-a (10.0.0.4) 3 answers that fit no request.",
    why="A broker answers in order on each connection; no byte of these is missing.",
    suppressed_when="The connection's beginning was not captured, or bytes of it are missing. Ids that repeat are "
    "matched in order.",
    advice="Look for a proxy or a broker of another make, or a client that reuses ids.",
    evidence="forged: an answer of its own on a whole connection, and on one that began before",
)
def mismatch(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = np.flatnonzero(capture.exchanges.status == ORPHAN)
    rows = rows[capture.whole[capture.exchanges.link[rows]]]
    by: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows.tolist():
        by[int(capture.client[row]), int(capture.broker[row])].append(row)
    for (client_, broker), group_rows in by.items():
        who = capture.who(client_, broker)
        text = f"{who['broker']} gave {client(who)} {count(len(group_rows), 'answer')} that fit no request."
        if len(group_rows) == 1:
            text = f"{who['broker']} gave {client(who)} 1 answer that fits no request."
        since, until = (int(capture.exchanges.response_end[row]) for row in (group_rows[0], group_rows[-1]))
        yield Match(text, len(group_rows), since, until, who, {}, (group_rows[0], group_rows[0], group_rows[-1]))


@rule(
    "protocol",
    "frame-malformed",
    "error",
    "4 Metadata 1 answers of 10.0.0.1:9092 to svc-a (10.0.0.4) cannot be decoded: apiKeys at byte 10: has more "
    "elements than bytes are left.",
    why="Our definitions cover every version of every API: what is whole and does not fit is the sender's fault, or "
    "ours. Bytes that are left over at the end are a note: some old clients send them.",
    suppressed_when="Bytes are missing from the message, or the place where it begins had to be looked for.",
    advice="Name the client's software and version to its authors; kwire show --tree --hex shows the place.",
    evidence="zoo-confluent-2.5.3-on-mock-2.0.2; old-librdkafka-1.3.0-on-3.9 (trailing bytes: a note)",
)
def malformed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    reasons, texts = capture.table("exchanges").text("reason")
    by: dict[tuple[int, int, str, bool], list[int]] = defaultdict(list)
    odd = [number for number, text in enumerate(texts) if "malformed" in text or "trailing" in text]
    for row in np.flatnonzero(arrow.among(reasons, odd)).tolist():
        if capture.whole[capture.exchanges.link[row]]:
            text = texts[reasons[row]]
            by[int(capture.client[row]), int(capture.exchanges.api[row]), text, "malformed" in text].append(row)
    for (client_, api, reason, bad), group_rows in by.items():
        who = capture.who(client_, int(capture.broker[group_rows[0]]))
        what = f"{api_name(api)} {int(capture.exchanges.version[group_rows[0]])}"
        text = f"{count(len(group_rows), 'exchange')} of {what} between {client(who)} and {who['broker']} "
        held = f"{'holds' if len(group_rows) == 1 else 'hold'} bytes beyond the fields"
        text += f"{'cannot be decoded' if bad else held}: {name(reason)}."
        yield Match(
            text,
            len(group_rows),
            _time(capture, group_rows[0]),
            _time(capture, group_rows[-1]),
            who,
            {"api": api_name(api)},
            (group_rows[0], group_rows[0], group_rows[-1]),
            severity=None if bad else "note",
        )


def _time(capture: CaptureFrame, row: int) -> int | None:
    time = int(capture.exchanges.request_time[row])
    return time if time != NULL else None


_UNKNOWN = ("request: unknown_api", "unsupported_version")


@rule(
    "protocol",
    "unknown-api",
    "error",
    "svc-a (10.0.0.4) sent 10.0.0.1:9092 2 requests of API 32767 version 0, which Kafka does not have.",
    why="All APIs and versions that Kafka ever had are defined.",
    suppressed_when="ApiVersions of a version to come: clients try the newest first; a broker closed the connection on "
    "a version that it does not offer (version-refused).",
    advice="A client of another protocol, or damaged bytes; the broker closes the connection.",
    evidence="errors-librdkafka-4.3; forged: such a request, and one of ApiVersions",
)
def unknown_api(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    reasons, texts = capture.table("exchanges").text("reason")
    odd = [number for number, text in enumerate(texts) if any(words in text for words in _UNKNOWN)]
    by: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    reported = set(root_causes.refused_versions(capture).tolist())  # by version-refused
    for row in np.flatnonzero(arrow.among(reasons, odd)).tolist():
        rows = capture.exchanges
        if capture.whole[rows.link[row]] and rows.api[row] != api_keys.API_VERSIONS and row not in reported:
            by[int(capture.client[row]), int(capture.broker[row]), int(rows.api[row]), int(rows.version[row])].append(
                row
            )
    for (client_, broker, api, version), group_rows in by.items():
        who = capture.who(client_, broker)
        text = f"{client(who)} sent {who['broker']} {count(len(group_rows), 'request')} of {api_name(api)} version "
        text += f"{version}, "
        yield Match(
            f"{text}which Kafka does not have.",
            len(group_rows),
            _time(capture, group_rows[0]),
            _time(capture, group_rows[-1]),
            who,
            {"api": api_name(api), "version": str(version)},
            (group_rows[0], group_rows[0], group_rows[-1]),
        )


@rule(
    "protocol",
    "frame-oversized",
    "error",
    "10.0.0.1:9092 closed connections of svc-a (10.0.0.4) on 2 Produce requests, the largest of 200.0 MB.",
    why="A broker reads the length first and closes where it is above socket.request.max.bytes, 100 MiB unless set.",
    suppressed_when="It was answered: then the broker takes more. The capture ended first; bytes are missing from the "
    "connection, so that what stands where a length is expected may be none.",
    advice="Smaller requests (max.request.size, batch.size, message.max.bytes of librdkafka), or a broker that is told "
    "to take larger ones; where no client asks so much, look for who writes other bytes to that connection.",
    evidence="Kafka 4.3, to which a request of 200 MB was sent; forged: such a request, and one that was answered",
    bytes=104_857_600,
)
def oversized(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = root_causes.oversized(capture)
    sizes = capture.column("request_bytes") if len(rows) else rows
    for group_rows in split(rows, capture.client[rows], capture.broker[rows], capture.exchanges.api[rows]):
        api = api_name(int(capture.exchanges.api[group_rows[0]]))
        who = capture.who(int(capture.client[group_rows[0]]), int(capture.broker[group_rows[0]]))
        worst = int(group_rows[sizes[group_rows].argmax()])
        text = f"{who['broker']} closed {'connections' if len(group_rows) > 1 else 'a connection'} of {client(who)} on "
        text += (
            f"{count(len(group_rows), f'{api} request')}, the largest " if len(group_rows) > 1 else f"1 {api} request "
        )
        yield Match(
            f"{text}of {size(int(sizes[worst]))}.",
            len(group_rows),
            _time(capture, group_rows[0]),
            _time(capture, group_rows[-1]),
            who,
            {"api": api, "bytes": str(sizes[worst])},
            (int(group_rows[0]), worst, int(group_rows[-1])),
            cause="a request larger than the broker takes",
            proven=False,
        )


@rule(
    "protocol",
    "not-kafka",
    "warning",
    "10.0.0.5 speaks HTTP to 10.0.0.1:9092, where Kafka is spoken, on 3 connections.",
    why="A broker takes the first four bytes (`GET `) for the length of a request, of 1.2 GB, and closes. A health "
    "check that passes by that says nothing, a scraper gets nothing, and the broker logs each.",
    suppressed_when="Nobody was answered in Kafka there; a proxy's prefix before Kafka was seen there. Beyond the "
    "first 1,000 connections without Kafka they are not told apart.",
    advice="Give that health check, scraper or browser the port that it wants.",
    evidence="errors-librdkafka-4.3; curl at Kafka 4.3; forged: GET at a broker's port, and at another; a proxy's port",
)
def not_kafka(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by: dict[tuple[str, str], list[str]] = defaultdict(list)
    for connection in capture.unrecognised("HTTP"):
        asking, _, broker_end = connection["connection"].rpartition("#")[0].partition("-")
        by[asking.rpartition(":")[0], broker_end].append(connection["connection"])
    if not by:
        return
    answering = {
        capture.brokers[broker]
        for broker in arrow.distinct(capture.broker[capture.exchanges.status == ANSWERED]).tolist()
    }
    prefixed = capture.link_numbers("opaque_prefix_bytes") > 0
    answering -= {capture.brokers[broker] for broker in arrow.distinct(capture.broker_of[prefixed]).tolist()}
    for (asking, broker_end), links in by.items():
        if broker_end in answering:
            text = f"{name(asking)} speaks HTTP to {name(broker_end)}, where Kafka is spoken, on "
            who = {"client_ip": asking, "broker": broker_end, "connection": links[0]}
            yield Match(
                f"{text}{count(len(links), 'connection')}.",
                len(links),
                who=who,
                cause="not a client of Kafka",
                proven=True,
            )


@rule(
    "protocol",
    "decompression-bomb",
    "error",
    "A batch to t-0 of 64.0 kB becomes more than 64.0 MB when decompressed.",
    why="Zeros shrink a thousand times, real text three to ten: a hundred times and 64 MB are safe both ways.",
    suppressed_when="Batches were not opened (--records meta opens them).",
    advice="Find who sent it; consumers without a limit take that much memory.",
    evidence="forged rows: a batch 200 times its size, and one that is 50 times; a batch that was not opened to its "
    "end",
    times=100,
    bytes=64_000_000,
)
def bomb(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("batches")
    if not len(table):
        return
    reason, reasons = table.text("reason")
    is_bomb = arrow.among(reason, [number for number, text in enumerate(reasons) if "decompress to more than" in text])
    if not is_bomb.any() and table.greatest("uncompressed_bytes") <= at.bytes:
        return
    inside, outside = table["uncompressed_bytes"], table["batch_bytes"]
    large = (inside != NULL) & (inside > at.bytes) & (inside > at.times * np.maximum(outside, 1))
    if not (is_bomb | large).any():
        return
    owner, (where, places) = capture.owners(table), capture.number_topic_partitions(table)
    for batch in np.flatnonzero(is_bomb | large).tolist():
        topic, partition = places[where[batch]]
        row = int(owner[batch])
        became = size(int(inside[batch])) if large[batch] else "more than is allowed"
        text = f"A batch to {partition_name((topic, partition))} of {size(int(outside[batch]))} becomes {became} when "
        text += "decompressed."
        what = {"topic": topic, "partition": str(partition)}
        if row >= 0:
            yield Match(text, 1, _time(capture, row), None, capture.who(int(capture.client[row])), what, (row,))
        else:
            yield Match(text, 1, what=what)


@rule(
    "protocol",
    "wait-too-long",
    "note",
    "svc-a (10.0.0.4) waits up to 6 min for a fetch (maxWaitMs 360,000).",
    why="Ours: beyond five minutes clients, brokers and balancers close the connection first.",
    suppressed_when="Five minutes or less.",
    advice="fetch.max.wait.ms.",
    evidence="forged: six minutes, and five",
    wait_ms=300_000,
)
def silly_wait(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.greatest("max_wait_ms") <= at.wait_ms:
        return
    wait = capture.column("max_wait_ms")
    rows = np.flatnonzero(wait > at.wait_ms)
    by: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        by[int(capture.client[row])].append(row)
    for client_, group_rows in by.items():
        who = capture.who(client_)
        longest = int(wait[group_rows].max())
        text = f"{client(who)} waits up to {longest // 60_000} min for a fetch (maxWaitMs {longest:,})."
        yield Match(
            text,
            len(group_rows),
            _time(capture, group_rows[0]),
            _time(capture, group_rows[-1]),
            who,
            {"api": "Fetch"},
            (group_rows[0], group_rows[0], group_rows[-1]),
        )
