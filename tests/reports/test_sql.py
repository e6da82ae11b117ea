"""`kwire sql`: answers in each form, wrong queries told in one line, statements from stdin."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from py4j.protocol import Py4JJavaError

from kwire import analyzer
from kwire.analyzer.cli.parser import main
from kwire.analyzer.options.questions import SqlOptions
from kwire.captures.errors import KwireError
from kwire.reports import catalog, relations, sql
from kwire.reports.engines import check_columns
from kwire.reports.query_errors import QueryError, check
from kwire.reports.results import as_csv, as_json, as_text
from kwire.reports.spark.engine import Spark
from tests.reports.terminal import terminal
from tests.shared import KWIRE, SAMPLES

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
COUNTS = "SELECT api, count(*) AS n FROM exchanges GROUP BY api ORDER BY n DESC, api LIMIT 3"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("sql") / "dataset"
    analyzer.analyze(CAPTURE, out)
    return str(out)


def run(dataset: str, query: str | None, engine: str = "auto", **options: Any) -> int:
    """The command with these options."""
    chosen = {
        "format": None,
        "out": None,
        "master": None,
        "verbose": False,
        "conf": [],
        "engine": engine,
        "raw": False,
        "keylog": [],
        **options,
    }
    return sql.sql(SqlOptions(dataset=dataset, query=query, **chosen))


@pytest.fixture(params=["embedded", "spark"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each engine. The command ends its session; the tests' own stays."""
    if request.param == "spark":
        request.getfixturevalue("spark")
        monkeypatch.setattr("kwire.reports.spark.session.end", lambda at_once=False: None)
    return str(request.param)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that starts an engine or reads a capture fails."""

    def late(*_: Any, **__: Any) -> None:
        raise AssertionError("too late")

    monkeypatch.setattr("kwire.reports.engines.opened", late)
    monkeypatch.setattr("kwire.analyzer.api.analyze", late)


def test_every_form_holds_the_same_rows(
    engine: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = analyzer.open_dataset(dataset).exchanges.to_table(["api"]).to_pandas().api.value_counts()
    expected = sorted(((name, int(n)) for name, n in rows.items()), key=lambda row: (-row[1], row[0]))[:3]
    assert run(dataset, COUNTS, engine) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["api", "n"], *([name, str(n)] for name, n in expected)]
    assert run(dataset, COUNTS, engine, format="csv") == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:] == [[name, str(n)] for name, n in expected]
    assert run(dataset, COUNTS, engine, format="json") == 0
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [{"api": name, "n": n} for name, n in expected]
    assert run(dataset, COUNTS, engine, out=str(tmp_path / "counts.parquet")) == 0
    table = pyarrow.parquet.read_table(tmp_path / "counts.parquet")
    assert [(row["api"], row["n"]) for row in table.to_pylist()] == expected


def test_a_capture_is_asked_like_a_dataset(engine: str, dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(CAPTURE), COUNTS, engine, format="csv")
    of_capture = capsys.readouterr().out
    run(dataset, COUNTS, engine, format="csv")
    assert capsys.readouterr().out == of_capture


WRONG = [
    ("SELEC 1", "PARSE_SYNTAX_ERROR", "SHOW VIEWS"),
    ("SELECT api b c FROM exchanges", "PARSE_SYNTAX_ERROR", "SHOW VIEWS"),
    ("SELECT apo FROM exchanges", "UNRESOLVED_COLUMN.*`api`", "DESCRIBE"),
    ("SELECT latency FROM exchanges", "UNRESOLVED_COLUMN.*`latency`", "latency is latency_us in tables"),
    ("SELECT client FROM exchanges", "UNRESOLVED_COLUMN.*`client`", "client_ip and client_port"),
    ("SELECT e.group FROM exchanges e", "UNRESOLVED_COLUMN.*group", "group_id in tables"),
    ("SELECT request.acks FROM exchanges", "UNRESOLVED_COLUMN.*acks", "--fields request.acks"),
    ("SELECT * FROM exchange", "TABLE_OR_VIEW_NOT_FOUND", "did you mean exchanges"),
    ("DESCRIBE latency_by_ap", "TABLE_OR_VIEW_NOT_FOUND", "did you mean latency_by_api"),
]


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("query, message, hint", WRONG)
@pytest.mark.parametrize("chosen", ["auto", "spark"])
def test_what_is_surely_wrong_is_told_before_a_capture_is_read_or_spark_is_started(
    query: str, message: str, hint: str, chosen: str
) -> None:
    with pytest.raises(KwireError, match=message) as raised:
        run(str(CAPTURE), query, chosen)
    assert "\n" not in raised.value.message
    assert "(line 1, column" in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "SELECT user",
        "SELECT * FROM exchanges WHERE exists(errors, e -> e.code > 0)",
        "SELECT transform(errors, e -> e.code + 1) AS f FROM exchanges",
        "SELECT col1 FROM VALUES (1)",
        "SELECT latency_us AS l, l + 1 AS m FROM exchanges",
        "SELECT col FROM (SELECT explode(topics) FROM exchanges)",
        "SELECT pos, col FROM (SELECT posexplode(topics) FROM exchanges)",
        "SELECT * FROM range(3)",
        "SELECT t FROM exchanges LATERAL VIEW explode(topics) q AS t",
        "FROM exchanges SELECT api",
        "WITH mine AS (SELECT 1 AS x) SELECT x FROM mine",
        "SELECT * FROM parquet.`/nowhere`",
        "SHOW FUNCTIONS",
    ],
)
def test_what_spark_may_understand_is_not_refused(query: str) -> None:
    check(query)
    check_columns(query)


@pytest.mark.parametrize("query, message, hint", [*WRONG, ("SELECT 1 / 0", "DIVIDE_BY_ZERO", "DESCRIBE")])
def test_spark_itself_tells_a_wrong_query_in_one_line_with_its_place(
    spark: Any, dataset: str, query: str, message: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QueryError, match=message) as raised:
        Spark(spark, [dataset], only=frozenset(["exchanges"])).ask(query)
    assert "\n" not in raised.value.message
    assert "(line 1, column" in raised.value.message
    assert hint in raised.value.hint
    assert "at org.apache" not in capfd.readouterr().err


def test_a_query_that_java_has_no_room_for_is_told_by_its_cause(
    spark: Any, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Spark(spark, [dataset], only=frozenset(["exchanges"]))
    java = spark._jvm
    full = java.java.lang.OutOfMemoryError("Not enough memory to build and broadcast the table")
    waited = java.org.apache.spark.SparkException("Exception thrown in awaitResult: ", full)
    thrown = java.java.util.concurrent.ExecutionException("Exception thrown in awaitResult: ", waited)

    def failing(query: str) -> Any:
        raise Py4JJavaError("An error occurred", thrown)

    monkeypatch.setattr(asking._spark, "sql", failing)
    with pytest.raises(QueryError, match="Not enough memory") as raised:
        asking.ask("SELECT 1")
    assert "SPARK_DRIVER_MEMORY" in raised.value.hint


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    "out, message",
    [("nowhere/answer.csv", "cannot be written: No such file"), (".", "it is a folder"), ("answer.xlsx", ".xlsx")],
)
def test_a_file_that_cannot_be_written_is_told_first(dataset: str, out: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(KwireError, match=message) as raised:
        run(dataset, COUNTS, out=str(tmp_path / out))
    assert raised.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("query", ["SELECT * FROM records", "SELECT count(*) AS n FROM named_records r", ""])
def test_an_empty_table_says_with_what_it_would_have_rows(
    query: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not query:  # from stdin
        monkeypatch.setattr("sys.stdin", io.StringIO("SELECT *\nFROM records;\n"))
    assert run(dataset, query or None) == 0
    note = f"note: records is empty, made without --records meta: kwire analyze CAPTURE -o {dataset} --records meta\n"
    assert capsys.readouterr().err == note
    run(dataset, "SELECT * FROM messages")
    assert "made without --keep-bytes" in capsys.readouterr().err
    for full in ("SELECT * FROM batches", "SELECT count(*) AS records FROM exchanges", "DESCRIBE records"):
        run(dataset, full)
        assert capsys.readouterr().err == ""
    stored = tmp_path / "kept"
    analyzer.analyze(CAPTURE, stored, records="meta", filter="api == Metadata")
    run(str(stored), "SELECT * FROM records")
    assert capsys.readouterr().err == "", "nothing was sent or fetched"


def test_a_folder_that_is_no_dataset_is_an_error(engine: str, tmp_path: Path) -> None:
    with pytest.raises(KwireError, match="not a dataset") as raised:
        run(str(tmp_path), COUNTS, engine)
    assert raised.value.hint


def test_what_there_is_says_what_it_answers(engine: str, dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(dataset, "SHOW VIEWS", engine, format="csv")
    shown = dict(list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:])
    assert list(shown) == relations.names()
    assert all(question for question in shown.values())
    assert shown["latency_by_api"] == catalog.view("latency_by_api").question


@pytest.mark.parametrize("name", ["exchanges", "Latency_By_Api", "kafka_errors"])
def test_a_description_says_what_each_column_holds(
    engine: str, dataset: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(dataset, f"DESCRIBE {name}", engine, format="csv")
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["col_name", "data_type", "comment"]
    assert {row[0]: row[2] for row in rows[1:]} == relations.columns(name.lower())
    types = {row[0]: row[1] for row in rows[1:]}
    expected = {
        "exchanges": ("errors", "array<struct<code:smallint,error:string,count:int>>"),
        "Latency_By_Api": ("exchanges", "bigint"),
        "kafka_errors": ("retriable", "boolean"),
    }[name]
    assert types[expected[0]] == expected[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SELECT 1\n  AS a;\n\n;\nSELECT ';' AS b\nFROM t;\nSELECT 2",
            ["SELECT 1\n  AS a", "SELECT ';' AS b\nFROM t", "SELECT 2"],
        ),
        ("select 1 as a; select 2 as b;", ["select 1 as a", "select 2 as b"]),
        ("select 1; -- note\n-- another; one\nselect 2 -- its end;\n", ["select 1", "select 2 -- its end;"]),
        ("select 'a;\nb' as a;", ["select 'a;\nb' as a"]),
        ("select \"a;\nb\", 'it''s;', 'it\\';', `c;\n`;", ["select \"a;\nb\", 'it''s;', 'it\\';', `c;\n`"]),
        ("select r'a\\'; select bar'\\';", ["select r'a\\'", "select bar'\\';"]),
        ("/* a; /* nested; */ b;\n */ select 1 /* c; */; select 2", ["select 1 /* c; */", "select 2"]),
        ("-- goes on; \\\nselect 0;\nselect 1;", ["select 1"]),
        ("\ufeffselect 1;", ["select 1"]),
        ("-- nothing;\n/* at all; */\n", []),
        ("", []),
        (";;\n;", []),
        ("select 4 / 2 - 1, - 1;", ["select 4 / 2 - 1, - 1"]),
        ("select 'never closed; select 2;\n", ["select 'never closed; select 2;"]),
        ("select 1; /* never closed;\n", ["select 1", "/* never closed;"]),
    ],
)
def test_statements_end_with_a_semicolon_that_is_in_no_text_and_no_comment(text: str, expected: list[str]) -> None:
    assert list(sql.statements(iter(text.split("\n")))) == expected


@pytest.mark.parametrize(
    ("piped", "expected"),
    [
        ("select 1 as a; select 2 as b;\n", ["a", "1", "b", "2"]),
        ("\ufeffselect 1 as a; -- note\n", ["a", "1"]),
        ("select 'x;\ny' as a\n;", ["a", "x;\\ny"]),
        ("-- only a comment\n", []),
    ],
)
def test_queries_come_from_stdin(
    piped: str, expected: list[str], dataset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert run(dataset, None) == 0
    assert capsys.readouterr().out.split() == expected


def test_a_capture_comes_from_stdin(
    dataset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with CAPTURE.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        assert run("-", COUNTS, format="csv") == 0
    of_stdin = capsys.readouterr().out
    run(dataset, COUNTS, format="csv")
    assert capsys.readouterr().out == of_stdin
    with pytest.raises(KwireError, match="stdin is the capture"):
        run("-", None)


def test_completion_minds_no_case() -> None:
    words = ["SELECT", "select_me", "topic_ids", "topics"]
    assert sql.completions("top", words) == ["topic_ids", "topics"]
    assert sql.completions("sel", words) == ["SELECT", "select_me"]


def test_values_in_text(spark: Any) -> None:
    table = spark.sql(
        "SELECT timestamp'2026-01-02 03:04:05.5' AS t, X'00ff' AS b, array(1, 2) AS l, CAST(NULL AS STRING) AS n, "
        "CAST(1.5 AS DECIMAL(5, 2)) AS d, true AS yes, 'a\\nb' AS s"
    ).toArrow()
    cells = ["2026-01-02T03:04:05.500000Z", "0x00ff", "[1,2]", "", "1.50", "true", "a\nb"]
    assert list(csv.reader(io.StringIO("".join(as_csv(table)))))[1] == cells
    row = json.loads("".join(as_json(table)))
    assert row == {"t": cells[0], "b": "AP8=", "l": [1, 2], "n": None, "d": 1.5, "yes": True, "s": "a\nb"}
    assert len(as_text(table).splitlines()) == 2  # what would break a line is escaped


def test_bytes_that_are_text_are_shown_as_text_and_base64_in_json() -> None:
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    values = [pa.array(["grün".encode()]), pa.array([b"=1"]), pa.array([b"\xff"])]
    table = pa.table([*values, pa.array([[{"key": "k", "value": b"v"}]], pairs)], names=list("tfbh"))
    assert as_text(table).splitlines()[1].split() == ["grün", "=1", "0xff", '[{"key":"k","value":"v"}]']
    (row,) = list(csv.reader(io.StringIO("".join(as_csv(table)))))[1:]
    assert row == ["grün", "'=1", "0xff", '[{"key":"k","value":"v"}]']
    rows = json.loads("".join(as_json(table)))
    assert (rows["t"], rows["b"], rows["h"]) == ("Z3LDvG4=", "/w==", [{"key": "k", "value": "dg=="}])


def test_the_query_may_stand_behind_options(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for arguments in (
        [dataset, "SELECT 1 AS n", "--format", "json"],
        [dataset, "--format", "json", "SELECT 1 AS n"],
        ["--format", "json", dataset, "SELECT 1 AS n"],
    ):
        assert main(["sql", *arguments]) == 0
        answers.append(capsys.readouterr().out)
    assert answers == ['{"n":1}\n'] * 3


def test_lines_of_csv_end_with_lf_and_returns_inside_are_quoted() -> None:
    table = pa.table({"a": ["x", "y\rz", "y\nz"], "b": [1, 2, 3]})
    assert "".join(as_csv(table)) == 'a,b\nx,1\n"y\rz",2\n"y\nz",3\n'


def test_csv_holds_no_formula_unless_asked() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "a=1", "", None, "\x1b[2J"]
    numbers = pa.array([-1] * len(texts))
    table = pa.table([pa.array(texts), numbers, pa.array([-1.5] * len(texts))], names=["=text", "n", "d"])

    def column(at: int, **options: bool) -> list[str]:
        return [row[at] for row in csv.reader(io.StringIO("".join(as_csv(table, **options)), newline=""))]

    assert column(0) == ["'=text", "'=1+1", "'+1", "'-1", "'@x", "'\t=1", "'\r=1", "a=1", "", "", "\x1b[2J"]
    assert column(0, raw=True) == ["=text", *(text or "" for text in texts)]
    assert column(1)[1:] == ["-1"] * len(texts)
    assert column(2)[1:] == ["-1.5"] * len(texts)
    shown = "".join(as_csv(table, terminal=True))
    assert all(line.isprintable() for line in shown.split("\n")), "nothing steers a terminal"
    assert "'\\t=1" in shown


def test_csv_of_the_command_is_raw_where_asked(
    engine: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT '=1' AS a, -1 AS n"
    run(dataset, query, engine, format="csv")
    assert capsys.readouterr().out.split() == ["a,n", "'=1,-1"]
    run(dataset, query, engine, format="csv", raw=True)
    assert capsys.readouterr().out.split() == ["a,n", "=1,-1"]
    run(dataset, query, engine, out=str(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").read_text().split() == ["a,n", "'=1,-1"]


# fmt: off
ENDLESS = {
    "embedded": "SELECT sum(a.exchange * b.exchange % (7 + c.exchange + d.exchange + e.exchange)) AS n FROM exchanges "
                "AS a CROSS JOIN exchanges AS b CROSS JOIN exchanges AS c CROSS JOIN exchanges AS d CROSS JOIN "
                "exchanges AS e;\n",
    "spark": "SELECT max(id % 7) FROM range(1000000000000000);\n",  # asks every thousand rows whether it is to end
}
# fmt: on


@pytest.mark.parametrize("chosen", ["embedded", "spark"])
def test_a_prompt_completes_remembers_and_survives_ctrl_c(chosen: str, dataset: str, tmp_path: Path) -> None:
    # With settings of a cluster no class archive is made, which would take the end of the session some seconds.
    environment = {**os.environ, "KWIRE_CACHE_DIR": str(tmp_path / "cache"), "SPARK_CONF_DIR": str(tmp_path)}
    (tmp_path / "cache").mkdir()
    command = [*KWIRE, "sql", dataset, "--engine", chosen]
    with terminal(command, environment) as screen:
        screen.wait_for("kwire> ")
        screen.type("SELECT api FROM latency_by_a\t WHERE api = 'Produce';\n")
        assert "latency_by_api" in screen.wait_for(r"\n *Produce *\r\n")
        screen.wait_for("kwire> ")
        screen.type("\x1b[A\n")  # the line before
        screen.wait_for(r"\n *Produce *\r\n")
        screen.wait_for("kwire> ")
        screen.type(ENDLESS[chosen])
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
