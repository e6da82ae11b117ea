"""`import kwire`: every function that the package has, as a user calls it, and its types as type checkers see them.

Proves: kwire, kwire.reports.api, and the texts of kwire.analyzer.dataset.dataset and kwire.captures.errors.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kwire
from kwire.analyzer.dataset import tables
from tests.shared import ROOT, SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
TROUBLE = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
INTERFACE = Path(__file__).with_name("python_interface.json")
"""The names and signatures that users rely on. To change it is to change what they call."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("python") / "dataset"
    kwire.analyze(CAPTURE, path)
    return str(path)


def interface() -> dict[str, str | None]:
    """Each public name with its signature, if it is called."""
    return {name: _signature(getattr(kwire, name)) for name in kwire.__all__}


def _signature(value: object) -> str | None:
    if isinstance(value, str):
        return None
    if isinstance(value, type) and issubclass(value, Exception):
        return f"class of {', '.join(base.__name__ for base in value.__mro__[1:-1])}"
    assert callable(value)
    return ", ".join(inspect.signature(value).parameters)


def test_names_and_signatures_are_kept() -> None:
    """Write it again with `python -m tests.test_python` where a change is meant."""
    assert interface() == json.loads(INTERFACE.read_text(encoding="utf-8"))
    assert sorted(kwire.__all__) == dir(kwire)


