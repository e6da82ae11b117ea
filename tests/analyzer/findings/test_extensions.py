"""Rules of other packages: `tests/analyzer/extension` beside kwire on the path, and packages that are broken.

Proves: kwire/analyzer/findings/extensions.py, kwire/analyzer/common/extensions.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import ROOT, SAMPLES

EXTENSION = ROOT / "tests" / "analyzer" / "extension"
CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
CODE = "acme-client-id"
TEXT = "franz-lz4 (127.0.0.1) sent 11 requests, and its client id names no team."


def put_package(folder: Path, name: str, entries: dict[str, str], **modules: str) -> None:
    """Put a package into a folder as an installer does: its modules, and its metadata."""
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code, encoding="utf-8")
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = "".join(f"{entry} = {module}\n" for entry, module in entries.items())
    (about / "entry_points.txt").write_text(f"[kwire.rules]\n{lines}", encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the path, with the package of `EXTENSION`."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXTENSION / "pyproject.toml").read_text(encoding="utf-8"))
    (module,) = project["tool"]["setuptools"]["py-modules"]
    code = (EXTENSION / f"{module}.py").read_text(encoding="utf-8")
    put_package(folder, project["project"]["name"], project["project"]["entry-points"]["kwire.rules"], **{module: code})
    return folder


@pytest.fixture(scope="module")
def dataset(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`CAPTURE`, analysed with that package."""
    path = tmp_path_factory.mktemp("extended") / "dataset"
    assert run(site, "analyze", CAPTURE, "-o", path)[0] == 0
    return path


@contextlib.contextmanager
def started(site: Path, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`kwire` with the packages of a folder installed."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", "kwire", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def run(site: Path, *arguments: object, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with started(site, *arguments, **environment) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def test_its_findings_are_everywhere_where_findings_are(site: Path, dataset: Path) -> None:
    code, out, _ = run(site, "findings", dataset, "--fail-on", "note")
    assert (code, out.count(f"NOTE {CODE}\n"), TEXT in out) == (1, 6, True)
    code, out, _ = run(site, "findings", CAPTURE, "--json", "--only", CODE, "--threshold", f"{CODE}.requests=12")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["who"]["client_id"] for row in rows} == {"franz-snappy", "franz-zstd", "franz-consumer"}
    assert all(row["first"]["exchange"] == 0 and row["family"] == "security" for row in rows)
    code, out, _ = run(site, "report", dataset, "--format", "json")
    assert TEXT in {row["text"] for row in json.loads(out)["answers"]["findings"]["rows"]}
    code, out, _ = run(site, "watch", CAPTURE, "--json")
    watched = [line["finding"] for line in map(json.loads, out.splitlines()) if "finding" in line]
    assert TEXT in {finding["text"] for finding in watched if finding["code"] == CODE}


def test_the_page_has_them(site: Path, dataset: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret-of-the-link", encoding="utf-8")
    secret.chmod(0o600)
    with started(site, "view", dataset, "--no-open", "--no-cache", "--token-file", secret) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        request = urllib.request.Request(
            f"{address}api/1/findings", headers={"Authorization": f"Bearer {secret.read_text(encoding='utf-8')}"}
        )
        with urllib.request.urlopen(request) as answer:
            findings = json.load(answer)["findings"]
    assert TEXT in {finding["text"] for finding in findings}


def test_its_rules_are_explained_and_listed(site: Path, tmp_path: Path) -> None:
    code, out, _ = run(site, "findings", "--explain", CODE)
    assert code == 0
    assert out.startswith(f"{CODE}: note, family security, of the package acme-kwire-rules\n")
    assert "thresholds  requests = 3" in out
    code, out, _ = run(site, "help", "findings")
    assert "Rules of the package acme-kwire-rules" in out
    assert out.count(CODE) == 1
    without = run(tmp_path, "help", "findings")[1]
    assert "Rules of the package" not in without
    assert CODE not in run(site, "findings", CAPTURE, KWIRE_EXTENSIONS="0")[1]


def test_a_package_in_an_archive_is_found(site: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "packages"), "zip", site))
    assert run(archive, "findings", "--explain", CODE)[0] == 0


