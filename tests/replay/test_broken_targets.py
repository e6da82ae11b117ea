"""Targets with one thing wrong: the first line of `kwire diff` names it, and whatever else differs follows from it.
The same capture each time, of a shop that is well (`shop.py`), in memory and in a time of its own.

What only a real broker does is in test_regressions and test_audited; here is what its answers, and its logs, look like.

Proves: replay/diff/latencies.py, replay/diff/steadiness.py, and `kwire diff` from the target's answers to its first
line
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.protocol import api_keys, errors
from kwire.replay.audit import auditor
from kwire.replay.diff import by_exchange, pairs, text
from kwire.replay.diff.compare import Comparison, compare
from kwire.replay.diff.differences import grouped
from kwire.replay.plan.renaming import Renaming
from kwire.replay.remap.retry import Limits
from kwire.replay.send import seeding
from kwire.replay.send.settings import Settings
from kwire.replay.send.workers import Access
from tests.replay.conversation import play
from tests.replay.diff.both_ways import assert_the_same
from tests.replay.shop import GROUP, LOADED, OFFERS, ORDERS, PAYMENTS, TRANSACTION, Shop, replayed_at

SIDES = ("captured", "replayed")


def first_line(comparison: Comparison) -> str:
    return text.as_text(comparison, SIDES).splitlines()[0].removeprefix("verdict: ")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return replayed_at(Shop(), tmp_path_factory.mktemp("healthy") / "run")


def test_nothing_is_wrong(healthy: Path) -> None:
    comparison = compare(pairs.from_run(healthy))
    assert (first_line(comparison), list(comparison.differences)) == ("same", [])


# fmt: off
BROKEN: dict[str, tuple[Shop, dict[str, Any], str]] = {
    "smaller message.max.bytes": (
        Shop(largest=2000), {},
        "1 unexpected difference: Produce v8 error appeared MESSAGE_TOO_LARGE (10) (orders/1); 1 more follows from it",
    ),
    "no right to write a topic": (
        Shop(no_write=frozenset((PAYMENTS,))), {},
        "2 unexpected differences: Produce v8 error appeared TOPIC_AUTHORIZATION_FAILED (29) (payments/0)",
    ),
    "no right to a group": (
        Shop(no_group=frozenset((GROUP,))), {},
        "1 unexpected difference: FindCoordinator v2 error appeared GROUP_AUTHORIZATION_FAILED (30) (billing); "
        "6 more follow from it",
    ),
    "no right to a transactional id": (
        Shop(no_transaction=frozenset((TRANSACTION,))), {},
        "1 unexpected difference: FindCoordinator v2 error appeared TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) (pay-1);"
        " 7 more follow from it",
    ),
    "fewer partitions": (
        Shop(partitions=1), {"partial": True},
        "1 unexpected difference: Metadata v9 another number of partitions 1 (orders); 3 more follow from it",
    ),
    "a partition that is there, and is not listed": (
        Shop(unlisted=1, empty=True), {"partial": True, "seed_topics": True},
        "1 unexpected difference: Metadata v9 another number of partitions 1 (orders); 1 more follows from it",
    ),
    "retention": (
        Shop(deletes=True), {},
        "3 unexpected differences: Produce v8 acknowledged records missing (orders/0)",
    ),
    "compaction": (
        Shop(compacts=True), {},
        "2 unexpected differences: Produce v8 acknowledged records missing (orders/0)",
    ),
    "another timestamp type": (
        Shop(appends=True), {},
        "3 unexpected differences: Produce v8 stored otherwise than sent 2 records: not compressed, LogAppendTime, "
        "format v2 (payments/0) and 1 more kind",
    ),
    "too few replicas in sync": (
        Shop(in_sync=False), {"settings": Settings(speed=None, limits=Limits(errors=0.1))},
        "42 unexpected differences: Produce v8 error appeared NOT_ENOUGH_REPLICAS (19) (orders/0); "
        "3 more follow from it",
    ),
    "a shorter transaction timeout": (
        Shop(longest_transaction_ms=5000), {},
        "1 unexpected difference: InitProducerId v1 error appeared INVALID_TRANSACTION_TIMEOUT (50); "
        "6 more follow from it",
    ),
    "a shorter session timeout": (
        Shop(longest_session_ms=30_000), {},
        "1 unexpected difference: JoinGroup v5 error appeared INVALID_SESSION_TIMEOUT (26); 5 more follow from it",
    ),
    "a smaller group": (
        Shop(most_members=0), {},
        "1 unexpected difference: JoinGroup v5 error appeared GROUP_MAX_SIZE_REACHED (81); 5 more follow from it",
    ),
    "no groups": (
        Shop(lacks=frozenset((api_keys.JOIN_GROUP,))), {},
        "1 unexpected difference: JoinGroup v5 state skipped (target_lacks_api); 5 more follow from it",
    ),
    "no transactions": (
        Shop(lacks=frozenset((api_keys.INIT_PRODUCER_ID,))), {},
        "1 unexpected difference: InitProducerId v1 state skipped (target_lacks_api); 6 more follow from it",
    ),
    "transactions that nobody can end": (
        Shop(lacks=frozenset((api_keys.END_TXN,))), {},
        "1 unexpected difference: EndTxn v1 state skipped (target_lacks_api); 1 more follows from it",
    ),
    "a proxy that corrupts an error code": (
        Shop(says={api_keys.HEARTBEAT: errors.INVALID_REQUEST}), {},
        "1 unexpected difference: Heartbeat v3 error appeared INVALID_REQUEST (42)",
    ),
    "a proxy that delays an API": (
        Shop(delays={api_keys.PRODUCE: 0.3}), {"speed": 1.0},
        "1 unexpected difference: Produce slower median 300.0 ms, at least 290.0 ms more",
    ),
    "a proxy that acknowledges a batch and drops it": (
        Shop(swallows=6), {},
        "1 unexpected difference: Produce v8 batch stored once for two 6 (orders/1); 1 more follows from it",
    ),
    "a proxy that drops records which a reader gets": (
        Shop(hides=5), {},
        "3 unexpected differences: Fetch v11 record missing (orders/0)",
    ),
    "readers that get earlier times": (
        Shop(earlier_ms=3_600_000), {},
        "2 unexpected differences: Fetch v11 record timestamp changed (orders/0)",
    ),
    "a high watermark below records": (
        Shop(watermark_behind=1000), {},
        "2 unexpected differences: Fetch v11 high watermark below its records (orders/0)",
    ),
    "a proxy that sends a batch twice": (
        Shop(doubles=5), {},
        "1 unexpected difference: Produce v8 more records than acknowledged 3 more (orders/0); 1 more follows from it",
    ),
    "a connection that is cut before an answer": (
        Shop(cuts=(ORDERS, 9)), {},
        "2 unexpected differences: Produce unsteady connection ended before an answer: 1 of 42 Produce and 1 more "
        "kind; 1 more follows from them",
    ),
}
# fmt: on


@pytest.mark.parametrize("what", BROKEN)
def test_the_first_line_names_what_is_broken(what: str, healthy: Path, tmp_path: Path) -> None:
    shop, options, line = BROKEN[what]
    broken = replayed_at(shop, tmp_path / "run", **options)
    comparison = compare(pairs.from_run(broken))
    assert first_line(comparison) == line
    # As many exchanges differ as are shown to.
    _, by_exchange_differences = by_exchange.differing(broken)
    assert (
        comparison.unexpected
        == sum(any(capture[-1] is None for capture in some) for some in by_exchange_differences.values())
        > 0
    )
    assert_the_same(pairs.from_run(broken))
    if "speed" in options:
        return  # the healthy one was sent at another
    # Against a replay at a healthy target it is the same cause.
    beyond = compare(pairs.from_runs(healthy, broken))
    first, second = (
        [
            (difference.api_key, difference.path, difference.kind, difference.right)
            for difference in grouped(each.differences)
            if difference.unexpected
        ]
        for each in (comparison, beyond)
    )
    assert second == first


AN_END_THAT_IS_CHANGED: dict[str, tuple[Shop, bool, str, str]] = {
    "a commit that becomes an abort": (
        Shop(ends_as={1: False}), True, "1 unexpected difference: EndTxn v1 committed records hidden 1 record of "
        "payments/0 (pay-1); 1 more follows from it", "1 of committed transactions are hidden",
    ),
    "a commit that becomes an abort, and nobody reads it": (
        Shop(ends_as={1: False}), False, "1 unexpected difference: EndTxn v1 committed records hidden 1 record of "
        "payments/0 (pay-1)", "1 of committed transactions are hidden",
    ),
    "an abort that becomes a commit": (
        Shop(ends_as={2: True}), True, "1 unexpected difference: EndTxn v1 aborted records visible 1 record of "
        "payments/0 (pay-1); 1 more follows from it", "1 of aborted transactions are visible",
    ),
    "a target that hides which transactions aborted": (
        Shop(tells_aborted=False), True, "1 unexpected difference: EndTxn v1 aborted records visible 1 record of "
        "payments/0 (pay-1); 1 more follows from it", "1 of aborted transactions are visible",
    ),
    "a target that acknowledges an end and forgets it": (
        Shop(ends_as={1: None, 2: None}), False, "1 unexpected difference: EndTxn v1 transaction left open 1 record of "
        "payments/0 (pay-1)", "1 are in transactions that the target left open",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", AN_END_THAT_IS_CHANGED)
def test_a_transaction_that_does_not_end_as_its_client_said(what: str, tmp_path: Path) -> None:
    shop, aborting, line, audited = AN_END_THAT_IS_CHANGED[what]
    good = replayed_at(Shop(), tmp_path / "good", aborting=aborting)
    assert first_line(compare(pairs.from_run(good))) == "same"
    broken = replayed_at(shop, tmp_path / "run", aborting=aborting)
    comparison = compare(pairs.from_run(broken))
    assert first_line(comparison) == line
    assert audited in text.as_text(comparison, SIDES)
    assert_the_same(pairs.from_run(broken))
    assert first_line(compare(pairs.from_runs(good, broken))) == line
    # What one target does as well as the other is no difference between them.
    assert first_line(compare(pairs.from_runs(broken, broken))) == "same"


def _against(left: Path, right: Path) -> tuple[str, set[str | None]]:
    comparison = compare(pairs.from_runs(left, right))
    assert_the_same(pairs.from_runs(left, right))
    return first_line(comparison), {difference.rule for difference in comparison.differences}


def test_a_coordinator_that_was_loading_for_one_of_two_runs_is_no_difference(tmp_path: Path) -> None:
    """It had been loading in the capture too, so neither RUN asks again for what its answer was."""
    once = dict.fromkeys(LOADED, 1)
    ready, loading = (
        replayed_at(Shop(loads=loads), tmp_path / name, loading=True) for name, loads in (("a", {}), ("b", once))
    )
    for out in (ready, loading):
        assert first_line(compare(pairs.from_run(out))) == "same"
    assert _against(ready, loading) == _against(loading, ready) == ("same", {"race"})


@pytest.mark.parametrize("key", LOADED)
def test_a_coordinator_that_loads_for_ever_is_one(key: int, tmp_path: Path) -> None:
    """Its answer was as captured the first time, and not the second time."""
    shops = Shop(), Shop(loads={key: 1_000_000})
    ready, loading = (replayed_at(shop, tmp_path / shop_name, loading=True) for shop, shop_name in zip(shops, "ab"))
    line = first_line(compare(pairs.from_run(loading)))
    assert f"{api_keys.name(key)} v{OFFERS[key][1]} error appeared COORDINATOR_LOAD_IN_PROGRESS (14)" in line
    assert _against(ready, loading)[0] == line


def test_what_else_is_wrong_is_told_where_a_coordinator_loads(tmp_path: Path) -> None:
    shops = Shop(), Shop(loads=dict.fromkeys(LOADED, 1), largest=2000)
    ready, broken = (replayed_at(shop, tmp_path / shop_name, loading=True) for shop, shop_name in zip(shops, "ab"))
    assert _against(ready, broken)[0] == BROKEN["smaller message.max.bytes"][2]


def test_an_idempotent_batch_that_was_sent_again_is_stored_once(tmp_path: Path) -> None:
    """The target answers as to any duplicate; the cause is the replayer's."""
    again = replayed_at(Shop(cuts=(PAYMENTS, 2)), tmp_path / "run")
    comparison = compare(pairs.from_run(again))
    line = "1 unexpected difference: Produce unsteady connection ended before an answer: 1 of 42 Produce"
    assert first_line(comparison) == line
    assert [(difference.kind, difference.rule) for difference in comparison.differences] == [
        ("swallowed as a duplicate", "sent_again"),
        ("unsteady", None),
    ]
    assert_the_same(pairs.from_run(again))


