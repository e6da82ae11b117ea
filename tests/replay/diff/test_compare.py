"""Given the messages of two sides, when they are compared, then these differences and no others.

Every case has real frames on both sides (`forging.pair`), and says its differences as (rule or `UNEXPECTED`, field,
kind). A case without any must be all the same.

Proves: replay/diff/compare.py, correspondence.py, differences.py, fields.py, reader_progress.py, record_facts.py,
text.py
(all in replay/diff)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.records.batches import LOG_APPEND_TIME
from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import RULES, grouped
from kwire.replay.diff.pairs import Pair, Pairs, RunFacts, Side
from kwire.replay.diff.reader_progress import other_form
from kwire.replay.diff.record_facts import Form
from kwire.replay.diff.text import as_text
from tests.replay.forging import Body, batch, pair
from tests.shared import ROOT

UNEXPECTED = None
Wanted = tuple[str | None, str, str]
ORDERS_ID, ORDERS_COPY_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


def differences(*pairs: Pair) -> list[Wanted]:
    return [(difference.rule, difference.path, difference.kind) for difference in compare(pairs).differences]


# --- how tests say things ---


def produce(
    records: bytes, left: int, right: int, *, errors: tuple[int, int] = (0, 0), appended: int = -1, **row: Any
) -> Pair:
    """A produce request to orders-0, answered with these base offsets; `appended`: the right's log append time."""

    def answer(offset: int, error: int, time: int = -1) -> Body:
        partition = {"index": 0, "errorCode": error, "baseOffset": offset, "logAppendTimeMs": time}
        return {"responses": [{"name": "orders", "partitionResponses": [partition]}]}

    request = {"acks": -1, "topicData": [{"name": "orders", "partitionData": [{"index": 0, "records": records}]}]}
    return pair("Produce", 8, request, answer(left, errors[0]), answer(right, errors[1], appended), **row)


def fetch(
    left: bytes,
    right: bytes,
    *,
    start: int = 0,
    right_start: int | None = None,
    aborted: tuple[list[Body], list[Body]] = ([], []),
    committed: bool = False,
    error: int = 0,
    **row: Any,
) -> Pair:
    """A fetch from orders-0 with these records on either side."""

    def request(offset: int) -> Body:
        partition = {"partition": 0, "fetchOffset": offset, "partitionMaxBytes": 1 << 20}
        return {"isolationLevel": int(committed), "topics": [{"topic": "orders", "partitions": [partition]}]}

    def answer(records: bytes, gone: list[Body], failed: int = 0) -> Body:
        partition = {
            "partitionIndex": 0,
            "errorCode": failed,
            "highWatermark": 100_000,
            "records": records,
            "abortedTransactions": gone,
        }
        return {"responses": [{"topic": "orders", "partitions": [partition]}]}

    return pair(
        "Fetch",
        11,
        request(start),
        answer(left, aborted[0]),
        answer(right, aborted[1], error),
        right_request=request(start if right_start is None else right_start),
        **row,
    )


def metadata(left: list[Body], right: list[Body], request: list[Body] | None = None, **more: Any) -> Pair:
    return pair("Metadata", 12, {"topics": request}, {"topics": left}, {"topics": right}, **more)


def topic(name: str, partitions: int = 1, topic_id: str = ORDERS_ID, error: int = 0, leader: int = 1) -> Body:
    return {
        "name": name,
        "topicId": topic_id,
        "errorCode": error,
        "partitions": [
            {"partitionIndex": index, "leaderId": leader, "replicaNodes": [leader], "isrNodes": [leader]}
            for index in range(partitions)
        ],
    }


