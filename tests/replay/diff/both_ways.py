"""A comparison by columns against the same one exchange by exchange."""

from __future__ import annotations

import copy
from typing import Any

from replay.diff.compare import compare
from replay.diff.correspondence import Correspondence
from replay.diff.learning import learn
from replay.diff.pairs import Pairs
from replay.diff.text import as_json

SIDES = ("captured", "replayed")


def one_by_one(found: Pairs) -> Pairs:
    """The same pairs, that are not to be had by columns."""
    alone = copy.copy(found)
    alone._block = None
    return alone


def _learned(said: Correspondence) -> Any:
    partitions = {
        where: (
            list(one.batches),
            one.failed,
            one.unseen,
            one.transactional,
            one.interleaved,
            one.swallowed,
            one.untimed,
            one.forms,
            [
                (
                    read.place,
                    read.hidden,
                    read.served,
                    read.starved,
                    *((list(side.by_offset().items()), side.forms()) for side in (read.left, read.right)),
                )
                for read in one.readings
            ],
        )
        for where, one in said.partitions.items()
    }
    return list(partitions.items()), said.named_topics, said.groups, said.counts, said.committed, said.left, said.right


def assert_the_same(found: Pairs) -> None:
    """What is learned, and what is said, to the last example and quantile."""
    assert found.by_columns
    assert _learned(learn(found)) == _learned(learn(one_by_one(found)))
    whole, alone = compare(found), compare(one_by_one(found))
    assert as_json(whole, SIDES) == as_json(alone, SIDES)
    for api, both in alone.latencies.items():
        assert [sorted(side) for side in whole.latencies[api]] == [sorted(side) for side in both]
