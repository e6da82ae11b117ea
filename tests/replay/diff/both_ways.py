"""A comparison by columns against the same one exchange by exchange."""

from __future__ import annotations

import copy
from typing import Any

from kwire.replay.diff.compare import compare
from kwire.replay.diff.correspondence import Correspondence
from kwire.replay.diff.learning import learn
from kwire.replay.diff.pairs import Pairs
from kwire.replay.diff.text import as_json

SIDES = ("captured", "replayed")


def one_by_one(pairs: Pairs) -> Pairs:
    """Return the same pairs without access by columns."""
    alone = copy.copy(pairs)
    alone._block = None
    return alone


def _learned(correspondence: Correspondence) -> Any:
    partitions = {
        where: (
            list(partition.batches),
            partition.failed,
            partition.unseen,
            partition.transactional,
            partition.interleaved,
            partition.swallowed,
            partition.untimed,
            partition.forms,
            partition.watermarks,
            [
                (
                    read.place,
                    read.hidden,
                    read.served,
                    read.starved,
                    *((list(side.by_offset().items()), side.forms(), side.times()) for side in (read.left, read.right)),
                )
                for read in partition.readings
            ],
        )
        for where, partition in correspondence.partitions.items()
    }
    return (
        list(partitions.items()),
        correspondence.named_topics,
        correspondence.groups,
        correspondence.counts,
        correspondence.committed,
        correspondence.left,
        correspondence.right,
    )


def assert_the_same(pairs: Pairs) -> None:
    """Compare what is learned and what is reported, to the last example and quantile."""
    assert pairs.by_columns
    assert _learned(learn(pairs)) == _learned(learn(one_by_one(pairs)))
    whole, alone = compare(pairs), compare(one_by_one(pairs))
    assert as_json(whole, SIDES) == as_json(alone, SIDES)
    for api, both in alone.latencies.items():
        assert [sorted(side) for side in whole.latencies[api]] == [sorted(side) for side in both]