def join(left: Body, right: Body, **row: Any) -> Pair:
    request = {"groupId": "billing", "protocolType": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
    shared = {"protocolName": "range", "members": []}
    return pair("JoinGroup", 5, request, {**shared, **left}, {**shared, **right}, **row)


def assignment(**topics: list[int]) -> bytes:
    from kwire.analyzer.protocol.encoding import encode_data

    listed = [{"topic": name, "partitions": some} for name, some in topics.items()]
    return b"\0\0" + encode_data({"assignedPartitions": listed, "userData": None}, "ConsumerProtocolAssignment", 0)


def sync(member: str, left: bytes, right: bytes, generation: int = 1, right_member: str | None = None) -> Pair:
    def request(who: str) -> Body:
        return {"groupId": "billing", "generationId": generation, "memberId": who, "assignments": []}

    return pair(
        "SyncGroup",
        3,
        request(member),
        {"assignment": left},
        {"assignment": right},
        right_request=request(right_member or member),
    )


def commit(offset: int) -> Pair:
    partition = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""}
    request = {"groupId": "billing", "topics": [{"name": "orders", "partitions": [partition]}]}
    answer = {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    return pair("OffsetCommit", 6, request, answer, answer)


def commit_and_read(left: int, right: int) -> Pair:
    def answer(offset: int) -> Body:
        partition = {"partitionIndex": 0, "committedOffset": offset, "metadata": ""}
        return {"topics": [{"name": "orders", "partitions": [partition]}]}

    request = {"groupId": "billing", "topics": [{"name": "orders", "partitionIndexes": [0]}]}
    return pair("OffsetFetch", 5, request, answer(left), answer(right))


def offsets_of_all(left: list[tuple[str, int]], right: list[tuple[str, int]], error: int = 0, **row: Any) -> Pair:
    """Everything that a group has committed, as version 8 tells it: topics and partitions. `error`: the right's of
    each."""

    def answer(some: list[tuple[str, int]], failed: int = 0) -> Body:
        topics: dict[str, list[Body]] = {}
        for name, number in some:
            partition = {"partitionIndex": number, "committedOffset": 5, "metadata": "", "errorCode": failed}
            topics.setdefault(name, []).append(partition)
        listed = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        return {"groups": [{"groupId": "billing", "topics": listed}]}

    request: Body = {"groups": [{"groupId": "billing", "topics": None}]}
    return pair("OffsetFetch", 8, request, answer(left), answer(right, error), group_id="billing", **row)


# --- answers ---


def test_an_answer_that_is_owed_and_does_not_come() -> None:
    heartbeat = {"groupId": "billing", "generationId": 1, "memberId": "m"}
    assert differences(pair("Heartbeat", 3, heartbeat, {}, "unanswered")) == [(UNEXPECTED, "(answer)", "state")]
    assert differences(pair("Heartbeat", 3, heartbeat, {}, "not_sent:unreachable")) == [
        (UNEXPECTED, "(answer)", "state")
    ]


@pytest.mark.parametrize("reason", ["not_planned:mutating", "not_captured", "no_answer_expected"])
def test_what_has_no_answer_to_compare_is_counted_with_its_reason(reason: str) -> None:
    result = compare([pair("Heartbeat", 3, {"groupId": "g"}, {}, reason)])
    assert (result.compared, result.total, dict(result.skipped)) == (0, 1, {reason.rpartition(":")[2]: 1})


def test_a_run_that_did_not_send_what_the_other_sent() -> None:
    exchange = pair("Heartbeat", 3, {"groupId": "g"}, {}, "skipped:target_lacks_api")
    assert differences(exchange) == [(UNEXPECTED, "(answer)", "state")]


def test_an_answer_that_cannot_be_read() -> None:
    exchange = pair("Heartbeat", 3, {"groupId": "g"}, {}, {})
    assert exchange.right.answer is not None
    broken = Pair(
        exchange.row,
        exchange.left,
        type(exchange.right)("answered", 3, exchange.right.request, exchange.right.answer[:-1]),
    )
    assert differences(broken) == [(UNEXPECTED, "(answer)", "undecodable")]


# --- errors ---


@pytest.mark.parametrize(
    "left, right, wanted",
    [
        (0, 0, []),
        (3, 3, []),
        (0, 10, [(UNEXPECTED, "responses.partitionResponses.errorCode", "error appeared")]),
        (10, 0, [(UNEXPECTED, "responses.partitionResponses.errorCode", "error vanished")]),
        (10, 29, [(UNEXPECTED, "responses.partitionResponses.errorCode", "error changed")]),
        (6, 0, [("race", "responses.partitionResponses.errorCode", "error vanished")]),
        (88, 0, [("race", "responses.partitionResponses.errorCode", "error vanished")]),
        (0, 6, [(UNEXPECTED, "responses.partitionResponses.errorCode", "error appeared")]),
        (3, 6, [("race", "responses.partitionResponses.errorCode", "error changed")]),
    ],
)
def test_errors_of_a_partition(left: int, right: int, wanted: list[Wanted]) -> None:
    assert differences(produce(batch("a"), 0, 0, errors=(left, right))) == wanted


@pytest.mark.parametrize(
    "met, wanted",
    [
        (None, UNEXPECTED),  # nothing was captured
        (0, UNEXPECTED),
        (5, UNEXPECTED),
        (6, "race"),
    ],
)
def test_of_two_runs_one_met_what_was_captured(met: int | None, wanted: str | None) -> None:
    """A passing error that the capture has at this place is the answer, and is not asked again."""
    met_once = produce(batch("a"), 0, 0, errors=(0, 6), captured=False)
    if met is not None:
        was = produce(batch("a"), 0, 0, errors=(met, met)).left
        met_once = dataclasses.replace(met_once, in_capture=lambda: was)
    assert differences(met_once) == [(wanted, "responses.partitionResponses.errorCode", "error appeared")]


def test_an_error_that_is_none_that_passes_counts_though_it_was_captured() -> None:
    """One target takes what the other refuses, as the captured one did."""
    refused = produce(batch("a"), 0, 0, errors=(0, 10), captured=False)
    was = produce(batch("a"), 0, 0, errors=(10, 10)).left
    refused = dataclasses.replace(refused, in_capture=lambda: was)
    assert differences(refused) == [(UNEXPECTED, "responses.partitionResponses.errorCode", "error appeared")]


def test_an_error_is_told_once_and_the_rest_of_that_answer_is_not() -> None:
    left = {"errorCode": 0, "protocolName": "range", "memberId": "m-1", "leader": "m-1"}
    right = {"errorCode": 26, "protocolName": "", "memberId": "", "leader": ""}
    assert differences(join(left, right)) == [(UNEXPECTED, "errorCode", "error appeared")]


def test_a_member_id_that_only_one_side_was_given_first() -> None:
    left = {"errorCode": 79, "memberId": "m-1", "leader": ""}
    right = {"errorCode": 0, "memberId": "x-1", "leader": "x-1"}
    assert differences(join(left, right)) == [("member_id_given", "errorCode", "error vanished")]


@pytest.mark.parametrize(
    ("api", "left", "right", "rule"),
    [
        ("ShareAcknowledge", 0, 122, "session_remade"),
        ("ShareFetch", 123, 0, "session_remade"),
        ("ShareFetch", 0, 122, UNEXPECTED),
    ],
)
def test_a_share_session_that_one_side_lost(api: str, left: int, right: int, rule: str) -> None:
    """Acknowledgements are lost with their session; a fetch begins another, so one that did not is a difference."""
    request = {"groupId": "g", "memberId": "m", "shareSessionEpoch": 4}
    assert differences(pair(api, 1, request, {"errorCode": left}, {"errorCode": right})) == [
        (rule, "errorCode", "error appeared" if right else "error vanished"),
    ]


def test_an_api_that_the_target_offers_and_does_not_serve() -> None:
    request = {"groupId": "g", "memberId": "m"}
    answers = {"memberId": "m", "memberEpoch": 1}, {"errorCode": 35}
    captured = pair("ConsumerGroupHeartbeat", 0, request, *answers)
    assert differences(captured) == [(UNEXPECTED, "errorCode", "error appeared")]
    other_run = pair("ConsumerGroupHeartbeat", 0, request, *answers, captured=False)
    assert differences(other_run) == [(UNEXPECTED, "errorCode", "error appeared")]
    described = pair("DescribeCluster", 0, {}, {"clusterId": "c"}, {"clusterId": "c", "errorCode": 35})
    assert differences(described) == [("target_refuses", "errorCode", "error appeared")]


def test_a_group_that_the_target_cannot_serve_is_the_cause_of_what_its_members_do_not_do() -> None:
    request = {"groupId": "g", "memberId": "m"}
    refused = pair("ConsumerGroupHeartbeat", 0, request, {"memberId": "m", "memberEpoch": 1}, {"errorCode": 35})
    later = [pair("ConsumerGroupHeartbeat", 0, request, {"memberId": "m"}, "skipped:target_refuses") for _ in range(59)]
    some = compare([refused, *later])
    first, following = grouped(some.differences)
    assert (first.rule, first.right, first.count) == (UNEXPECTED, "UNSUPPORTED_VERSION (35)", 1)
    assert (following.rule, following.right, following.count) == ("consequence", "skipped (target_refuses)", 59)
    (consequence,) = first.consequences
    assert (consequence.kind, consequence.right, consequence.count) == ("state", "skipped (target_refuses)", 59)
    group = as_text(some, ("captured", "replayed"))
    assert group.splitlines()[0] == (
        "verdict: 1 unexpected difference: ConsumerGroupHeartbeat v0 error appeared UNSUPPORTED_VERSION (35); "
        "59 more follow from it"
    )
    assert "from which follow 59 x ConsumerGroupHeartbeat state skipped (target_refuses)" in group
    assert "\nexpected\n" not in group


def test_names_that_a_target_says_steer_no_terminal_and_forge_no_line() -> None:
    name = "t\x1b[5m\nverdict: same"
    left, right = ({"errorCode": error, "name": name} for error in (0, 17))
    request = metadata([left], [right], [{"name": name}], request_file="\udcb8.pcap")
    group = as_text(compare([request]), ("captured", "replayed"))
    assert group.replace("\n", "").isprintable()
    assert group.count("\nverdict:") == 0
    assert r"t\x1b[5m\nverdict: same" in group


def test_a_lost_batch_is_the_cause_of_what_its_reader_lacks() -> None:
    lost = produce(batch("a", producer=7), 0, -1, errors=(0, 10))
    after = produce(batch("b", producer=7), 1, -1, errors=(0, 45))
    reader = fetch(batch("a") + batch("b", base_offset=1), b"")
    some = compare([lost, after, reader])
    (first, *_) = grouped(some.differences)
    assert (first.right, first.count) == ("MESSAGE_TOO_LARGE (10)", 1)
    assert [(consequence.kind, consequence.count) for consequence in first.consequences] == [
        ("error appeared", 1),
        ("record missing", 1),
    ]
    assert sum(latency.unexpected for latency in some.differences) == 1


def test_a_producer_without_an_id_is_the_cause_of_what_is_not_sent() -> None:
    refused = pair(
        "InitProducerId",
        4,
        {"transactionalId": None},
        {"producerId": 7, "producerEpoch": 0},
        {"producerId": -1, "producerEpoch": -1, "errorCode": 53},
    )
    exchange = produce(batch("a", producer=7), 0, 0)
    unsent = Pair(exchange.row, exchange.left, Side("skipped", 8, rule="no_producer"))
    first, following = grouped(compare([refused, unsent]).differences)
    assert (first.right, following.rule, first.consequences[0].count) == (
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)",
        "consequence",
        1,
    )