def test_a_dataset_is_asked_again_by_a_package_that_came_later(site: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    (tmp_path / "none").mkdir()
    run(tmp_path / "none", "analyze", CAPTURE, "-o", dataset)
    before = run(tmp_path / "none", "findings", dataset, "--json")[1]
    assert CODE not in before
    both = run(site, "findings", dataset, "--json")[1].splitlines()
    assert [line for line in both if CODE not in line] == before.splitlines()
    assert len(both) == len(before.splitlines()) + 6


RULE = """
from kwire.analyzer.findings.rules import Match, rule
@rule("{family}", "{code}", "{severity}", "A.", why="B.", suppressed_when="C.", advice="D.", evidence="E.")
def check(capture, at):
    {body}
"""


def written(code: str = "acme-x", family: str = "errors", severity: str = "note", body: str = "yield from ()") -> str:
    return RULE.format(code=code, family=family, severity=severity, body=body)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (broken.py:1)"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.exit('no licence')", "SystemExit: no licence (broken.py:2)"),
        ("raise ValueError('two\\nlines \\x1b[31m')", "ValueError: two lines \\x1b[31m (broken.py:1)"),
        (written(code="tcp-retransmission"), "ValueError: there is a rule tcp-retransmission already"),
        (written() + written(), "ValueError: there is a rule acme-x already"),
        (written(family="weather"), "weather is none of the families quality, network"),
        (written(severity="fatal"), "fatal is none of note, warning, error"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_one_line(tmp_path: Path, module: str, words: str) -> None:
    put_package(tmp_path, "broken", {"x": "broken"}, broken=module)
    code, out, err = run(tmp_path, "findings", "--explain", "tcp-retransmission")
    assert (code, out) == (2, "")
    line, hint = err.splitlines()
    assert line.startswith("kwire: the rules of the package broken cannot be loaded: ")
    assert words in line
    assert hint == "hint: update or uninstall broken; KWIRE_EXTENSIONS=0 leaves out the rules of all packages"


def test_a_broken_package_is_told_before_a_capture_is_read(tmp_path: Path) -> None:
    put_package(tmp_path, "broken", {"x": "broken"}, broken="1 / 0")
    dataset = tmp_path / "dataset"
    code, out, err = run(tmp_path, "analyze", CAPTURE, "-o", dataset)
    assert (code, out, dataset.exists()) == (2, "", False)
    assert "ZeroDivisionError" in err.splitlines()[0]
    assert run(tmp_path, "analyze", CAPTURE, "-o", dataset, KWIRE_EXTENSIONS="0")[0] == 0


def test_an_entry_point_of_nothing_is_told(tmp_path: Path) -> None:
    put_package(tmp_path, "broken", {"x": "broken:rules"}, broken="print('loaded')")
    code, out, err = run(tmp_path, "help", "findings")
    assert (code, out) == (2, "")  # what it prints is kept from stdout
    assert "the rules of the package broken cannot be loaded: AttributeError" in err
    assert "Traceback" not in err


FAILURES = {
    "yield 1 / 0": "ZeroDivisionError: division by zero (failing.py:",
    "return None": "TypeError: 'NoneType' object is not iterable",
    "yield 'a text'": "TypeError: the rule yields str, not Match (failing.py:",
    "capture.key(10**9); yield Match('a', 1)": "(failing.py:",  # what raises is a line of kwire's
    "yield Match(None, 1)": "TypeError: text is None",
    "yield Match('a', 1, rows=(10**9,))": "(failing.py:",
    "yield Match('a', 1, rows=(-1,))": "ValueError: rows and links count from 0",
    "yield Match('a', 1, severity='fatal')": "ValueError: severity 'fatal' is none of",
    "yield Match('a', 'many')": "ValueError: invalid literal",
}


def test_a_rule_that_fails_is_a_finding_that_says_so(tmp_path: Path) -> None:
    rules = "".join(written(code=f"acme-{number}", body=body) for number, body in enumerate(FAILURES))
    put_package(tmp_path, "failing", {"x": "failing"}, failing=rules)
    code, out, err = run(tmp_path, "findings", CAPTURE, "--json", "--fail-on", "warning")
    rows = {row["code"]: row for row in map(json.loads, out.splitlines()) if row["code"].startswith("acme-")}
    assert (code, err) == (1, "")
    for number, words in enumerate(FAILURES.values()):
        row = rows.pop(f"acme-{number}")
        assert row["text"].startswith("This rule of the package failing failed, so what it looks for is unknown: ")
        assert words in row["text"]
        assert (row["severity"], row["proven"], row["cause"]) == ("warning", True, "a fault in failing")
    assert not rows


def test_what_a_rule_does_to_columns_harms_no_rule_of_kwire(tmp_path: Path) -> None:
    body = "capture.exchanges.error[:] = 3; capture.exchanges.api[:] = 0; yield Match('\\x1b[31mred', 1)"
    put_package(tmp_path, "rude", {"x": "rude"}, rude=written(body=body, family="quality"))
    traffic = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
    rows = run(tmp_path, "findings", traffic, "--json")[1].splitlines()
    own = [line for line in rows if "acme-x" not in line]
    assert own == run(tmp_path, "findings", traffic, "--json", KWIRE_EXTENSIONS="0")[1].splitlines()
    assert len(rows) == len(own) + 1
    assert json.loads(next(line for line in rows if "acme-x" in line))["text"] == "\\x1b[31mred"


def test_its_own_tests_pass(site: Path, tmp_path: Path) -> None:
    (tmp_path / "orders.pcap").symlink_to(CAPTURE)
    (tmp_path / "test_acme_rules.py").write_text((EXTENSION / "test_acme_rules.py").read_text(encoding="utf-8"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_the_guide_shows_this_package() -> None:
    guide = (ROOT / "docs" / "guides" / "your-own-findings.md").read_text(encoding="utf-8")
    for name in ("acme_rules.py", "test_acme_rules.py", "pyproject.toml"):
        text = (EXTENSION / name).read_text(encoding="utf-8")
        assert (text if name.endswith(".py") else text.split("\n\n")[1]) in guide
