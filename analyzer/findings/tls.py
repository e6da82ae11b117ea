"""TLS connections, as far as their handshakes say something in the clear or keys have opened them: certificates that
are no longer valid, and handshakes that come to nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from analyzer.common.times import micros
from analyzer.common.times import moment as date
from analyzer.findings.capture import SECOND, CaptureFrame, once
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.wording import client, count, moment, name
from analyzer.frame.frame import NULL

_OTHERS: Final = (443, 8443)
"""Ports of HTTP: what fails there is no matter of Kafka's, unless Kafka was heard there."""

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
def _connections(seen: CaptureFrame) -> list[_Sealed]:
    """Those of the table, then those in which nothing was understood."""
    return [*_of_table(seen), *_of_manifest(seen)]


def _of_table(seen: CaptureFrame) -> Iterator[_Sealed]:
    rows = seen.table("connections")
    if not len(rows):
        return
    (subjects, by_name), (failures, reasons) = rows.text("tls_subject"), rows.text("tls_failure")
    ends, times = rows["tls_not_after"], rows["first_time"]
    versions, _ = rows.text("tls_version")
    clear = (rows["requests"] > 0) & (versions < 0) & ~(rows["decrypted"] > 0)
    for link in np.flatnonzero((subjects >= 0) | (failures >= 0) | (ends != NULL)).tolist():
        yield _Sealed(
            link,
            seen.links[link],
            seen.who(link=link),
            int(times[link]),
            by_name[subjects[link]] if subjects[link] >= 0 else None,
            int(ends[link]) if ends[link] != NULL else None,
            reasons[failures[link]] if failures[link] >= 0 else None,
            bool(clear[link]),
        )


def _of_manifest(seen: CaptureFrame) -> Iterator[_Sealed]:
    for one in seen.sealed:
        said = one.get("tls") or {}
        asking, _, asked = one["connection"].rpartition("#")[0].partition("-")
        if "first_time" not in said or asked.rpartition(":")[2] in map(str, _OTHERS):
            continue
        who = {"client_ip": asking.rpartition(":")[0], "broker": asked, "connection": one["connection"]}
        until = said.get("tls_not_after")
        yield _Sealed(
            None,
            one["connection"],
            who,
            micros(said["first_time"], 0),
            said.get("tls_subject"),
            micros(until, 0) if until else None,
            said.get("tls_failure"),
        )


def _links(some: list[_Sealed]) -> tuple[int, ...]:
    known = [one.link for one in some if one.link is not None]
    return (known[0], known[0], known[-1]) if known else ()


@rule(
    "security",
    "certificate-expired",
    "error",
    "The certificate CN=broker-1 of 10.0.0.1:9093 ended at 2026-01-01T00:00:00Z; 12 connections were made with it "
    "since.",
    why="A fact, by the capture's clock against the certificate's end. A warning: it ends within two weeks.",
    unless="It is valid for more than `days`; TLS 1.3 without keys, and sessions resumed: neither shows a certificate.",
    advice="Renew it: put the new one into the broker's keystore; brokers take it over without a restart by an "
    "AlterConfigs of ssl.keystore.location. Clients that connect all the same do not check it.",
    judge="forged: a certificate that ended a second before, and one that ends later; a day before it ends (a warning)",
    days=14,
)
def certificate_expired(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    by: dict[tuple[str, str | None, int, bool], list[_Sealed]] = defaultdict(list)
    for one in _connections(seen):
        if one.until is not None and one.until - one.time < at.days * _DAY:
            by[one.who["broker"], one.subject, one.until, one.until < one.time].append(one)
    for (broker, subject, until, over), some in by.items():
        since, last = min(one.time for one in some), max(one.time for one in some)
        shown = f"{name(subject)} " if subject else ""
        text = f"The certificate {shown}of {broker} "
        made = f"{count(len(some), 'connection')} {'was' if len(some) == 1 else 'were'} made with it"
        text += f"ended at {_day(until)}; {made} since." if over else f"ends at {_day(until)}; {made}."
        yield Found(
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
    """What to do about an alert, by who said it; None: the rule's own words."""
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
    unless="The alert closes in order (close_notify); ports 443 and 8443, where no Kafka was heard.",
    advice="Look at the log of the side that said it. What is sealed (TLS 1.3) only keys tell: --keylog.",
    judge="forged: an unknown_ca of the client, and a close_notify; what OpenSSL's client says of a certificate that "
    "nobody signed; Kafka 4.3's to a client of the clear",
)
def tls_alert(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for (failure, clear, *_), some in _failures(seen).items():
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
        yield Found(
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
    unless="The capture ended first, lacks bytes, or has one side only; ports 443 and 8443, where no Kafka was heard.",
    advice=_COMPARE,
    judge="forged: a ClientHello and the end of the connection, and one with an answer",
)
def not_tls(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for (failure, *_), some in _failures(seen).items():
        alert = failure.partition(": ")[2]
        if alert in _SILENT:
            text = f"{client(some[0].who)} spoke TLS to {some[0].who['broker']} {count(len(some), 'time')}, "
            got = "no answer" if alert == "no answer" else "an answer that is none"
            yield Found(
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
    """When it was."""
    first, last = moment(some[0].time), moment(some[-1].time)
    return f"{first} to {last}" if len(some) > 1 else first


def _failures(seen: CaptureFrame) -> dict[tuple[str, bool, str, str, str], list[_Sealed]]:
    """By what failed and between whom, in order of time. Of most nobody knows the client's id."""
    by: dict[tuple[str, bool, str, str, str], list[_Sealed]] = defaultdict(list)
    for one in sorted(_connections(seen), key=lambda one: one.time):
        if one.failure is not None:
            who = one.who.get("client_ip") or "", one.who.get("client_id") or "", one.who["broker"]
            by[one.failure, one.clear, *who].append(one)
    return by