def test_an_interval_that_the_broker_dictates_is_its_setting() -> None:
    def answer(interval: int) -> Body:
        return {"memberId": "m", "memberEpoch": 1, "heartbeatIntervalMs": interval}

    exchange = pair("ConsumerGroupHeartbeat", 1, {"groupId": "g", "memberId": "m"}, answer(1000), answer(5000))
    assert differences(exchange) == [("target_config", "heartbeatIntervalMs", "changed")]


@pytest.mark.parametrize(
    "api, left, right, rule",
    [
        ("DescribeTransactions", 0, 105, "not_there"),
        ("DescribeUserScramCredentials", 0, 91, "not_there"),
        ("DescribeTransactions", 0, 53, UNEXPECTED),
    ],
)
def test_what_requests_made_that_a_replay_does_not_send(api: str, left: int, right: int, rule: str | None) -> None:
    def answer(error: int) -> Body:
        if api == "DescribeTransactions":
            return {"transactionStates": [{"transactionalId": "t", "errorCode": error, "topics": []}]}
        return {"results": [{"user": "t", "errorCode": error, "credentialInfos": []}]}

    exchange = pair(
        api, 0, {"transactionalIds": ["t"]} if api == "DescribeTransactions" else {}, answer(left), answer(right)
    )
    assert [found_rule for found_rule, _, _ in differences(exchange)] == [rule]


@pytest.mark.parametrize("left, right, rule", [(29, 0, "rights"), (0, 29, UNEXPECTED)])
def test_rights_that_captured_users_lacked(left: int, right: int, rule: str | None) -> None:
    assert [rule for rule, _, _ in differences(produce(batch("a"), 0, 0, errors=(left, right)))] == [rule]


@pytest.mark.parametrize("own", [True, False])
def test_a_right_that_a_user_has_here_only_is_a_difference_where_he_is_himself(own: bool) -> None:
    """With --principals; on connections whose login the capture does not show somebody else speaks."""
    hello = pair("SaslAuthenticate", 2, {"authBytes": b""}, {"authBytes": b""}, "not_planned:login", connection="a")
    some = [hello, *(produce(batch("a"), 0, 0, errors=(29, 0), connection=who) for who in "ab")]
    run = Pairs(3, some.__getitem__)
    run.runs = (RunFacts([], {}, 1.0, {}, own_users=own),)
    assert [difference.rule for difference in compare(run).differences] == [UNEXPECTED if own else "rights", "rights"]


def test_what_was_refused_when_captured_and_stored_here_is_read_here() -> None:
    """Its produce is a difference of its own; what nobody was refused is none that explains."""
    refused = produce(batch("b"), -1, 1, errors=(29, 0))
    stored = produce(batch("a"), 0, 0), refused, produce(batch("c"), 1, 2)
    log = [batch("a"), batch("c", base_offset=1)]
    here = [batch("a"), batch("b", base_offset=1), batch("c", base_offset=2)]
    read = fetch(b"".join(log), b"".join(here), connection="reader")
    assert differences(*stored, read)[1:] == [("not_stored", "(records)", "record extra")]
    other = fetch(b"".join(log), here[0] + batch("x", base_offset=1) + here[2], connection="reader")
    assert differences(*stored, other)[1:] == [(UNEXPECTED, "(records)", "record extra")]


@pytest.mark.parametrize("left, right", [(27, 0), (0, 27)])
def test_a_rebalance_that_one_side_did_not_see_at_that_moment(left: int, right: int) -> None:
    exchange = pair("Heartbeat", 3, {"groupId": "billing"}, {"errorCode": left}, {"errorCode": right})
    assert [rule for rule, _, _ in differences(exchange)] == ["rebalance"]


def test_an_error_in_a_fetched_partition_that_the_other_side_had_no_news_of() -> None:
    exchange = fetch(b"", b"", error=29)
    quiet = Pair(exchange.row, type(exchange.left)("answered", 11, exchange.left.request, EMPTY_FETCH), exchange.right)
    assert differences(quiet) == [(UNEXPECTED, "responses.partitions.errorCode", "error appeared")]


EMPTY_FETCH = pair("Fetch", 11, {}, {"responses": []}, {}).left.answer


# --- which topics and partitions ---


def test_topics_are_told_by_name_not_by_place_or_id() -> None:
    left = [topic("a", 2, ORDERS_ID), topic("b", 1, ORDERS_COPY_ID)]
    right = [topic("b", 1, ORDERS_ID, leader=3), topic("a", 2, ORDERS_COPY_ID, leader=2)]
    assert differences(metadata(left, right, [{"name": "a"}, {"name": "b"}])) == []


def test_partitions_that_are_missing_are_told_once() -> None:
    some = [metadata([topic("orders", 4)], [topic("orders", 2)], [{"name": "orders"}]) for _ in range(2)]
    assert differences(*some) == [
        (UNEXPECTED, "topics.partitions", "another number of partitions"),
        *[("consequence", "topics.partitions", "missing")] * 3,
    ]
    (group, *_) = grouped(compare(some).differences)
    assert (group.examples[0].left, group.examples[0].right, group.examples[0].key) == ("4", "2", ("orders",))


def test_offsets_that_a_group_committed_to_partitions_that_are_missing_follow_from_that() -> None:
    fewer = metadata([topic("orders", 2)], [topic("orders", 1)], [{"name": "orders"}])
    both, single = [("orders", 0), ("orders", 1)], [("orders", 0)]
    assert differences(fewer, offsets_of_all(both, single))[1:] == [
        ("consequence", "groups.topics.partitions", "missing")
    ]
    other = offsets_of_all([*both, ("bills", 0), ("bills", 1)], [*both, ("bills", 0)])
    assert differences(fewer, other)[1:] == [(UNEXPECTED, "groups.topics.partitions", "missing")]


def test_more_partitions_than_the_captured_topic_ever_has_are_told_once() -> None:
    some = [metadata([topic("orders", 2)], [topic("orders", 4)], [{"name": "orders"}]) for _ in range(2)]
    assert differences(*some) == [
        (UNEXPECTED, "topics.partitions", "another number of partitions"),
        *[("consequence", "topics.partitions", "extra")] * 3,
    ]
    (group, *_) = grouped(compare(some).differences)
    assert (group.examples[0].left, group.examples[0].right, group.examples[0].key) == ("2", "4", ("orders",))
    assert [consequence.count for consequence in group.consequences] == [3]


