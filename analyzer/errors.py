"""Kafka's error codes: their names, and whether the same request may succeed when it is sent again.

In: `definitions/errors.json`, from `org.apache.kafka.common.protocol.Errors` (see `tools/refresh_definitions.py`).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Final

from analyzer.schema import FOLDER

NONE: Final = 0
UNKNOWN_SERVER_ERROR: Final = -1


@dataclass(frozen=True, slots=True)
class KafkaError:
    """`retriable`: Kafka's exception for the code is a RetriableException."""

    code: int
    name: str
    retriable: bool
    message: str


@functools.cache
def errors() -> dict[int, KafkaError]:
    """Every error by its code."""
    rows = json.loads((FOLDER / "errors.json").read_bytes())
    return {row["code"]: KafkaError(**row) for row in rows}


def name(code: int) -> str:
    """`NOT_COORDINATOR` for 16; `UNKNOWN_CODE_n` for a code that Kafka does not have."""
    error = errors().get(code)
    return error.name if error is not None else f"UNKNOWN_CODE_{code}"


def retriable(code: int) -> bool:
    """Unknown codes are not retriable."""
    error = errors().get(code)
    return error is not None and error.retriable


def label(code: int) -> str:
    """As errors are shown to people: `NOT_COORDINATOR (16)`."""
    return f"{name(code)} ({code})"