def test_whether_a_batch_is_there_twice_is_not_known_where_the_audit_cannot_see_it(tmp_path: Path) -> None:
    """Of a topic that may have had records before nobody knows whose they are."""
    again = replayed_at(Shop(cuts=(ORDERS, 9)), tmp_path / "run", yes=True)
    line = "1 x Produce v8  (records)  perhaps stored twice"
    assert line in text.as_text(compare(pairs.from_run(again)), SIDES)


def test_an_audit_of_another_cluster_than_the_runs_is_told(tmp_path: Path) -> None:
    out = replayed_at(Shop(), tmp_path / "run")

    def elsewhere(shop: Shop) -> str:
        reach = Access().reach(shop.host, 9092)
        audited: auditor.Audit = play(auditor.audit(out, shop.host, 9092, shop.dial, reach))
        return audited.elsewhere

    assert elsewhere(Shop()) == ""
    assert elsewhere(Shop(cluster="shop-3")) == "the RUN was sent to cluster shop-2, and this is cluster shop-3"


def test_fewer_partitions_are_told_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(seeding.TooFewPartitionsError, match="orders has 1 partitions, the captured one 2"):
        replayed_at(Shop(partitions=1), tmp_path / "run")


def test_a_topic_that_is_missing_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    shop = Shop(partitions=0)
    with pytest.raises(seeding.MissingTopicsError, match="the target has no topic orders, to which the capture writes"):
        replayed_at(shop, tmp_path / "run")
    assert shop.produced == 0
    settings = Settings(speed=None, limits=Limits(errors=0.1))
    run = replayed_at(shop, tmp_path / "run", missing_topics_ok=True, settings=settings)
    assert "UNKNOWN_TOPIC_OR_PARTITION (3)" in first_line(compare(pairs.from_run(run)))


