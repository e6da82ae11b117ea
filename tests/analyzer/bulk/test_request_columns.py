"""Columns that one field of a request says: as in its body, and null where its version has no such field.

(proves: analyzer/bulk/roles.py, the roles that are columns as they stand; analyzer/bulk/matching.py, `_say`)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import analyzer
from analyzer.bulk import roles
from analyzer.bulk import state as s
from analyzer.protocol import names
from captures.forge import converse
from tests.analyzer.forging import FIND_COORDINATOR, asking, read, request
from tests.shared import SAMPLES, capture_files

AS_IT_STANDS = (
    "ACKS", "MAX_WAIT", "MIN_BYTES", "ISOLATION_LEVEL", "REPLICA", "SESSION", "SESSION_EPOCH", "TIMEOUT", "ASSIGNMENTS",
)  # fmt: skip


def test_these_roles_and_columns_stand_in_one_order() -> None:
    """They go from one to the other in one loop."""
    assert roles.GROUP - roles.ACKS == s.X_GROUP - s.X_ACKS == len(AS_IT_STANDS)
    for place, name in enumerate(AS_IT_STANDS):
        assert getattr(roles, name) == roles.ACKS + place
        assert getattr(s, f"X_{name}") == s.X_ACKS + place


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "old-java-0.8.2"])
def test_the_isolation_level_is_what_the_fetch_asked(sample: str) -> None:
    capture = str(capture_files(SAMPLES / sample)[0])
    levels = set()
    for exchange in analyzer.exchanges(capture):
        body = exchange.request or {}
        asked = body.get("isolationLevel") if exchange.api_key == names.FETCH else None
        assert exchange.isolation_level == asked
        levels.add(asked)
    assert levels == ({None} if sample.startswith("old") else {None, 0, 1})
    for level in levels - {None}:
        found = list(analyzer.exchanges(capture, filter=f"isolation_level == {level}", bodies=False))
        assert found
        assert {exchange.isolation_level for exchange in found} == {level}


@pytest.mark.parametrize(
    ("version", "asked", "group", "transaction"),
    [
        (0, {"key": "a"}, "a", None),
        (1, {"key": "a", "keyType": 0}, "a", None),
        (3, {"key": "t", "keyType": 1}, None, "t"),
        (3, {"key": "g:u2ao4cTKRBaTMqSxXpnGuQ:0", "keyType": 2}, None, None),
        (3, {"key": "a", "keyType": -9}, None, None),
        (4, {"keyType": 0, "coordinatorKeys": ["a"]}, "a", None),
        (4, {"keyType": 1, "coordinatorKeys": ["t"]}, None, "t"),
        (6, {"keyType": 0, "coordinatorKeys": ["a", "b"]}, None, None),
        (6, {"keyType": 0, "coordinatorKeys": []}, None, None),
    ],
)
def test_whose_coordinator_is_asked_for(
    version: int, asked: Mapping[str, Any], group: str | None, transaction: str | None, tmp_path: Path
) -> None:
    """Of several an error may be that of any of them: then none is named."""
    row = read(tmp_path, converse([asking(request(FIND_COORDINATOR, version, 1, asked))])).only
    assert (row["request_state"], row["group_id"], row["transactional_id"]) == ("decoded", group, transaction)
