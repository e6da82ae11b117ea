"""How clients hand their requests to TCP."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import CaptureFrame, api_name
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import split


@rule(
    "network",
    "send-delayed",
    "note",
    "40 Produce requests of orders (10.0.0.1) to 10.0.0.2:9092 were sent in two parts: the second waited 40 ms for the "
    "broker's acknowledgement of the first. The client waited 42 ms for what took the broker 1.9 ms.",
    why="Nagle's algorithm holds a small segment back until the one before it is acknowledged, and receivers delay an "
    "acknowledgement by 40 ms (Linux) to 200 ms: 20 ms is neither path nor computing. Three are no accident.",
    suppressed_when="The second part did not come at once after the acknowledgement (then the application wrote it "
    "late), or the acknowledgement was not late; something was sent again on the connection; fewer than three.",
    advice="TCP_NODELAY in the client (librdkafka: socket.nagle.disable=true), or write each request at once.",
    evidence="a request in two segments, forged as a public report has it; forged: two such requests, and parts that "
    "nobody waited to acknowledge",
    requests=3,
    least_ms=20,
    most_ms=1000,
)
def send_delayed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    clean = capture.link_numbers("retransmissions") + capture.link_numbers("gaps") == 0
    slow_links = np.flatnonzero((capture.link_numbers("delayed_sends") > 0) & clean)
    if not len(slow_links):
        return
    exchanges = capture.exchanges
    chosen = spill.where(len(exchanges), lambda block: arrow.among(exchanges.link[block], slow_links))
    begun, ended = exchanges.request_time[chosen], capture.column("request_end")[chosen]
    took = np.where((begun != NULL) & (ended != NULL), ended - begun, 0)
    chosen = chosen[(took >= at.least_ms * 1000) & (took <= at.most_ms * 1000)]
    took = capture.column("request_end") - exchanges.request_time
    for some in split(chosen, capture.client[chosen], capture.broker[chosen], exchanges.api[chosen]):
        delayed = int(capture.link_numbers("delayed_sends")[arrow.distinct(exchanges.link[some])].sum())
        number = min(len(some), delayed)
        if number < at.requests:
            continue
        who = capture.who(int(capture.client[some[0]]), int(capture.broker[some[0]]))
        api = api_name(int(exchanges.api[some[0]]))
        text = f"{count(number, api + ' request')} of {client(who)} to {who['broker']} were sent in two parts: the "
        text += f"second waited {lasting(float(np.median(took[some])))} for the broker's acknowledgement of the first."
        answered = some[exchanges.response_end[some] != NULL]
        if len(answered):
            whole = exchanges.response_end[answered] - exchanges.request_time[answered]
            text += f" The client waited {lasting(float(np.median(whole)))} for what took the broker "
            text += f"{lasting(float(np.median(whole - took[answered])))}."
        yield Match(
            text,
            number,
            int(exchanges.request_time[some].min()),
            int(exchanges.request_time[some].max()),
            who,
            {"api": api, "waited_us": str(int(np.median(took[some])))},
            (int(some[0]), int(some[took[some].argmax()]), int(some[-1])),
            cause="Nagle's algorithm against delayed acknowledgements: the client's socket lacks TCP_NODELAY",
            proven=True,
        )
