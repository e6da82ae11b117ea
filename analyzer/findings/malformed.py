"""Messages that are not as Kafka's protocol has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings import foreign_protocols, root_causes
from kwire.analyzer.findings.capture import ANSWERED, ORPHAN, CaptureFrame, api_name
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, listed, name, partition_name, size
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import max_by, split
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
    rows = rows[~arrow.among(rows, list(foreign_protocols.impossible_lengths(capture)))]
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
    "10.0.0.1:9092 sent 4 answers to ApiVersions 3 that cannot be decoded: response: malformed: apiKeys at byte 10: "
    "has more elements than bytes are left.",
    why="Our definitions cover every version of every API: what is whole and does not fit is the sender's fault, or "
    "ours. Bytes that are left over at the end are a note: some old clients send them.",
    suppressed_when="Bytes are missing from the message, or the place where it begins had to be looked for. What a "
    "broker answers wrongly to several clients is one finding.",
    advice="Name the software and version of the sender, a client or a broker, to its authors; kwire show --tree --hex "
    "shows the place.",
    evidence="zoo-confluent-2.5.3-on-mock-2.0.2; old-librdkafka-1.3.0-on-3.9 (trailing bytes: a note)",
)
def malformed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    reasons, texts = capture.table("exchanges").text("reason")
    by: dict[tuple[int, int, int, int, str], list[int]] = defaultdict(list)
    odd = [number for number, text in enumerate(texts) if "malformed" in text or "trailing" in text]
    for row in np.flatnonzero(arrow.among(reasons, odd)).tolist():
        if capture.whole[capture.exchanges.link[row]]:
            text = texts[reasons[row]]
            sender = NULL if text.startswith("response") else int(capture.client[row])
            api, version = int(capture.exchanges.api[row]), int(capture.exchanges.version[row])
            by[sender, int(capture.broker[row]), api, version, text].append(row)
    for (sender, broker, api, version, reason), group_rows in by.items():
        clients = arrow.distinct(capture.client[group_rows]).tolist()
        who = capture.who(clients[0] if len(clients) == 1 else None, broker)
        bad, is_single = "malformed" in reason, len(group_rows) == 1
        if sender == NULL:
            text = f"{who['broker']} sent {count(len(group_rows), 'answer')} to {api_name(api)} {version} "
        else:
            requests = count(len(group_rows), f"{api_name(api)} {version} request")
            text = f"{client(who)} sent {who['broker']} {requests} "
        held = f"{'holds' if is_single else 'hold'} bytes beyond the fields"
        text += f"that {'cannot be decoded' if bad else held}: {name(reason)}."
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
    "frame-length-impossible",
    "error",
    "svc-a (10.0.0.4) sent 10.0.0.1:9092 a Produce request whose length is -1,431,655,766.",
    why="Four bytes of length stand before each message. No message has fewer bytes than its header, a gigabyte or "
    "more, or text where its length is due; a broker closes the connection.",
    suppressed_when="Bytes are missing from the connection, or the message before cannot be decoded, so that what "
    "follows it may be no length. Lengths that are possible: frame-oversized.",
    advice="Look at what wrote those bytes: the client's software, a proxy that rewrites requests, memory that was "
    "overwritten. What follows on that connection (requests without an answer, bytes skipped) is not told again.",
    evidence="forged: negative lengths, text, and lengths that are possible",
)
def impossible_length(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    for group_rows in split(*_impossible_groups(capture)):
        first, last = int(group_rows[0]), int(group_rows[-1])
        side, number = foreign_protocols.impossible_lengths(capture)[first]
        who = capture.who(int(capture.client[first]), int(capture.broker[first]))
        sender, receiver = (client(who), who["broker"]) if side == "request" else (who["broker"], client(who))
        known = api_name(int(rows.api[first])) + " " if rows.api[first] >= 0 else ""
        what = known + side if side == "request" else f"answer to {known.strip()}" if known else "answer"
        text = f"{sender} sent {receiver} {'an' if what[0] in 'aeiouAEIOU' else 'a'} {what} whose length is {number:,}"
        if quoted := _as_text(number):
            text += f", the text {quoted}"
        if len(group_rows) > 1:
            text += f", and {count(len(group_rows) - 1, 'other')} like it"
        times = capture.column("response_time") if side == "response" else rows.request_time
        yield Match(
            f"{text}.",
            len(group_rows),
            int(times[first]) if times[first] != NULL else None,
            int(times[last]) if times[last] != NULL else None,
            who,
            {"length": str(number), "side": side, **({"api": known.strip()} if known else {})},
            (first, first, last),
            cause=f"the {'client' if side == 'request' else 'broker'}'s bytes hold no length there",
            proven=True,
        )


def _impossible_groups(capture: CaptureFrame) -> tuple[np.ndarray, ...]:
    """Exchanges with an impossible length, then their clients, brokers and sides."""
    rows = foreign_protocols.impossible_lengths(capture)
    numbers = np.array(list(rows), np.int64)
    sides = np.array([side == "request" for side, _ in rows.values()], bool)
    return numbers, capture.client[numbers], capture.broker[numbers], sides


def _as_text(number: int) -> str | None:
    """The four bytes of a length in quotes, if they are readable text."""
    data = (number & 0xFFFFFFFF).to_bytes(4, "big")
    return f'"{data.decode()}"' if all(32 <= byte < 127 for byte in data) else None


@rule(
    "protocol",
    "answers-out-of-order",
    "error",
    "10.0.0.1:9092 answered svc-a (10.0.0.4) out of order 3 times: Heartbeat 2 before Fetch 1, Heartbeat 4 before "
    "Fetch 3, Heartbeat 6 before Fetch 5.",
    why="Kafka answers the requests of a connection in their order, and clients count on it: most take the second "
    "answer for the first one's and give the connection up. The numbers are correlation ids.",
    suppressed_when="Bytes are missing from the connection. An answer that fits no request is told by "
    "correlation-mismatch.",
    advice="Look for a proxy or a broker of another make, which works on several requests of a connection at once.",
    evidence="forged: Heartbeats answered before the Fetch that came first, several requests deep, and answers in "
    "order",
)
def out_of_order(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows, overtaken = capture.exchanges, _overtaken(capture)
    late = np.array(list(overtaken), np.int64)
    ids = capture.column("correlation_id") if len(late) else late
    for group_rows in split(late, capture.client[late], capture.broker[late]):
        who = capture.who(int(capture.client[group_rows[0]]), int(capture.broker[group_rows[0]]))

        def named(row: int) -> str:
            return f"{api_name(int(rows.api[row]))} {ids[row]}"

        pairs = [f"{named(overtaken[row])} before {named(row)}" for row in group_rows[:3].tolist()]
        text = f"{who['broker']} answered {client(who)} out of order {count(len(group_rows), 'time')}: "
        first, last = int(group_rows[0]), int(group_rows[-1])
        yield Match(
            f"{text}{listed(pairs, len(group_rows))}.",
            len(group_rows),
            int(rows.response_end[first]),
            int(rows.response_end[last]),
            who,
            {"correlation_ids": ",".join(str(ids[row]) for row in group_rows[:20].tolist())},
            (first, first, last),
            cause="the broker, or a proxy before it, answers later requests first",
            proven=True,
        )


def _overtaken(capture: CaptureFrame) -> dict[int, int]:
    """Exchanges whose answer came after that of a later request of their connection, each with the latest of these."""
    rows = capture.exchanges
    ahead = spill.where(
        len(rows), lambda block: (rows.status[block] == ANSWERED) & (rows.exchange[block] != rows.reply[block])
    )
    if not len(ahead):
        return {}
    # As long as all is answered in order, an answer's number is as far from its request's all the time.
    answered = spill.true_rows(rows.status == ANSWERED)
    answered = answered[arrow.among(rows.link[answered], arrow.distinct(rows.link[ahead]))]
    answered = answered[capture.unbroken[rows.link[answered]]]
    link, apart = rows.link[answered], rows.exchange[answered].astype(np.int64) - rows.reply[answered]
    least, links = np.iinfo(np.int64).min, len(capture.links)
    moved = max_by(link, apart, links, least) != -max_by(link, -apart, links, least)
    answered = answered[moved[link]]
    if not len(answered):
        return {}
    answered = answered[np.lexsort((rows.reply[answered], rows.link[answered]))]
    key = rows.link[answered].astype(np.int64) << 32 | rows.exchange[answered]
    latest = np.maximum.accumulate(key)
    late = np.flatnonzero(key < latest)
    first = np.searchsorted(latest, latest[late])  # where the latest request until then was answered
    return dict(sorted(zip(answered[late].tolist(), answered[first].tolist(), strict=True)))


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
