"""Goes on where the last fetch of a reader ended before the captured one. Pure.

A broker cuts answers where it likes: at bytes, at batches, at what is stored by then. A client asks for the rest with
its next fetch; the last fetch of a captured connection has none, so the replayer asks on.
"""

from __future__ import annotations

from typing import Any

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME, Partition, answered, merged
from kwire.replay.remap.offsets import asked_offsets
from kwire.replay.remap.remap import Remap


def unread(step: Step, sent: Body, captured: Body, replayed: Body, remap: Remap) -> dict[Partition, int]:
    """Where to go on, by captured partition: the captured reader had records by then that the target has stored, and
    this one has not read them."""
    before = answered(api_keys.FETCH, captured)
    now = {
        (remap.topics.captured(name), number): part
        for (name, number), part in answered(api_keys.FETCH, replayed).items()
    }
    asked_there, asked_here = asked_offsets(step.body), asked_offsets(sent)
    rest = {}
    for where in remap.fetches.places(step, sent):
        both = before.get(where), now.get(where)
        if any(part is not None and part["errorCode"] for part in both):
            continue
        requested = asked_there.get(where), asked_here.get(where)
        at = remap.offsets.unread((step.request.connection, *where), requested, *both)
        if at is not None:
            rest[where] = at
    return rest


def request(step: Step, sent: Body, rest: dict[Partition, int], remap: Remap) -> Body:
    """A fetch of the rest, outside sessions."""
    places = remap.fetches.places(step, sent)
    named: dict[str, Body] = {}
    for (name, number), offset in rest.items():
        topic = named.setdefault(name, {NAME: name, "topic": name, "topicId": ZERO_UUID, "partitions": []})
        topic["partitions"].append({**places[name, number], "fetchOffset": offset})
    body = {**sent, "sessionId": 0, "sessionEpoch": -1, "topics": list(named.values()), "forgottenTopicsData": []}
    remap.topics.address(api_keys.FETCH, body)
    return body


def joined(first: Body, more: Body) -> Body:
    """An answer with the records of a later one behind its own."""
    later = answered(api_keys.FETCH, more)
    seen = set()
    responses = []
    for topic in first["responses"]:
        parts = []
        for part in topic["partitions"]:
            where = topic.get(NAME) or topic.get("topic") or "", part["partitionIndex"]
            seen.add(where)
            parts.append(_behind(part, later[where]) if where in later else part)
        responses.append({**topic, "partitions": parts})
    new = [
        {**topic, "partitions": parts}
        for topic in more["responses"]
        if (
            parts := [
                part
                for part in topic["partitions"]
                if (topic.get(NAME) or topic.get("topic") or "", part["partitionIndex"]) not in seen
            ]
        )
    ]
    return merged(api_keys.FETCH, [{**first, "responses": responses}, {**first, "responses": new}])


def _behind(part: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    aborted = [*(part.get("abortedTransactions") or ()), *(more.get("abortedTransactions") or ())]
    both = {**part, **more, "records": batches.whole(part.get("records")) + (more.get("records") or b"")}
    if "abortedTransactions" in part:
        both["abortedTransactions"] = aborted
    return both
