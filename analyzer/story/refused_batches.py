"""Count records that brokers refused, each batch once however often it was sent again.

In: the tables `exchanges`, `partitions` and `batches`. Out: records and bytes by client and topic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import OrdinalIndex
from kwire.analyzer.story.events import Row
from kwire.analyzer.story.sources import Source

MOST = 200_000
"""Refused batches that are told apart; of more, each refusal counts."""
_BATCH = ("topic", "topic_id", "partition", "crc", "base_sequence", "record_count", "batch_bytes")


def refused_batches(source: Source) -> dict[tuple[str | None, str | None, str | None], list[Row]]:
    """Distinct batches that Produce requests were refused for, by client id, address and topic. Empty where batches
    were not read, or have no checksums."""
    batches = source.stored("batches")
    if not len(batches):
        return {}
    stored = source.stored("exchanges")
    rows = stored.gather({"exchange": np.int64}, {"connection": {}, "api": {}, "error": {}})
    api, error = rows.text("api"), rows.text("error")
    refused = spill.true_rows(arrow.among(api.codes, codes_of(api.values, "Produce")) & (error.codes >= 0))
    if not len(refused):
        return {}
    links = {name: number for number, name in enumerate(rows.text("connection").values)}
    index = OrdinalIndex(rows.text("connection").codes[refused], rows["exchange"][refused], len(links), refused)
    failed = _refused_partitions(source, index, links)
    written = batches.gather({"exchange": np.int64}, {"connection": links, "side": {}})
    owner = spill.full(len(written["exchange"]), -1, np.int32)
    codes = written.text("connection").codes
    known = (written["exchange"] != NULL) & (codes < len(links))
    known &= arrow.among(written.text("side").codes, codes_of(written.text("side").values, "produce"))
    index.join(owner, codes, written["exchange"], known)
    chosen = spill.true_rows(owner >= 0)
    if not 0 < len(chosen) <= MOST:
        return {}
    whose = stored.rows(owner[chosen], ["client_id", "client_ip"])
    distinct: dict[tuple[Any, ...], Row] = {}
    keys: dict[tuple[Any, ...], tuple[str | None, str | None, str | None]] = {}
    for exchange, who, batch in zip(owner[chosen].tolist(), whose, batches.rows(chosen, _BATCH), strict=True):
        topic = batch["topic"] or source.topics.get(batch["topic_id"] or "", batch["topic_id"])
        if batch["crc"] is None or (exchange, topic, batch["partition"]) not in failed:
            continue
        client = who["client_id"], who["client_ip"], topic
        key = (*client, *(batch[name] for name in _BATCH[2:]))
        keys[key] = client
        distinct[key] = {
            "records": batch["record_count"] or 0,
            "distinct": batch["record_count"] or 0,
            "bytes": batch["batch_bytes"] or 0,
            "uncounted": batch["record_count"] is None,
        }
    by_client: dict[tuple[str | None, str | None, str | None], list[Row]] = {}
    for key, row in distinct.items():
        by_client.setdefault(keys[key], []).append(row)
    return by_client


def _refused_partitions(source: Source, index: OrdinalIndex, links: dict[str, int]) -> set[tuple[int, str, int]]:
    """(exchange, topic, partition) that were refused."""
    parts = source.stored("partitions")
    numbers = dict.fromkeys(("exchange", "error_code"), np.int64)
    rows = parts.gather(numbers, {"connection": links})
    codes, error = rows.text("connection").codes, rows["error_code"]
    owner = spill.full(len(codes), -1, np.int32)
    index.join(owner, codes, rows["exchange"], (error != NULL) & (error != 0) & (codes < len(links)))
    chosen = spill.true_rows(owner >= 0)
    some = parts.rows(chosen, ["topic", "topic_id", "partition"])
    return {
        (exchange, row["topic"] or source.topics.get(row["topic_id"] or "", row["topic_id"]), row["partition"])
        for exchange, row in zip(owner[chosen].tolist(), some, strict=True)
    }