def test_partitions_that_the_captured_topic_gets_later_are_there_from_the_start() -> None:
    young = metadata([topic("orders", 2)], [topic("orders", 4)], [{"name": "orders"}])
    grown = metadata([topic("orders", 4)], [topic("orders", 4)], [{"name": "orders"}])
    assert differences(young, grown) == [("seeded", "topics.partitions", "extra")] * 2
    growing = {"topics": [{"name": "orders", "count": 4}]}, {"results": [{"name": "orders", "errorCode": 0}]}
    grow = pair("CreatePartitions", 2, *growing, "skipped:mutating")
    assert differences(young, grow)[:2] == [("seeded", "topics.partitions", "extra")] * 2


def test_topics_that_nobody_asked_for_may_be_others() -> None:
    exchange = metadata([topic("orders")], [topic("orders"), topic("theirs")])
    assert differences(exchange) == [("other_topics", "topics", "extra")]


def test_a_topic_that_a_request_named_must_be_there() -> None:
    exchange = metadata([topic("orders")], [], [{"name": "orders"}])
    assert differences(exchange) == [(UNEXPECTED, "topics", "missing")]


def test_a_topic_that_the_target_lacks_is_the_cause_of_what_is_not_done_to_it() -> None:
    lacking = metadata([topic("orders")], [topic("orders", 0, error=3)], [{"name": "orders"}])
    some = [lacking, *(produce(batch("a"), at, -1, errors=(0, 3)) for at in range(3)), lacking]
    assert differences(*some) == [
        (UNEXPECTED, "topics.errorCode", "error appeared"),
        *[("consequence", "responses.partitionResponses.errorCode", "error appeared")] * 3,
        (UNEXPECTED, "topics.errorCode", "error appeared"),
    ]
    (group, *_) = grouped(compare(some).differences)
    assert [consequence.count for consequence in group.consequences] == [3]


def test_a_topic_that_a_user_may_not_see_is_the_cause_of_what_it_is_refused_and_does_not_read() -> None:
    """Records that are missing follow from the target's refusal, not from the end of the run."""
    log = [batch(value, base_offset=index) for index, value in enumerate("abc")]
    stored = [produce(batch(value), index, index, connection="w") for index, value in enumerate("abc")]
    refused = metadata([topic("orders")], [topic("orders", 0, error=29)], [{"name": "orders"}])
    some = [
        *stored,
        refused,
        offsets_of_all([("orders", 0)], [("orders", 0)], 29),
        fetch(b"".join(log), b"", error=29),
        fetch(b"".join(log), log[0], connection="another"),
    ]
    assert differences(*some) == [
        (UNEXPECTED, "topics.errorCode", "error appeared"),
        ("consequence", "groups.topics.partitions.errorCode", "error appeared"),
        ("consequence", "responses.partitions.errorCode", "error appeared"),
        *[("consequence", "(records)", "record missing")] * 3,
        *[("read_less", "(records)", "record missing")] * 2,
    ]


def test_a_fetch_that_is_refused_is_the_cause_of_what_is_not_read() -> None:
    stored, read = produce(batch("a"), 0, 0, connection="w"), fetch(batch("a"), b"", error=29)
    assert differences(stored, read) == [
        (UNEXPECTED, "responses.partitions.errorCode", "error appeared"),
        ("consequence", "(records)", "record missing"),
    ]


@pytest.mark.parametrize("version", [12, 13])
def test_fetches_by_topic_id_are_compared_by_name(version: int) -> None:
    names = metadata([topic("orders", 1, ORDERS_ID)], [topic("orders", 1, ORDERS_COPY_ID)], [{"name": "orders"}])
    request = {"topics": [{"topic": "orders", "partitions": [{"partition": 0, "fetchOffset": 0}]}]}
    other = {"topics": [{"topicId": ORDERS_COPY_ID, "partitions": [{"partition": 0, "fetchOffset": 0}]}]}

    def answer(records: bytes, **topic: str) -> Body:
        return {"responses": [{**topic, "partitions": [{"partitionIndex": 0, "errorCode": 0, "records": records}]}]}

    stored = produce(batch("a"), 0, 5)
    exchange = pair(
        "Fetch",
        12,
        request,
        answer(batch("a"), topic="orders"),
        answer(batch("a", base_offset=5), topicId=ORDERS_COPY_ID)
        if version == 13
        else answer(batch("a", base_offset=5), topic="orders"),
        right_request=other if version == 13 else request,
        right_version=version,
    )
    assert differences(names, stored, exchange) == ([("version", "(version)", "version")] if version == 13 else [])


def test_one_coordinator_and_a_list_of_one_are_the_same() -> None:
    request = {"key": "billing", "keyType": 0}
    lists = {"coordinatorKeys": ["billing"], "keyType": 0}
    new: Any = {"coordinators": [{"key": "billing", "nodeId": 4, "host": "other", "port": 1, "errorCode": 0}]}
    old = {"nodeId": 1, "host": "here", "port": 2, "errorCode": 0}
    exchange = pair("FindCoordinator", 2, request, old, new, right_request=lists, right_version=4)
    assert differences(exchange) == [("version", "(version)", "version")]
    new["coordinators"][0]["errorCode"] = 30
    exchange = pair("FindCoordinator", 2, request, old, new, right_request=lists, right_version=4)
    assert (UNEXPECTED, "coordinators.errorCode", "error appeared") in differences(exchange)


# --- what is stored ---


def test_offsets_differ_by_what_was_there_before() -> None:
    assert differences(produce(batch("a", "b"), 0, 100), produce(batch("c"), 2, 102)) == []


APPEND_TIME = "responses.partitionResponses.logAppendTimeMs"
NOW = 1700000000000


def test_a_batch_taken_for_a_duplicate_among_others_that_were_stored() -> None:
    """The topic has CreateTime, or the other answer would have a time too."""
    stored, swallowed = produce(batch("a", producer=7), 0, 0), produce(batch("b", producer=7), 1, 0, appended=NOW)
    assert differences(stored, swallowed) == [(UNEXPECTED, APPEND_TIME, "swallowed as a duplicate")]


def test_a_batch_with_the_base_offset_of_one_before_it_was_taken_for_a_duplicate() -> None:
    some = [produce(batch(value, producer=7), at, 0, appended=NOW) for at, value in enumerate("ab")]
    assert differences(*some) == [
        ("target_config", APPEND_TIME, "append time"),
        (UNEXPECTED, APPEND_TIME, "swallowed as a duplicate"),
    ]


def test_a_batch_that_the_replayer_sent_again_was_taken_for_itself() -> None:
    """It has an offset of its own: the target had stored it, and its answer was lost."""
    stored, again = produce(batch("a", producer=7), 0, 0), produce(batch("b", producer=7), 1, 1, appended=NOW)
    again = dataclasses.replace(again, right=dataclasses.replace(again.right, retries=("reconnected",)))
    assert differences(stored, again) == [("sent_again", APPEND_TIME, "swallowed as a duplicate")]
    other = produce(batch("b", producer=7), 1, 0, appended=NOW)
    other = dataclasses.replace(other, right=dataclasses.replace(other.right, retries=("reconnected",)))
    assert differences(stored, other) == [(UNEXPECTED, APPEND_TIME, "swallowed as a duplicate")]


def test_a_target_with_log_append_time_stores_everything_and_says_when() -> None:
    some = [produce(batch(value, producer=7), at, 50 + at, appended=NOW) for at, value in enumerate("abc")]
    read = fetch(batch("a", "b"), batch("a", "b", base_offset=50), right_start=50)
    assert differences(*some, read) == [("target_config", APPEND_TIME, "append time")] * 3


