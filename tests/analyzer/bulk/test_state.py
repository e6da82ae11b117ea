"""Names of the tables' columns that code relies on beyond their own names.

(proves: analyzer/bulk/state.py, roles.py)
"""

from __future__ import annotations

from analyzer.bulk import partitions, projection
from analyzer.bulk import state as s

OF_A_MESSAGE = [name[2:] for name in vars(s) if name.startswith("M_") and name != "M_COLUMNS"]


def test_request_and_response_have_the_same_columns_in_the_same_order() -> None:
    """So one function fills either, from its first column on."""
    assert len(OF_A_MESSAGE) == s.M_COLUMNS
    for name in OF_A_MESSAGE:
        offset = getattr(s, f"M_{name}")
        assert getattr(s, f"X_REQUEST_{name}") == s.X_REQUEST + offset
        assert getattr(s, f"X_RESPONSE_{name}") == s.X_RESPONSE + offset


def test_roles_of_exchanges_come_before_those_of_topic_partitions() -> None:
    """Their numbers mean nothing else; each fits into the byte that a field has for it."""
    assert projection.API_MAX < projection.FIRST_OF_PARTITIONS == projection.PARTITION < projection.ROLES <= 256
    assert {projection.TOPIC, projection.TOPIC_ID} < set(range(projection.FIRST_OF_PARTITIONS))


def test_a_number_of_a_topic_partition_goes_to_the_column_of_its_name() -> None:
    columns = {
        "HIGH_WATERMARK": "P_HIGH_WATERMARK",
        "LAST_STABLE": "P_LAST_STABLE",
        "LOG_START": "P_LOG_START",
        "PART_EPOCH": "P_EPOCH",
        "SENT_ON": "P_SENT_ON",
        "DIVERGES": "P_DIVERGES",
    }
    found = {role: column for role, column in enumerate(partitions._COLUMN.tolist()) if column >= 0}
    assert found == {getattr(projection, role): getattr(s, column) for role, column in columns.items()}


def test_every_part_of_the_state_has_the_one_vector_of_counters() -> None:
    from analyzer.bulk.shard import Conversations, layouts

    state = Conversations(layouts())._state
    assert {id(part.v) for part in state} == {id(state.framing.v)}