@pytest.mark.parametrize("most", [1, 7])
def test_a_target_that_gives_readers_less_at_once_is_the_same(most: int, healthy: Path, tmp_path: Path) -> None:
    """The last fetch of a connection reads on until it has what the captured one had."""
    out = replayed_at(Shop(most_batches=most), tmp_path / "run", aborting=True)
    comparison = compare(pairs.from_run(out))
    assert first_line(comparison) == "same"
    assert [difference.kind for difference in comparison.differences] == []
    assert_the_same(pairs.from_run(out))


def test_runs_with_other_names_are_compared_as_captured(healthy: Path, tmp_path: Path) -> None:
    """Each run of a rehearsal has a prefix of its own; a fault is named as it is between runs under the same names."""
    prefixed: dict[str, Any] = {"renaming": Renaming({GROUP: "y"}, "x."), "prefix_topics": "x.", "seed_topics": True}
    named = replayed_at(Shop(), tmp_path / "run", **prefixed)
    comparison = compare(pairs.from_runs(healthy, named))
    assert (first_line(comparison), list(comparison.differences)) == ("same", [])
    assert_the_same(pairs.from_runs(healthy, named))
    broken = replayed_at(Shop(ends_as={2: False}), tmp_path / "broken", **prefixed)
    line = first_line(compare(pairs.from_runs(healthy, broken)))
    assert "EndTxn v1 committed records hidden" in line
    assert f"({TRANSACTION})" in line
    refused = replayed_at(Shop(no_group=frozenset(("y",))), tmp_path / "refused", **prefixed)
    assert f"FindCoordinator v2 error appeared GROUP_AUTHORIZATION_FAILED (30) ({GROUP})" in first_line(
        compare(pairs.from_runs(healthy, refused))
    )


