"""Judge what an error means for a cluster's health: whether it is part of the protocol's normal course.

In: `judgements.json`, our own reading of `org.apache.kafka.common.protocol.Errors` (`errors.json`): a line for each
code. Out: a judgement for each pair of code and API.
Rules: the judgement is of the code, unless its line names the API; every code of the enum but NONE has a line, and no
other (a test). `grace_s` is how long a client may keep getting the error without a success between before that is a
fault; 0: at first sight; null: never, however long.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["normal", "transient", "bad", "admin"]
"""`normal`: part of the protocol's course. `transient`: passes by itself, so a fault only when it lasts. `bad`: a fault
at first sight. `admin`: the answer to what somebody asked."""

GRACE_S = 5
"""What passes by itself has passed by then: clients back off 0.1 to 1 s, and the longest run seen took 3.1 s."""

GRACE: dict[Kind, int | None] = {"normal": None, "transient": GRACE_S, "bad": 0, "admin": None}
"""The grace of an API that a line names with another judgement than the code's."""


class Judgement(NamedTuple):
    """Of an error as the answer of an API; `api` None: of every API that has no line of its own."""

    code: int
    api: str | None
    kind: Kind
    grace_s: int | None
    why: str


@functools.cache
def judgements() -> tuple[Judgement, ...]:
    """All of them, by code; of a code first that for every API."""
    rows = json.loads((Path(__file__).resolve().parent / "judgements.json").read_bytes())
    return tuple(
        judgement
        for row in rows
        for judgement in (
            Judgement(row["code"], None, row["judgement"], row["grace_s"], row["why"]),
            *(Judgement(row["code"], api, kind, GRACE[kind], row["why"]) for api, kind in row.get("apis", {}).items()),
        )
    )


@functools.cache
def _by_pair() -> dict[tuple[int, str | None], Judgement]:
    return {(judgement.code, judgement.api): judgement for judgement in judgements()}


def judge(code: int, api: str | None = None) -> Judgement:
    """Of a code as the answer of an API (Kafka's name). One that Kafka does not have is a fault at first sight."""
    pairs = _by_pair()
    unheard_of = Judgement(code, None, "bad", 0, "Kafka has no such error.")
    return pairs.get((code, api)) or pairs.get((code, None)) or unheard_of
