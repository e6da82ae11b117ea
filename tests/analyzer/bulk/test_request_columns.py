"""Columns that one field of a request says: as in its body, and null where its version has no such field.

(proves: analyzer/bulk/projection.py, the roles that are columns as they stand; analyzer/bulk/matching.py, `_say`)
"""

from __future__ import annotations

import pytest

from kwire import analyzer
from kwire.analyzer.bulk import projection
from kwire.analyzer.bulk import state as s
from kwire.analyzer.protocol import api_keys
from tests.shared import SAMPLES, capture_files

AS_IT_STANDS = (
    "ACKS",
    "MAX_WAIT",
    "MIN_BYTES",
    "ISOLATION_LEVEL",
    "REPLICA",
    "SESSION",
    "SESSION_EPOCH",
    "TIMEOUT",
    "ASSIGNMENTS",
)


def test_these_roles_and_columns_stand_in_one_order() -> None:
    """They go from one to the other in one loop."""
    assert projection.GROUP - projection.ACKS == s.X_GROUP - s.X_ACKS == len(AS_IT_STANDS)
    for place, name in enumerate(AS_IT_STANDS):
        assert getattr(projection, name) == projection.ACKS + place
        assert getattr(s, f"X_{name}") == s.X_ACKS + place


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "old-java-0.8.2"])
def test_the_isolation_level_is_what_the_fetch_asked(sample: str) -> None:
    capture = str(capture_files(SAMPLES / sample)[0])
    levels = set()
    for exchange in analyzer.exchanges(capture):
        body = exchange.request or {}
        level_asked = body.get("isolationLevel") if exchange.api_key == api_keys.FETCH else None
        assert exchange.isolation_level == level_asked
        levels.add(level_asked)
    assert levels == ({None} if sample.startswith("old") else {None, 0, 1})
    for level in levels - {None}:
        matches = list(analyzer.exchanges(capture, filter=f"isolation_level == {level}", bodies=False))
        assert matches
        assert {exchange.isolation_level for exchange in matches} == {level}
