"""Where the records of captured offsets are on the target.

Proves: replay/remap/offsets.py, replay/remap/remap.py
"""

from __future__ import annotations

from kwire.replay.plan.values import Producer
from kwire.replay.remap.offsets import OffsetMap
from kwire.replay.remap.remap import News, Remap


def test_a_pair_holds_for_its_batch_and_for_what_follows() -> None:
    known = OffsetMap()
    known.learn(0, 100, 2)
    known.learn(5, 103, 1)
    assert [known.replayed(offset) for offset in (0, 1, 2, 5, 6)] == [100, 101, 102, 103, 104]
    assert [known.start(offset) for offset in (0, 1, 2, 5, 6)] == [100, 101, 102, 103, 104]


def test_reading_starts_before_every_batch_that_is_wanted() -> None:
    # Two producers: the batch captured at 44 came first on the target.
    known = OffsetMap()
    known.learn(0, 38, 44)
    known.learn(44, 0, 38)
    known.learn(82, 82, 49)
    assert [known.start(offset) for offset in (0, 10, 44, 50, 82, 131)] == [0, 0, 0, 6, 82, 131]


def test_batches_that_no_answer_told_of_lie_among_the_others() -> None:
    # 10 records more were produced with acks=0: captured behind the others, on the target before one of them.
    known = OffsetMap()
    known.learn(0, 5, 5)
    known.learn(5, 0, 5)
    known.learn(10, 20, 5)
    known.hint(25, 25)
    assert known.start(20) == 20


def test_special_offsets_stay() -> None:
    known = OffsetMap()
    known.learn(0, 38, 1)
    assert known.start(-1) == -1


def test_news_are_told_once_and_what_was_known_before_is_none() -> None:
    remap = Remap(nodes={1: 7})
    producer = Producer(1, 0)
    remap.producers.give(producer, None, Producer(5, 0))
    news = News(remap)
    assert news.take() == ([], [])

    remap.offsets.appended(("t", 0), 10, 0, 3)
    remap.offsets.appended(("t", 0), 13, 3, 1)
    remap.producers.give(producer, None, Producer(5, 1))
    appended = [(("t", 0), 10, 0, 3), (("t", 0), 13, 3, 1)]
    assert news.take() == (appended, [("producer", None, "1/0", "5/1", None)])
    assert news.take(all_of_it=True) == ([], [])
    assert [row["captured"] for row in remap.rows("c") if row["kind"] == "offset"] == ["10", "13"]


def test_many_ids_are_looked_through_more_seldom() -> None:
    remap = Remap()
    news = News(remap)
    for number in range(20_000):
        remap.producers.give(Producer(number, 0), None, Producer(number, 1))
    assert len(news.take()[1]) == 20_000
    remap.producers.give(Producer(1, 1), None, Producer(1, 2))
    counts = [len(news.take()[1]) for _ in range(8)]
    assert sorted(counts) == [0] * 7 + [1]
    assert counts[0] == 0
    remap.producers.give(Producer(1, 2), None, Producer(1, 3))
    assert len(news.take(all_of_it=True)[1]) == 1


def test_a_reader_that_begins_in_records_from_before_the_capture_skips_nothing() -> None:
    """The log began at 0 on both sides; on the target, the first batch of the capture lies there."""
    known = OffsetMap()
    known.hint(0, 0)
    assert [known.replayed(offset) for offset in (0, 10)] == [0, 10]
    known.learn(20, 0, 5)
    assert [known.replayed(offset) for offset in (0, 10, 20, 22)] == [0, 0, 0, 2]
    # With other records before it, as far before it as in the capture, and never before the log begins.
    other = OffsetMap(log_start=95)
    other.hint(0, 90)
    other.learn(20, 100, 5)
    assert [other.replayed(offset) for offset in (0, 10, 18, 20)] == [95, 95, 98, 100]


def test_partitions_that_are_read_from_before_the_capture_are_told() -> None:
    remap = Remap(nodes={1: 7})
    remap.offsets.appended(("t", 0), 10, 0, 3)
    remap.offsets.appended(("t", 1), 10, 0, 3)
    for where, offset in ((("t", 0), 10), (("t", 0), 4), (("t", 1), 10), (("t", 2), 0)):
        remap.offsets.read_from("connection", where, offset)
    assert remap.offsets.read_older() == [("t", 0)]
