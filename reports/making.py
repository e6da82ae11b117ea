"""From datasets to a `Report`: register, ask, judge.

In: a session, folders of datasets, the release of an upgrade check. Out: everything that rendering needs; the session
is not needed afterwards.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import reports
from reports import answers, contents, health, rendering

_SPAN = """
SELECT unix_micros(min(coalesce(request_time, response_time))) AS begin,
  unix_micros(greatest(max(request_time), max(response_end), max(response_time))) AS end
FROM exchanges
"""


def make(
    spark: Any, datasets: Sequence[str], sources: tuple[str, ...], target: str | None, version: str
) -> rendering.Report:
    """The report on these datasets. `sources`: what they are called in it. Raises DatasetError."""
    own = spark.newSession()  # our views do not stand in the way of the caller's
    for name, value in _CONF.items():
        own.conf.set(name, value)
    reports.register(own, datasets)
    span = _span(own)
    asked = contents.questions(span or contents.Span(_EPOCH, _EPOCH), target)
    found = answers.ask(own, asked)
    return rendering.Report(sources, version, span, target, found, tuple(health.findings(found, target)))


_CONF = {
    "spark.sql.session.timeZone": "UTC",
    # Beyond so many groups Spark sorts all rows rather than keep a map of the groups. Ours hold little (`bucketed`);
    # at the usual 128, sorting is what a report on ten million exchanges does most of its time.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",
    # The map of 64 Ki entries that Spark keeps before its map of all groups: with many groups it only costs.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # Few large pieces (one a core, up to this): what is aggregated in a piece need not be merged again.
    "spark.sql.files.maxPartitionBytes": "256m",
}

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _span(spark: Any) -> contents.Span | None:
    """From the first exchange to the last; None: there is none."""
    begin, end = spark.sql(_SPAN).first()
    if begin is None:
        return None
    first, last = (_EPOCH + datetime.timedelta(microseconds=when) for when in (begin, end))
    return contents.Span(first, max(first, last))
