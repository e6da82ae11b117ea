"""Questions of a user's own: `--views` of `kwire sql` and `kwire report`, and what is wrong with a folder.

Proves: kwire/reports/own_views.py, reports/query_errors.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kwire
from kwire.analyzer.cli import parser
from kwire.reports import catalog, own_views, relations
from kwire.reports.query_errors import QueryError
from kwire.reports.spark.engine import Spark
from tests.shared import ROOT, SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
VIEWS = ROOT / "tests" / "analyzer" / "extension" / "views"
QUESTION = "-- Who asks?\n"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "dataset"
    kwire.analyze(CAPTURE, path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; nothing goes to Spark."""
    try:
        code = parser.main([*map(str, arguments), "--engine", "embedded"])
    except SystemExit as left:
        code = int(left.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_view_is_asked_listed_and_described(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "sql", dataset, "SELECT * FROM busy_clients LIMIT 2", "--views", VIEWS, "--format", "csv"
    )
    assert (code, out) == (0, "client_id,requests,bytes\nfranz-consumer,20,4666\nfranz-snappy,12,5338\n")
    _, out, _ = run(capsys, "sql", dataset, "SHOW VIEWS", "--views", VIEWS, "--format", "json")
    assert {"viewName": "busy_clients", "question": "Which clients ask most?"} in map(json.loads, out.splitlines())
    _, out, _ = run(capsys, "sql", dataset, "DESCRIBE busy_clients", "--views", VIEWS, "--format", "json")
    first = json.loads(out.splitlines()[0])
    assert first == {"col_name": "client_id", "data_type": "string", "comment": "the client id."}
    code, _, err = run(capsys, "sql", dataset, "SELECT * FROM busy_clients")
    assert code == 2
    assert "busy_clients" not in relations.names()
    assert "cannot be found" in err


def test_a_report_ends_with_them(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report", dataset, "--views", VIEWS, "--format", "md")
    assert code == 0
    assert "\n## Questions of your own\n\n### busy_clients\n\nWhich clients ask most?\n" in out
    assert "| franz-snappy | 12 | 5.3 kB |" in out
    _, out, _ = run(capsys, "report", dataset, "--views", VIEWS, "--format", "json")
    assert json.loads(out)["answers"]["busy_clients"]["rows"][0]["requests"] == 20
    page = kwire.report(dataset, views=VIEWS)
    assert 'id="busy_clients"' in page
    assert "Questions of your own" not in kwire.report(dataset)


def test_one_may_read_another_and_need_not_describe_its_columns(dataset: str, tmp_path: Path) -> None:
    (tmp_path / "a_few.sql").write_text(f"{QUESTION}SELECT requests AS n FROM b_all WHERE requests > 12;\n")
    (tmp_path / "b_all.sql").write_text(f"{QUESTION}SELECT client_id, count(*) AS requests FROM exchanges GROUP BY 1")
    answer = kwire.sql(dataset, "SELECT * FROM a_few", views=tmp_path, engine="embedded")
    assert answer.to_pylist() == [{"n": 20}]
    assert "a_few" in kwire.report(dataset, views=tmp_path, format="md", engine="embedded")
    # The same name with other columns, in the same process.
    (tmp_path / "b_all.sql").write_text(f"{QUESTION}SELECT 99 AS requests, 1 AS other")
    assert kwire.sql(dataset, "SELECT n FROM a_few", views=tmp_path, engine="embedded").to_pylist() == [{"n": 99}]
    assert not catalog.own()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.sql", "SELECT 1 AS n", "a.sql: the first comment is not a question"),
        ("a.sql", "-- Who.\nSELECT 1 AS n", "a.sql: the first comment is not a question"),
        ("a.sql", f"{QUESTION}SELECT nothing FROM exchanges", "a.sql: [UNRESOLVED_COLUMN"),
        ("a.sql", f"{QUESTION}-- n: rows.\nSELECT 1 AS n FROM exchange", "cannot be found (line 3, column 20)"),
        ("a.sql", f"{QUESTION}SELECT (1 AS n", "a.sql: [PARSE_SYNTAX_ERROR]"),
        ("a.sql", f"{QUESTION}SELECT 1,\n'a AS n", "a.sql: [PARSE_SYNTAX_ERROR] ' is not closed (line 3, column 1)"),
        ("a.sql", f"{QUESTION}DROP TABLE exchanges", "a.sql: not a query"),
        ("a.sql", QUESTION, "a.sql: not a query"),
        ("a.sql", f"{QUESTION}SELECT * FROM a", "a.sql: it reads itself"),
        ("exchanges.sql", f"{QUESTION}SELECT 1 AS n", "kwire has a table or view exchanges already"),
        ("latency_by_api.sql", f"{QUESTION}SELECT 1 AS n", "kwire has a table or view latency_by_api already"),
        ("A b.sql", f"{QUESTION}SELECT 1 AS n", "not a name for a view"),
        ("a.txt", f"{QUESTION}SELECT 1 AS n", "there is no file NAME.sql in it"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_and_a_hint(
    dataset: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    for command in (["sql", dataset, "SELECT 1 AS n"], ["report", dataset]):
        code, out, err = run(capsys, *command, "--views", tmp_path)
        line, hint = err.splitlines()
        assert (code, out) == (2, "")
        assert words in line
        assert hint.startswith("hint: ")


def test_what_spark_finds_wrong_with_a_file_has_its_line(spark: Any, dataset: str, tmp_path: Path) -> None:
    """Give Spark what the embedded engine does not know; it counts lines as the file has them."""
    (tmp_path / "a.sql").write_text(f"{QUESTION}-- n: rows.\nSELECT api,\n  nope(api) AS n FROM exchanges")
    with own_views.opened(tmp_path), pytest.raises(QueryError, match=r"^a\.sql: .*`nope`.* \(line 4, column 3\)\n"):
        Spark(spark, [dataset])


def test_a_circle_and_a_folder_that_is_not_there(
    dataset: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.sql").write_text(f"{QUESTION}SELECT * FROM b")
    (tmp_path / "b.sql").write_text(f"{QUESTION}SELECT * FROM a")
    assert "read each other in a circle: a, b" in run(capsys, "report", dataset, "--views", tmp_path)[2]
    assert "No such file or directory" in run(capsys, "report", dataset, "--views", tmp_path / "none")[2]


def test_the_guide_shows_this_view() -> None:
    guide = (ROOT / "docs" / "guides" / "your-own-findings.md").read_text(encoding="utf-8")
    assert (VIEWS / "busy_clients.sql").read_text(encoding="utf-8") in guide
