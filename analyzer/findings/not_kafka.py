"""Rules about end points and addresses that speak something else than Kafka where Kafka is expected."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kwire.analyzer.findings import foreign_protocols
from kwire.analyzer.findings.capture import CaptureFrame, api_name
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, name
from kwire.analyzer.frame.frame import NULL

_UNKNOWN: Final = "an unknown protocol"


def _listed(protocols: Counter[str]) -> str:
    """`HTTP (3 connections), SSH and an unknown protocol`, the most frequent first."""
    unknown = protocols.pop("unknown", 0)
    shown = [
        *sorted(protocols.items(), key=lambda item: (-item[1], item[0])),
        *([(_UNKNOWN, unknown)] if unknown else []),
    ]
    texts = [f"{protocol} ({count(times, 'connection')})" if times > 1 else protocol for protocol, times in shown]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]


@rule(
    "protocol",
    "not-kafka",
    "error",
    "10.0.0.5 speaks HTTP to 10.0.0.1:9092, where Kafka is spoken, on 3 connections.",
    why="A broker takes the first four bytes (`GET `) for the length of a request, of 1.2 GB, and closes. A health "
    "check that passes by that says nothing, a scraper or scanner gets nothing, and the broker logs each. A server of "
    "another protocol that answers a client of Kafka is no broker.",
    suppressed_when="Nobody was answered in Kafka there; a proxy's prefix before Kafka was seen there. A TLS hello: "
    "not-tls tells of it. What is not told apart (an unknown protocol), if it was answered, or bytes are missing. "
    "Beyond the first 1,000 connections without Kafka they are not told apart.",
    advice="Give that health check, scraper or browser the port that it wants; ask who scans the network.",
    evidence="errors-librdkafka-4.3; curl at Kafka 4.3; a web server that answers a client of Kafka; forged: GET at a "
    "broker's port, and at another; a proxy's port; other protocols",
)
def not_kafka(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for connection in foreign_protocols.probes(capture):
        by[foreign_protocols.ends(connection)].append(connection)
    for (asking, broker_end), connections in by.items():
        protocols = Counter(connection["looks_like"] for connection in connections)
        text = f"{name(asking)} speaks {_listed(protocols.copy())} to {name(broker_end)}, where Kafka is spoken"
        if len(protocols) == 1:
            like = next(iter(protocols)).replace("unknown", _UNKNOWN)
            text = f"{name(asking)} speaks {like} to {name(broker_end)}, where Kafka is spoken, on "
            text += count(len(connections), "connection")
        yield Match(
            f"{text}.",
            len(connections),
            who={"client_ip": asking, "broker": broker_end, "connection": connections[0]["connection"]},
            what={"protocol": ",".join(sorted(protocols))},
            cause="not a client of Kafka",
            proven=True,
        )
    yield from _answered_otherwise(capture)


def _answered_otherwise(capture: CaptureFrame) -> Iterator[Match]:
    by: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for link, like in foreign_protocols.answered_otherwise(capture).items():
        by[int(capture.client_of[link]), int(capture.broker_of[link]), like].append(link)
    for (client_, broker, like), links in by.items():
        who = capture.who(client_, broker)
        some = who["broker"] in foreign_protocols.answering(capture)
        spoken = _UNKNOWN if like == "unknown" else like
        text = f"{who['broker']} answers in {spoken}"
        text += f" on {count(len(links), 'connection')}, and on others in Kafka" if some else ": no broker there"
        times = capture.link_times("first_time")[links]
        yield Match(
            f"{text} ({count(len(links), 'connection')} of {client(who)})." if not some else f"{text} ({client(who)}).",
            len(links),
            int(times[0]) if times[0] != NULL else None,
            int(times[-1]) if times[-1] != NULL else None,
            who,
            {"protocol": like},
            links=(links[0], links[0], links[-1]),
            cause="a server of another protocol answers there"
            if like != "unknown"
            else "what answers there is no Kafka",
            proven=True,
            advice="Give the client (bootstrap.servers, advertised.listeners, the balancer before it) the address and "
            "port of a broker.",
        )


@rule(
    "protocol",
    "no-kafka-answer",
    "error",
    "10.0.0.1:9093 closed 8 connections of svc-a (10.0.0.4) without a byte of Kafka, 3.0 ms after its ApiVersions.",
    why="A broker answers ApiVersions, in whatever version. Three times nothing is no accident; where others are "
    "answered, it is a connection that the broker does not take.",
    suppressed_when="The client was answered there on a connection between them; fewer than three connections; bytes "
    "are missing from the connection, or packets from the capture; the broker went away (broker-lost), or refused "
    "what it read (version-refused, frame-oversized, frame-length-impossible). A port that answers others in Kafka, or "
    "this client before or after, unless it closed before it was asked, or on ApiVersions while it answered.",
    advice="Compare the port with the brokers' listeners, and security.protocol with the listener's.",
    evidence="forged: connections closed on ApiVersions, before it, and at ZooKeeper's port; two of them only, and one "
    "answer; tests/incidents connection-limit",
    closes=3,
)
def no_kafka_answer(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    for deaf in foreign_protocols.without_answers(capture):
        who = capture.who(int(capture.client_of[deaf.links[0]]), int(capture.broker_of[deaf.links[0]]))
        first, last = int(deaf.rows[0]), int(deaf.rows[-1])
        requests = _listed(Counter(api_name(int(api)) for api in rows.api[deaf.rows].tolist()))
        requests = requests.split(" (")[0]
        links = count(len(deaf.links), "connection")
        text = f"{who['broker']} closed {links} of {client(who)} "
        if deaf.before_asked:
            text += "before it was asked"
            text += (
                ", and answers others there in Kafka" if who["broker"] in foreign_protocols.answering(capture) else ""
            )
            cause = "closed before it was asked: a proxy or balancer without a backend, or a limit of connections"
            advice = (
                "Look whether the proxy or balancer at that address has a live backend, and at max.connections and "
            )
            advice += "max.connections.per.ip of the broker."
        elif deaf.limited:
            text += f"on each {requests} without an answer, and answers others there in Kafka"
            cause = "not even ApiVersions is answered: a limit of connections"
            advice = "See max.connections, max.connections.per.ip (and its overrides) and max.connection.creation.rate "
            advice += (
                "of that broker, how many connections it has, and who opens them; the broker logs whom it refused."
            )
        elif deaf.zookeeper:
            text += f"on each {requests}"
            cause = "the port is ZooKeeper's"
            advice = "Give the client the brokers' addresses (bootstrap.servers); ZooKeeper does not speak Kafka."
        else:
            text += f"on each {requests}, and no byte of Kafka ever came"
            text += f" ({lasting(deaf.after_us)} after the request)" if deaf.after_us is not None else ""
            cause = "a listener of TLS, another service, or a broker that is too old for the request"
            advice = None
        yield Match(
            f"{text}: {cause}." if not deaf.before_asked else f"{text}: {cause.partition(': ')[2]}.",
            len(deaf.links),
            int(rows.request_time[first]),
            int(rows.request_time[last]),
            who,
            {"api": requests, "answers": "0"},
            (first, first, last),
            cause=cause,
            proven=deaf.before_asked,
            advice=advice,
        )
