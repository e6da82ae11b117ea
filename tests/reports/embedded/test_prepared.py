"""Kwire's own questions are translated once a machine, and stay what the translator makes of them. Proves:
kwire.reports.embedded.prepared."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from kwire.reports import catalog, relations
from kwire.reports.embedded import engine, translation
from kwire.reports.embedded.prepared import Prepared
from kwire.reports.page import sections
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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who never asked anything."""
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are translated from now on."""
    texts = []
    real = translation.translated

    def translated(text: str, *others: object) -> str:
        texts.append(text)
        return real(text, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(translation, "translated", translated)
    return texts


def test_a_report_is_translated_once_whatever_its_captures_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = used(monkeypatch)
    first = Prepared(NAMES)
    for view in catalog.views():
        first.view(view.name)
    first.steps("error_runs", relations.MATERIALIZED["error_runs"])
    for question in sections.questions(SPANS[0], "4.0"):
        first.translated(question.sql, question.rows)
    first.keep()
    assert len(texts) > 80
    del texts[:]
    later = Prepared(NAMES)
    assert all(later.view(view.name) for view in catalog.views())
    assert all(later.steps("error_runs", relations.MATERIALIZED["error_runs"]))
    for question in sections.questions(SPANS[1], "4.0"):
        assert later.translated(question.sql, question.rows)
    assert texts == []


@pytest.mark.parametrize("chosen", SPANS, ids=lambda chosen: str(chosen.begin))
def test_it_is_what_the_translator_says(cache: Path, chosen: sections.Span) -> None:
    prepared = Prepared(NAMES)
    for question in sections.questions(SPANS[0], None) + sections.questions(chosen, None):
        expected = translation.translated(question.sql, NAMES, question.rows)
        assert prepared.translated(question.sql, question.rows) == expected


def test_a_number_that_the_translation_reckons_with_stays(cache: Path) -> None:
    """`slice` counts from a place so many on, DuckDB to a place."""
    query = "SELECT slice(topics, 20000, 30000) AS some, 40000 AS n FROM exchanges"
    assert Prepared(NAMES).translated(query, 5) == translation.translated(query, NAMES, 5)


def test_a_damaged_file_and_one_of_others_are_made_again(cache: Path) -> None:
    prepared = Prepared(NAMES)
    expected = prepared.view("latency_by_api")
    prepared.keep()
    (file,) = (cache / "data").glob("sql.*")
    whole = file.read_bytes()
    for damage in (whole[:-3], whole[:-1] + b"x", b""):
        file.write_bytes(damage)
        again = Prepared(NAMES)
        assert again.view("latency_by_api") == expected
        again.keep()
        assert file.read_bytes() == whole
    file.chmod(0o666)
    assert Prepared(NAMES)._known == {}


def test_a_view_that_is_kept_has_the_rows_of_its_query_and_leaves_nothing_else(cache: Path, forged: Forged) -> None:
    """Asked in steps, its common tables that are small first."""
    errors = ("NOT_LEADER_OR_FOLLOWER", None, "NOT_LEADER_OR_FOLLOWER", "TOPIC_AUTHORIZATION_FAILED", None, None)
    for second in range(60):
        forged.exchange("Produce", second=second, error=errors[second * 7 // 3 % 6], topics=[f"t{second % 4}"])
    path = forged.write()
    for _ in range(2):  # the second time as it was kept
        with engine.opened([path]) as opened:
            whole = translation.translated(catalog.view("error_runs").sql, NAMES)
            rows = opened.ask("SELECT * FROM error_runs")[0]
            assert rows.num_rows > 8
            assert {row["cleared"] for row in rows.to_pylist()} == {True, False}
            assert opened._run(whole).to_pylist() == rows.to_pylist()
            names = opened._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
            assert "error_runs" in {name for (name,) in names}
            assert not {name for (name,) in names} & {*relations.MATERIALIZED["error_runs"]}