# fmt: off
UNSTEADY: dict[str, tuple[Shop, str]] = {
    "each fifth batch is refused first, as if its disk failed": (
        Shop(refuses=(5, errors.KAFKA_STORAGE_ERROR)),
        "1 unexpected difference: Produce unsteady answered KAFKA_STORAGE_ERROR (56) first: 10 of 42 Produce",
    ),
    "a leader that is not known yet": (
        Shop(refuses=(40, errors.NOT_LEADER_OR_FOLLOWER)), "same",
    ),
    "a heartbeat of the replayer's own that meets an error while its member waits for offsets": (
        Shop(strange_beat=1, delays={api_keys.OFFSET_FETCH: 15.0}),
        "1 unexpected difference: Heartbeat unsteady answered UNKNOWN_MEMBER_ID (25) first: 1 of 1 Heartbeat",
    ),
    "a quota where there was none": (
        Shop(throttles=300), "1 unexpected difference: Produce held back by a quota 42 of 42 Produce, at most 300 ms",
    ),
}
# fmt: on


@pytest.mark.parametrize("what", UNSTEADY)
def test_an_answer_that_a_client_does_not_keep_is_told(what: str, healthy: Path, tmp_path: Path) -> None:
    shop, line = UNSTEADY[what]
    broken = replayed_at(shop, tmp_path / "run")
    assert first_line(compare(pairs.from_run(broken))) == line
    assert first_line(compare(pairs.from_runs(healthy, broken))) == line
    assert first_line(compare(pairs.from_runs(broken, broken))) == "same"
    assert_the_same(pairs.from_run(broken))
