"""Journeys of captured clients against what these say they sent and got, and against the records themselves.

(proves: analyzer/analysis/journeys.py, journey_labels.py, journey_matching.py)
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from kwire import analyzer
from tests.analyzer.analysis.test_journeys import key
from tests.shared import capture_files, real_folder

Row = dict[str, Any]
CLIENTS = [
    "codecs-java-2.8",
    "codecs-kafkapython-3.9",
    "old-kafkapython14-0.8.2",
    "old-librdkafka-0.10.2",
    "group-share-java-4.3",
]


def contents(tables: dict[str, Any]) -> tuple[dict[Any, list[Any]], dict[Any, Any]]:
    """Contents of records: those of each Produce request's partition, in order, and what readers got, by offset."""
    produced, fetched = defaultdict(list), {}
    for row in tables["records"].to_pylist():
        content = row["key"], row["value"]
        if row["side"] == "produce":
            produced[(*key(row), row["partition"])].append(content)
        else:
            fetched[row["topic"] or row["topic_id"], row["partition"], row["offset"]] = content
    return produced, fetched


@pytest.mark.parametrize("name", CLIENTS)
def test_each_batch_is_placed_where_its_records_are_and_each_record_that_a_client_got_was_fetched(name: str) -> None:
    folder = real_folder(name)
    truth = json.loads((folder / "truth.json").read_text())
    tables = analyzer.analyze(capture_files(folder), records="full").tables
    names = {row["topic_id"]: row["topic"] for row in tables["topic_ids"].to_pylist()}
    produced, fetched = contents(tables)
    there = {(names.get(topic, topic), *rest): content for (topic, *rest), content in fetched.items()}
    answers = {row["response_end"] for row in tables["exchanges"].to_pylist()}
    got: Counter[str] = Counter()
    placed, topics = set(), {}
    for row in tables["journeys"].to_pylist():
        topic = row["topic"] or names[row["topic_id"]]
        batch = (*key(row["produced"]), row["partition"])
        topics[batch] = topic
        steps = [row[step] for step in ("created", "sent", "received", "acked") if row[step] is not None]
        assert steps == sorted(steps)
        if row["fetched"] is None:
            continue
        assert row["fetched"] in answers
        assert row["fetched"] >= row["received"]
        offsets = range(row["base_offset"], row["base_offset"] + len(produced[batch]))
        assert [there[topic, row["partition"], offset] for offset in offsets] == produced[batch]
        placed.add(batch)
        got[topic] += len(offsets)
    if "consumed" in truth:
        assert got == Counter(truth["consumed"])
    else:
        assert sum(got.values()) == sum(truth["got"])
    assert placed == {batch for batch, topic in topics.items() if topic in got}
    assert {*produced} == {*topics}
