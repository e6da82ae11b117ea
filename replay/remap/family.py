"""The interface of a family of values: write the target's values into requests, learn them from answers.

`step` is the captured request, `sent` and `body` are what the target got or gets, `captured` and `replayed` the
answers of both sides (None: not captured; lost). Topics' structs have their captured names under
`topic_partitions.NAME`. Rule: a family changes bodies and its own state, and reads other families only through their
methods.
"""

from __future__ import annotations

from typing import Protocol

from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.steps import Step


class Family(Protocol):
    """A family of values that the original cluster assigned, and that are different on the target."""

    def write(self, step: Step, body: Body) -> None:
        """Put the target's values into a request."""

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Take from a pair of answers what the target assigned."""

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> None:
        """Make a request that was answered (or lost) fit to be sent again by a rule of `steps.RULES`."""
