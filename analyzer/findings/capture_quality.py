"""What the capture itself lacks. These come before all others: a capture that lost packets says so before anybody
blames Kafka, and rules that argue from absence leave out the connections concerned (`CaptureFrame.whole`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.dataset.tables import OPAQUE_REASONS
from analyzer.findings import root_causes
from analyzer.findings.capture import ORPHAN, CaptureFrame
from analyzer.findings.rules import RULES, Found, Limits, limits_of, rule
from analyzer.findings.wording import count, lasting, moment, share, size


def _worst(seen: CaptureFrame, amounts: np.ndarray) -> tuple[int, ...]:
    """First, worst and last connection that has some."""
    some = np.flatnonzero(amounts)
    return (int(some[0]), int(amounts.argmax()), int(some[-1])) if len(some) else ()


def _lonely(seen: CaptureFrame) -> np.ndarray:
    """bool[links]: the capture point lacks what one side sent. Short ones count where it lacks that of a long one, or
    of all: else what was not captured may be an answer or two."""
    least = limits_of(RULES["capture-one-way"], seen.asked).packets
    packets = seen.link_numbers("client_packets") + seen.link_numbers("broker_packets")
    lonely, many = seen.one_way, packets >= least
    if (lonely & many).any() or (lonely.all() and packets.sum() >= least):
        found: np.ndarray = lonely & (many | (seen.link_numbers("gaps") > 0))
        return found
    return np.zeros(len(lonely), bool)


@rule(
    "quality",
    "capture-lost-packets",
    "warning",
    "The capture misses 5.0 % of the bytes: 12 holes in 3 connections, 40 packets that it counted as lost itself.",
    why="A byte that the receiver acknowledged was delivered: the capture lost it, not the network. One in 10,000 is "
    "enough to cut messages.",
    unless="The bytes were sent again (then the network lost them), the connection began before the capture, or the "
    "capture has one direction of it only (capture-one-way).",
    advice="Capture with larger buffers, a shorter snap length or a narrower filter; do not blame Kafka for what is "
    "missing.",
    judge="a forged capture with holes; captures whose tool counted its drops",
    share=0.0001,
)
def lost_packets(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    missing, holes = (np.where(_lonely(seen), 0, seen.link_numbers(name)) for name in ("gap_bytes", "gaps"))
    payload, gone = int(seen.link_numbers("payload_bytes").sum()), int(missing.sum())
    dropped = (seen.entry.get("packets") or {}).get("dropped_by_capture") or 0
    if not dropped and (not gone or gone < at.share * (payload + gone)):
        return
    said = []
    if gone:
        said.append(
            f"{share(gone, payload + gone)} of the bytes ({size(gone)}): {count(int(holes.sum()), 'hole')} in "
            f"{count(int((holes > 0).sum()), 'connection')}"
        )
    if dropped:
        said.append(f"{count(dropped, 'packet')} that whatever captured counted as lost")
    since, until = seen.span
    yield Found(
        f"The capture misses {', and '.join(said)}.",
        int(holes.sum()) + dropped,
        since,
        until,
        links=_worst(seen, missing),
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
    unless="Fewer than five answers in a row came earlier than one before them; bytes of their connections came late "
    "or never (then they were complete late).",
    advice="Judge the files before and after that moment apart; files that overlap in time are capture points of their "
    "own.",
    judge="a real capture of which the second half is an hour, and a second, earlier; net-lossy-4.3 does not",
)
def clock_back(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if seen.set_back is not None:
        when, amount = seen.set_back
        text = f"The capture's clock went back by {lasting(amount)} or more at {moment(when)}: rules that argue with "
        yield Found(f"{text}the order or the length of times were not asked.", 1, when, when)


@rule(
    "quality",
    "capture-snaplen",
    "warning",
    "The snap length cut off 1.2 MB (84.0 % of the bytes) in 31 connections.",
    why="A fact; what was cut off cannot be decoded.",
    unless="Never otherwise.",
    advice="Capture whole packets: tcpdump -s 0.",
    judge="snaplen-96-4.3",
)
def snaplen(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    cut = seen.link_numbers("snaplen_bytes")
    gone = int(cut.sum())
    if gone:
        payload = int(seen.link_numbers("payload_bytes").sum())
        text = f"The snap length cut off {size(gone)} ({share(gone, payload + gone)} of the bytes) in "
        text += f"{count(int((cut > 0).sum()), 'connection')}."
        yield Found(text, int((cut > 0).sum()), *seen.span, links=_worst(seen, cut), what={"missing_bytes": str(gone)})


@rule(
    "quality",
    "capture-midstream",
    "note",
    "14 of 20 connections began before the capture: versions, sessions and groups begin unknown; 22 answers have no "
    "request.",
    why="A fact.",
    unless="Every connection's SYN was captured.",
    advice="Begin to capture before the clients start, where what happened at the start matters.",
    judge="midstream-4.3; a capture from its beginning on says nothing",
)
def midstream(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    begun = np.flatnonzero(seen.link_numbers("opened") == 0)
    if not len(begun):
        return
    orphans = np.flatnonzero(seen.exchanges.status == ORPHAN)
    text = f"{len(begun):,} of {count(len(seen.links), 'connection')} began before the capture: versions, sessions and "
    text += "groups begin unknown"
    if len(orphans):
        text += f"; {count(len(orphans), 'answer')} {'has' if len(orphans) == 1 else 'have'} no request"
    yield Found(
        text + ".",
        len(begun),
        *seen.span,
        links=tuple(begun[[0, 0, -1]].tolist()),
        rows=tuple(orphans[[0, 0, -1]].tolist()) if len(orphans) else (),
    )


@rule(
    "quality",
    "capture-one-way",
    "warning",
    "Of 3 connections the capture has one direction only: no latency and no errors can be told there.",
    why="A side that acknowledges is there; a capture that lacks all of its packets stands where they do not pass.",
    unless="None of them has 10 packets, and other connections have both directions.",
    advice="Capture where both directions pass: a mirror port in both directions, or the host itself.",
    judge="a forged capture without the broker's packets",
    packets=10,
)
def one_way(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    lonely = np.flatnonzero(_lonely(seen))
    if len(lonely):
        text = f"Of {count(len(lonely), 'connection')} the capture has one direction only: no latency and no errors "
        yield Found(text + "can be told there.", len(lonely), *seen.span, links=tuple(lonely[[0, 0, -1]].tolist()))


@rule(
    "quality",
    "capture-duplicated",
    "note",
    "The capture holds 1,200 packets twice (50.0 %).",
    why="One in ten is no accident of the network: a mirror port or `-i any` sees packets on two interfaces.",
    unless="Fewer than 10, or fewer than one in ten.",
    advice="Nothing is counted twice; capture on one interface to halve the file.",
    judge="a forged capture with every packet twice; net-lossy-4.3 (1 %) does not",
    packets=10,
    share=0.1,
)
def duplicated(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    # Where all came twice, what looks as if TCP had sent it again did so too, farther behind than copies are known by.
    twice = seen.link_numbers("duplicates") + np.where(seen.doubled, seen.link_numbers("retransmissions"), 0)
    packets = int((seen.link_numbers("client_packets") + seen.link_numbers("broker_packets")).sum())
    many = int(twice.sum())
    if many >= at.packets and many >= at.share * packets:
        text = f"The capture holds {count(many, 'packet')} twice ({share(many, packets)})."
        yield Found(text, many, *seen.span, links=_worst(seen, twice))


@rule(
    "quality",
    "tls-not-decoded",
    "warning",
    "4 connections are encrypted (1.1 MB): nothing of what they say can be judged.",
    why="A fact.",
    unless="A key log opened them, or the handshake came to nothing (tls-alert, not-tls): then nothing was said.",
    advice="Give the clients' or brokers' TLS key log with --keylog, or capture where it is in the clear.",
    judge="tls13-aiokafka-4.3 without its keys",
)
def encrypted(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    failures, _ = seen.table("connections").text("tls_failure")
    said_nothing = seen.link_numbers("decrypted") > 0
    said_nothing[: len(failures)] |= failures >= 0
    sealed = np.where(said_nothing, 0, seen.link_numbers("opaque_encrypted_bytes"))
    # Those that nothing but their first bytes is known of.
    shut = [one for one in seen.sealed if "tls_failure" not in (one.get("tls") or {})]
    many = int((sealed > 0).sum()) + len(shut)
    if many:
        amount = int(sealed.sum()) + sum(one["payload_bytes"] for one in shut)
        said = ("is", "it says") if many == 1 else ("are", "they say")
        text = f"{count(many, 'connection')} {said[0]} encrypted ({size(amount)}): nothing of what {said[1]} can be "
        who = {} if sealed.any() else {"connection": shut[0]["connection"]}
        yield Found(f"{text}judged.", many, *seen.span, who, links=_worst(seen, sealed))


_EXPECTED = ("encrypted", "sasl", "prefix")


@rule(
    "quality",
    "opaque-bytes",
    "warning",
    "3.0 % of the bytes could not be decoded: 40.0 kB malformed, 1.2 kB of an unknown API.",
    why="One byte in a hundred hides whole messages; less are strays.",
    unless="They are encrypted, log in, or stand before Kafka (a proxy's prefix): those are expected. Requests that a "
    "broker did not take (frame-oversized). Answers whose requests were not captured: capture-midstream and "
    "capture-lost-packets tell of what is missing.",
    advice="See `reason` in kwire show --json; a client that speaks a dialect of its own is named there.",
    judge="a forged capture of an unknown API, and of answers without their requests; errors-librdkafka-4.3",
    share=0.01,
)
def opaque(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    payload = int(seen.link_numbers("payload_bytes").sum())
    parts = {
        reason: seen.link_numbers(f"opaque_{reason}_bytes") for reason in OPAQUE_REASONS if reason not in _EXPECTED
    }
    if parts["unknown_api"].any():
        parts["unknown_api"] = np.maximum(parts["unknown_api"] - _without_request(seen), 0)
    if parts["limit"].any():
        parts["limit"][seen.exchanges.link[root_causes.oversized(seen)]] = 0
    parts["skipped"] = np.where(seen.link_numbers("opened") > 0, seen.link_numbers("skipped_bytes"), 0)
    amounts = {reason: int(part.sum()) for reason, part in parts.items() if part.any()}
    gone = sum(amounts.values())
    if gone and gone >= at.share * payload:
        named = ", ".join(f"{size(amount)} {reason.replace('_', ' ')}" for reason, amount in amounts.items())
        each = np.sum(list(parts.values()), axis=0)
        yield Found(
            f"{share(gone, payload)} of the bytes could not be decoded: {named}.",
            int((each > 0).sum()),
            *seen.span,
            links=_worst(seen, each),
            what={"bytes": str(gone)},
        )


def _without_request(seen: CaptureFrame) -> np.ndarray:
    """int64[links]: bytes of answers whose requests were not seen, which are opaque as those of an unknown API are."""
    out = np.zeros(len(seen.links), np.int64)
    rows = np.flatnonzero(seen.exchanges.status == ORPHAN)
    if len(rows):
        np.add.at(out, seen.exchanges.link[rows], np.maximum(seen.column("response_bytes")[rows], 0))
    return out
