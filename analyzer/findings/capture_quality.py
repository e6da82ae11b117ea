"""Rules about what the capture itself lacks. These come before all others: a capture that lost packets says so before
anybody blames Kafka, and rules that argue from absence leave out the connections concerned (`CaptureFrame.whole`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kwire.analyzer.dataset.tables import OPAQUE_REASONS
from kwire.analyzer.findings import foreign_protocols, root_causes, undelivered
from kwire.analyzer.findings.capture import ORPHAN, CaptureFrame
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.wording import count, lasting, listed, moment, share, size, some
from kwire.analyzer.frame.grouping import rows_by_key


def _worst(capture: CaptureFrame, amounts: np.ndarray) -> tuple[int, ...]:
    """First, worst and last connection with a value above 0."""
    some = np.flatnonzero(amounts)
    return (int(some[0]), int(amounts.argmax()), int(some[-1])) if len(some) else ()


def _lonely(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: the capture has packets of one side only. Short connections count only if a long one, or all, lack a
    side, because otherwise just an answer or two may be missing."""
    least = limits_of(RULES["capture-one-way"], capture.query).packets
    packets = capture.link_packets
    lonely, many = capture.one_way, packets >= least
    if (lonely & many).any() or (lonely.all() and packets.sum() >= least):
        is_lonely: np.ndarray = lonely & (many | (capture.link_numbers("gaps") > 0))
        return is_lonely
    return np.zeros(len(lonely), bool)


