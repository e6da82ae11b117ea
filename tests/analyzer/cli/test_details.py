"""Details of an exchange by its API, against answers that were read off the captures' bodies by hand.

Proves: `kwire.analyzer.cli.details`, and of `kwire.analyzer.cli.exchange_lines` what is cut where a line is too long.
"""

from __future__ import annotations

import pytest

from kwire import analyzer
from kwire.analyzer.cli.details import WITH_BODIES, detail
from kwire.analyzer.cli.exchange_lines import cut
from tests.shared import real_folder


def details(capture: str, api: str) -> list[str]:
    """The words for each exchange of an API, as `kwire show` prints them."""
    exchanges = analyzer.exchanges(real_folder(capture), filter=f"api == {api}", bodies=WITH_BODIES, partitions=True)
    return [detail(exchange) for exchange in exchanges]


def test_a_transaction_ends_in_commit_or_abort() -> None:
    exchanges = analyzer.exchanges(real_folder("txn-librdkafka-4.3"), filter="api == EndTxn")
    assert [(exchange.request or {})["committed"] for exchange in exchanges] == [
        True,
        False,
        True,
        True,
        False,
        True,
        True,
    ]
    assert details("txn-librdkafka-4.3", "EndTxn") == [
        "commit",
        "abort",
        "commit",
        "commit",
        "abort",
        "commit",
        "commit",
    ]


def test_a_producer_gets_its_id_and_epoch() -> None:
    texts = details("txn-librdkafka-4.3", "InitProducerId")
    # The first is refused (COORDINATOR_LOAD_IN_PROGRESS), the last a second start of the same transactional id.
    assert texts == ["", "producer 0 epoch 0", "producer 1 epoch 0", "producer 1 epoch 1"]


def test_produce_says_where_to_and_how_much() -> None:
    assert details("txn-librdkafka-4.3", "Produce")[:3] == [
        "idem-0@0 1 record 70 B",
        "tx-in-0@0 1 record 71 B",
        "idem-0@1 30 records 352 B",
    ]


def test_commits_say_their_offsets() -> None:
    assert details("txn-librdkafka-4.3", "TxnOffsetCommit") == ["tx-in-0@10, tx-in-1@90"]
    assert details("txn-librdkafka-4.3", "OffsetCommit") == ["tx-out-0@65, tx-out-1@37, tx-out-2@53"] * 2


def test_joins_say_generation_member_and_leader() -> None:
    texts = details("txn-librdkafka-4.3", "JoinGroup")
    assert texts[0] == ""  # NOT_COORDINATOR, and no member yet
    assert texts[1] == "member lab-etl-4583cecf-38de-4469-a9c3-fc82a5427e66"
    assert texts[2] == "generation 1 member lab-etl-4583cecf-38de-4469-a9c3-fc82a5427e66 leads 1 member"


def test_the_new_protocol_says_its_epochs() -> None:
    texts = details("group-kip848-librdkafka-4.3", "ConsumerGroupHeartbeat")
    assert texts[0] == "joins -> epoch 2 member U/H/c3ZiRFyoOB/uBJimFw"
    assert any(words.startswith("leaves member ") for words in texts)


def test_fetch_says_the_offset_it_asks_for_and_what_came() -> None:
    texts = details("group-kip848-librdkafka-4.3", "Fetch")
    assert "grp-5@0 8 records 567 B" in texts
    assert "grp-5@8 1 record 71 B (5 empty)" in texts


def test_the_topic_of_kraft_itself_has_its_name_in_every_cluster() -> None:
    from kwire.analyzer.analysis.cluster_metadata import TopicIds

    ids = TopicIds()
    assert ids.name("AAAAAAAAAAAAAAAAAAAAAQ") == "__cluster_metadata"
    ids.learn({"AAAAAAAAAAAAAAAAAAAAAA": "other"})
    assert ids.name("AAAAAAAAAAAAAAAAAAAAAQ") == "__cluster_metadata"
    assert next(iter(TopicIds().tables()))[1].num_rows == 0  # a row of `topic_ids` is what a message said


def test_no_body_is_kept_that_may_hold_records() -> None:
    from kwire.analyzer.protocol import api_keys

    assert not WITH_BODIES & {api_keys.PRODUCE, api_keys.FETCH, api_keys.SHARE_FETCH, api_keys.PUSH_TELEMETRY}


@pytest.mark.parametrize(
    ("line", "width", "expected"),
    [
        ("ok", 2, "ok"),
        ("NOT_COORDINATOR", 8, "NOT_COO…"),
        ("\u6ce8\u6587-0", 6, "\u6ce8\u6587-0"),  # two columns for each of the first two
        ("\u6ce8\u6587-0", 5, "\u6ce8\u6587…"),
        ("\u6ce8\u6587-0", 4, "\u6ce8…"),
    ],
)
def test_a_line_is_cut_by_the_columns_it_takes(line: str, width: int, expected: str) -> None:
    assert cut(line, width) == expected
