"""Which column of rows of exchanges has what: by the names that tables and filters have.

In: the columns of `state`, and those of the table `exchanges`. Out: numbers of columns by name. Rule: names only, so
that whoever filters a table loads nothing that reads captures.
"""

from __future__ import annotations

from typing import Final

from kwire.analyzer.bulk import state as s
from kwire.analyzer.dataset import tables

# fmt: off
_NAMED_OTHERWISE: Final = {
    "request_time": s.X_REQUEST_FIRST_NS, "request_end": s.X_REQUEST_LAST_NS, "response_time": s.X_RESPONSE_FIRST_NS,
    "response_end": s.X_RESPONSE_LAST_NS, "throttle_ms": s.X_THROTTLE, "error_code": s.X_ERROR,
    "max_wait_ms": s.X_MAX_WAIT, "group_id": s.X_GROUP, "member_id": s.X_MEMBER, "request_packet": s.X_REQUEST_NUMBER,
    "response_packet": s.X_RESPONSE_NUMBER, "packet_index": s.X_PACKET_INDEX, "completed_by": s.X_COMPLETED_BY,
    "holes": s.X_HOLES,
}
# fmt: on
COLUMNS: Final = _NAMED_OTHERWISE | {
    column.name: getattr(s, f"X_{column.name.upper()}")
    for column in tables.EXCHANGES
    if column.name not in (*_NAMED_OTHERWISE, "error") and hasattr(s, f"X_{column.name.upper()}")
}
"""Columns of `rows.Exchanges` by name: those of the table `exchanges` that `state` has under the same name, and others.
Times are in nanoseconds, text is a number in `rows.Names.strings`, lists are numbers in `rows.Names.lists`.
`packet_index`: index of its first packet; `completed_by`: index of the packet that completed it; `holes`: holes before
its request on the connection that other requests may have been lost in."""
