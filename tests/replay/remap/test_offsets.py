"""Where the records of captured offsets are on the target.

Proves: replay/remap/offsets.py
"""

from __future__ import annotations

from replay.remap.offsets import OffsetMap


def test_a_pair_holds_for_its_batch_and_for_what_follows() -> None:
    known = OffsetMap()
    known.learn(0, 100, 2)
    known.learn(5, 103, 1)
    assert [known.replayed(one) for one in (0, 1, 2, 5, 6)] == [100, 101, 102, 103, 104]
    assert [known.start(one) for one in (0, 1, 2, 5, 6)] == [100, 101, 102, 103, 104]


def test_reading_starts_before_every_batch_that_is_wanted() -> None:
    # Two producers: the batch captured at 44 came first on the target.
    known = OffsetMap()
    known.learn(0, 38, 44)
    known.learn(44, 0, 38)
    known.learn(82, 82, 49)
    assert [known.start(one) for one in (0, 10, 44, 50, 82, 131)] == [0, 0, 0, 6, 82, 131]


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
