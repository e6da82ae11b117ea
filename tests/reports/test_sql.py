"""`kwire sql`: answers in each form, wrong queries told in one line, statements from stdin."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import analyzer
from analyzer.cli import Failure
from reports import relations, sql
from reports.results import as_csv, as_json, as_text
from tests.reports.terminal import terminal
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
COUNTS = "SELECT api, count(*) AS n FROM exchanges GROUP BY api ORDER BY n DESC, api LIMIT 3"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("sql") / "dataset"
    analyzer.analyze(CAPTURE, out)
    return str(out)


def asked(spark: Any, dataset: str, query: str | None, **options: Any) -> int:
    """The command with these options; the session is the tests' own."""
    chosen = {"format": None, "out": None, "master": None, "verbose": False, "conf": [], **options}
    return sql.sql(argparse.Namespace(dataset=dataset, query=query, **chosen))


@pytest.fixture(autouse=True)
def _the_tests_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends its session; the tests' own stays."""
    monkeypatch.setattr("reports.session.end", lambda at_once=False: None)


def test_every_form_holds_the_same_rows(
    spark: Any, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = analyzer.open_dataset(dataset).exchanges.to_table(["api"]).to_pandas().api.value_counts()
    expected = sorted(((name, int(n)) for name, n in rows.items()), key=lambda row: (-row[1], row[0]))[:3]
    assert asked(spark, dataset, COUNTS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["api", "n"], *([name, str(n)] for name, n in expected)]
    assert asked(spark, dataset, COUNTS, format="csv") == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:] == [[name, str(n)] for name, n in expected]
    assert asked(spark, dataset, COUNTS, format="json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{"api": name, "n": n} for name, n in expected]
    assert asked(spark, dataset, COUNTS, out=str(tmp_path / "counts.parquet")) == 0
    table = pyarrow.parquet.read_table(tmp_path / "counts.parquet")
    assert [(row["api"], row["n"]) for row in table.to_pylist()] == expected


def test_a_capture_is_asked_like_a_dataset(spark: Any, dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked(spark, str(CAPTURE), COUNTS, format="csv")
    of_capture = capsys.readouterr().out
    asked(spark, dataset, COUNTS, format="csv")
    assert capsys.readouterr().out == of_capture


@pytest.mark.parametrize(
    "query, message, hint",
    [
        ("SELEC 1", "PARSE_SYNTAX_ERROR", "SHOW VIEWS"),
        ("SELECT apo FROM exchanges", "UNRESOLVED_COLUMN", "DESCRIBE"),
        ("SELECT * FROM exchange", "TABLE_OR_VIEW_NOT_FOUND", "did you mean exchanges"),
        ("SELECT 1 / 0", "DIVIDE_BY_ZERO", "DESCRIBE"),
    ],
)
def test_a_wrong_query_is_told_in_one_line_with_its_place(
    spark: Any, dataset: str, query: str, message: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Failure, match=message) as raised:
        asked(spark, dataset, query)
    assert "\n" not in str(raised.value)
    assert "(line 1, column" in str(raised.value)
    assert hint in raised.value.hint
    assert "at org.apache" not in capfd.readouterr().err


def test_a_hint_knows_views_that_the_query_did_not_name(spark: Any, dataset: str) -> None:
    own = spark.newSession()
    relations.register(own, [dataset], frozenset())
    said = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `latency_by_ap` cannot be found."
    assert sql._said(own, said)[1].startswith("did you mean latency_by_api")


def test_a_folder_that_is_no_dataset_is_an_error(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="not a dataset") as raised:
        asked(spark, str(tmp_path), COUNTS)
    assert raised.value.hint


def test_statements_end_with_a_semicolon_at_the_end_of_a_line() -> None:
    lines = ["SELECT 1", "  AS a;", "", ";", "SELECT ';' AS b", "FROM t;", "SELECT 2"]
    assert list(sql.statements(iter(lines))) == ["SELECT 1\n  AS a", "SELECT ';' AS b\nFROM t", "SELECT 2"]


def test_completion_minds_no_case() -> None:
    words = ["SELECT", "select_me", "topic_ids", "topics"]
    assert sql.completions("top", words) == ["topic_ids", "topics"]
    assert sql.completions("sel", words) == ["SELECT", "select_me"]


def test_values_in_text(spark: Any) -> None:
    table = spark.sql(
        "SELECT timestamp'2026-01-02 03:04:05.5' AS t, X'00ff' AS b, array(1, 2) AS l, CAST(NULL AS STRING) AS n, "
        "CAST(1.5 AS DECIMAL(5, 2)) AS d, true AS yes, 'a\\nb' AS s"
    ).toArrow()
    cells = ["2026-01-02T03:04:05.500000Z", "AP8=", "[1,2]", "", "1.50", "true", "a\nb"]
    assert list(csv.reader(io.StringIO("".join(as_csv(table)))))[1] == cells
    row = json.loads("".join(as_json(table)))
    assert row == {"t": cells[0], "b": "AP8=", "l": [1, 2], "n": None, "d": 1.5, "yes": True, "s": "a\nb"}
    assert len(as_text(table).splitlines()) == 2  # what would break a line is escaped


def test_a_prompt_completes_remembers_and_survives_ctrl_c(dataset: str, tmp_path: Path) -> None:
    # With settings of a cluster no class archive is made, which would take the end of the session some seconds.
    environment = {**os.environ, "KWIRE_CACHE_DIR": str(tmp_path / "cache"), "SPARK_CONF_DIR": str(tmp_path)}
    (tmp_path / "cache").mkdir()
    command = [sys.executable, "-c", "from analyzer.cli import command; command()", "sql", dataset]
    with terminal(command, environment) as screen:
        screen.wait_for("kwire> ")
        screen.type("SELECT api FROM latency_by_a\t WHERE api = 'Produce';\n")
        assert "latency_by_api" in screen.wait_for(r"\n *Produce *\r\n")
        screen.wait_for("kwire> ")
        screen.type("\x1b[A\n")  # the line before
        screen.wait_for(r"\n *Produce *\r\n")
        screen.wait_for("kwire> ")
        screen.type("SELECT max(a.id * b.id % 7) FROM range(1000000) a CROSS JOIN range(100000000) b;\n")
        time.sleep(2)  # it would take hours
        screen.type("\x03")
        screen.wait_for("interrupted")
        screen.wait_for("kwire> ")
        screen.type("SELECT 40 +\n2 AS answer;\n")
        screen.wait_for(r"answer *\r\n *42")
        screen.wait_for("kwire> ")
        screen.type("SELECT nothing FROM exchanges;\n")
        screen.wait_for("hint: ")
        screen.wait_for("kwire> ")
        screen.type("exit\n")
        assert screen.process.wait(60) == 0
    history = tmp_path / "cache" / "sql_history"
    assert "latency_by_api" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