def _stored(records: bytes, attributes: int) -> bytes:
    stored = bytearray(records)
    stored[21:23] = attributes.to_bytes(2, "big")
    return bytes(stored)


def test_records_that_are_stored_otherwise_are_told_from_what_was_read() -> None:
    """Whether or not anything describes the topic."""
    some = [produce(batch(value, producer=7), at, 50 + at) for at, value in enumerate("ab")]
    left, right = batch("a", "b"), batch("a", "b", base_offset=50)
    read = fetch(left, _stored(right, LOG_APPEND_TIME), right_start=50)
    assert differences(*some, read) == [(UNEXPECTED, "(records)", "stored with another timestamp type")]
    (group,) = compare([*some, read]).differences
    assert group.left == "not compressed, CreateTime, format v2: 2 records"
    assert group.right == "not compressed, LogAppendTime, format v2"
    both = fetch(_stored(left, LOG_APPEND_TIME), _stored(right, LOG_APPEND_TIME), right_start=50)
    assert differences(*some, both) == []


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (Form("gzip", False, 2), Form("zstd", True, 2), "codec"),
        (Form("none", False, 0), Form("none", True, 2), "format"),
        (Form("none", False, 1), Form("none", False, 2), "format"),
        (Form("none", False, 1), Form("none", True, 2), "timestamp type"),
        (Form("none", False, 2), Form("none", False, 2), ""),
    ],
)
def test_what_differs_between_two_ways_to_store_a_record(before: Form, after: Form, what: str) -> None:
    assert other_form(before, after) == what


def test_a_batch_that_two_requests_were_told_to_have_stored() -> None:
    some = produce(batch("a"), 0, 10), produce(batch("b"), 1, 10)
    assert (UNEXPECTED, "(records)", "batch stored once for two") in differences(*some)


def test_the_order_of_one_producer_is_kept() -> None:
    some = produce(batch("a", producer=7), 0, 11), produce(batch("b", producer=7), 1, 10)
    assert differences(*some) == [(UNEXPECTED, "(records)", "batch out of its producer's order")]


def test_what_a_run_that_ended_first_did_not_do_is_one_difference() -> None:
    request, answer = {"topicNames": ["orders"], "timeoutMs": 1000}, {"responses": [{"name": "orders", "errorCode": 0}]}
    some = [pair("DeleteTopics", 4, request, answer, f"{state}:aborted") for state in ("unanswered", "not_sent")]
    group = "(answer)", "state"
    assert differences(*some, *some) == [(UNEXPECTED, *group), *[("consequence", *group)] * 3]

    unreached = pair("DeleteTopics", 4, request, answer, "not_sent:unreachable")
    assert differences(*some, unreached)[-1] == (UNEXPECTED, *group)  # one broker of several, and the run went on
    assert differences(*some, pair("DeleteTopics", 4, request, answer, "not_sent:session_lost"))[-1] == (
        UNEXPECTED,
        *group,
    )
    run = Pairs(3, [*some, unreached].__getitem__)
    run.runs = (RunFacts([], {}, 1.0, {}, "target:9092: went away"),)
    assert as_text(compare(run), ("captured", "replayed")).startswith(
        "verdict: the run ended first (target:9092: went away): 1 unexpected difference: DeleteTopics v4 state"
    )


def test_a_topic_that_was_made_again_while_captured_is_one_log_where_it_is_not_deleted() -> None:
    first, second = produce(batch("a", producer=7), 0, 11), produce(batch("b", producer=7), 1, 10)
    request = {"topicNames": ["orders"], "timeoutMs": 1000}

    def delete(error: int) -> Pair:
        answer = {"responses": [{"name": "orders", "errorCode": error}]}
        return pair("DeleteTopics", 4, request, answer, "skipped:mutating")

    group = "(records)", "batch out of its producer's order"
    assert differences(first, delete(0), second)[1:] == [("seeded", *group)]
    assert differences(first, delete(41), second)[1:] == [(UNEXPECTED, *group)]


def test_a_topic_that_was_made_again_on_both_sides_is_two_logs() -> None:
    """Whatever lies where in the first says nothing of the second; within each producers keep their order."""
    answer = {"responses": [{"name": "orders", "errorCode": 0}]}
    deleted = pair("DeleteTopics", 4, {"topicNames": ["orders"], "timeoutMs": 1000}, answer, answer)
    first = produce(batch("a", producer=7), 0, 5), produce(batch("b", producer=8), 1, 0)
    second = produce(batch("c", producer=8), 0, 5), produce(batch("d", producer=7), 1, 0)
    assert differences(*first, deleted, *second) == []
    turned = produce(batch("e", producer=7), 2, 9), produce(batch("f", producer=7), 3, 8)
    group = UNEXPECTED, "(records)", "batch out of its producer's order"
    assert differences(*first, deleted, *second, *turned) == [group]
    assert differences(*first, *turned, deleted, *second) == [group]


def test_the_order_of_two_producers_to_each_other_is_not() -> None:
    some = (
        produce(batch("a"), 0, 11, connection="10.0.0.1:50000-10.0.0.2:9092#1"),
        produce(batch("b"), 1, 10, connection="10.0.0.1:50001-10.0.0.2:9092#1"),
    )
    assert differences(*some) == []


def test_what_an_idempotent_producer_loses_explains_the_sequence_errors_after_it() -> None:
    some = (
        produce(batch("big", producer=7), 0, -1, errors=(0, 10)),
        produce(batch("next", producer=7), 1, -1, errors=(0, 45)),
        produce(batch("other", producer=8), 2, -1, errors=(0, 45)),
    )
    path = "responses.partitionResponses.errorCode"
    assert differences(*some) == [
        (UNEXPECTED, path, "error appeared"),
        ("consequence", path, "error appeared"),
        (UNEXPECTED, path, "error appeared"),
    ]


# --- what is read ---


def test_records_are_told_by_their_offsets_on_either_side() -> None:
    some = (
        produce(batch("a", "b"), 0, 100),
        fetch(batch("a", "b"), batch("a", "b", base_offset=100), right_start=100),
    )
    assert differences(*some) == []


def test_a_record_that_reads_otherwise() -> None:
    some = produce(batch("a", "b"), 0, 100), fetch(batch("a", "b"), batch("a", "X", base_offset=100))
    assert differences(*some) == [(UNEXPECTED, "(records)", "record changed")]


def test_how_records_are_spread_over_fetches_does_not_matter() -> None:
    some = (
        produce(batch("a"), 0, 0),
        produce(batch("b"), 1, 1),
        fetch(batch("a"), batch("a") + batch("b", base_offset=1)),
        fetch(batch("b", base_offset=1), b"", start=1),
    )
    assert differences(*some) == []


@pytest.mark.parametrize("places", [(0,), (2,), (0, 2)])
def test_a_reader_of_several_copies_of_the_capture_has_what_is_there_by_then(places: tuple[int, ...]) -> None:
    """`--times 2`: both copies write to one topic."""
    read = b"".join(batch("a", "b", base_offset=place) for place in places)
    written = produce(batch("a", "b"), 0, 0), produce(batch("a", "b"), 0, 2, connection="c~2")
    assert differences(*written, fetch(batch("a", "b"), read, connection="c~2")) == []
    less = differences(*written, fetch(batch("a", "b"), batch("a", base_offset=places[0]), connection="c~2"))
    assert less == [("read_less", "(records)", "record missing")]


