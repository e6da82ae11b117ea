"""Messages that are not as Kafka's protocol has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from analyzer.findings import root_causes
from analyzer.findings.capture import ANSWERED, ORPHAN, CaptureFrame, api_name
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.wording import client, count, name, place, size
from analyzer.frame import arrow
from analyzer.frame.frame import NULL
from analyzer.frame.grouping import split
from analyzer.protocol import api_keys


@rule(
    "protocol",
    "correlation-mismatch",
    "error",
    "10.0.0.1:9092 gave svc-a (10.0.0.4) 3 answers that fit no request.",
    why="A broker answers in order on each connection; no byte of these is missing.",
    unless="The connection's beginning was not captured, or bytes of it are missing. Ids that repeat are matched in "
    "order.",
    advice="Look for a proxy or a broker of another make, or a client that reuses ids.",
    judge="forged: an answer of its own on a whole connection, and on one that began before",
)
def mismatch(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = np.flatnonzero(seen.exchanges.status == ORPHAN)
    rows = rows[seen.whole[seen.exchanges.link[rows]]]
    by: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows.tolist():
        by[int(seen.client[row]), int(seen.broker[row])].append(row)
    for (client_, broker), mine in by.items():
        who = seen.who(client_, broker)
        text = f"{who['broker']} gave {client(who)} {count(len(mine), 'answer')} that fit no request."
        if len(mine) == 1:
            text = f"{who['broker']} gave {client(who)} 1 answer that fits no request."
        since, until = (int(seen.exchanges.answered[row]) for row in (mine[0], mine[-1]))
        yield Found(text, len(mine), since, until, who, {}, (mine[0], mine[0], mine[-1]))


@rule(
    "protocol",
    "frame-malformed",
    "error",
    "4 Metadata 1 answers of 10.0.0.1:9092 to svc-a (10.0.0.4) cannot be decoded: apiKeys at byte 10: has more "
    "elements than bytes are left.",
    why="Our definitions cover every version of every API: what is whole and does not fit is the sender's fault, or "
    "ours. Bytes that are left over at the end are a note: some old clients send them.",
    unless="Bytes are missing from the message, or the place where it begins had to be looked for.",
    advice="Name the client's software and version to its authors; kwire show --tree --hex shows the place.",
    judge="zoo-confluent-2.5.3-on-mock-2.0.2; old-librdkafka-1.3.0-on-3.9 (trailing bytes: a note)",
)
def malformed(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    reasons, texts = seen.table("exchanges").text("reason")
    by: dict[tuple[int, int, str, bool], list[int]] = defaultdict(list)
    odd = [number for number, text in enumerate(texts) if "malformed" in text or "trailing" in text]
    for row in np.flatnonzero(arrow.among(reasons, odd)).tolist():
        if seen.whole[seen.exchanges.link[row]]:
            text = texts[reasons[row]]
            by[int(seen.client[row]), int(seen.exchanges.api[row]), text, "malformed" in text].append(row)
    for (client_, api, reason, bad), mine in by.items():
        who = seen.who(client_, int(seen.broker[mine[0]]))
        what = f"{api_name(api)} {int(seen.exchanges.version[mine[0]])}"
        text = f"{count(len(mine), 'exchange')} of {what} between {client(who)} and {who['broker']} "
        held = f"{'holds' if len(mine) == 1 else 'hold'} bytes beyond the fields"
        text += f"{'cannot be decoded' if bad else held}: {name(reason)}."
        yield Found(
            text,
            len(mine),
            _time(seen, mine[0]),
            _time(seen, mine[-1]),
            who,
            {"api": api_name(api)},
            (mine[0], mine[0], mine[-1]),
            severity=None if bad else "note",
        )


def _time(seen: CaptureFrame, row: int) -> int | None:
    time = int(seen.exchanges.asked[row])
    return time if time != NULL else None


_UNKNOWN = ("request: unknown_api", "unsupported_version")


@rule(
    "protocol",
    "unknown-api",
    "error",
    "svc-a (10.0.0.4) sent 10.0.0.1:9092 2 requests of API 32767 version 0, which Kafka does not have.",
    why="All APIs and versions that Kafka ever had are defined.",
    unless="ApiVersions of a version to come: clients try the newest first; a broker closed the connection on a "
    "version that it does not offer (version-refused).",
    advice="A client of another protocol, or damaged bytes; the broker closes the connection.",
    judge="errors-librdkafka-4.3; forged: such a request, and one of ApiVersions",
)
def unknown_api(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    reasons, texts = seen.table("exchanges").text("reason")
    odd = [number for number, text in enumerate(texts) if any(words in text for words in _UNKNOWN)]
    by: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    told = set(root_causes.refused_versions(seen).tolist())  # by version-refused
    for row in np.flatnonzero(arrow.among(reasons, odd)).tolist():
        rows = seen.exchanges
        if seen.whole[rows.link[row]] and rows.api[row] != api_keys.API_VERSIONS and row not in told:
            by[int(seen.client[row]), int(seen.broker[row]), int(rows.api[row]), int(rows.version[row])].append(row)
    for (client_, broker, api, version), mine in by.items():
        who = seen.who(client_, broker)
        text = f"{client(who)} sent {who['broker']} {count(len(mine), 'request')} of {api_name(api)} version "
        text += f"{version}, "
        yield Found(
            f"{text}which Kafka does not have.",
            len(mine),
            _time(seen, mine[0]),
            _time(seen, mine[-1]),
            who,
            {"api": api_name(api), "version": str(version)},
            (mine[0], mine[0], mine[-1]),
        )


@rule(
    "protocol",
    "frame-oversized",
    "error",
    "10.0.0.1:9092 closed connections of svc-a (10.0.0.4) on 2 Produce requests, the largest of 200.0 MB.",
    why="A broker reads the length first and closes where it is above socket.request.max.bytes, 100 MiB unless set.",
    unless="It was answered: then the broker takes more. The capture ended first; bytes are missing from the "
    "connection, so that what stands where a length is expected may be none.",
    advice="Smaller requests (max.request.size, batch.size, message.max.bytes of librdkafka), or a broker that is told "
    "to take larger ones; where no client asks so much, look for who writes other bytes to that connection.",
    judge="Kafka 4.3, to which a request of 200 MB was sent; forged: such a request, and one that was answered",
    bytes=104_857_600,
)
def oversized(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = root_causes.oversized(seen)
    sizes = seen.column("request_bytes") if len(rows) else rows
    for mine in split(rows, seen.client[rows], seen.broker[rows], seen.exchanges.api[rows]):
        api = api_name(int(seen.exchanges.api[mine[0]]))
        who = seen.who(int(seen.client[mine[0]]), int(seen.broker[mine[0]]))
        worst = int(mine[sizes[mine].argmax()])
        text = f"{who['broker']} closed {'connections' if len(mine) > 1 else 'a connection'} of {client(who)} on "
        text += f"{count(len(mine), f'{api} request')}, the largest " if len(mine) > 1 else f"1 {api} request "
        yield Found(
            f"{text}of {size(int(sizes[worst]))}.",
            len(mine),
            _time(seen, mine[0]),
            _time(seen, mine[-1]),
            who,
            {"api": api, "bytes": str(sizes[worst])},
            (int(mine[0]), worst, int(mine[-1])),
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
    unless="Nobody was answered in Kafka there; a proxy's prefix before Kafka was seen there. Beyond the first 1,000 "
    "connections without Kafka they are not told apart.",
    advice="Give that health check, scraper or browser the port that it wants.",
    judge="errors-librdkafka-4.3; curl at Kafka 4.3; forged: GET at a broker's port, and at another; a proxy's port",
)
def not_kafka(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    by: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in seen.unrecognised("HTTP"):
        asking, _, asked = one["connection"].rpartition("#")[0].partition("-")
        by[asking.rpartition(":")[0], asked].append(one["connection"])
    if not by:
        return
    heard = {seen.brokers[broker] for broker in arrow.distinct(seen.broker[seen.exchanges.status == ANSWERED]).tolist()}
    prefixed = seen.link_numbers("opaque_prefix_bytes") > 0
    heard -= {seen.brokers[broker] for broker in arrow.distinct(seen.broker_of[prefixed]).tolist()}
    for (asking, asked), links in by.items():
        if asked in heard:
            text = f"{name(asking)} speaks HTTP to {name(asked)}, where Kafka is spoken, on "
            who = {"client_ip": asking, "broker": asked, "connection": links[0]}
            yield Found(
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
    unless="Batches were not opened (--records meta opens them).",
    advice="Find who sent it; consumers without a limit take that much memory.",
    judge="forged rows: a batch 200 times its size, and one that is 50 times; a batch that was not opened to its end",
    times=100,
    bytes=64_000_000,
)
def bomb(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    table = seen.table("batches")
    if not len(table):
        return
    reason, reasons = table.text("reason")
    told = arrow.among(reason, [number for number, text in enumerate(reasons) if "decompress to more than" in text])
    if not told.any() and table.greatest("uncompressed_bytes") <= at.bytes:
        return
    inside, outside = table["uncompressed_bytes"], table["batch_bytes"]
    large = (inside != NULL) & (inside > at.bytes) & (inside > at.times * np.maximum(outside, 1))
    if not (told | large).any():
        return
    owner, (where, places) = seen.owners(table), seen.placed(table)
    for batch in np.flatnonzero(told | large).tolist():
        topic, partition = places[where[batch]]
        row = int(owner[batch])
        became = size(int(inside[batch])) if large[batch] else "more than is allowed"
        text = f"A batch to {place((topic, partition))} of {size(int(outside[batch]))} becomes {became} when "
        text += "decompressed."
        what = {"topic": topic, "partition": str(partition)}
        if row >= 0:
            yield Found(text, 1, _time(seen, row), None, seen.who(int(seen.client[row])), what, (row,))
        else:
            yield Found(text, 1, what=what)


@rule(
    "protocol",
    "wait-too-long",
    "note",
    "svc-a (10.0.0.4) waits up to 6 min for a fetch (maxWaitMs 360,000).",
    why="Ours: beyond five minutes clients, brokers and balancers close the connection first.",
    unless="Five minutes or less.",
    advice="fetch.max.wait.ms.",
    judge="forged: six minutes, and five",
    wait_ms=300_000,
)
def silly_wait(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if seen.greatest("max_wait_ms") <= at.wait_ms:
        return
    wait = seen.column("max_wait_ms")
    rows = np.flatnonzero(wait > at.wait_ms)
    by: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        by[int(seen.client[row])].append(row)
    for client_, mine in by.items():
        who = seen.who(client_)
        longest = int(wait[mine].max())
        text = f"{client(who)} waits up to {longest // 60_000} min for a fetch (maxWaitMs {longest:,})."
        yield Found(
            text,
            len(mine),
            _time(seen, mine[0]),
            _time(seen, mine[-1]),
            who,
            {"api": "Fetch"},
            (mine[0], mine[0], mine[-1]),
        )
