"""Sessions of logins (KIP-368): a broker closes a connection whose client did not authenticate again in time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import ANSWERED, SECOND, UNANSWERED, CaptureFrame, once
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, exactly
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import max_by, split
from kwire.analyzer.protocol import api_keys

_CLOSE_US = 2 * SECOND
"""How soon after such a request the broker closes: at once, but for its path and a busy thread."""


@once
def expired(capture: CaptureFrame) -> np.ndarray:
    """Requests that came after their connection's session was over, and that the broker answered by closing it."""
    exchanges = capture.exchanges
    open_ = spill.true_rows(exchanges.status == UNANSWERED)
    lifetimes = _lifetimes(capture) if len(open_) else np.zeros(0, np.int64)
    if not lifetimes.any():
        return open_[:0]
    ended = capture.links_where("closed_by", "broker")
    login = _last_login(capture)
    link = exchanges.link[open_]
    lifetime = lifetimes[capture.client[open_]] * 1000
    over = login[link] + lifetime
    requested = exchanges.request_time[open_]
    closed = capture.link_times("last_time")[link]
    late = (login[link] != NULL) & (lifetime > 0) & (requested >= over) & (closed - requested <= _CLOSE_US)
    result: np.ndarray = open_[ended[link] & late]
    return result


def _lifetimes(capture: CaptureFrame) -> np.ndarray:
    """int64[clients]: the session lifetime that brokers stated, ms; 0: none."""
    stated = {
        (row["client_ip"], row["client_id"]): row["session_lifetime_ms"] or 0
        for row in capture.table("clients").every(["client_id", "client_ip", "session_lifetime_ms"])
    }
    return np.array([stated.get(known, 0) for known in capture.clients], np.int64)


def _last_login(capture: CaptureFrame) -> np.ndarray:
    """int64[links]: when a SaslAuthenticate was last answered without an error, us."""
    rows = capture.of_api(api_keys.SASL_AUTHENTICATE)
    rows = rows[(capture.exchanges.status[rows] == ANSWERED) & (capture.exchanges.error[rows] == 0)]
    times = capture.exchanges.response_end[rows]
    last: np.ndarray = max_by(capture.exchanges.link[rows], times, len(capture.links), NULL)
    return last


@rule(
    "security",
    "session-expired",
    "note",
    "10.0.0.2:9092 closed a connection of orders (10.0.0.1): its session of 10.0 s was over for 1.3 s when the next "
    "request came, and the client had not authenticated again.",
    why="A fact: brokers close a connection on the first request after its session's lifetime (KIP-368).",
    suppressed_when="The client authenticated again in time; the answer to its login stated no lifetime; the client "
    "closed, or the request was answered.",
    advice="A client that authenticates again in time (KIP-368), or a longer connections.max.reauth.ms or token. "
    "Most clients connect again by themselves.",
    evidence="a session of ten seconds that ran out; forged: a request after its session, and one before its end",
    by_clock=True,
)
def session_expired(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = expired(capture)
    lifetimes, login = _lifetimes(capture), _last_login(capture)
    for some in split(rows, capture.client[rows], capture.broker[rows]):
        links = arrow.distinct(capture.exchanges.link[some])
        who = capture.who(int(capture.client[some[0]]), int(capture.broker[some[0]]))
        lifetime = int(lifetimes[capture.client[some[0]]]) * 1000
        requested = capture.exchanges.request_time[some]
        over = int((requested - login[capture.exchanges.link[some]]).max()) - lifetime
        closed = "a connection" if len(links) == 1 else count(len(links), "connection")
        text = f"{who['broker']} closed {closed} of {client(who)}: {'its' if len(links) == 1 else 'their'} session of "
        text += f"{exactly(lifetime)} was over for {exactly(over)} when the next request came, and the client had not "
        yield Match(
            f"{text}authenticated again.",
            len(links),
            int(requested.min()),
            int(requested.max()),
            who,
            {"lifetime_ms": str(lifetime // 1000)},
            (int(some[0]), int(some[0]), int(some[-1])),
            cause="the session's lifetime was over: the broker closes, and does not answer",
            proven=True,
        )