@pytest.mark.parametrize("committed", [2, 3, 4])
def test_what_a_reader_of_several_copies_has_committed_may_lie_behind_either(committed: int) -> None:
    written = produce(batch("a", "b"), 0, 0), produce(batch("a", "b"), 0, 2, connection="c~2")
    rules = [rule for rule, _, _ in differences(*written, commit(2), commit_and_read(2, committed))]
    assert rules in ([], ["interleaved"])
    alone = [rule for rule, _, _ in differences(written[0], commit(2), commit_and_read(2, committed))]
    assert alone == ([] if committed == 2 else [UNEXPECTED])


def test_a_hole_in_what_was_read() -> None:
    some = (
        *(produce(batch(value), index, index) for index, value in enumerate("abc")),
        fetch(
            b"".join(batch(value, base_offset=index) for index, value in enumerate("abc")),
            batch("a") + batch("c", base_offset=2),
        ),
    )
    assert differences(*some) == [(UNEXPECTED, "(records)", "record missing")]


def test_a_consumer_that_was_not_as_far_when_the_run_ended() -> None:
    some = (
        *(produce(batch(value), index, index) for index, value in enumerate("abc")),
        fetch(b"".join(batch(value, base_offset=index) for index, value in enumerate("abc")), batch("a")),
    )
    assert differences(*some) == [("read_less", "(records)", "record missing")] * 2


def awaited(exchange: Pair, *rules: str) -> Pair:
    """The replay fetched it again until its time was up."""
    return Pair(exchange.row, exchange.left, dataclasses.replace(exchange.right, retries=("records_awaited", *rules)))


def test_a_consumer_that_asked_for_stored_records_and_did_not_get_them() -> None:
    log = [batch(value, base_offset=index) for index, value in enumerate("abc")]
    stored = [produce(batch(value), index, index) for index, value in enumerate("abc")]
    first, second = fetch(log[0], log[0]), fetch(log[1] + log[2], b"", start=1)
    assert differences(*stored, first, second) == [("read_less", "(records)", "record missing")] * 2

    some = compare([*stored, first, awaited(second)])

    ended, missing = grouped(some.differences)
    assert (ended.rule, ended.kind, ended.count) == (UNEXPECTED, "reading ended early", 1)
    assert (ended.examples[0].left, ended.examples[0].right) == ("to offset 2", "to offset 0")
    assert ended.examples[0].row == second.row
    assert (missing.rule, missing.kind, missing.count) == ("consequence", "record missing", 2)


def test_a_consumer_that_got_nothing_at_all() -> None:
    some = compare([produce(batch("a"), 0, 5), awaited(fetch(batch("a"), b"", right_start=5))])
    ended, _ = grouped(some.differences)
    assert (ended.examples[0].left, ended.examples[0].right) == ("to offset 0", "nothing")


def test_a_consumer_whose_records_came_later_has_not_ended_early() -> None:
    """It did not wait for their producer; or it got them by another fetch."""
    stored = produce(batch("a"), 0, 0)
    released = awaited(fetch(batch("a"), b""), "wait_released")
    assert differences(stored, released) == [("read_less", "(records)", "record missing")]
    assert differences(stored, awaited(fetch(batch("a"), b"")), fetch(batch("a"), batch("a"))) == []


def test_a_consumer_of_transactions_may_wait_for_their_end() -> None:
    stored = produce(batch("a", producer=7, transactional=True), 0, 0)
    log = batch("a", producer=7, transactional=True)
    assert differences(stored, awaited(fetch(log, b"", committed=True))) == [
        ("read_less", "(records)", "record missing")
    ]


def test_reading_less_is_explained_by_the_end_of_a_run_up_to_a_bound() -> None:
    """A tenth of the topic's records, or a hundred."""
    letters = [chr(97 + number % 26) for number in range(1000)]
    stored = produce(batch(*letters), 0, 0)
    for read, kinds in ((900, {"record missing"}), (899, {"record missing", "read less"})):
        some = compare([stored, fetch(batch(*letters), batch(*letters[:read]))])
        assert {latency.kind for latency in some.differences} == kinds
        assert [latency.right for latency in some.differences if latency.unexpected] == ["899 records"] * (read == 899)


def test_what_a_follower_had_fetched_nobody_has_to_read_here() -> None:
    """A capture of several brokers shows each record read by followers too, whose fetches a replay does not send."""
    letters = [chr(97 + number % 26) for number in range(1000)]
    stored, read = produce(batch(*letters), 0, 0), fetch(batch(*letters), batch(*letters))
    exchange = fetch(batch(*letters), b"")
    followed = Pair({**exchange.row, "connection": "follower"}, exchange.left, Side("not_planned", 11, rule="follower"))
    assert differences(stored, read, followed) == []
    other = dataclasses.replace(followed, right=Side("not_planned", 11, rule="unknown_topic_id"))
    assert "read less" in {difference.kind for difference in compare([stored, read, other]).differences}


def share_fetch(left: tuple[int, int] | None, right: tuple[int, int] | None, member: str = "m") -> Pair:
    """A fetch of the share group g from orders-0 that acquired these offsets on either side."""

    def answer(acquired: tuple[int, int] | None) -> Body:
        ranges = [{"firstOffset": acquired[0], "lastOffset": acquired[1], "deliveryCount": 1}] if acquired else []
        part = {"partitionIndex": 0, "errorCode": 0, "records": b"", "acquiredRecords": ranges}
        return {"responses": [{"topicId": ORDERS_ID, "partitions": [part]}]}

    request = {"groupId": "g", "memberId": member, "shareSessionEpoch": 1}
    return pair("ShareFetch", 1, request, answer(left), answer(right))


def test_records_that_a_share_group_acquires_whoever_of_its_members_does() -> None:
    names_both = metadata([topic("orders")], [topic("orders")])
    stored = produce(batch(*"abcdefghij" * 26), 0, 1000)
    whole = share_fetch((0, 129), (1130, 1259)), share_fetch((130, 259), (1000, 1129), "n")
    assert differences(names_both, stored, *whole) == []
    some = compare([names_both, stored, share_fetch((0, 259), (1000, 1059))])
    (group,) = grouped(some.differences)
    assert (group.rule, group.kind, group.examples[0].left, group.examples[0].right) == (
        UNEXPECTED,
        "acquired less",
        "260 records",
        "60 records",
    )
    few = share_fetch((0, 259), (1000, 1250))
    assert differences(names_both, stored, few) == [("read_less", "(records)", "acquired less")]


