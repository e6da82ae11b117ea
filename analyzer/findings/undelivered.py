"""Find what TCP never delivered: bytes that their receiver did not acknowledge, and why.

In: the columns of `connections` about acknowledgements, and the exchanges of these connections. Out: `stalls`, which
other rules leave to this one, and the rule `request-undelivered`. Rule: whoever did not acknowledge a request never
had it, so nothing that follows is blamed on a broker, or on the capture.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import ANSWERED, SECOND, CaptureFrame, api_name, once
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.wording import client, count, exactly, name, size, some
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import number_values, split, sum_positive_by

_ABSENT: Final = np.iinfo(np.int32).min

_ACCIDENT: Final = 0.01
"""How likely an accident may be, for a path, that looks as if nothing arrived any more."""

_MAYBE_ONE_SEGMENT: Final = 1_400
"""Payload bytes of a segment of which nothing is known but that it was lost: what the usual paths carry."""


class Why(enum.Enum):
    """Why nothing arrives any more."""

    SIZE = "size"
    IDLE = "idle"
    RESET = "reset"
    PATH = "path"


class StalledDirection(NamedTuple):
    """A direction of a connection in which bytes were sent and never acknowledged.

    rows        exchanges whose request, or answer, is among them; none where their bytes were not captured
    lost        bytes that were not acknowledged; behind: bytes after them that the receiver holds (SACK)
    sends       how often TCP sent the first of them; 0: never seen
    segment     payload bytes of that segment; 0: not known
    passed      payload bytes of the longest segment that came behind such a hole; 0: none
    begun, until   when the first of them was sent, and until when nobody acknowledged it, us
    idle        how long nothing was sent before, us
    certain     long or often enough to be told; others only count beside such a one
    """

    link: int
    to_broker: bool
    rows: np.ndarray
    lost: int
    behind: int
    sends: int
    segment: int
    passed: int
    begun: int
    until: int
    idle: int
    certain: bool
    why: Why = Why.PATH


@once
def stalls(capture: CaptureFrame) -> list[StalledDirection]:
    """Directions in which TCP delivered nothing more, of clients and brokers for which that is certain."""
    at = limits_of(RULES["request-undelivered"], capture.query)
    groups: dict[tuple[int, int, bool], list[StalledDirection]] = defaultdict(list)
    for stall in _candidates(capture, at):
        ends = int(capture.client_of[stall.link]), int(capture.broker_of[stall.link])
        groups[*ends, stall.to_broker].append(stall)
    named: list[StalledDirection] = []
    for (client_, broker, to_broker), group in groups.items():
        if any(stall.certain for stall in group):
            named += _explained(capture, _Pair.of(capture, client_, broker, to_broker, group), group, at)
    return named


def rows(capture: CaptureFrame) -> np.ndarray:
    """Exchanges whose request or answer was never delivered."""
    every = [stall.rows for stall in stalls(capture)]
    return np.unique(np.concatenate(every)) if every else np.zeros(0, np.int64)


def links(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: TCP delivered nothing more in one of its directions."""
    out = np.zeros(len(capture.links), bool)
    out[[stall.link for stall in stalls(capture)]] = True
    return out


