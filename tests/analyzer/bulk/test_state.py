"""Names of the tables' columns that code relies on beyond their own names.

(proves: analyzer/bulk/state.py, projection.py)
"""

from __future__ import annotations

import pytest

from kwire.analyzer.bulk import partitions, projection
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.shard import Conversations, layouts

OF_A_MESSAGE = [name[2:] for name in vars(s) if name.startswith("M_") and name != "M_COLUMNS"]


def test_request_and_response_have_the_same_columns_in_the_same_order() -> None:
    """So one function fills either, from its first column on."""
    assert len(OF_A_MESSAGE) == s.M_COLUMNS
    for name in OF_A_MESSAGE:
        offset = getattr(s, f"M_{name}")
        assert getattr(s, f"X_REQUEST_{name}") == s.REQUEST_COLUMNS + offset
        assert getattr(s, f"X_RESPONSE_{name}") == s.RESPONSE_COLUMNS + offset


TABLES = ("F_", "MARK_", "K_", "X_", "M_", "P_", "L_", "SET_", "FACT_", "MSG_", "FR_", "V_")


VALUES = {"FACT_API_VERSION", "FACT_TOPIC_ID", "FACT_BROKER"}
"""Names that are values of a column, FACT_KIND."""


@pytest.mark.parametrize("table", TABLES)
def test_a_column_of_a_table_has_one_name(table: str) -> None:
    columns = {
        name: value
        for name, value in vars(s).items()
        if name.startswith(table) and not name.endswith("_COLUMNS") and isinstance(value, int) and name not in VALUES
    }
    assert sorted(columns.values()) == list(range(len(columns)))


def test_a_table_of_exchanges_has_the_columns_of_those_before_it_and_more() -> None:
    """Windows, what shards hand out, and exchanges in progress: a name means the same in each."""
    state = Conversations(layouts())._state
    assert s.X_CAUSE < s.X_COLUMNS <= s.X_SLOT < s.X_ENDED_COLUMNS <= s.X_NEXT < s.X_PENDING_COLUMNS
    assert state.output.exchanges.shape[1] == s.X_ENDED_COLUMNS
    assert state.matching.pending.shape[1] == len(state.matching.row) == s.X_PENDING_COLUMNS
    assert s.P_DELIVERIES < s.P_COLUMNS <= s.P_NEXT < s.P_PENDING_COLUMNS
    assert (state.output.parts.shape[1], state.parts.rows.shape[1]) == (s.P_COLUMNS, s.P_PENDING_COLUMNS)


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
    by_role = {role: column for role, column in enumerate(partitions._COLUMN.tolist()) if column >= 0}
    assert by_role == {getattr(projection, role): getattr(s, column) for role, column in columns.items()}


def test_every_part_of_the_state_has_the_one_vector_of_counters() -> None:
    state = Conversations(layouts())._state
    assert {id(part.v) for part in state} == {id(state.framing.v)}
