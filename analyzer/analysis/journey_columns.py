"""Columns of what is known of batches, of answers that brought them, and of commits (`journeys`)."""

from __future__ import annotations

from typing import Final

ORIGIN_COLUMNS: Final = (
    "kind",
    "connection",
    "serial",
    "client",
    "ip",
    "topic",
    "topic_id",
    "partition",
    "name",
    "node",
    "transaction",
)
"""What rows have in common. name: the transactional id of batches, the group of commits and share readers; node: of a
follower; transaction: of commits."""
ORIGIN_TEXTS: Final = ("connection", "client", "ip", "topic", "topic_id", "name", "transaction")

TRANSACTION_COLUMNS: Final = ("transaction", "began", "ended", "outcome")
"""Times in microseconds; outcome: index in `journey_rows.OUTCOMES`."""

CONSUMER, REPLICA, SHARE = range(3)
KINDS: Final = ("consumer", "replica", "share")

# Batches; times in ns but for B_CREATED, which is in ms.
(
    B_ORIGIN,
    B_COMPLETED_BY,
    B_EXCHANGE,
    B_REPLY,
    B_BASE,
    B_RECORDS,
    B_BYTES,
    B_CREATED,
    B_SENT,
    B_RECEIVED,
    B_ACKED,
    B_STATE,
    B_COLUMNS,
) = range(13)
WHOLE, NOT_READ, NO_ACKNOWLEDGEMENT, UNANSWERED, NO_ANSWER, NO_REQUEST, READER_LOST, ABSENT = range(8)
REASONS: Final = (
    "",
    "not read",
    "no acknowledgement",
    "unanswered",
    "answer not captured",
    "request not captured",
    "reader not captured",
    "absent offsets",
)
"""By B_STATE, or what became of it."""

B_LABEL: Final = B_COLUMNS
"""A row more, of batches with acks=0: the label of each (`bulk.partitions.count_batches`)."""

# Answers that brought records: offsets from R_BEGIN to before R_END; R_UNSURE: some between are not in it; R_LABEL: of
# the batch at R_BEGIN, where one begins there.
(R_ORIGIN, R_BEGIN, R_END, R_TIME, R_UNSURE, R_LABEL, R_COLUMNS) = range(7)

# Answers that lacked offsets, which compaction took: from the one asked for to the one after their last batch.
(G_ORIGIN, G_BEGIN, G_END, G_COLUMNS) = range(4)

# Labels of batches that answers held, but for R_LABEL.
(L_ORIGIN, L_TIME, L_BASE, L_LABEL, L_COLUMNS) = range(5)

# Commits of offsets that were accepted.
(C_ORIGIN, C_OFFSET, C_TIME, C_COLUMNS) = range(4)
