"""Kwire's own questions come translated, as the translator translates them. Proves: kwire.reports.embedded.prepared."""

from __future__ import annotations

import datetime
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from kwire.analyzer.options.common import EngineOptions
from kwire.captures.extras import install
from kwire.reports import catalog, engines, relations
from kwire.reports.embedded import engine, prepared, translation
from kwire.reports.embedded.prepared import Prepared
from kwire.reports.engine_protocol import TranslatorError
from kwire.reports.page import report, sections
from tests.reports.forging import Forged

NAMES = frozenset(relations.names())


def span(first: int, last: int) -> sections.Span:
    """From so many microseconds of 1970 to so many."""
    begin, end = (
        datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=at) for at in (first, last)
    )
    return sections.Span(begin, end)


SPANS = (
    span(1_700_000_000_123_456, 1_700_000_003_000_000),
    span(1_767_322_800_000_000, 1_767_409_200_000_000),
    span(0, 0),
    span(-5_000_000_000, 77),
    span(99_999, 10**17),
)


@pytest.fixture
def no_sqlglot(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of DuckDB alone."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sqlglot"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("translation", "parsing", "value_types", "quantiles"):
        monkeypatch.delitem(sys.modules, f"kwire.reports.embedded.{name}", raising=False)
    real = importlib.util.find_spec
    absent = ("sqlglot", "pyspark")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else real(name, *rest))
    monkeypatch.setitem(sys.modules, "sqlglot", None)


def test_what_comes_with_kwire_is_what_its_questions_are_translated_to() -> None:
    assert prepared.FILE.read_text(encoding="utf-8") == prepared.as_text(prepared.translations()), (
        "a view or a question of a report was edited: python -m kwire.reports.embedded.prepared"
    )


def test_views_and_reports_need_no_sqlglot(no_sqlglot: None, forged: Forged) -> None:
    for second in range(9):
        forged.exchange("Produce", second=second, error="NOT_LEADER_OR_FOLLOWER" if second % 2 else None, topics=["t"])
    path = str(forged.write())
    with engines.opened(EngineOptions(), [path]) as chosen_engine:
        for view in catalog.views():
            assert chosen_engine.ask(f"SELECT * FROM {view.name}")[0].column_names == list(view.columns)
        assert chosen_engine.ask("select * from exchanges LIMIT 4 ", 2)[0].num_rows == 2
        for target in (None, "3.9"):
            result = report.make(chosen_engine, ("t",), target, "1")
            assert result.answers["latency_by_api"].dicts()[0]["exchanges"] == 9
    with engines.opened(EngineOptions(), []) as nothing:
        assert report.make(nothing, ("t",), "2.8", "1").span is None


def test_sql_of_ones_own_names_what_it_needs(no_sqlglot: None, forged: Forged) -> None:
    forged.exchange("Produce")
    with engines.opened(EngineOptions(), [str(forged.write())]) as chosen_engine:
        with pytest.raises(engines.EngineError, match="SQL of your own needs sqlglot") as error:
            chosen_engine.ask("SELECT count(*) FROM exchanges")
        assert error.value.hint == install("sql")


def test_another_sqlglot_is_used_where_it_translates_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(prepared, "TESTED_SQLGLOT", "29")
    monkeypatch.setattr(prepared, "_translates_alike", prepared._translates_alike.__wrapped__)
    assert prepared.translator() is translation
    changed = tmp_path / "translations.json"
    changed.write_text(prepared.as_text({**prepared.shipped(), "0" * 20: "SELECT 1"}))
    monkeypatch.setattr(prepared, "FILE", changed)
    with pytest.raises(TranslatorError, match="otherwise than") as error:
        prepared.translator()
    assert error.value.hint == "pip install 'sqlglot[c]<30'"


def test_the_locked_sqlglot_is_the_tested_one() -> None:
    locked = re.search(r"(?m)^sqlglot(?:\[c\])?==(\d+)", Path("requirements.lock").read_text(encoding="utf-8"))
    assert locked is not None
    assert locked[1] == prepared.TESTED_SQLGLOT


@pytest.mark.parametrize("chosen", SPANS, ids=lambda chosen: str(chosen.begin))
def test_it_is_what_the_translator_says(chosen: sections.Span) -> None:
    known = Prepared(NAMES)
    for question in sections.questions(SPANS[0], None) + sections.questions(chosen, None):
        expected = translation.translated(question.sql, NAMES, question.rows)
        assert known.translated(question.sql, question.rows) == expected


def test_a_number_that_the_translation_reckons_with_stays() -> None:
    """`slice` counts from a place so many on, DuckDB to a place."""
    query = "SELECT slice(topics, 20000, 30000) AS some, 40000 AS n FROM exchanges"
    assert Prepared(NAMES).translated(query, 5) == translation.translated(query, NAMES, 5)


def test_a_view_that_is_kept_has_the_rows_of_its_query_and_leaves_nothing_else(forged: Forged) -> None:
    """Asked in steps, its common tables that are small first."""
    errors = ("NOT_LEADER_OR_FOLLOWER", None, "NOT_LEADER_OR_FOLLOWER", "TOPIC_AUTHORIZATION_FAILED", None, None)
    for second in range(60):
        forged.exchange("Produce", second=second, error=errors[second * 7 // 3 % 6], topics=[f"t{second % 4}"])
    path = forged.write()
    with engine.opened([path]) as opened:
        whole = translation.translated(catalog.view("error_runs").sql, NAMES)
        rows = opened.ask("SELECT * FROM error_runs")[0]
        assert rows.num_rows > 8
        assert {row["cleared"] for row in rows.to_pylist()} == {True, False}
        assert opened._run(whole).to_pylist() == rows.to_pylist()
        names = opened._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        assert "error_runs" in {name for (name,) in names}
        assert not {name for (name,) in names} & {*relations.MATERIALIZED["error_runs"]}