def test_findings_are_those_of_the_command(stored: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kwire", "findings", str(TROUBLE), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    findings = kwire.findings(TROUBLE)
    assert rows
    assert [(f.severity, f.code, f.text, dict(f.who)) for f in findings] == [
        (row["severity"], row["code"], row["text"], row["who"]) for row in rows
    ]
    assert [f.first and f.first.exchange for f in findings] == [
        row["first"] and row["first"]["exchange"] for row in rows
    ]
    code = findings[0].code
    assert {f.code for f in kwire.findings([TROUBLE, stored], only=[code])} == {code}
    assert code not in {f.code for f in kwire.findings(TROUBLE, ignore=[code])}


def test_findings_judge_by_a_target_and_refuse_what_is_not_there(stored: str) -> None:
    assert kwire.findings(stored, target="4.0") == kwire.findings(stored, target="4.0.0")
    with pytest.raises(kwire.UsageError, match=r"no Kafka release(.|\n)*hint: "):
        kwire.findings(stored, target="99")
    with pytest.raises(kwire.UsageError, match="no finding has the code"):
        kwire.findings(stored, only=["nonsense"])
    with pytest.raises(kwire.UsageError, match="neither a dataset nor a capture"):
        kwire.findings([])


def test_a_story_is_in_order_of_time(stored: str) -> None:
    events = kwire.story(stored)
    assert [event.text for event in events] == [event.text for event in kwire.story(CAPTURE)]
    assert events == sorted(events, key=lambda event: event.time)
    group = kwire.story(stored, group="franz-g")
    assert {event.group_id for event in group} == {"franz-g"}
    with pytest.raises(kwire.UsageError, match=r"--group nobody(.|\n)*hint: there are franz-g"):
        kwire.story(stored, group="nobody")


def test_sql_answers_with_an_arrow_table(stored: str) -> None:
    table = kwire.sql(stored, "SELECT api, count(*) AS n FROM exchanges GROUP BY api ORDER BY n DESC")
    assert table.column_names == ["api", "n"]
    assert sum(table["n"].to_pylist()) == kwire.open_dataset(stored).exchanges.count_rows()
    assert table.to_pandas()["api"][0] == "ApiVersions"
    assert "latency_by_api" in kwire.sql(stored, "SHOW VIEWS")["viewName"].to_pylist()
    with pytest.raises(kwire.QueryError, match=r"`nope`(.|\n)*hint: DESCRIBE"):
        kwire.sql(stored, "SELECT nope FROM exchanges")


def test_a_report_is_text_and_a_file(stored: str, tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    text = kwire.report(stored, out)
    assert out.read_text(encoding="utf-8") == text
    assert text.startswith("# Kafka traffic: dataset")
    assert json.loads(kwire.report(CAPTURE, format="json"))
    assert kwire.report(stored).startswith("<!doctype html>")
    with pytest.raises(kwire.UsageError, match=r"report\.png: nothing is written"):
        kwire.report(stored, tmp_path / "report.png")


def test_a_dataset_says_in_three_lines_what_it_is(stored: str) -> None:
    for dataset in (kwire.analyze(CAPTURE), kwire.open_dataset(stored)):
        lines = repr(dataset).splitlines()
        assert len(lines) == 3
        assert "capture.pcap" in lines[1]
        assert "exchanges 77" in lines[2]
        page = dataset._repr_html_()
        assert "<td>exchanges</td><td style='text-align:right'>77</td>" in page
        assert "exchanges" in dir(dataset)
    written = kwire.analyze(CAPTURE, stored)
    assert repr(written).splitlines()[2] == "  rows: tables written to a folder>"


def test_hostile_names_stay_text_in_a_notebook(stored: str) -> None:
    dataset = kwire.open_dataset(stored)
    dataset.manifest["captures"][0]["name"] = "<script>alert(1)</script>\x1b[2J"
    assert "<script>" not in dataset._repr_html_()
    assert "\x1b" not in dataset._repr_html_() + repr(dataset)


def test_columns_carry_their_sentences(stored: str) -> None:
    dataset = kwire.open_dataset(stored)
    for name, table in kwire.analyze(CAPTURE).tables.items():
        for schema in (table.schema, getattr(dataset, name).schema):
            for column in tables.TABLES[name]:
                assert schema.field(column.name).metadata == {b"comment": column.about.encode()}


def test_an_exchange_lists_its_columns() -> None:
    exchange = next(kwire.exchanges(CAPTURE))
    assert {"api", "latency_us", "request", "response"} <= {*dir(exchange)}


def test_an_error_says_what_to_try() -> None:
    with pytest.raises(kwire.CaptureError) as failure:
        kwire.analyze("/nowhere/at-all.pcap")
    assert isinstance(failure.value, kwire.KwireError)
    assert str(failure.value) == f"{failure.value.message}\nhint: {failure.value.hint}"


USER = """
from __future__ import annotations

import datetime
from collections.abc import Iterator

import kwire


def slow(path: str, limit_us: int) -> Iterator[kwire.Exchange]:
    for exchange in kwire.exchanges(path, filter="api == Produce"):
        if (exchange.latency_us or 0) > limit_us:
            yield exchange


def errors(path: str) -> list[tuple[str, datetime.datetime | None]]:
    return [(finding.code, finding.since) for finding in kwire.findings(path) if finding.severity == "error"]


dataset: kwire.Dataset = kwire.analyze("orders.pcap")
stored: kwire.StoredDataset = kwire.open_dataset("DATASET")
page: str = kwire.report("DATASET")
happened: list[str] = [event.text for event in kwire.story("DATASET", topic="orders")]
files: int = len(dataset.captures)
result = kwire.replay("orders.pcap", to="localhost:9092", out="RUN")
answered: int = result.counts.verdicts["answered"]
try:
    kwire.analyze("x", records="meta", threads=2)
except kwire.CaptureError as failure:
    print(failure.hint.upper())
"""


def test_a_users_typed_program_passes_mypy(tmp_path: Path) -> None:
    program = tmp_path / "users.py"
    program.write_text(USER, encoding="utf-8")
    options = ["--strict", "--python-version=3.11", f"--cache-dir={tmp_path / 'cache'}"]
    wrong = program.with_name("wrong.py")
    wrong.write_text("import kwire\nkwire.nonsense\nkwire.findings(1)\nkwire.replay('x', nowhere=1)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program), str(wrong)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "MYPYPATH": str(ROOT)},  # mypy does not see what an editable installation finds by a hook
    )  # fmt: skip
    assert "users.py" not in done.stdout
    assert done.stdout.count("wrong.py:") >= 3, done.stdout


def test_a_users_typed_program_passes_pyright(tmp_path: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("no pyright to check a user's program with: npm install --global pyright")
    (tmp_path / "users.py").write_text(USER, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(
        "import kwire\nkwire.nonsense\nkwire.findings(1)\nkwire.replay('x', nowhere=1)\n"
    )
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "users.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [error for error in json.loads(done.stdout)["generalDiagnostics"] if error["severity"] == "error"]
    files = [Path(error["file"]).name for error in errors]
    assert "users.py" not in files, errors
    assert files.count("wrong.py") >= 3, errors


if __name__ == "__main__":
    INTERFACE.write_text(json.dumps(interface(), indent=1) + "\n", encoding="utf-8")
