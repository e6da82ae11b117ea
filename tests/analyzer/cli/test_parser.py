"""The `kwire` command as a user runs it: the installed script, in a process of its own, on shipped captures.

What it prints is compared with the rows of the Python API; how it ends, with what is promised: exit codes, one line and
a hint instead of a traceback, data on stdout and everything else on stderr, a quiet end where nobody reads on.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli import commands, parser
from kwire.analyzer.dataset import tables
from tests import forked
from tests.captures import forge
from tests.shared import ROOT, SAMPLES, shared_folder

KWIRE = str(Path(sysconfig.get_path("scripts")) / "kwire")
CAPTURE = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"
OTHER = SAMPLES / "admin-kafkapython-3.9" / "capture.pcap"
SECONDS = 600
"""How long a command may take before a test gives up on it. A hang is meant: kernels may have to be compiled, on a
machine that does much else."""

COMPILING = re.compile(r"^kwire: compiling kernels.*\n", re.MULTILINE)


def kwire(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; the line that it says on a machine's first run is taken from stderr."""
    done = forked.run(*arguments, timeout=SECONDS, **options)
    done.stderr = COMPILING.sub("", done.stderr)
    return done


def printed(*arguments: object, **options: Any) -> str:
    """The output of a command that must succeed with an empty stderr."""
    done = kwire(*arguments, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The capture's exchanges in order of their requests, from the Python API."""
    return [exchange.row for exchange in analyzer.exchanges(CAPTURE)]


# ------------------------------------------------------------------------------------------------- help, version, usage

HEAVY = {"numpy", "numba", "llvmlite", "pyarrow", "pandas", "rich", "lark", "pyspark", "scapy", "dpkt"}


@pytest.mark.parametrize("words", ["--help", "--version", "show --help", "analyze --help", "show --limit none x", ""])
def test_what_needs_no_capture_loads_nothing_heavy(words: str) -> None:
    """So that it is quick; how quick is measured in tests/bench."""
    program = (
        "import sys\n"
        "from kwire.analyzer.cli.parser import command\n"
        "try:\n"
        "    command()\n"
        "finally:\n"
        "    print('loaded', *sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if words.endswith(("help", "version")) else 2)
    loaded = set(done.stderr.splitlines()[-1].split()[1:])
    assert "kwire" in loaded
    assert loaded & HEAVY == set()


SLOW = {"pyarrow.compute", "pyarrow.dataset", "numpy.ma", "importlib.metadata", "pandas"}


@pytest.mark.parametrize("words", ["show", "findings", "analyze --out {}"])
def test_a_first_answer_loads_nothing_that_it_does_not_need(tmp_path: Path, words: str) -> None:
    """Each of these takes a tenth of what a command takes to begin, or more; how long is measured in tests/bench."""
    program = (
        "import os, sys\n"
        "from kwire.analyzer.cli.parser import command\n"
        "leave = os._exit\n"
        "os._exit = lambda code: (print(code, *sorted(sys.modules), file=sys.stderr, flush=True), leave(code))\n"
        "command()\n"
    )
    capture = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
    arguments = [*words.format(tmp_path / "dataset").split(), str(capture)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    code, *loaded = done.stderr.splitlines()[-1].split()
    assert code in "01"
    assert "pyarrow" in loaded
    assert sorted(SLOW & set(loaded)) == []


def test_help_is_data_and_names_every_command() -> None:
    text = printed("--help")
    assert text.startswith("usage: kwire")
    commands = re.findall(r"^    ([a-z]+) ", text, re.MULTILINE)
    assert commands[:2] == ["analyze", "show"]
    for command in commands:
        assert printed(command, "--help").startswith(f"usage: kwire {command}")


def test_the_version() -> None:
    assert printed("--version") == f"kwire {analyzer.__version__}\n"


def refused(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    """Exit code 2, nothing on stdout, one line that says what and where, and a hint."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("kwire: ")
    assert lines[1].startswith("hint: ")
    for word in expected:
        assert word in done.stderr


USAGE = [
    ("", ["COMMAND", "kwire --help"]),
    ("frobnicate", ["frobnicate", "analyze"]),
    ("shwo {capture}", ["did you mean show?"]),
    ("{capture}", ["a command comes first"]),
    ("show {capture} --fitler x", ["--fitler", "did you mean --filter?"]),
    ("analyze {capture} -o {folder}/data --records mta", ["did you mean meta?"]),
    ("help grup_lag", ["no help about 'grup_lag'", "did you mean group_lag?"]),
    ("completion bsh", ["did you mean bash?"]),
    ("show {capture} --time abs", ["did you mean absolute?"]),
    ("analyze {capture} -o {folder}/data --master local", ["--master goes with --engine spark"]),
    ("diff {folder}/none", ["none: not a dataset", "kwire replay CAPTURE --to"]),
    ("replay {capture} --to 127.0.0.1:1 -o {folder}/run --sasl FOO", ["--sasl FOO", "SCRAM-SHA-512"]),
    ("show {capture} --page 2", ["--page goes with --tree and --json"]),
    ("show", ["CAPTURE", "kwire show --help"]),
    ("show {capture} --nonsense", ["--nonsense", "kwire show --help"]),
    ("show {capture} --limit 0", ["--limit", "'0'"]),
    ("show {capture} --port 65536", ["--port", "65536"]),
    ("show {capture} --threads x", ["--threads", "'x'"]),
    ("show {capture} --threads 1000000", ["--threads", "256"]),
    ("show {capture} --limit 9223372036854775808", ["--limit", "1,000,000,000,000,000"]),
    ("analyze {capture} -o {folder}/data --frame-limit " + "9" * 5000, ["--frame-limit", "5,000 characters"]),
    ("show {capture} --rotated {capture}", ["capture.pcap: one argument too many here", "side by side"]),
    ("show {capture} --follow ''", ["--follow"]),
    ("show {capture} --json --tree", ["--tree", "--json"]),
    ("show {capture} --hex", ["--hex", "--tree"]),
    ("show {capture} --fields api,nope", ["--fields", "`nope`", "to show"]),
    ("show {capture} --fields ''", ["--fields"]),
    ("show {capture} --fields apy", ["did you mean `api`"]),
    ("show {capture} --fields result", ["what the list shows as result is `error` and `status`"]),
    ("show {capture} --fields id", ["what the list shows as id is `correlation_id`"]),
    ("show {capture} --fields response.errorCod", ["no API has a field", "`response.errorCode`"]),
    ("show {capture} --sort nope", ["--sort", "`nope`"]),
    ("show {capture} --sort response.topics", ["`response.topics` has no single value", "a field in it"]),
    ("show {capture} --sort api,latency", ["one name is enough"]),
    ("show {capture} --sort latency --frames", ["--sort does not go with --frames"]),
    ("show {capture} --sort latency --count-by api", ["--sort does not go with --count-by"]),
    ("show {capture} --frames --json", ["--frames does not go with --json"]),
    ("show {capture} --count-by api,nope", ["--count-by", "`nope`"]),
    ("show {capture} --follow nobody", ["--follow", "nobody", "--count-by connection"]),
    ("show {capture} --filter 'api =='", ["filter, column 7", "a value"]),
    ("show {capture} --filter 'colour == red'", ["filter, column 1", "`colour`"]),
    ("show {capture} --filter 'latency > 5 parsecs'", ["filter, column"]),
    ("show {folder}/missing.pcap", ["missing.pcap: no such file"]),
    ("show {folder}", ["no capture in this folder"]),
    ("show '{folder}/*.pcap'", ["no capture matches"]),
    ("replay {capture} --to 127.0.0.1:1 -o README.md", ["README.md: exists and is not a folder"]),
    ("replay {folder}/missing.pcap --to 127.0.0.1:1 -o tests", ["tests: not empty, and not a dataset"]),
    ("show README.md", ["README.md: not a pcap or pcapng capture", "editcap"]),
    ("show -", ["-: is empty"]),
    ("show - -", ["stdin was named twice"]),
    ("analyze {capture} -o tests", ["tests: not empty, and not a dataset"]),
    ("analyze {capture} -o README.md", ["README.md"]),
    ("analyze {folder}/missing.pcap -o {folder}/data", ["missing.pcap: no such file"]),
    ("analyze {capture} -o {folder}/data --filter 'api =='", ["filter, column 7"]),
]


@pytest.mark.parametrize(("words", "expected"), USAGE, ids=[words for words, _ in USAGE])
def test_what_cannot_be_done_says_so_in_one_line_and_a_hint(words: str, expected: list[str], tmp_path: Path) -> None:
    refused(kwire(*shlex.split(words.format(capture=CAPTURE, folder=tmp_path))), *expected)
    assert list(tmp_path.iterdir()) == []


def test_an_error_with_line_ends_of_others_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser.fail("a broker at [a\nhint: rm -rf]", "what now?\nkwire: fine", "filter\n  ^^")
    assert capsys.readouterr().err.splitlines() == [
        r"kwire: a broker at [a\nhint: rm -rf]",
        "filter",
        "  ^^",
        r"hint: what now?\nkwire: fine",
    ]


def test_a_fault_ends_the_process_though_a_thread_waits() -> None:
    program = (
        "import concurrent.futures, threading\n"
        "from kwire.analyzer.cli import parser as cli\n"
        "concurrent.futures.ThreadPoolExecutor(1).submit(threading.Event().wait)\n"
        "def broken(arguments):\n"
        "    raise RuntimeError('broken')\n"
        "cli._run = broken\n"
        "cli.command()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: broken")


def test_a_terminal_that_lacks_a_sign_gets_its_number() -> None:
    for encoding in ("latin-1", "ascii"):
        done = kwire("help", "filter", env={"PYTHONIOENCODING": encoding})
        assert (done.returncode, done.stderr) == (0, "")
        assert r"\u2026" in done.stdout


def test_a_capture_without_permission(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "secret.pcap"
    path.write_bytes(CAPTURE.read_bytes())
    path.chmod(0)
    refused(kwire("show", path), "secret.pcap: cannot be read: Permission denied")


# ------------------------------------------------------------------------------------------- the documentation in there


def test_help_has_the_filter_language_as_plain_text() -> None:
    text = printed("help", "filter")
    for words in ("api == Produce and latency > 20ms", "A comparison: name, operator, value", "is null", "KiB"):
        assert words in text
    assert "```" not in text
    assert "**" not in text
    assert "](" not in text
    assert ESCAPE not in text


def test_help_has_every_table_and_column_and_what_it_holds() -> None:
    text = " ".join(printed("help", "tables").split())
    assert set(tables.ABOUT) == set(tables.TABLES)
    for name, columns in tables.TABLES.items():
        assert f"{name}: {tables.ABOUT[name]}" in text
        for column in columns:
            words = re.sub(r"`([^` ]+)`", r"\1", column.about)
            assert f" {column.name} {words} (" in text
    assert printed("help", "partitions") in printed("help", "tables")


def test_help_has_every_view_and_its_question() -> None:
    from kwire.reports import catalog

    text = " ".join(printed("help", "views").split())
    for view in catalog.views():
        assert f" {view.name} {view.question} " in f" {text} "
    lag = printed("help", "group_lag")
    assert all(f"\n  {column} " in lag for column in catalog.view("group_lag").columns)


def test_help_of_a_command_is_what_the_command_says() -> None:
    assert printed("help", "show") == printed("show", "--help")
    assert "kwire help filter" in printed("help")
    assert re.search(r"begins with ! where .* with ~ where", " ".join(printed("show", "--help").split()))


def completed(*words: str) -> list[str]:
    """Bash's completions of the last of some words."""
    program = f"""
        source <({shlex.quote(KWIRE)} completion bash)
        COMP_WORDS=({" ".join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}
        _kwire; printf '%s\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_options_and_choices() -> None:
    assert completed("kwire", "sh") == ["show"]
    assert set(completed("kwire", "")) >= {"analyze", "show", "sql", "report", "replay", "diff", "help"}
    assert set(completed("kwire", "show", "x.pcap", "--fi")) == {"--fields", "--filter"}
    assert completed("kwire", "analyze", "--records", "m") == ["meta"]
    assert completed("kwire", "analyze", "--records", "=", "m") == ["meta"]
    assert completed("kwire", "show", "--color", "") == ["auto", "always", "never"]
    assert completed("kwire", "show", "") == []  # files
    assert completed("kwire", "show", "--filter", "") == []
    assert completed("kwire", "help", "fil") == ["filter"]
    assert completed("kwire", "completion", "z") == ["zsh"]
    assert "--window-bytes" not in completed("kwire", "show", "--")


def test_zsh_and_fish_are_told_every_option() -> None:
    zsh, fish = printed("completion", "zsh"), printed("completion", "fish")
    options = set(re.findall(r"--[a-z][a-z-]+", printed("replay", "--help"))) - {"--help"}
    for option in options:
        assert f"{option}[" in zsh
        assert f" -l {option[2:]} " in fish
    assert zsh.startswith("#compdef kwire\n")


# --------------------------------------------------------------------------------------------------- data and the rest


def test_a_line_for_each_exchange(rows: list[dict[str, Any]]) -> None:
    heading, *lines = printed("show", CAPTURE).splitlines()
    assert heading.split()[:6] == ["time", "latency", "mostly", "api", "client", "broker"]
    assert len(lines) == len(rows) == 86
    for line, row in zip(lines, rows, strict=True):
        assert f"{row['api']} v{row['api_version']} " in line
        assert f"{row['client_ip']}:{row['client_port']} " in line
        assert (row["error"] or "") in line
        assert line.startswith("!") == bool(row["error_code"])


def test_every_line_of_json_is_an_object_with_every_column_and_both_bodies() -> None:
    lines = printed("show", CAPTURE, "--json").splitlines()
    exchanges = list(analyzer.exchanges(CAPTURE))
    assert len(lines) == len(exchanges)
    for line, exchange in zip(lines, exchanges, strict=True):
        shown = json.loads(line)
        names = [column.name for column in tables.EXCHANGES] + ["request", "response"]
        assert list(shown)[: len(names)] == names
        assert shown == json.loads(json.dumps(exchange.json()))


def test_notes_go_to_stderr_and_leave_the_data_alone(tmp_path: Path) -> None:
    """A capture cut off in a packet ends there with a note."""
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(CAPTURE.read_bytes()[:-7])
    done = kwire("show", cut, "--json")
    assert done.returncode == 0
    assert all(json.loads(line) for line in done.stdout.splitlines())
    assert re.fullmatch(rf"note: {cut}: ends in the middle of packet 271, at byte [\d,]+: .*\n", done.stderr)


def test_what_is_no_kafka_is_a_note_too(tmp_path: Path) -> None:
    web = forge.converse([forge.Write(forge.TO_BROKER, b"GET / HTTP/1.1\r\n\r\n")], broker=("10.0.0.2", 80))
    path = tmp_path / "web.pcap"
    path.write_bytes(forge.pcap(forge.rendered(web)))
    done = kwire("show", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"note: web\.pcap: .*not recognised as Kafka.*--port 80 insists\n", done.stderr)


def test_a_dataset_is_not_shown_but_the_way_to_it_is(tmp_path: Path) -> None:
    printed("analyze", CAPTURE, "-o", tmp_path / "data")
    for command in ("show", "analyze"):
        refused(
            kwire(command, tmp_path / "data"), f"data: a dataset, and kwire {command}", f"kwire sql {tmp_path}/data"
        )


def test_the_summary_is_data_as_text_and_as_json(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    text = printed("analyze", CAPTURE, "-o", tmp_path / "text")
    assert "86 exchanges on 7 connections" in text
    summary = json.loads(printed("analyze", CAPTURE, "-o", tmp_path / "json", "--json"))
    assert sum(api["exchanges"] for api in summary["apis"]) == 86
    for api in summary["apis"]:  # the smallest latency that at least so many do not exceed, within a bucket's width
        sorted_us = sorted(row["latency_us"] for row in rows if row["api"] == api["api"] and row["latency_us"])
        for name, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
            exact = sorted_us[-(-percent * len(sorted_us) // 100) - 1]
            assert api["latency_us"][name] == pytest.approx(exact, rel=0.016)
            assert len(sorted_us) > 2 or api["latency_us"][name] == exact
    for folder in ("text", "json"):
        assert analyzer.open_dataset(tmp_path / folder).exchanges.count_rows() == 86


# ------------------------------------------------------------------------------------------------------- what is shown


def test_fields(rows: list[dict[str, Any]]) -> None:
    heading, *lines = printed("show", CAPTURE, "--fields", "api, latency_us,error,topics").split("\n")[:-1]
    assert heading == "api\tlatency_us\terror\ttopics"
    for line, row in zip(lines, rows, strict=True):
        api, latency, error, topics = line.split("\t")
        assert (api, latency, error) == (row["api"], str(row["latency_us"]), row["error"] or "")
        assert (json.loads(topics) if topics else None) == row["topics"]


def test_limit(rows: list[dict[str, Any]]) -> None:
    lines = printed("show", CAPTURE, "--fields", "exchange", "--limit", 3).splitlines()
    assert lines[1:] == [str(row["exchange"]) for row in rows[:3]]
    assert printed("show", CAPTURE, "--limit", 1000) == printed("show", CAPTURE)


@pytest.mark.parametrize(
    ("name", "column"), [("latency", "total_us"), ("latency_us", "latency_us"), ("request_bytes", "request_bytes")]
)
def test_sort_is_largest_first_and_with_a_minus_smallest(name: str, column: str, rows: list[dict[str, Any]]) -> None:
    values = sorted(row[column] for row in rows)
    largest = printed("show", CAPTURE, "--sort", name, "--fields", column, "--limit", 20).splitlines()[1:]
    smallest = printed("show", CAPTURE, f"--sort=-{name}", "--fields", column, "--limit", 20).splitlines()[1:]
    assert [int(number) for number in largest] == values[::-1][:20]
    assert [int(number) for number in smallest] == values[:20]


def test_sort_leaves_what_lacks_the_column_for_the_end(rows: list[dict[str, Any]]) -> None:
    groups = [row["group_id"] for row in rows]
    for option, descending in (("--sort=group_id", True), ("--sort=-group_id", False)):
        lines = printed("show", CAPTURE, option, "--fields", "group_id").splitlines()[1:]
        having = sorted((group for group in groups if group is not None), reverse=descending)
        assert lines == having + [""] * groups.count(None)


def test_filter(rows: list[dict[str, Any]]) -> None:
    lines = printed("show", CAPTURE, "--filter", "api in (Produce, Fetch)", "--fields", "api").splitlines()[1:]
    assert lines == [row["api"] for row in rows if row["api"] in ("Produce", "Fetch")]
    assert set(lines) == {"Produce", "Fetch"}


@pytest.mark.parametrize("form", [(), ("--json",), ("--fields", "api"), ("--count-by", "api")])
def test_a_filter_that_nothing_matches_says_so(form: tuple[str, ...]) -> None:
    done = kwire("show", CAPTURE, "--filter", "api == ShareFetch", *form)
    assert done.returncode == 0
    assert done.stdout.split() in ([], ["api", "exchanges"])
    assert done.stderr == "note: 0 of 86 exchanges match the filter\n"


def test_analyze_without_out_prints_the_summary_alone(tmp_path: Path) -> None:
    summary = printed("analyze", CAPTURE, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert [*tmp_path.iterdir()] == []
    dataset = tmp_path / "dataset"
    assert printed("analyze", CAPTURE, "-o", dataset) == f"{summary}\ndataset: {dataset}\n"


@pytest.mark.parametrize("option", ["--append", "--wait", "--keep-bytes"])
def test_what_needs_a_dataset_is_refused_without_one(option: str) -> None:
    run = kwire("analyze", CAPTURE, option)
    assert (run.returncode, run.stderr.splitlines()[0]) == (2, f"kwire: {option} goes with -o DATASET")


def test_analyze_says_too_that_nothing_matches(tmp_path: Path) -> None:
    done = kwire("analyze", CAPTURE, OTHER, "-o", tmp_path / "data", "--filter", "api == ShareFetch")
    total = sum(1 for _ in analyzer.exchanges([CAPTURE, OTHER]))
    assert (done.returncode, done.stderr) == (0, f"note: 0 of {total:,} exchanges match the filter\n")
    whole = kwire("analyze", CAPTURE, OTHER, "-o", tmp_path / "data", "--filter", "api == Produce")
    assert (whole.returncode, whole.stderr) == (0, "")


def test_tls_says_what_it_is_and_that_it_stays_shut(tmp_path: Path) -> None:
    """Five connections of a real client and broker; insisting on a port would help nobody."""
    capture = shared_folder("tls13-aiokafka-4.3") / "capture.pcap"
    done = kwire("show", capture)
    assert (done.returncode, done.stdout) == (0, "")
    words = r"note: capture\.pcap: 5 connections are TLS \(24,236 bytes\): encrypted, .* shut;.*\n"
    assert re.fullmatch(words, done.stderr)
    text = printed("analyze", capture, "-o", tmp_path / "data")
    assert "TLS: 5 connections, 24.2 kB: encrypted, what is said there stays shut\n" in text
    assert "--port" not in done.stderr + text


def test_count_by(rows: list[dict[str, Any]]) -> None:
    heading, *lines = printed("show", CAPTURE, "--count-by", "api,error").splitlines()
    assert heading.split() == ["api", "error", "exchanges"]
    exchanges = {(api, error): int(count) for api, error, count in map(str.split, lines)}
    expected: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row["api"], row["error"] or "-")
        expected[key] = expected.get(key, 0) + 1
    assert exchanges == expected
    counts = [int(line.split()[-1]) for line in lines]
    assert counts == sorted(counts, reverse=True)


def test_count_by_loses_no_exchange_and_counts_what_one_says_twice_once(rows: list[dict[str, Any]]) -> None:
    lines = printed("show", CAPTURE, "--count-by", "topic").splitlines()[1:]
    counts = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in lines}
    expected: dict[str, int] = {}
    for row in rows:
        for topic in set(row["topics"] or ()) or {"-"}:
            expected[topic] = expected.get(topic, 0) + 1
    assert counts == expected


def test_fields_of_bodies_are_names_too() -> None:
    """`--fields`, `--count-by` and `--sort` find in a path the values of the bodies."""
    path = "request.topics[].name"
    expected = [
        (
            exchange.row["correlation_id"],
            [
                topic["name"]
                for topic in (exchange.request or {}).get("topics") or ()
                if isinstance(topic, dict) and topic.get("name") is not None
            ],
        )
        for exchange in analyzer.exchanges(CAPTURE)
    ]
    lines = printed("show", CAPTURE, "--fields", f"correlation_id,{path}").split("\n")[1:-1]
    assert [
        (int(count), json.loads(names or "[]")) for count, names in (line.split("\t") for line in lines)
    ] == expected
    counted = dict(line.split() for line in printed("show", CAPTURE, "--count-by", path).splitlines()[1:])
    for name in {name for _, names in expected for name in names}:
        assert int(counted[name]) == sum(name in names for _, names in expected)
    assert int(counted["-"]) == sum(not names for _, names in expected)
    ordered = printed("show", CAPTURE, "--sort", path, "--fields", path).split("\n")[1:-1]
    largest = [max(json.loads(line)) for line in ordered if line]
    assert largest == sorted(largest, reverse=True)
    assert ordered[len(largest) :] == [""] * (len(expected) - len(largest))


def test_sort_on_stdin_prints_at_the_end_and_says_so() -> None:
    with open(CAPTURE, "rb") as stdin:
        done = kwire("show", "-", "--sort", "latency", "--fields", "latency_us", "--limit", 5, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "note: --sort prints when stdin ends\n")
    assert done.stdout == printed("show", CAPTURE, "--sort", "latency", "--fields", "latency_us", "--limit", 5)


def test_fields_have_their_unit_in_the_heading() -> None:
    heading = printed("show", CAPTURE, "--fields", "latency,api,throttle,group", "--limit", 1).splitlines()[0]
    assert heading == "latency_us\tapi\tthrottle_us\tgroup"


def test_frames_shows_requests_and_responses_apart_in_order_of_time(rows: list[dict[str, Any]]) -> None:
    heading, *lines = printed("show", CAPTURE, "--frames").splitlines()
    assert heading.split() == ["time", "from", "to", "bytes", "id", "message"]
    assert len(lines) == sum((row["exchange"] is not None) + (row["reply"] is not None) for row in rows)
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)
    assert sum(" request" in line for line in lines) == len(rows)


def test_follow_shows_one_connection_as_a_dialogue(rows: list[dict[str, Any]]) -> None:
    name = rows[0]["connection"]
    own = [row for row in rows if row["connection"] == name]
    assert 2 < len(own) < len(rows)
    lines = printed("show", CAPTURE, "--follow", name).splitlines()
    matches = [re.fullmatch(r" *[\d.]+ +([<>]) (.*)", line) for line in lines]
    requests = [match[2] for match in matches if match and match[1] == ">"]
    answered = [match[2] for match in matches if match and match[1] == "<"]
    assert [line.split()[:5] for line in requests] == [
        [row["api"], f"v{row['api_version']}", f"#{row['exchange']}", "id", f"{row['correlation_id']}"] for row in own
    ]
    assert [line.split()[0] for line in answered] == [f"#{row['exchange']}" for row in own]
    for form in (["--fields", "connection"], ["--count-by", "connection"]):
        assert set(re.findall(r"\S+#\d+", printed("show", CAPTURE, "--follow", name, *form))) == {name}


def test_times_are_relative_to_the_first_packet_or_absolute(rows: list[dict[str, Any]]) -> None:
    relative = printed("show", CAPTURE, "--limit", 1).splitlines()[1].split()[0]
    absolute = printed("show", CAPTURE, "--limit", 1, "--time", "absolute").splitlines()[1].split()[0]
    assert 0 < float(relative) < 1
    assert absolute == rows[0]["request_time"].strftime("%H:%M:%S.%f")


def test_tree_shows_every_field_and_hex_its_bytes() -> None:
    tree = printed("show", CAPTURE, "--tree", "--limit", 2)
    assert "correlationId" in tree
    assert "clientSoftwareName" not in tree  # ApiVersions v2 has none
    plain, with_bytes = tree.splitlines(), printed("show", CAPTURE, "--tree", "--hex", "--limit", 2).splitlines()
    assert len(plain) == len(with_bytes)
    assert sum(map(len, with_bytes)) > sum(map(len, plain))


# --------------------------------------------------------------------------------------------------------------- stdin


def test_a_capture_on_stdin_says_the_same(tmp_path: Path) -> None:
    """In order of completion: a stream has no end to wait for."""
    with CAPTURE.open("rb") as stdin:
        live = printed("show", "-", "--fields", "exchange,api,latency_us,connection", stdin=stdin).splitlines()
    filed = printed("show", CAPTURE, "--fields", "exchange,api,latency_us,connection").splitlines()
    assert sorted(live) == sorted(filed)
    with CAPTURE.open("rb") as stdin:
        printed("analyze", "-", "-o", tmp_path / "data", stdin=stdin)
    dataset = analyzer.open_dataset(tmp_path / "data")
    assert dataset.exchanges.count_rows() == len(filed) - 1
    assert set(dataset.exchanges.to_table()["capture"].to_pylist()) == {"stdin"}


class Running:
    """A command that is still running, its streams in pipes. Waits are for what it says or does, never for a time."""

    def __init__(self, *arguments: object) -> None:
        # Interruptible even where the tests run in the background, which makes children ignore SIGINT.
        self.process = subprocess.Popen(
            [KWIRE, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def send(self, data: bytes) -> None:
        """Write to its stdin, which stays open."""
        assert self.process.stdin is not None
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def close(self) -> None:
        """End its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def line(self) -> str:
        """The next line on stdout (which has no buffer here, so that waiting for more of it means something)."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS)[0], "nothing is printed"
        return self.process.stdout.readline().decode()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for what the command does."""
        give_up = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, "it ended before that"
            assert time.monotonic() < give_up
            time.sleep(0.01)

    def interrupted(self, left: str = "", number: signal.Signals = signal.SIGINT) -> str:
        """Ctrl-C while its stdin stays open and silent: exit code 130, one line that ends with what is left of its
        output. What stdout still held comes back."""
        self.process.send_signal(number)
        assert self.process.wait(SECONDS) == 130
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        assert COMPILING.sub("", self.process.stderr.read().decode()) == f"kwire: {how}{left}\n"
        return self.process.stdout.read().decode()


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """Starts commands; none outlives its test."""
    started: list[Running] = []

    def start(*arguments: object) -> Running:
        started.append(Running(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        with process.process:
            pass


def test_what_is_known_is_shown_while_stdin_is_open(running: Callable[..., Running]) -> None:
    """As with `tcpdump -w - | kwire show -`: a row does not wait for the next packet."""
    show = running("show", "-", "--fields", "api")
    show.send(CAPTURE.read_bytes())
    assert [show.line(), show.line()] == ["api\n", "ApiVersions\n"]
    show.close()
    assert show.process.wait(SECONDS) == 0


def test_ctrl_c_while_stdin_is_silent(running: Callable[..., Running]) -> None:
    show = running("show", "-", "--json")
    show.send(CAPTURE.read_bytes())
    first = show.line()
    rest = show.interrupted()
    for line in [first, *rest.splitlines()]:
        assert json.loads(line)["capture"] == "stdin"


def under_way(target: Path) -> Callable[[], object]:
    """Whether a dataset is being written beside its place."""
    return lambda: list(target.parent.glob(f".{target.name}.*.new"))


def test_ctrl_c_while_a_first_dataset_is_made_leaves_none(running: Callable[..., Running], tmp_path: Path) -> None:
    analyze = running("analyze", "-", "-o", tmp_path / "data")
    analyze.send(CAPTURE.read_bytes())
    analyze.until(under_way(tmp_path / "data"))
    assert analyze.interrupted(f"; nothing was written to {tmp_path / 'data'}") == ""
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_a_dataset_is_replaced_leaves_the_old_one(
    running: Callable[..., Running], tmp_path: Path
) -> None:
    target = tmp_path / "data"
    printed("analyze", OTHER, "-o", target)
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    for option, number in (([], signal.SIGTERM), (["--append"], signal.SIGINT)):
        analyze = running("analyze", "-", "-o", target, *option)
        analyze.send(CAPTURE.read_bytes())
        analyze.until(under_way(target))
        assert analyze.interrupted(f"; {target} is as it was before", number) == ""
        assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
        assert list(tmp_path.iterdir()) == [target]


# ------------------------------------------------------------------------------------------------ nobody reads, or none


LONG = ("show", str(SAMPLES / "*" / "capture.pcap"), "--tree", "--hex")
"""Prints megabytes: far more than a pipe holds."""


def test_a_reader_that_has_seen_enough_ends_it_quietly(running: Callable[..., Running]) -> None:
    """`kwire show ... | head -1`"""
    show = running(*LONG)
    assert "ApiVersions" in show.line()
    assert show.process.stdout is not None
    assert show.process.stderr is not None
    show.process.stdout.close()
    assert show.process.wait(SECONDS) == 0
    assert COMPILING.sub("", show.process.stderr.read().decode()) == ""


@pytest.mark.parametrize("words", [("show", CAPTURE), ("show", CAPTURE, "--count-by", "api"), ("--help",)])
def test_a_closed_stdout_is_quiet_too(words: Sequence[object], tmp_path: Path) -> None:
    """`kwire ... >&-`"""
    command = shlex.join([KWIRE, *map(str, words)]) + " >&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, COMPILING.sub("", done.stderr)) == (0, "")


def test_a_closed_stdin_is_an_empty_one() -> None:
    command = f"{shlex.quote(KWIRE)} show - <&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    done.stderr = COMPILING.sub("", done.stderr)
    refused(done, "-: is empty")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here, which is a full disk on Linux")
@pytest.mark.parametrize("words", [("show", CAPTURE), ("show", CAPTURE, "--limit", 1), ("show", CAPTURE, "--json")])
def test_a_full_disk_behind_stdout(words: Sequence[object]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [KWIRE, *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    done.stdout, done.stderr = "", COMPILING.sub("", done.stderr)
    refused(done, "stdout cannot be written: No space left on device")


def test_an_error_that_nobody_hears_still_has_its_code() -> None:
    command = f"{shlex.quote(KWIRE)} show missing.pcap 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (2, "")


# ---------------------------------------------------------------------------------------------------------- a terminal

ESCAPE = "\x1b["


def on_a_terminal(*arguments: object, columns: int = 0, **environment: str) -> str:
    """The output of a command where stdout is a terminal of so many columns (0: it does not say)."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [KWIRE, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**inherited, "TERM": "xterm", "PAGER": "cat", **environment},
    )
    os.close(slave)
    output = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # what Linux says when the other end is closed
            break
        if not part:
            break
        output += part
    os.close(master)
    assert process.wait(SECONDS) == 0
    return output.decode().replace("\r\n", "\n")


def test_colour_is_for_terminals_and_repeats_what_the_text_says() -> None:
    coloured = on_a_terminal("show", CAPTURE)
    assert coloured == on_a_terminal("show", CAPTURE, NO_COLOR="")  # empty: as if it were not there
    plain = printed("show", CAPTURE)
    assert ESCAPE in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain
    assert ESCAPE not in plain
    marked = [line for line in coloured.splitlines() if ESCAPE in line]
    assert all(re.search(r"\x1b\[\d*m[!~]|\x1b\[1m", line) for line in marked)  # errors, slow ones, the heading


@pytest.mark.parametrize(
    ("option", "environment"), [((), {"NO_COLOR": "1"}), (("--color", "never"), {}), ((), {"TERM": "dumb"})]
)
def test_colour_can_be_refused(option: tuple[str, ...], environment: dict[str, str]) -> None:
    """https://no-color.org"""
    assert on_a_terminal("show", CAPTURE, *option, columns=0, **environment) == printed("show", CAPTURE)


def test_colour_can_be_had_anywhere() -> None:
    assert ESCAPE in printed("show", CAPTURE, "--color", "always")


def test_a_terminal_is_paged_and_a_pipe_is_not() -> None:
    pager = "sed s/^/paged:/"
    lines = on_a_terminal("show", CAPTURE, "--fields", "api", PAGER=pager).splitlines()
    assert len(lines) == 87
    assert all(line.startswith("paged:") for line in lines)
    assert on_a_terminal("show", CAPTURE, "--fields", "api", "--no-pager", PAGER=pager).startswith("api\n")
    assert printed("show", CAPTURE, "--fields", "api", env={**os.environ, "PAGER": pager}).startswith("api\n")


def test_what_fits_on_the_screen_is_not_paged() -> None:
    pager = "sed s/^/paged:/"
    fits = on_a_terminal("show", CAPTURE, "--fields", "api", "--limit", 22, PAGER=pager)  # a heading, and the prompt
    assert fits.splitlines()[0] == "api"
    assert len(fits.splitlines()) == 23
    assert on_a_terminal("show", CAPTURE, "--fields", "api", "--limit", 23, PAGER=pager).startswith("paged:api\n")
    folded = on_a_terminal("show", CAPTURE, "--json", "--limit", 12, columns=80, PAGER=pager)
    assert folded.startswith("paged:{")  # a line that takes several rows
    assert on_a_terminal("help", "exit-codes", PAGER=pager).startswith("Exit codes\n")


@pytest.mark.parametrize(("version", "sticky"), [("643", True), ("590", False)])
def test_a_pager_that_can_keeps_the_heading_on_the_screen(version: str, sticky: bool, tmp_path: Path) -> None:
    """`less` has `--header` from 600 on; what has no heading keeps none."""
    pager = tmp_path / "less"
    pager.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "less {version} (GNU)" && exit\necho "with:$*"; cat\n')
    pager.chmod(0o700)
    assert on_a_terminal("show", CAPTURE, PAGER=str(pager)).startswith(f"with:{'--header=1' * sticky}\n")
    assert on_a_terminal("show", CAPTURE, "--json", PAGER=str(pager)).startswith("with:\n")


def test_what_a_capture_says_cannot_command_a_terminal(tmp_path: Path) -> None:
    """Control characters in a client id are shown as text."""
    from tests.analyzer.forging import answering, asking, heartbeat, heartbeat_answer

    writes = [asking(heartbeat(1, client_id="evil\x1b]0;title\x07\n")), answering(heartbeat_answer(1))]
    path = tmp_path / "evil.pcap"
    path.write_bytes(forge.pcap(forge.rendered(forge.converse(writes))))
    for form in ([], ["--tree"], ["--frames"], ["--fields", "client_id"], ["--count-by", "client_id"], ["--json"]):
        text = printed("show", path, *form)
        assert "evil" in text or form == ["--frames"]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), form
        assert len(text.splitlines()) == len(text.split("\n")) - 1


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_lines_fit_a_terminal_and_end_in_the_result(columns: int, rows: list[dict[str, Any]]) -> None:
    """The client and the result stand on the screen, however narrow it is."""
    heading, *lines = on_a_terminal("show", CAPTURE, columns=columns, NO_COLOR="1").splitlines()
    assert len(lines) == len(rows)
    assert max(map(len, [heading, *lines])) <= columns
    assert heading.split()[:3] == ["time", "latency", "api"]
    assert heading.split()[-1] == "result"
    assert "client id" in heading
    assert "broker" not in heading  # there is only the one
    result = heading.index("result")
    assert columns - result >= 30
    for line, row in zip(lines, rows, strict=True):
        assert f"{row['api']} v{row['api_version']} " in line
        assert f" {(row['client_id'] or '')[:9]}" in line
        assert f" {(row['error'] or 'ok')[:20]}" in line[result - 14 :]
        assert line.startswith("!") == bool(row["error_code"])


def test_what_fails_on_an_interrupts_way_up_is_the_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java gets the same Ctrl-C as we do: tidying up then meets a closed connection."""

    def fails(options: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("Answer from Java side is empty")

    monkeypatch.setattr(commands, "analyze", fails)
    assert parser.main(["analyze", str(CAPTURE), "-o", "nowhere"]) == 130
    assert capsys.readouterr() == ("", "kwire: interrupted; nothing was written to nowhere\n")


def test_an_interrupt_while_options_are_read_is_one_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parser, "_parser", pressed)
    assert parser.main(["--version"]) == 130
    assert capsys.readouterr() == ("", "kwire: interrupted\n")


@pytest.mark.parametrize(
    "importing", ["argparse", "kwire.analyzer.cli.parser", "kwire.analyzer.options.commands", "kwire.captures.errors"]
)
def test_an_interrupt_while_the_command_is_imported_is_one_too(importing: str) -> None:
    """As the console script does it, which is Python's own until it calls us."""
    program = f"""
import sys
class Pressed:
    def find_spec(name, path=None, target=None):
        if name == {importing!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed)
from kwire.analyzer.cli.start import command
sys.exit(command())
"""
    done = subprocess.run([sys.executable, "-c", program, "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kwire: interrupted\n")


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_that_python_drops_is_heard_all_the_same(times: int) -> None:
    """Of a callback of a weak reference, as each import has one, nobody gets an exception: Python prints and forgets
    it."""
    program = f"""
import signal, threading, weakref
from kwire.analyzer.cli import parser as cli, start
signal.signal(signal.SIGINT, signal.default_int_handler)
class Thing:
    pass
def waits():
    for _ in range({times}):
        thing = Thing()
        kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
    threading.Lock().acquire() and threading.Event().wait()
cli.command = waits
start.command()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kwire: interrupted\n")


def test_what_else_python_drops_is_printed_as_ever() -> None:
    program = """
from kwire.analyzer.cli import parser as cli, start
class Thing:
    def __del__(self):
        raise ValueError("dropped")
def makes():
    Thing()
cli.command = makes
start.command()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("Exception ignored in: ")
    assert done.stderr.endswith("ValueError: dropped\n")


def test_a_width_that_is_said_counts_on_a_terminal_only() -> None:
    """readline sets COLUMNS for what a shell or an interpreter starts: what they read from a pipe is to be whole."""
    text = on_a_terminal("show", CAPTURE, columns=160, COLUMNS="90", NO_COLOR="1")
    assert text == on_a_terminal("show", CAPTURE, columns=90, NO_COLOR="1")
    whole = printed("show", CAPTURE, env={**os.environ, "COLUMNS": "90"})
    assert max(map(len, whole.splitlines())) > 140
    assert whole == printed("show", CAPTURE, "--wide")


def test_wide_is_every_column_on_a_terminal() -> None:
    assert on_a_terminal("show", CAPTURE, "--wide", columns=80, NO_COLOR="1") == printed("show", CAPTURE)


def test_several_brokers_have_a_column_and_one_that_comes_late_is_named(tmp_path: Path) -> None:
    """Twice the same clients at another address: a column. Without a column (a live capture's first line chose), the
    line says which broker it is."""
    cluster = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    assert "broker" not in on_a_terminal("show", cluster, columns=100, NO_COLOR="1").splitlines()[0]
    moved = tmp_path / "moved.pcap"
    moved.write_bytes(cluster.read_bytes().replace((9092).to_bytes(2, "big"), (9192).to_bytes(2, "big")))
    lines = on_a_terminal("show", cluster, moved, "--rotated", columns=160, NO_COLOR="1").splitlines()
    assert "broker" in lines[0].split()
    assert any(" :9192 " in line for line in lines)
    assert any(" :9092 " in line for line in lines)


def test_which_of_several_brokers_stands_on_a_narrow_screen(tmp_path: Path) -> None:
    """By its port where they share a host, by its host where they share a port; a client id gives way to it."""
    from tests.analyzer.forging import answering, asking, heartbeat, heartbeat_answer

    for name, ends in (
        ("host", (("10.0.0.2", 9092), ("10.0.0.2", 9192))),
        ("port", (("10.0.0.2", 9092), ("192.168.100.3", 9092))),
    ):
        segments = []
        for number, broker in enumerate(ends):
            writes = [asking(heartbeat(1, client_id="a client with a long name")), answering(heartbeat_answer(1))]
            segments += forge.converse(writes, client=("10.0.0.1", 5000 + number), broker=broker)
        path = tmp_path / f"{name}.pcap"
        path.write_bytes(forge.pcap(forge.rendered(segments)))
        heading, *lines = on_a_terminal("show", path, columns=100, NO_COLOR="1").splitlines()
        assert heading.split()[:6] == ["time", "latency", "api", "client", "id", "broker"]
        assert 100 - heading.index("result") >= 36
        shown = [line[heading.index("broker") :].split()[0] for line in lines]
        assert shown == ([":9092", ":9192"] if name == "host" else ["10.0.0.2", "192.168.100.3"])


def test_frames_fit_too() -> None:
    heading, *lines = on_a_terminal("show", CAPTURE, "--frames", columns=80, NO_COLOR="1").splitlines()
    assert heading.split() == ["time", "from", "to", "bytes", "id", "message"]
    assert max(map(len, lines)) <= 80
