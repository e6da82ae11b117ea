"""Planned steps for tests of what is learned: `planned((names.FETCH, 11, body, answer), ...)`, as captured."""

from __future__ import annotations

from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import decisions
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import name_answer
from tests.replay.conversation import EVERYTHING, Captured

CapturedBodies = tuple[int, int, Body, Body | None]


def planned(*exchanges: CapturedBodies, allow: frozenset[int] = frozenset()) -> list[Step]:
    """The steps of one connection's exchanges: (API, version, request, answer)."""
    capture = Captured()
    for at, (api_key, version, body, answer) in enumerate(exchanges):
        capture.add(float(at), api_key, version, body, answer)
    plan, _ = decisions.make([capture.session()], EVERYTHING, decisions.PlanOptions(allow))
    assert not plan.skips, plan.skips
    return list(plan.steps)


def answer_of(step: Step) -> Body | None:
    """The captured answer, its topics named."""
    decoded = step.request.decoded_answer()
    if decoded is None or decoded.body is None:
        return None
    name_answer(step.request.api_key, decoded.body, {})
    return decoded.body