def test_what_a_share_group_does_not_do_follows_from_a_target_without_share_groups() -> None:
    lacks = "skipped:target_lacks_api"
    beat = {"groupId": "g", "memberId": "m", "memberEpoch": 0, "subscribedTopicNames": ["orders"]}
    joined = pair("ShareGroupHeartbeat", 1, beat, {"memberId": "m", "memberEpoch": 1, "heartbeatIntervalMs": 1}, lacks)
    read = share_fetch((0, 259), (0, 0))
    unread = Pair(read.row, read.left, joined.right)
    names_both = metadata([topic("orders")], [topic("orders")])
    groups = grouped(compare([names_both, produce(batch(*"abcdefghij" * 26), 0, 0), joined, unread]).differences)
    assert [(group.api_key, group.rule) for group in groups] == [
        (names.SHARE_GROUP_HEARTBEAT, UNEXPECTED),
        (names.SHARE_FETCH, "consequence"),
        (names.SHARE_FETCH, "consequence"),
    ]
    assert [(group.kind, group.count) for group in groups[0].consequences] == [("state", 1), ("acquired less", 1)]


def test_records_that_no_fetch_asked_for_after_a_shorter_answer() -> None:
    log = [batch(value, base_offset=index) for index, value in enumerate("abc")]
    stored = [produce(batch(value), index, index) for index, value in enumerate("abc")]
    shorter = fetch(log[0] + log[1], log[0]), fetch(log[2], log[2], start=2)
    assert differences(*stored, *shorter) == [("read_less", "(records)", "record missing")]
    begun_too_late = fetch(log[0] + log[1] + log[2], log[1] + log[2], right_start=1)
    assert differences(*stored, begun_too_late) == [(UNEXPECTED, "(records)", "record missing")]


def test_a_record_that_nobody_produced() -> None:
    some = (
        produce(batch("a"), 0, 0),
        produce(batch("b"), 1, 2),
        fetch(
            batch("a") + batch("b", base_offset=1),
            batch("a") + batch("a", base_offset=1) + batch("b", base_offset=2),
        ),
    )
    assert differences(*some) == [(UNEXPECTED, "(records)", "record extra")]


def test_records_from_before_the_capture_are_not_on_the_target() -> None:
    assert differences(fetch(batch("old"), b"")) == [("before_capture", "(records)", "record missing")]


def test_a_record_whose_produce_failed_is_told_there_only() -> None:
    some = produce(batch("a"), 0, -1, errors=(0, 10)), fetch(batch("a"), b"")
    assert differences(*some) == [
        (UNEXPECTED, "responses.partitionResponses.errorCode", "error appeared"),
        ("not_stored", "(records)", "record missing"),
    ]


def test_aborted_records_must_stay_hidden_from_who_reads_committed() -> None:
    stored = (
        produce(batch("a", producer=7, transactional=True), 0, 0),
        produce(batch("b"), 2, 2),
    )
    log = (
        batch("a", producer=7, transactional=True)
        + batch(producer=7, base_offset=1, control=0)
        + batch("b", base_offset=2)
    )
    aborted: list[Body] = [{"producerId": 7, "firstOffset": 0}]
    assert differences(*stored, fetch(log, log, aborted=(aborted, aborted), committed=True)) == []
    shown = differences(*stored, fetch(log, log, aborted=(aborted, []), committed=True))
    assert shown == [(UNEXPECTED, "(records)", "record of an aborted transaction")]


# --- offsets of groups ---


@pytest.mark.parametrize(
    "left, right, wanted",
    [
        (2, 102, []),
        (1, 101, []),
        (-1, -1, []),
        (2, 101, [(UNEXPECTED, "groups.topics.partitions.committedOffset", "changed")]),
        (2, -1, [(UNEXPECTED, "groups.topics.partitions.committedOffset", "changed")]),
        (-1, 50, [("before_capture", "groups.topics.partitions.committedOffset", "changed")]),
    ],
)
def test_committed_offsets_stand_between_the_same_records(left: int, right: int, wanted: list[Wanted]) -> None:
    assert differences(produce(batch("a", "b"), 0, 100), commit(2), commit_and_read(left, right)) == wanted


def test_an_offset_that_was_committed_before_the_capture() -> None:
    path = "groups.topics.partitions.committedOffset"
    assert differences(commit_and_read(2, -1)) == [("before_capture", path, "changed")]
    # What the group commits later, or where no commit was, is not what it had then.
    assert differences(commit_and_read(2, -1), commit(2)) == [("before_capture", path, "changed")]
    assert differences(commit(5), commit_and_read(2, -1)) == [("before_capture", path, "changed")]


def test_offsets_in_zookeeper_had_no_metadata() -> None:
    def answer(metadata: str) -> Body:
        partition = {"partitionIndex": 0, "committedOffset": -1, "metadata": metadata}
        return {"topics": [{"name": "orders", "partitions": [partition]}]}

    request = {"groupId": "billing", "topics": [{"name": "orders", "partitionIndexes": [0]}]}
    path = "groups.topics.partitions.metadata"
    assert differences(pair("OffsetFetch", 0, request, answer(""), answer("note"))) == [("zookeeper", path, "changed")]
    later = pair("OffsetFetch", 1, request, answer("note"), answer(""))
    # What was committed before the capture began is not known to the target; what was committed since is.
    assert differences(later) == [("before_capture", path, "changed")]
    assert differences(later, commit(2)) == [("before_capture", path, "changed")]
    assert differences(commit(2), later) == [(UNEXPECTED, path, "changed")]


def test_committed_offsets_behind_a_marker() -> None:
    some = produce(batch("a", producer=7, transactional=True), 0, 100), commit_and_read(2, 102)
    assert differences(*some) == []


# --- groups ---


def test_members_have_other_ids_each_its_own() -> None:
    first = join({"memberId": "m-1", "leader": "m-1"}, {"memberId": "x-1", "leader": "x-1"})
    second = join({"memberId": "m-2", "leader": "m-1"}, {"memberId": "x-2", "leader": "x-1"})
    assert differences(first, second) == []
    other = join({"memberId": "m-2", "leader": "m-1"}, {"memberId": "x-1", "leader": "x-1"})
    assert (UNEXPECTED, "memberId", "changed") in differences(first, other)


def test_another_leader_is_expected() -> None:
    first = join({"memberId": "m-1", "leader": "m-1"}, {"memberId": "x-1", "leader": "x-2"})
    second = join({"memberId": "m-2", "leader": "m-1"}, {"memberId": "x-2", "leader": "x-2"})
    assert {rule for rule, _, _ in differences(first, second)} == {"role_changed"}


def test_the_members_together_must_have_the_same_partitions() -> None:
    whole, half = assignment(orders=[0, 1]), assignment(orders=[0])
    rest = assignment(orders=[1])
    assert differences(sync("m-1", half, rest), sync("m-2", rest, half)) == []
    assert differences(sync("m-1", whole, half)) == [(UNEXPECTED, "(group)", "assigned partitions")]


def test_each_generation_must_have_the_same_partitions() -> None:
    """Though the union of the run is right."""
    whole, half, rest, none = (assignment(orders=some) for some in ([0, 1], [0], [1], []))
    first = sync("m-1", half, half, 1), sync("m-2", rest, rest, 1)
    expected = [(UNEXPECTED, "(group)", "assigned partitions of a generation")]
    assert differences(*first, sync("m-1", whole, none, 2)) == expected
    assert differences(*first, sync("m-1", half, rest, 2), sync("m-2", rest, half, 2)) == []
    # A member whose answer is not known, or came only after a rebalance, leaves a generation unknown.
    assert differences(*first, sync("m-1", half, half, 2), sync("m-2", rest, none, 2)) == expected
    again = sync("m-2", rest, none, 2)
    retried = dataclasses.replace(again, right=dataclasses.replace(again.right, retries=("rejoined",)))
    assert differences(*first, sync("m-1", half, half, 2), retried) == []


