"""From datasets to a `Report`: ask, judge.

In: an engine that has the datasets, the release of an upgrade check. Out: everything that rendering needs; the engine
is not needed afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kwire.analyzer.common import address_names
from kwire.analyzer.common.times import EPOCH, moment
from kwire.reports.page import health, questions, sections
from kwire.reports.page.health import Statement
from kwire.reports.page.questions import AnsweredQuestion
from kwire.reports.page.sections import Section, Span

if TYPE_CHECKING:
    from kwire.reports.engine_protocol import Engine

SPAN = """
WITH summed AS (
  SELECT min(coalesce(request_time, response_time)) AS begin, max(request_time) AS asked,
    max(response_time) AS answered, max(response_end) AS ended
  FROM exchanges
)
SELECT unix_micros(begin) AS begin, unix_micros(greatest(asked, answered, ended)) AS end FROM summed
"""


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report says. `sources`: names of the datasets or captures, as the user gave them."""

    sources: tuple[str, ...]
    version: str
    span: Span | None
    target: str | None
    answers: Mapping[str, AnsweredQuestion]
    statements: tuple[Statement, ...]
    sections: tuple[Section, ...] = sections.SECTIONS

    def tables(self, section: Section) -> list[tuple[str, AnsweredQuestion]]:
        """Titles and answers of a section's tables that were asked."""
        return [(title, self.answers[name]) for name, title in section.tables if name in self.answers]


def make(engine: Engine, sources: tuple[str, ...], target: str | None, version: str) -> Report:
    """The report on an engine's datasets. `sources`: what they are called in it."""
    span = _span(engine)
    asked_questions = sections.questions(span or Span(EPOCH, EPOCH), target)
    answers = questions.ask(engine, asked_questions)
    statements = tuple(map(_named, health.statements(answers, target)))
    return Report(sources, version, span, target, answers, statements, sections.sections())


def _named(statement: Statement) -> Statement:
    """The statement with the names of the addresses that it names (`--names`)."""
    if not address_names.known_names():
        return statement
    names = tuple((address_names.in_text(name, brief=True), times) for name, times in statement.names)
    return dataclasses.replace(statement, text=address_names.in_text(statement.text), names=names)


CONF = {
    "spark.sql.session.timeZone": "UTC",
    # Beyond so many groups Spark sorts all rows rather than keep a map of the groups. Ours hold little (`bucketed`);
    # at the usual 128, sorting is what a report on ten million exchanges does most of its time.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",
    # The map of 64 Ki entries that Spark keeps before its map of all groups: with many groups it only costs.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # Few large pieces (one a core, up to this): what is aggregated in a piece need not be merged again.
    "spark.sql.files.maxPartitionBytes": "256m",
}
"""Settings of a session of Spark that a report asks."""


def _span(engine: Engine) -> Span | None:
    """From the first exchange to the last; None: there is none."""
    table, _ = engine.ask(SPAN, 1, repeated=True)
    begin, end = (column[0].as_py() for column in table.columns)
    if begin is None:
        return None
    first, last = map(moment, (begin, end))
    return Span(first, max(first, last))
