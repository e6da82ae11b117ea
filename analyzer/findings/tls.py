"""TLS connections, as far as their handshakes say something in the clear or keys have opened them: certificates that
are no longer valid, and handshakes that come to nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.common.times import micros
from kwire.analyzer.common.times import moment as date
from kwire.analyzer.findings.capture import SECOND, CaptureFrame, once
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, moment, name
from kwire.analyzer.frame.frame import NULL

_OTHERS: Final = (443, 8443)
"""Ports of HTTP: failures there do not concern Kafka, unless Kafka was captured there."""

_DAY: Final = 86400 * SECOND


class _Sealed(NamedTuple):
    """A TLS connection. `link`: its row of `connections`, None where no Kafka was found in it; `clear`: it is none, its
    client sent requests in the clear; us."""

    link: int | None
    connection: str
    who: dict[str, Any]
    time: int
    subject: str | None
    until: int | None
    failure: str | None
    clear: bool = False


@once
def _connections(capture: CaptureFrame) -> list[_Sealed]:
    """TLS connections: those of the table, then those in which nothing could be decoded."""
    return [*_of_table(capture), *_of_manifest(capture)]


def _of_table(capture: CaptureFrame) -> Iterator[_Sealed]:
    rows = capture.table("connections")
    if not len(rows):
        return
    (subjects, by_name), (failures, reasons) = rows.text("tls_subject"), rows.text("tls_failure")
    ends, times = rows["tls_not_after"], rows["first_time"]
    versions, _ = rows.text("tls_version")
    clear = (rows["requests"] > 0) & (versions < 0) & ~(rows["decrypted"] > 0)
    for link in np.flatnonzero((subjects >= 0) | (failures >= 0) | (ends != NULL)).tolist():
        yield _Sealed(
            link,
            capture.links[link],
            capture.who(link=link),
            int(times[link]),
            by_name[subjects[link]] if subjects[link] >= 0 else None,
            int(ends[link]) if ends[link] != NULL else None,
            reasons[failures[link]] if failures[link] >= 0 else None,
            bool(clear[link]),
        )


def _of_manifest(capture: CaptureFrame) -> Iterator[_Sealed]:
    for connection in capture.sealed:
        tls_facts = connection.get("tls") or {}
        asking, _, broker_end = connection["connection"].rpartition("#")[0].partition("-")
        if "first_time" not in tls_facts or broker_end.rpartition(":")[2] in map(str, _OTHERS):
            continue
        who = {"client_ip": asking.rpartition(":")[0], "broker": broker_end, "connection": connection["connection"]}
        until = tls_facts.get("tls_not_after")
        yield _Sealed(
            None,
            connection["connection"],
            who,
            micros(tls_facts["first_time"], 0),
            tls_facts.get("tls_subject"),
            micros(until, 0) if until else None,
            tls_facts.get("tls_failure"),
        )


def _links(some: list[_Sealed]) -> tuple[int, ...]:
    known = [connection.link for connection in some if connection.link is not None]
    return (known[0], known[0], known[-1]) if known else ()


@rule(
    "security",
    "certificate-expired",
    "error",
    "The certificate CN=broker-1 of 10.0.0.1:9093 ended at 2026-01-01T00:00:00Z; 12 connections were made with it "
    "since.",
    why="A fact, by the capture's clock against the certificate's end. A warning: it ends within two weeks.",
    suppressed_when="It is valid for more than `days`; TLS 1.3 without keys, and sessions resumed: neither shows a "
    "certificate.",
    advice="Renew it: put the new one into the broker's keystore; brokers take it over without a restart by an "
    "AlterConfigs of ssl.keystore.location. Clients that connect all the same do not check it.",
    evidence="forged: a certificate that ended a second before, and one that ends later; a day before it ends (a "
    "warning)",
    days=14,
)
def certificate_expired(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by: dict[tuple[str, str | None, int, bool], list[_Sealed]] = defaultdict(list)
    for connection in _connections(capture):
        if connection.until is not None and connection.until - connection.time < at.days * _DAY:
            by[
                connection.who["broker"], connection.subject, connection.until, connection.until < connection.time
            ].append(connection)
    for (broker, subject, until, over), some in by.items():
        since, last = min(connection.time for connection in some), max(connection.time for connection in some)
        shown = f"{name(subject)} " if subject else ""
        text = f"The certificate {shown}of {broker} "
        made_with = f"{count(len(some), 'connection')} {'was' if len(some) == 1 else 'were'} made with it"
        text += f"ended at {_day(until)}; {made_with} since." if over else f"ends at {_day(until)}; {made_with}."
        yield Match(
            text,
            len(some),
            since,
            last,
            {"broker": broker},
            {"subject": subject, "not_after": _day(until)},
            links=_links(some),
            proven=True,
            severity=None if over else "warning",
        )


def _day(time: int) -> str:
    return date(time).strftime("%Y-%m-%dT%H:%M:%SZ")


_DOUBTED: Final = (
    "unknown_ca",
    "bad_certificate",
    "certificate_unknown",
    "unsupported_certificate",
    "certificate_revoked",
    "certificate_expired",
)
_PARLEY: Final = (
    "protocol_version",
    "handshake_failure",
    "insufficient_security",
    "inappropriate_fallback",
    "illegal_parameter",
    "no_application_protocol",
)


def _advice(server: bool, alert: str) -> str | None:
    """Advice about an alert, by the side that sent it; None: the rule's own advice."""
    if alert == "certificate_required" or (server and alert in _DOUBTED):
        return (
            "The broker asks for a client's certificate (ssl.client.auth): give the client a keystore whose "
            "certificate the broker's truststore knows."
        )
    if alert in _DOUBTED:
        return (
            "The client does not trust the broker's certificate: its truststore (ssl.truststore.location, "
            "ssl.ca.location) must hold who signed it, and the certificate must be valid."
        )
    if alert in _PARLEY:
        return (
            "No version or cipher suite that both sides speak: compare ssl.enabled.protocols and "
            "ssl.cipher.suites of both."
        )
    return None