def _candidates(capture: CaptureFrame, at: Limits) -> Iterator[StalledDirection]:
    for to_broker in (True, False):
        toward = "broker" if to_broker else "client"
        lost = capture.link_numbers(f"unacknowledged_bytes_to_{toward}")
        some_links = np.flatnonzero((lost > 1) & ~root_causes.explained_links(capture))
        if not len(some_links):
            continue
        behind = capture.link_numbers(f"sacked_bytes_to_{toward}")
        sends = capture.link_numbers(f"unacknowledged_sends_to_{toward}")
        sends = np.where(capture.unsure_copies, (sends + 1) // 2, sends)
        segment = capture.link_numbers(f"unacknowledged_segment_to_{toward}")
        passed = capture.link_numbers(f"sacked_segment_to_{toward}")
        since = capture.link_times(f"unacknowledged_since_to_{toward}")
        incomplete = capture.link_numbers("incomplete_bytes")
        opened, last = capture.link_times("first_time"), capture.link_times("last_time")
        silence = capture.link_numbers("longest_silence_us")
        exchanges_of = _by_link(capture, some_links)
        for link in some_links.tolist():
            every = exchanges_of.get(link, some_links[:0])
            amount = int(lost[link] + behind[link])
            chosen = _concerned(capture, every, to_broker, int(sends[link]), amount, int(incomplete[link]))
            stall = StalledDirection(
                link,
                to_broker,
                chosen,
                int(lost[link]),
                int(behind[link]),
                int(sends[link]),
                int(segment[link]),
                int(passed[link]),
                int(since[link]),
                int(last[link]) if capture.closed[link] != "open" else capture.span[1],
                0,
                False,
            )
            judged = _judged(capture, stall, every, int(opened[link]), int(silence[link]), at)
            if judged is not None:
                yield judged


def _by_link(capture: CaptureFrame, some_links: np.ndarray) -> dict[int, np.ndarray]:
    """Exchanges of some connections, by connection."""
    link = capture.exchanges.link
    chosen = spill.where(len(link), lambda block: arrow.among(link[block], some_links))
    return {int(link[group[0]]): group for group in split(chosen, link[chosen])}


def _concerned(
    capture: CaptureFrame, every: np.ndarray, to_broker: bool, sends: int, amount: int, incomplete: int
) -> np.ndarray:
    """Exchanges of a connection whose request, or answer, is among its last `amount` bytes. `incomplete`: bytes of its
    messages of which some were not captured."""
    exchanges = capture.exchanges
    waits = exchanges.status[every] != ANSWERED
    waiting = every[waits & (exchanges.exchange[every] != _ABSENT)]
    if not sends:  # these bytes were not captured: who waits, waits for them
        return every[:0] if to_broker else waiting
    ordinal = exchanges.exchange if to_broker else exchanges.reply
    sizes = capture.column("request_bytes" if to_broker else "response_bytes")
    chosen = every[:0]
    if to_broker:
        every = every[waits]
    elif len(waiting):  # an answer of which only the first bytes were sent: of who waits longest
        first = exchanges.exchange[waiting].argmin()
        chosen = waiting[first : first + (incomplete > 0)]
        amount -= incomplete
    every = every[ordinal[every] != _ABSENT]
    every = every[np.argsort(-ordinal[every], kind="stable")]
    before = np.cumsum(np.maximum(sizes[every], 0)) - np.maximum(sizes[every], 0)
    return np.sort(np.concatenate((chosen, every[before < amount])))


@once
def _fewest_sends(capture: CaptureFrame) -> dict[bool, np.ndarray]:
    """int64[links], by whether to the broker: how often a segment must be sent in vain there before this is no accident
    of single packets, by the share of packets between the two hosts that TCP sent again and that arrived then. 0: none
    were."""
    again = np.where(capture.doubled, 0, capture.link_numbers("retransmissions"))
    for toward in ("broker", "client"):
        copies = np.maximum(capture.link_numbers(f"unacknowledged_sends_to_{toward}") - 1, 0)
        kinds = ("unacknowledged_bytes", "sacked_bytes")
        behind = sum(capture.link_numbers(f"{kind}_to_{toward}") for kind in kinds)
        segments = -(-behind // np.maximum(capture.link_numbers(f"unacknowledged_segment_to_{toward}"), 1))
        again = again - np.where(copies > 0, copies * segments + 1, 0)  # 1: a probe of the last segment (RFC 8985)
    codes, _ = capture.table("connections").text("client_ip")
    host = np.zeros(len(capture.links), np.int64)
    host[: len(codes)] = codes
    _, path = number_values(host << 32 | capture.broker_of)
    again = sum_positive_by(path, again, len(path))[path]
    fewest = {}
    for to_broker, side in ((True, "client"), (False, "broker")):
        # Of packets that carry nothing none is sent again.
        full = np.maximum(capture.link_numbers("requests"), capture.link_numbers(f"{side}_bytes") // _MAYBE_ONE_SEGMENT)
        sent = np.minimum(full, capture.link_numbers(f"{side}_packets"))
        sent = np.maximum(sum_positive_by(path, sent, len(path))[path], 1)
        lost = np.clip(again / sent, 1e-9, 0.9)
        sends = np.ceil(np.log(_ACCIDENT / sent) / np.log(lost))
        fewest[to_broker] = np.where(again > 0, sends, 0).astype(np.int64)
    return fewest


def _judged(
    capture: CaptureFrame, stall: StalledDirection, every: np.ndarray, opened: int, silence: int, at: Limits
) -> StalledDirection | None:
    """The stall with its beginning and the silence before it; None where it is none yet. opened, silence: when its
    connection was, and its longest one, us."""
    exchanges, link = capture.exchanges, stall.link
    times = exchanges.request_time if stall.to_broker else capture.column("response_time")
    known = [int(time) for time in times[stall.rows].tolist() if time != NULL] if stall.sends else []
    if stall.begun != NULL:
        known.append(stall.begun)
    if not known:
        return None
    begun = min(known)
    active = [opened]
    for column in (exchanges.request_time, exchanges.response_end):
        moments = column[every]
        moments = moments[(moments != NULL) & (moments < begun)]
        active += [int(moments.max())] if len(moments) else []
    idle = max(0, min(begun - max(active), silence))
    fewest = at.sends - (capture.closed[link] != "open")
    certain = stall.sends >= max(fewest, _fewest_sends(capture)[stall.to_broker][link])
    certain |= not stall.sends and stall.until - begun >= at.hole_s * SECOND
    stall = stall._replace(begun=begun, idle=idle, certain=bool(certain))
    if not certain and stall.sends == 1:
        if idle < at.reset_s * SECOND or not _was_reset(capture, stall):
            return None
        return stall._replace(certain=True, why=Why.RESET)
    return stall


def _was_reset(capture: CaptureFrame, stall: StalledDirection) -> bool:
    """Whether the side that should have acknowledged sent a reset at once instead."""
    receiver, last = ("broker", "request") if stall.to_broker else ("client", "answer")
    by, after = (_text(capture, column, stall.link) for column in ("closed_by", "closed_after"))
    quick = int(capture.link_numbers("closed_after_us")[stall.link]) <= 5 * SECOND
    return capture.closed[stall.link] == "rst" and by == receiver and after == last and quick


def _text(capture: CaptureFrame, column: str, link: int) -> str | None:
    codes, texts = capture.table("connections").text(column)
    return texts[codes[link]] if link < len(codes) and codes[link] >= 0 else None


class _Pair(NamedTuple):
    """The messages of a client and a broker that were not lost, in one direction.

    sizes       bytes of messages, or segments, that arrived
    survived    the longest silence after which a message did, us
    last        when the last of those was sent, us"""

    sizes: np.ndarray
    survived: int
    last: int

    @classmethod
    def of(
        cls, capture: CaptureFrame, client_: int, broker: int, to_broker: bool, group: Sequence[StalledDirection]
    ) -> _Pair:
        exchanges = capture.exchanges
        pair = np.flatnonzero((capture.client_of == client_) & (capture.broker_of == broker))
        lost = np.concatenate([stall.rows for stall in group])
        sizes, survived, last = [pair[:0]], 0, NULL
        silence = capture.link_numbers("longest_silence_us")
        for link, every in _by_link(capture, pair).items():
            arrived = every[(exchanges.status[every] == ANSWERED) & ~arrow.among(every, lost)]
            sizes.append(capture.column("request_bytes" if to_broker else "response_bytes")[arrived])
            order = arrived[np.argsort(exchanges.request_time[arrived], kind="stable")]
            if len(order):
                last = max(last, int(exchanges.request_time[order[-1]]))
            if len(order) > 1:
                ends = np.maximum.accumulate(exchanges.response_end[order])
                gaps = exchanges.request_time[order][1:] - ends[:-1]
                survived = max(survived, min(int(gaps.max()), int(silence[link])))
        sizes.append(np.array([stall.passed for stall in group], np.int64))
        return cls(np.concatenate(sizes), survived, last)


def _explained(
    capture: CaptureFrame, pair: _Pair, group: list[StalledDirection], at: Limits
) -> Iterator[StalledDirection]:
    """Stalls of one client and broker with their causes."""
    path = [stall for stall in group if stall.why is not Why.RESET]
    least = min((_lost_segment(stall) for stall in path if stall.certain), default=0)
    above_passed = least >= at.large_bytes and bool((pair.sizes > 0).any()) and not bool((pair.sizes >= least).any())
    many = len(path) > 1 and all(_lost_segment(stall) >= least for stall in path)
    for stall in group:
        large = above_passed and _lost_segment(stall) >= least
        if stall.why is Why.RESET:
            yield stall
        elif large and stall.behind:
            yield stall._replace(why=Why.SIZE)
        elif stall.idle >= at.idle_s * SECOND and stall.idle > 1.05 * pair.survived:
            yield stall._replace(why=Why.IDLE)
        elif large and (many or pair.last > stall.begun):
            yield stall._replace(why=Why.SIZE)
        else:
            yield stall


def _lost_segment(stall: StalledDirection) -> int:
    """Payload bytes of the segment that was lost, as far as is known."""
    return stall.segment or min(stall.lost, _MAYBE_ONE_SEGMENT)


@rule(
    "network",
    "request-undelivered",
    "warning",
    "1 Produce request of orders (10.0.0.1) to 10.0.0.2:9092 was never acknowledged by TCP, though sent 9 times: the "
    "broker never had it; the connection had been idle for 4 min 5 s.",
    why="A receiver acknowledges what it has, within 0.5 s. Linux sends again after 0.2, 0.4 and 0.8 s: four times in "
    "vain is no accident of single packets where few are lost; where many are, it must have been sent so often that "
    "not one path in a hundred shows it. A hole before bytes that arrived is filled after one such time. "
    "Middleboxes forget connections that were idle for minutes (Azure 4, AWS 350 s, firewalls from seconds on), but "
    "never for less than others survived; 500 bytes pass everywhere.",
    suppressed_when="It was sent fewer than four times (three where the connection ended; six where a tenth of 1,000 "
    "packets is lost), or the hole was there for less than 2 s; a reset came instead of an acknowledgement and the "
    "connection had not been idle for 30 s (connection-reset); the broker went away (broker-lost); nobody "
    "acknowledges in the capture at all, and not just one segment was sent again and again.",
    advice="Look at the path between the two: firewall, route, tunnel. A capture at the other end shows whether the "
    "packets arrive there.",
    evidence="reports of an idle drop and of an MTU black hole, an incident of each; net-lossy-4.3, which repairs "
    "itself, says nothing; forged: sent four times, and three",
    sends=4,
    hole_s=2,
    idle_s=5,
    reset_s=30,
    large_bytes=500,
)
def request_undelivered(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    groups: dict[tuple[int, int, bool, Why], list[StalledDirection]] = defaultdict(list)
    for stall in stalls(capture):
        ends = int(capture.client_of[stall.link]), int(capture.broker_of[stall.link])
        groups[*ends, stall.to_broker, stall.why].append(stall)
    for (client_, broker, to_broker, why), group in groups.items():
        if any(stall.certain for stall in group):
            group = sorted(group, key=lambda stall: stall.begun)
            yield _match(capture, capture.who(client_, broker), group, to_broker, why)


def _match(
    capture: CaptureFrame, who: dict[str, str | None], group: list[StalledDirection], to_broker: bool, why: Why
) -> Match:
    concerned = np.unique(np.concatenate([stall.rows for stall in group]))
    idle = max(stall.idle for stall in group)
    sends = max(stall.sends for stall in group)
    pair = _Pair.of(capture, *_ends(capture, group[0]), to_broker, group)
    least = min(_lost_segment(stall) for stall in group)
    passed = int(pair.sizes.max(initial=0))
    number, text = _subject(capture, who, group, concerned, to_broker)
    times = f", though sent {sends} times" if sends > 1 else ", but by a reset" if why is Why.RESET else ""
    text += f" {'was' if number == 1 else 'were'} never acknowledged by TCP{times}: the "
    text += f"{'broker' if to_broker else 'client'} never had {'it' if number == 1 else 'them'}"
    if why is Why.SIZE:
        known = any(stall.segment for stall in group)
        text += f"; segments of {size(passed)} arrived, " + (
            f"those of {size(least)} did not" if known else "none longer"
        )
    elif why in (Why.IDLE, Why.RESET):
        text += f"; the connection had been idle for {exactly(idle)}"
    topics = _topics(capture, concerned)
    cause, proven, advice = _cause(why, group, passed, idle)
    places = tuple(concerned[[0, 0, -1]].tolist()) if len(concerned) else ()
    worst = max(group, key=lambda stall: stall.sends)
    return Match(
        text + ".",
        number,
        group[0].begun,
        max(stall.until for stall in group),
        who,
        {
            "direction": "to the broker" if to_broker else "to the client",
            "bytes": str(sum(stall.lost for stall in group)),
            **({"idle_s": f"{idle / SECOND:.1f}"} if why in (Why.IDLE, Why.RESET) else {}),
            **({"passed_bytes": str(passed)} if why is Why.SIZE else {}),
            **({"topic": topics} if topics else {}),
        },
        places,
        links=(group[0].link, worst.link, group[-1].link),
        cause=cause,
        proven=proven,
        advice=advice,
    )


def _ends(capture: CaptureFrame, stall: StalledDirection) -> tuple[int, int]:
    return int(capture.client_of[stall.link]), int(capture.broker_of[stall.link])


def _subject(
    capture: CaptureFrame,
    who: dict[str, str | None],
    group: list[StalledDirection],
    concerned: np.ndarray,
    to_broker: bool,
) -> tuple[int, str]:
    """How many of what were lost, and how a sentence about them begins."""
    apis = {api_name(int(api)) for api in capture.exchanges.api[concerned].tolist()}
    word = "request" if to_broker else "answer"
    what = f"{apis.pop()} {word}" if len(apis) == 1 else word
    ends = f" of {client(who)} to {who['broker']}" if to_broker else f" of {who['broker']} to {client(who)}"
    if len(concerned):
        return len(concerned), count(len(concerned), what) + ends
    lost = sum(stall.lost for stall in group)
    on = f" on {count(len(group), 'connection')}" if len(group) > 1 else ""
    return max(2, len(group)), f"{size(lost)}{ends}{on}"


def _topics(capture: CaptureFrame, concerned: np.ndarray) -> str:
    """The topics that these exchanges are about."""
    if not len(concerned):
        return ""
    parts = capture.partitions
    rows_of_parts = spill.where(len(parts.owner), lambda block: arrow.among(parts.owner[block], concerned))
    topics = {capture.topic_partitions[place][0] for place in parts.topic_partition[rows_of_parts].tolist()}
    return some(sorted(name(topic) for topic in topics if topic)) if topics else ""


def _cause(why: Why, group: list[StalledDirection], passed: int, idle: int) -> tuple[str, bool | None, str | None]:
    """The cause, whether it is proven, and what to do about it."""
    keep = "connections.max.idle.ms of the client below the middlebox's limit (shorter than "
    keep += f"{exactly(idle)}), or TCP keep-alive more often than that; or raise the limit there."
    if why is Why.SIZE:
        cause = f"the path's MTU: only segments above {passed:,} bytes are lost"
        advice = "Lower the MTU of the hosts or clamp the MSS on the path, and let ICMP (fragmentation needed, packet "
        advice += "too big) through: a tunnel or VPN on the way takes less than the ends believe."
        return cause, any(stall.behind for stall in group), advice
    if why is Why.IDLE:
        cause = "a middlebox (firewall, load balancer, NAT) forgot the connection while it was idle, and drops its "
        return cause + "packets", len(group) > 1, keep
    if why is Why.RESET:
        cause = "a middlebox forgot the connection while it was idle, and resets it; or the broker's host began anew"
        return cause, False, keep
    return "nothing that was sent from then on arrived", True, None
