"""Views as files: each begins with its question and explains its columns."""

from __future__ import annotations

import pytest

from kwire.analyzer.dataset import tables
from kwire.reports import catalog, releases


def test_a_view_is_its_question_its_notes_its_columns_and_its_sql() -> None:
    view = catalog.parse(
        "loud",
        "-- Who is loud?\n-- Loud is a matter\n-- of taste.\n"
        "-- who: the client,\n--   by name.\n-- how: how loud.\nSELECT 1\n",
    )
    assert view.question == "Who is loud?"
    assert view.notes == "Loud is a matter of taste."
    assert view.columns == {"who": "the client, by name.", "how": "how loud."}
    assert view.sql == "SELECT 1"


def test_a_view_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quiet.sql: the first comment is not a question"):
        catalog.parse("quiet", "-- Nobody.\nSELECT 1\n")


def test_views_come_after_those_they_read() -> None:
    names = [view.name for view in catalog.views()]
    assert names.index("named_topics") < names.index("exchange_topics") < names.index("latency_by_topic")
    assert names.index("api_versions_used") < names.index("upgrade_check")


@pytest.mark.parametrize("view", catalog.views(), ids=lambda view: view.name)
def test_every_column_of_a_view_is_a_sentence(view: catalog.View) -> None:
    assert view.columns
    for name, about in view.columns.items():
        assert about.endswith("."), name


def test_releases_go_from_old_to_new_and_the_newest_lacks_what_kip_896_removed() -> None:
    known = releases.releases()
    assert [release.name for release in known][:3] == ["0.9.0", "0.10.0", "0.10.1"]
    assert releases.find("2.8").apis[0] == (0, 9)
    assert releases.find("4.0").apis[0] == (3, 12)
    assert 4 in releases.find("3.9").apis
    assert 4 not in releases.find("4.0").apis  # LeaderAndIsr went with ZooKeeper


@pytest.mark.parametrize(
    ("version", "meant"),
    [("3.9", "3.9"), ("3.9.2", "3.9"), ("v4.0.0", "4.0"), ("0.10.2.1", "0.10.2"), ("0.10.2", "0.10.2")],
)
def test_a_release_is_found_by_what_people_call_it(version: str, meant: str) -> None:
    assert releases.find(version).name == meant


@pytest.mark.parametrize("version", ["", "5.0", "3", "3.99", "3.9.x.y", "0.10"])
def test_an_unknown_release_is_not_guessed(version: str) -> None:
    with pytest.raises(LookupError):
        releases.find(version)


def test_a_query_needs_what_it_reads_and_what_that_reads() -> None:
    relations = {*tables.TABLES, *(view.name for view in catalog.views())}

    def names(query: str) -> set[str]:
        needed = catalog.needed(query)
        assert needed is not None
        return {name for name in needed if name in relations}

    assert names("SELECT count(*) FROM exchanges") == {"exchanges"}
    assert names("WITH a AS (SELECT * FROM `Latency_By_Topic`) SELECT * FROM a") >= {
        "exchanges",
        "topic_ids",
        "named_topics",
        "exchange_topics",
        "latency_by_topic",
    }
    assert "clients" not in names("DESCRIBE latency_by_topic")
    assert catalog.needed("SHOW VIEWS") is None
    assert catalog.needed("SELECT * FROM IDENTIFIER('cl' || 'ients')") is None


def test_no_view_has_the_name_of_a_table() -> None:
    assert not {view.name for view in catalog.views()} & set(tables.TABLES)


@pytest.mark.parametrize("view", catalog.views(), ids=lambda view: str(view.name))
def test_what_a_view_needs_is_all_there(view: catalog.View) -> None:
    needed = catalog.needed(f"SELECT * FROM {view.name}")
    assert needed is not None
    relations = [*tables.TABLES, *(other.name for other in catalog.views())]
    for other in (view, *(known for known in catalog.views() if known.name in needed)):
        assert {name for name in relations if other.reads(name)} <= needed