def test_no_partition_may_belong_to_two_members() -> None:
    exchange = assignment(orders=[0])
    some = sync("m-1", exchange, exchange), sync("m-2", assignment(), exchange, right_member="m-2")
    assert differences(*some) == [(UNEXPECTED, "(group)", "partition of two members")]


def test_a_protocol_that_was_not_chosen() -> None:
    shared = {"memberId": "m", "leader": "m"}
    exchange = join({**shared, "protocolName": "range"}, {**shared, "protocolName": "roundrobin"})
    assert differences(exchange) == [(UNEXPECTED, "protocolName", "changed")]


def test_a_failed_join_explains_what_its_group_cannot_do() -> None:
    request = {"groupId": "billing", "generationId": 1, "memberId": "m"}
    some = (
        join({"memberId": "m", "leader": "m"}, {"errorCode": 26, "memberId": "", "leader": ""}),
        sync("m", assignment(orders=[0]), assignment()),
        pair("Heartbeat", 3, request, {"errorCode": 0}, {"errorCode": 25}),
        pair("Heartbeat", 3, request, {"errorCode": 0}, "not_sent:wait_released"),
    )
    assert [rule for rule, _, _ in differences(*some)] == [UNEXPECTED, "consequence", "consequence"]


def test_a_failed_join_explains_that_nothing_was_committed() -> None:
    failed = join({"memberId": "m", "leader": "m"}, {"errorCode": 26, "memberId": "", "leader": ""})
    assert differences(failed, offsets_of_all([("orders", 0)], [])) == [
        (UNEXPECTED, "errorCode", "error appeared"),
        ("consequence", "groups.topics", "missing"),
    ]
    assert differences(offsets_of_all([("orders", 0)], [])) == [(UNEXPECTED, "groups.topics", "missing")]


def test_members_that_leave_are_told_by_who_they_are() -> None:
    joined = join({"memberId": "m-1", "leader": "m-1"}, {"memberId": "x-1", "leader": "x-1"})

    def leave(error: int) -> Pair:
        def request(who: str) -> Body:
            return {"groupId": "billing", "members": [{"memberId": who, "groupInstanceId": None}]}

        def answer(who: str, code: int) -> Body:
            return {"members": [{"memberId": who, "groupInstanceId": None, "errorCode": code}]}

        return pair(
            "LeaveGroup", 4, request("m-1"), answer("m-1", 0), answer("x-1", error), right_request=request("x-1")
        )

    assert differences(joined, leave(0)) == []
    assert differences(joined, leave(25)) == [(UNEXPECTED, "members.errorCode", "error appeared")]


# --- what is noise ---


def test_noise_is_counted_and_no_difference() -> None:
    left = {
        "throttleTimeMs": 0,
        "clusterId": "here",
        "controllerId": 1,
        "brokers": [{"nodeId": 1, "host": "a", "port": 9092}],
        "topics": [],
    }
    right = {
        "throttleTimeMs": 900,
        "clusterId": "there",
        "controllerId": 4,
        "brokers": [{"nodeId": 4, "host": "b", "port": 9093}],
        "topics": [],
    }
    result = compare([pair("Metadata", 12, {"topics": []}, left, right)])
    assert not result.differences
    assert result.same == 1
    assert dict(result.noise) == {"throttle": 1, "place": 3}


def test_fields_of_one_version_only_are_not_compared() -> None:
    request = {"groupId": "billing", "generationId": 1, "memberId": "m"}
    exchange = pair("Heartbeat", 0, request, {"errorCode": 0}, {"errorCode": 0, "throttleTimeMs": 4}, right_version=1)
    assert differences(exchange) == [("version", "(version)", "version")]


# --- the report ---


def test_differences_are_grouped_with_a_count_and_three_examples() -> None:
    some = [produce(batch("a"), index, -1, errors=(0, 10)) for index in range(5)]
    (group,) = grouped(compare(some).differences)
    assert (group.path, group.kind, group.count) == (
        "responses.partitionResponses.errorCode",
        "error appeared",
        5,
    )
    assert (group.left, group.right) == ("NONE (0)", "MESSAGE_TOO_LARGE (10)")
    assert [example.row["request_packet"] for example in group.examples] == [
        example.row["request_packet"] for example in some[:3]
    ]


def test_exchanges_add_up() -> None:
    some = [
        produce(batch("a"), 0, 0),
        produce(batch("b"), 1, -1, errors=(0, 10)),
        produce(batch("c"), 2, 1, errors=(0, 0)),
        pair("Heartbeat", 3, {"groupId": "g"}, {"errorCode": 27}, {"errorCode": 0}),
        pair("Heartbeat", 3, {"groupId": "g"}, {}, "not_planned:mutating"),
    ]
    result = compare(some)
    assert (result.total, result.compared, result.same, result.expected, result.unexpected) == (5, 4, 2, 1, 1)


def test_what_is_seen_over_the_whole_run_counts_at_its_exchange() -> None:
    """The verdict and the counts below it say the same."""
    wrote = produce(batch("a", "b"), 0, 0)
    other = "10.0.0.1:50009-10.0.0.2:9092#1"
    read = [fetch(batch("a", "b"), batch("a", "b")), fetch(batch("a", "b"), batch("a", "x"), connection=other)]
    result = compare([wrote, *read])
    assert (result.compared, result.same, result.expected, result.unexpected) == (3, 2, 0, 1)
    verdict, counts, whole, *_ = as_text(result, ("captured", "replayed")).splitlines()
    assert verdict.startswith("verdict: 1 unexpected difference: Fetch v11 record changed")
    assert counts.endswith("3 compared (2 same, 0 differ as expected, 1 differ unexpectedly)")
    assert whole == "  unexpected, and seen over the whole run only: record changed 1"


def test_every_rule_is_explained() -> None:
    assert all(about and about[0].islower() for about in RULES.values())


def test_every_rule_and_kind_of_noise_is_documented() -> None:
    from kwire.replay.diff.fields import NOISE

    text = (ROOT / "replay" / "diff" / "DIFF.md").read_text()
    for name, about in [*RULES.items(), *((kind.value, about) for kind, about in NOISE.items())]:
        assert f"| `{name}` | {about} |" in text


def _row(partition: int, readable: int | None, missing: int | None = 0) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": partition,
        "acknowledged": 3,
        "readable": readable,
        "missing": missing,
        "out_of_order": missing and 0,
    }


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([_row(0, 3), _row(1, 3)], "of 6 records that the target acknowledged 0 are missing, 0 out of order"),
        (
            [_row(0, 3), _row(1, None, None)],
            "of 3 records that the target acknowledged 0 are missing, 0 out of order; "
            "3 are in 1 partition that could not be read",
        ),
        (
            [_row(0, None, None), _row(1, None, None)],
            "of 6 records that the target acknowledged 6 are in 2 partitions that could not be read",
        ),
    ],
)
def test_what_could_not_be_read_is_not_said_to_be_there(rows: list[dict[str, Any]], line: str) -> None:
    run = Pairs(0, [].__getitem__)
    run.runs = (RunFacts(rows, {}, 1.0, {}),)
    assert f"  audit: {line}" in as_text(compare(run), ("captured", "replayed")).splitlines()