@rule(
    "quality",
    "capture-lost-packets",
    "warning",
    "The capture misses 5.0 % of the bytes: 12 holes in 3 connections, 40 packets that it counted as lost itself.",
    why="A byte that the receiver acknowledged was delivered: the capture lost it, not the network. One in 10,000 is "
    "enough to cut messages.",
    suppressed_when="The bytes were sent again (then the network lost them), or their receiver never acknowledged them "
    "(then they never arrived: SACK acknowledges what is behind a hole, not the hole); they were sent before the "
    "capture began, in a repair; the capture has one direction of it only (capture-one-way).",
    advice="Capture with larger buffers, a shorter snap length or a narrower filter; do not blame Kafka for what is "
    "missing.",
    evidence="a forged capture with holes; captures whose tool counted its drops",
    share=0.0001,
)
def lost_packets(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    missing, holes = (np.where(_lonely(capture), 0, capture.link_numbers(name)) for name in ("gap_bytes", "gaps"))
    payload, gone = int(capture.link_numbers("payload_bytes").sum()), int(missing.sum())
    dropped = (capture.entry.get("packets") or {}).get("dropped_by_capture") or 0
    if not dropped and (not gone or gone < at.share * (payload + gone)):
        return
    losses = []
    if gone:
        losses.append(
            f"{share(gone, payload + gone)} of the bytes ({size(gone)}): {count(int(holes.sum()), 'hole')} in "
            f"{count(int((holes > 0).sum()), 'connection')}"
        )
    if dropped:
        losses.append(f"{count(dropped, 'packet')} that whatever captured counted as lost")
    since, until = capture.span
    yield Match(
        f"The capture misses {', and '.join(losses)}.",
        int(holes.sum()) + dropped,
        since,
        until,
        links=_worst(capture, missing),
        cause="the capture lost packets; the network delivered them",
        proven=bool(gone),
        what={"missing_bytes": str(gone), "dropped_packets": str(dropped)},
    )


@rule(
    "quality",
    "capture-clock-back",
    "warning",
    "The capture's clock went back by 60 min or more at 10:01:03: rules that argue with the order or the length of "
    "times were not asked.",
    why="What comes later in the capture has an earlier time. Half a second is more than a clock service corrects.",
    suppressed_when="Fewer than five answers in a row came earlier than one before them; bytes of their connections "
    "came late or never (then they were complete late).",
    advice="Judge the files before and after that moment apart; files that overlap in time are capture points of their "
    "own.",
    evidence="a real capture of which the second half is an hour, and a second, earlier; net-lossy-4.3 does not",
)
def clock_back(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.set_back is not None:
        when, amount = capture.set_back
        text = f"The capture's clock went back by {lasting(amount)} or more at {moment(when)}: rules that argue with "
        yield Match(f"{text}the order or the length of times were not asked.", 1, when, when)


@rule(
    "quality",
    "frames-not-understood",
    "note",
    "60 packets are not understood: ethertype 0x8903 (FabricPath).",
    why="A fact: what such frames carry was not looked into, so Kafka may be in them.",
    suppressed_when="Protocols that never carry TCP: ARP, spanning tree, ICMP, routing.",
    advice="Capture where packets do not have that header, or strip it (editcap -C) before.",
    evidence="forged: frames of a type that is not known, and ARP; link-vntag and tunnel-tzsp are read",
)
def not_understood(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    kinds = capture.entry.get("not_understood") or {}
    if kinds:
        total = sum(kinds.values())
        named = [f"{kind} ({number:,})" if len(kinds) > 1 else kind for kind, number in kinds.items()]
        are = "is" if total == 1 else "are"
        yield Match(
            f"{count(total, 'packet')} {are} not understood: {listed(named[:5], len(named))}.",
            total,
            *capture.span,
            what={"frames": ",".join(kinds)},
        )


@rule(
    "quality",
    "capture-snaplen",
    "warning",
    "The snap length cut off 1.2 MB (84.0 % of the bytes) in 31 connections.",
    why="A fact; what was cut off cannot be decoded.",
    suppressed_when="Never otherwise; a note where all that is missing is content of record batches, as kwire record "
    "--no-payload leaves it out: every message is decoded.",
    advice="Capture whole packets: tcpdump -s 0.",
    evidence="snaplen-96-4.3; a capture of large batches without their content",
)
def snaplen(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    cut = capture.link_numbers("snaplen_bytes")
    gone = int(cut.sum())
    if gone:
        payload = int(capture.link_numbers("payload_bytes").sum())
        amount = f"{size(gone)} ({share(gone, payload + gone)} of the bytes)"
        where = f"in {count(int((cut > 0).sum()), 'connection')}"
        alone = not capture.cut_fields.any()
        text = f"The snap length cut off {amount} {where}."
        if alone:
            text = f"The content of record batches was not captured: {amount} {where}; all else is decoded."
        yield Match(
            text,
            int((cut > 0).sum()),
            *capture.span,
            links=_worst(capture, cut),
            what={"missing_bytes": str(gone)},
            severity="note" if alone else None,
            advice="Nothing is wrong with latencies, errors and offsets. For records themselves, capture whole packets."
            if alone
            else None,
        )


@rule(
    "quality",
    "capture-midstream",
    "note",
    "14 of 20 connections began before the capture: versions, sessions and groups begin unknown; 22 answers have no "
    "request.",
    why="A fact.",
    suppressed_when="Every connection's SYN was captured.",
    advice="Begin to capture before the clients start, where what happened at the start matters.",
    evidence="midstream-4.3; a capture from its beginning on says nothing",
)
def midstream(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    begun = np.flatnonzero(capture.link_numbers("opened") == 0)
    if not len(begun):
        return
    orphans = np.flatnonzero(capture.exchanges.status == ORPHAN)
    text = (
        f"{len(begun):,} of {count(len(capture.links), 'connection')} began before the capture: versions, sessions and "
    )
    text += "groups begin unknown"
    if len(orphans):
        text += f"; {count(len(orphans), 'answer')} {'has' if len(orphans) == 1 else 'have'} no request"
    yield Match(
        text + ".",
        len(begun),
        *capture.span,
        links=tuple(begun[[0, 0, -1]].tolist()),
        rows=tuple(orphans[[0, 0, -1]].tolist()) if len(orphans) else (),
    )


@rule(
    "quality",
    "capture-one-way",
    "warning",
    "Of 3 connections the capture has one direction only: no latency and no errors can be told there.",
    why="A side that acknowledges is there; a capture that lacks all of its packets stands where they do not pass.",
    suppressed_when="None of them has 10 packets, and other connections have both directions; the side that was "
    "captured sends the same again and again (request-undelivered).",
    advice="Capture where both directions pass: a mirror port in both directions, or the host itself.",
    evidence="a forged capture without the broker's packets",
    packets=10,
)
def one_way(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    lonely = np.flatnonzero(_lonely(capture))
    if len(lonely):
        text = f"Of {count(len(lonely), 'connection')} the capture has one direction only: no latency and no errors "
        yield Match(text + "can be told there.", len(lonely), *capture.span, links=tuple(lonely[[0, 0, -1]].tolist()))


@rule(
    "quality",
    "capture-duplicated",
    "note",
    "The capture holds 1,200 packets twice (50.0 %).",
    why="One in ten is no accident of the network: a mirror port or `-i any` sees packets on two interfaces.",
    suppressed_when="Fewer than 10, or fewer than one in ten. Connections that were captured under several addresses "
    "(connection-legs).",
    advice="Nothing is counted twice; capture on one interface to halve the file.",
    evidence="a forged capture with every packet twice; net-lossy-4.3 (1 %) does not",
    packets=10,
    share=0.1,
)
def duplicated(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    # Where all came twice, what looks as if TCP had sent it again did so too, farther behind than copies are known by.
    again = np.where(capture.unsure_copies, capture.link_numbers("retransmissions"), 0)
    twice = np.where(capture.has_legs, 0, capture.link_numbers("duplicates") + again)
    packets, many = int(capture.link_packets[~capture.has_legs].sum()), int(twice.sum())
    if many >= at.packets and many >= at.share * packets:
        text = f"The capture holds {count(many, 'packet')} twice ({share(many, packets)})."
        yield Match(text, many, *capture.span, links=_worst(capture, twice))


@rule(
    "quality",
    "connection-legs",
    "note",
    "2 connections to 192.168.1.10:9092 were captured under 172.17.0.2:9092 too: their packets are counted once.",
    why="A fact: the same TCP sequence numbers under other addresses are one connection behind a NAT (a container, "
    "a load balancer); requests to one address and answers from another one are a sidecar's redirect.",
    suppressed_when="Another connection has the same ports, and other sequence numbers: it is one of its own.",
    advice="Addresses and times are those of the leg nearest the client; connections.other_addresses has the others. "
    "Capture on one interface to halve the file.",
    evidence="real captures of a container behind a DNAT and of a sidecar; any-sll2-4.3, whose copies have the same "
    "addresses, does not",
)
def legs(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    some_links = np.flatnonzero(capture.has_legs)
    for (broker,), links in rows_by_key(some_links, capture.broker_of[some_links]).items():
        addresses = capture.other_addresses.take(links).elements.text("value")
        often = np.bincount(addresses.codes, minlength=len(addresses.values))
        others = [addresses.values[code] for code in np.argsort(-often, kind="stable").tolist() if often[code]]
        name = capture.brokers[broker]
        text = f"{count(len(links), 'connection')} to {name} {'was' if len(links) == 1 else 'were'} captured under "
        text += f"{some(others)} too: {'its' if len(links) == 1 else 'their'} packets are counted once."
        yield Match(
            text,
            len(links),
            int(capture.link_times("first_time")[links].min()),
            int(capture.link_times("last_time")[links].max()),
            {"broker": name},
            {"other_addresses": some(others)},
            links=tuple(links[[0, 0, -1]].tolist()),
        )


@rule(
    "quality",
    "tls-not-decoded",
    "warning",
    "4 connections are encrypted (1.1 MB): nothing of what they say can be judged.",
    why="A fact.",
    suppressed_when="A key log opened them, or the handshake came to nothing (tls-alert, not-tls): then nothing was "
    "said.",
    advice="Give the clients' or brokers' TLS key log with --keylog, or capture where it is in the clear.",
    evidence="tls13-aiokafka-4.3 without its keys",
)
def encrypted(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    failures, _ = capture.table("connections").text("tls_failure")
    said_nothing = capture.link_numbers("decrypted") > 0
    said_nothing[: len(failures)] |= failures >= 0
    sealed = np.where(said_nothing, 0, capture.link_numbers("opaque_encrypted_bytes"))
    # Those that nothing but their first bytes is known of.
    probes = foreign_protocols.unheard_hellos(capture)
    shut = [
        connection
        for connection in capture.sealed
        if "tls_failure" not in (connection.get("tls") or {}) and connection["connection"] not in probes
    ]
    many = int((sealed > 0).sum()) + len(shut)
    if many:
        amount = int(sealed.sum()) + sum(connection["payload_bytes"] for connection in shut)
        words = ("is", "it says") if many == 1 else ("are", "they say")
        text = f"{count(many, 'connection')} {words[0]} encrypted ({size(amount)}): nothing of what {words[1]} can be "
        who = {} if sealed.any() else {"connection": shut[0]["connection"]}
        yield Match(f"{text}judged.", many, *capture.span, who, links=_worst(capture, sealed))


_EXPECTED = ("encrypted", "sasl", "prefix")


@rule(
    "quality",
    "opaque-bytes",
    "warning",
    "3.0 % of the bytes could not be decoded: 40.0 kB malformed, 1.2 kB of an unknown API.",
    why="One byte in a hundred hides whole messages; less are strays.",
    suppressed_when="They are encrypted, log in, or stand before Kafka (a proxy's prefix): those are expected. "
    "Requests that a broker did not take (frame-oversized), or never had (request-undelivered), connections with an "
    "impossible length (frame-length-impossible) and answers in another protocol (not-kafka). Answers whose requests "
    "were not captured: capture-midstream and capture-lost-packets tell of what is missing.",
    advice="See `reason` in kwire show --json; a client that speaks a dialect of its own is named there.",
    evidence="a forged capture of an unknown API, and of answers without their requests; errors-librdkafka-4.3",
    share=0.01,
)
def opaque(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    payload = int(capture.link_numbers("payload_bytes").sum())
    parts = {
        reason: capture.link_numbers(f"opaque_{reason}_bytes") for reason in OPAQUE_REASONS if reason not in _EXPECTED
    }
    if parts["unknown_api"].any():
        parts["unknown_api"] = np.maximum(parts["unknown_api"] - _without_request(capture), 0)
    if parts["limit"].any():
        parts["limit"][capture.exchanges.link[root_causes.oversized(capture)]] = 0
    lost = undelivered.links(capture)  # what came behind a hole
    parts["skipped"] = np.where((capture.link_numbers("opened") > 0) & ~lost, capture.link_numbers("skipped_bytes"), 0)
    for reason in ("malformed", "skipped"):
        parts[reason][foreign_protocols.broken_links(capture)] = 0
    amounts = {reason: int(part.sum()) for reason, part in parts.items() if part.any()}
    gone = sum(amounts.values())
    if gone and gone >= at.share * payload:
        named = ", ".join(f"{size(amount)} {reason.replace('_', ' ')}" for reason, amount in amounts.items())
        each = np.sum(list(parts.values()), axis=0)
        yield Match(
            f"{share(gone, payload)} of the bytes could not be decoded: {named}.",
            int((each > 0).sum()),
            *capture.span,
            links=_worst(capture, each),
            what={"bytes": str(gone)},
        )


def _without_request(capture: CaptureFrame) -> np.ndarray:
    """int64[links]: bytes of answers whose requests were not captured; they are opaque, like those of an unknown
    API."""
    out = np.zeros(len(capture.links), np.int64)
    rows = np.flatnonzero(capture.exchanges.status == ORPHAN)
    if len(rows):
        np.add.at(out, capture.exchanges.link[rows], np.maximum(capture.column("response_bytes")[rows], 0))
    return out
