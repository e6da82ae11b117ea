"""Acme's own finding: every client id names the team that runs the client."""

from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.rules import Limits, Match, rule

TEAMS = ("payments-", "orders-")


@rule(
    "security",
    "acme-client-id",
    "note",
    "sarama (10.0.0.1) sent 12 requests, and its client id names no team.",
    why="Whoever is paged has to find the owner; a client of fewer than 3 requests is someone's test.",
    suppressed_when="The client id was not captured.",
    advice="Set client.id to TEAM-SERVICE.",
    evidence="a shipped capture, whose clients are named by their libraries",
    requests=3,
)
def client_id(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for number, (address, name) in enumerate(capture.clients):
        rows = np.flatnonzero(capture.client == number)
        if not name or name.startswith(TEAMS) or len(rows) < at.requests:
            continue
        times = capture.exchanges.request_time[rows]
        text = f"{name} ({address}) sent {len(rows)} requests, and its client id names no team."
        who = {"client_id": name, "client_ip": address}
        yield Match(text, len(rows), int(times.min()), int(times.max()), who, rows=(int(rows[0]), int(rows[-1])))
