"""Journeys of a real broker's traffic against clients that stamp what they send and receive.

(proves: analyzer/analysis/journeys.py, journey_labels.py, journey_matching.py)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzer.analysis.journey_truth import (
    CODECS,
    COMPACTING,
    CONSUMERS,
    MESSAGE_SETS,
    PRODUCERS,
    PURE_GROUP,
    PURE_PRODUCER,
    journeys_of,
    judge,
    removed,
    run,
    run_compacted,
    run_message_sets,
)
from tests.brokers.cluster import Spec
from tests.brokers.fixtures import Start
from tests.live import Wire


@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")  # kafka-python
def test_every_batch_is_placed_and_none_wrongly(shared_brokers: Start, wire: Wire, tmp_path: Path) -> None:
    del wire  # it says whether packets can be captured here
    path = tmp_path / "capture.pcap"
    truth, java = run(shared_brokers(Spec()), path, seconds=4, java=True)
    journeys = journeys_of(path)
    for clients in (truth, java):
        figures = judge(clients, *journeys)
        assert figures.wrong == []
        assert figures.placed == figures.batches > 50
    assert {entry.client for entry in truth.written.values() if entry.where} == {*PRODUCERS, PURE_PRODUCER}
    assert {group for group, _ in truth.received} == {*CONSUMERS, PURE_GROUP}
    assert {entry.client for entry in java.written.values() if entry.where} == {
        *("j-acks-0", "j-acks-1", "j-idempotent", "j-transactional")
    }
    assert {group for group, _ in java.received} == {"j-848", "j-classic", "j-share"}


def test_what_compaction_took_was_not_fetched(shared_brokers: Start, wire: Wire, tmp_path: Path) -> None:
    del wire
    path = tmp_path / "capture.pcap"
    truth = run_compacted(shared_brokers(COMPACTING), path)
    rows, exchanges = journeys_of(path)
    figures = judge(truth, rows, exchanges)
    assert figures.wrong == []
    assert figures.placed == figures.batches > 50
    gone, reasons = removed(truth, rows)
    assert gone > 50
    assert reasons == {"not read": gone}


@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")  # kafka-python
def test_message_sets_of_0_9_are_placed(shared_brokers: Start, wire: Wire, tmp_path: Path) -> None:
    del wire
    path = tmp_path / "capture.pcap"
    truth = run_message_sets(shared_brokers(MESSAGE_SETS), path, seconds=3)
    rows, exchanges = journeys_of(path)
    figures = judge(truth, rows, exchanges)
    assert figures.wrong == []
    assert figures.placed == figures.batches > 50
    assert {entry.client for entry in truth.written.values() if entry.where} == {*CODECS}
    assert figures.received == len(truth.written)