_SILENT: Final = ("not TLS", "no answer")
_COMPARE: Final = "Compare security.protocol of the client with the listener's (listener.security.protocol.map)."


@rule(
    "security",
    "tls-alert",
    "error",
    "3 TLS handshakes of 10.0.0.4 with 10.0.0.1:9093 failed, 10:01:03 to 10:01:09: the client said unknown_ca.",
    why="No threshold: who sends such an alert gives the connection up.",
    suppressed_when="The alert closes in order (close_notify); ports 443 and 8443, where no Kafka was heard.",
    advice="Look at the log of the side that said it. What is sealed (TLS 1.3) only keys tell: --keylog.",
    evidence="forged: an unknown_ca of the client, and a close_notify; what OpenSSL's client says of a certificate "
    "that nobody signed; Kafka 4.3's to a client of the clear",
)
def tls_alert(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for (failure, clear, *_), some in _failures(capture).items():
        side, _, alert = failure.partition(": ")
        if alert in _SILENT:
            continue
        who, broker = client(some[0].who), some[0].who["broker"]
        text = f"{count(len(some), 'TLS handshake')} of {who} with {broker} failed, "
        advice, cause = _advice(side == "broker", alert), None
        if clear and side == "broker":
            text = f"{who} spoke in the clear to {broker}, a listener of TLS, {count(len(some), 'time')}, "
            advice, cause = _COMPARE, "the listener speaks TLS"
        what = "broke off with an alert that is sealed" if alert == "sealed" else f"said {name(alert)}"
        yield Match(
            f"{text}{_span(some)}: the {side} {what}.",
            len(some),
            some[0].time,
            some[-1].time,
            some[0].who,
            {"alert": alert, "said_by": side},
            links=_links(some),
            cause=cause,
            proven=True,
            advice=advice,
        )


@rule(
    "security",
    "not-tls",
    "error",
    "10.0.0.4 spoke TLS to 10.0.0.1:9092 7 times, 10:01:03 to 10:01:09, and got no answer: no TLS listener.",
    why="A listener of TLS answers a ClientHello, by a hello or an alert. One in the clear takes it for a request of "
    "369,296,129 bytes or so, and closes.",
    suppressed_when="The capture ended first, lacks bytes, or has one side only; ports 443 and 8443, where no Kafka "
    "was heard.",
    advice=_COMPARE,
    evidence="forged: a ClientHello and the end of the connection, and one with an answer",
)
def not_tls(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for (failure, *_), some in _failures(capture).items():
        alert = failure.partition(": ")[2]
        if alert in _SILENT:
            text = f"{client(some[0].who)} spoke TLS to {some[0].who['broker']} {count(len(some), 'time')}, "
            got = "no answer" if alert == "no answer" else "an answer that is none"
            yield Match(
                f"{text}{_span(some)}, and got {got}: no TLS listener.",
                len(some),
                some[0].time,
                some[-1].time,
                some[0].who,
                {"answer": alert},
                links=_links(some),
                cause="the listener does not speak TLS",
                proven=alert == "not TLS",
            )


def _span(some: list[_Sealed]) -> str:
    """The time of the connection."""
    first, last = moment(some[0].time), moment(some[-1].time)
    return f"{first} to {last}" if len(some) > 1 else first


def _failures(capture: CaptureFrame) -> dict[tuple[str, bool, str, str, str], list[_Sealed]]:
    """Failed connections by failure and end points, in order of time. Mostly the client's id is not known."""
    by: dict[tuple[str, bool, str, str, str], list[_Sealed]] = defaultdict(list)
    for connection in sorted(_connections(capture), key=lambda connection: connection.time):
        if connection.failure is not None:
            who = connection.who.get("client_ip") or "", connection.who.get("client_id") or "", connection.who["broker"]
            by[connection.failure, connection.clear, *who].append(connection)
    return by
