"""Error codes against what Kafka's documentation says of some of them."""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import errors


@pytest.mark.parametrize(
    ("code", "name", "retriable"),
    [
        (-1, "UNKNOWN_SERVER_ERROR", False),
        (0, "NONE", False),
        (1, "OFFSET_OUT_OF_RANGE", False),
        (3, "UNKNOWN_TOPIC_OR_PARTITION", True),
        (6, "NOT_LEADER_OR_FOLLOWER", True),
        (16, "NOT_COORDINATOR", True),
        (27, "REBALANCE_IN_PROGRESS", False),
        (35, "UNSUPPORTED_VERSION", False),
        (110, "FENCED_MEMBER_EPOCH", False),
        (100, "UNKNOWN_TOPIC_ID", True),
    ],
)
def test_known_codes(code: int, name: str, retriable: bool) -> None:
    assert errors.name(code) == name
    assert errors.retriable(code) is retriable


def test_there_is_no_hole() -> None:
    codes = sorted(errors.errors())
    assert codes == list(range(-1, codes[-1] + 1))
    assert codes[-1] >= 133
    assert len({error.name for error in errors.errors().values()}) == len(codes)
    assert all(error.message for error in errors.errors().values())


def test_an_unknown_code_has_a_name_and_is_not_retriable() -> None:
    assert errors.name(9999) == "UNKNOWN_CODE_9999"
    assert errors.name(-2) == "UNKNOWN_CODE_-2"
    assert not errors.retriable(9999)
    assert errors.label(16) == "NOT_COORDINATOR (16)"
