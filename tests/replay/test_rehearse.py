"""`kwire rehearse`: one command, one verdict, one exit code, at targets that are well and at broken ones.

The targets are shops (`shop.py`) that listen on the loopback; the command runs in this process.

Proves: replay/rehearse/command.py, cleaning.py, expectations.py, page.py, started.py, verdict.py,
analyzer/options/rehearse.py, replay/diff/captured_names.py, action.yml
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from kwire.analyzer.cli import parser
from kwire.analyzer.protocol import api_keys, errors
from kwire.replay.rehearse.verdict import REASONS
from tests.replay.shop import GROUP, ORDERS, PAYMENTS, Connection, Shop, capture_file
from tests.replay.test_commands import serving
from tests.shared import KWIRE, ROOT


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_file(tmp_path_factory.mktemp("capture") / "shop.pcap")


@contextlib.contextmanager
def listening(shop: Shop) -> Iterator[str]:
    """A shop on a port of the loopback; its address."""
    with serving(lambda: Connection(shop)) as port:
        shop.host, shop.port = "127.0.0.1", port
        yield f"127.0.0.1:{port}"


def rehearsed(capture: Path, out: Path, old: Shop, new: Shop, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and verdict.json of a rehearsal at two shops."""
    with listening(old) as here, listening(new) as there:
        arguments = ["rehearse", str(capture), "--old", here, "--new", there, "-o", str(out), "--speed", "max"]
        code = parser.main([*arguments, *options])
    verdict: dict[str, Any] = json.loads((out / "verdict.json").read_text())
    assert verdict["exit_code"] == code
    return code, verdict


def reasons(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    return [(reason["reason"], reason["text"]) for reason in verdict["reasons"]]


def test_two_healthy_targets(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = Shop(empty=True, cluster="old"), Shop(empty=True, cluster="new")
    code, verdict = rehearsed(capture, tmp_path / "out", old, new, "--summary", str(tmp_path / "summary.md"))
    assert (code, verdict["verdict"], verdict["reasons"]) == (0, "same", [])
    prefixes = [run["prefix"] for run in verdict["runs"]]
    assert [run["name"] for run in verdict["runs"]] == ["old-1", "old-2", "new"]
    assert {name for name, _ in old.logs} == {
        f"{prefix}{name}" for prefix in prefixes[:2] for name in (ORDERS, PAYMENTS)
    }
    assert new.groups == {prefixes[2] + GROUP}
    assert verdict["comparison"]["exchanges"]["not_compared"] == {}
    assert verdict["comparison"]["audit"]["missing"] == 0
    assert capsys.readouterr().out.startswith("verdict: same (exit code 0)\n")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "kwire rehearse" in page
    suite = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    tests = {(test.get("classname"), test.get("name")) for test in suite.iter("testcase")}
    named = {kind: {name for of, name in tests if of == f"kwire.rehearse.{kind}"} for kind in ("api", "topic", "group")}
    assert (named["topic"], named["group"]) == ({ORDERS, PAYMENTS}, {GROUP})
    assert {"Produce", "Fetch", "EndTxn", "acknowledged records"} <= named["api"]
    assert not suite.findall(".//failure")
    summary = (tmp_path / "summary.md").read_text().splitlines()
    assert summary[0] == "### kwire rehearse: passed"
    assert len(summary) <= 20


BROKEN: dict[str, tuple[Shop, str, str]] = {
    "a batch that is acknowledged and dropped": (
        Shop(empty=True, swallows=6),
        "records",
        "Produce v8 batch stored once for two",
    ),
    "a transaction that is aborted in place of committed": (
        Shop(empty=True, ends_as={1: False}),
        "records",
        "EndTxn v1 committed records hidden",
    ),
    "no right to the group": (
        Shop(empty=True, no_group=frozenset((GROUP,))),
        "differences",
        f"FindCoordinator v2 error appeared GROUP_AUTHORIZATION_FAILED (30) ({GROUP})",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_fault_of_the_new_target(what: str, capture: Path, tmp_path: Path) -> None:
    new, reason, text = BROKEN[what]
    code, verdict = rehearsed(capture, tmp_path / "out", Shop(empty=True), new)
    assert code == 1
    assert verdict["reasons"][0]["reason"] == reason
    assert text in verdict["verdict"]


def test_what_is_unexpected_is_in_colour(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    broken = Shop(says={api_keys.HEARTBEAT: errors.INVALID_REQUEST}, empty=True)
    assert rehearsed(capture, tmp_path / "out", Shop(empty=True), broken, "--color", "always")[0] == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("\x1b[31mverdict: ")
    assert "\x1b[31munexpected\x1b[0m" in lines
    runs = [str(tmp_path / "out" / name) for name in ("old-1", "new")]

    def compared(*options: str) -> str:
        assert parser.main(["diff", *runs, *options]) == 1
        return capsys.readouterr().out

    plain = compared()
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = compared()
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain
    assert [line for line in colored.splitlines() if "\x1b[31m" in line] == [
        f"\x1b[31m{line}\x1b[0m" for line in plain.splitlines() if line.startswith(("verdict: ", "unexpected"))
    ]
    assert compared("--color", "never") == plain
    assert "\x1b" not in compared("--json")
    compared("-o", str(tmp_path / "diff.txt"))
    assert "\x1b" not in (tmp_path / "diff.txt").read_text()


def test_known_differences_are_accepted(capture: Path, tmp_path: Path) -> None:
    def broken() -> Shop:
        return Shop(says={api_keys.HEARTBEAT: errors.INVALID_REQUEST}, empty=True)

    known = tmp_path / "known.toml"
    known.write_text(
        '[[difference]]\napi = "Heartbeat"\nkind = "error appeared"\nvalue = "INVALID_*"\ncomment = "KAFKA-1"\n'
        '[[difference]]\napi = "Fetch"\ncomment = "gone since 4.1"\n'
    )
    code, verdict = rehearsed(capture, tmp_path / "out", Shop(empty=True), broken())
    assert (code, [reason for reason, _ in reasons(verdict)]) == (1, ["differences"])
    failed = ElementTree.parse(tmp_path / "out" / "junit.xml").findall(".//testcase[failure]")
    assert {test.get("name") for test in failed} == {"verdict", "Heartbeat", GROUP}
    code, verdict = rehearsed(capture, tmp_path / "out", Shop(empty=True), broken(), "--expect", str(known))
    assert (code, verdict["verdict"]) == (0, "same")
    assert [(each["comment"], each["count"]) for each in verdict["accepted"]] == [("KAFKA-1", 1)]
    assert [each["comment"] for each in verdict["no_longer_occurring"]] == ["gone since 4.1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "not TOML"),
        ('[[difference]]\napi = "Fetch"\n', "difference 1 has no comment"),
        ('[[difference]]\ncomment = "all"\n', "names none of api, field, kind, value"),
        ('[[difference]]\napis = "Fetch"\ncomment = "x"\n', "has apis, which is none of"),
        ('[known]\napi = "Fetch"\n', "known is no [[difference]]"),
    ],
)
def test_a_file_of_known_differences_that_says_nothing(
    text: str, message: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tmp_path / "known.toml"
    known.write_text(text)
    addresses = ["--old", "localhost:1", "--new", "localhost:2"]
    with pytest.raises(SystemExit) as ended:
        parser.main(["rehearse", str(capture), *addresses, "-o", str(tmp_path / "out"), "--expect", str(known)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (Shop(), Shop(empty=True), "has the captured topics orders, payments: others may use it"),
        (Shop(empty=True), Shop(), "has the captured topics orders, payments: others may use it"),
        (Shop(empty=True), Shop(empty=True, cluster="shop-1"), "is the cluster that was captured"),
    ],
)
def test_a_target_that_others_may_use_gets_nothing(
    old: Shop, new: Shop, message: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        rehearsed(capture, tmp_path / "out", old, new)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert old.met == new.met == 0


def test_beside_production_and_clean(capture: Path, tmp_path: Path) -> None:
    """Topics and groups of others stay on a target, and those that the rehearsal made go."""
    old, new = Shop(cluster="old"), Shop(cluster="new", groups={GROUP, "rehearse-of-others"})
    code, _ = rehearsed(capture, tmp_path / "out", old, new, "--beside-production", "--clean")
    assert code == 0
    assert {name for name, _ in (*old.logs, *new.logs)} == {ORDERS, PAYMENTS}
    assert not any(log.log for log in (*old.logs.values(), *new.logs.values()))
    assert (old.groups, new.groups) == (set(), {GROUP, "rehearse-of-others"})


def test_a_folder_with_other_files_is_left_alone(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        parser.main(["rehearse", str(capture), "--old", "localhost:1", "--new", "localhost:2", "-o", str(tmp_path)])
    assert ended.value.code == 2
    assert "has files that no rehearsal wrote: notes.txt" in capsys.readouterr().err


# --- targets that are started ---


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def serving_shop(port: int, cluster: str) -> str:
    return shlex.join([sys.executable, "-m", "tests.replay.shop_server", str(port), cluster])


def test_targets_are_started_and_ended(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have one address: the old one has ended before the new one starts."""
    monkeypatch.chdir(ROOT)
    port, out = free_port(), tmp_path / "out"
    arguments = ["rehearse", str(capture), "--old", f"localhost:{port}", "--new", f"localhost:{port}", "-o", str(out)]
    started = ["--start-old", serving_shop(port, "old"), "--start-new", serving_shop(port, "new")]
    assert parser.main([*arguments, *started, "--speed", "max", "--fail-on", "unexpected"]) == 0
    assert not is_listening(port)
    assert [(out / f"{side}.log").read_text() for side in ("old", "new")] == ["old listens\n", "new listens\n"]
    clusters = [
        json.loads((out / name / "_kwire.json").read_text())["replay"]["cluster_id"] for name in ("old-2", "new")
    ]
    assert clusters == ["old", "new"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no; exit 3", "--start-old: ended with exit code 3 before localhost:{} answered"),
        ("sleep 60", "--start-old: nothing answered within 0.5 s"),
    ],
)
def test_a_target_that_does_not_start(
    command: str, message: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    addresses = ["--old", f"localhost:{port}", "--new", f"localhost:{port}", "--start-new", "sleep 60"]
    options = ["-o", str(tmp_path / "out"), "--start-old", command, "--start-within", "500ms"]
    with pytest.raises(SystemExit) as ended:
        parser.main(["rehearse", str(capture), *addresses, *options])
    assert ended.value.code == 2
    assert message.format(port) in capsys.readouterr().err


def test_an_interrupt_ends_the_target_too(capture: Path, tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out"
    addresses = ["--old", f"localhost:{port}", "--new", f"localhost:{port}", "-o", str(out)]
    arguments = ["rehearse", capture, *addresses, "--start-old", serving_shop(port, "old"), "--start-new", "false"]
    process = subprocess.Popen(
        [*KWIRE, *map(str, arguments), "--speed", "0.05"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("note: brokers that are dialled"):
            process.send_signal(signal.SIGTERM)
            break
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout.startswith("verdict: the rehearsal was interrupted (exit code 130)\n")
    assert not is_listening(port)
    verdict = json.loads((out / "verdict.json").read_text())
    assert [reason for reason, _ in reasons(verdict)] == ["interrupted"]


# --- in a build ---


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner does, with this project's `kwire` on the PATH."""
    kwire = folder / "bin" / "kwire"
    kwire.parent.mkdir(exist_ok=True)
    kwire.write_text(f'#!/bin/sh\nexec {shlex.join(KWIRE)} "$@"\n')
    kwire.chmod(0o755)
    environment = {**os.environ, "PATH": f"{kwire.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("refused", "code"), [((), 0), ((GROUP,), 1)])
def test_the_steps_of_the_action(refused: tuple[str, ...], code: int, capture: Path, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    given = {name: each.get("default", "") for name, each in action["inputs"].items()}
    with listening(Shop(empty=True)) as old, listening(Shop(empty=True, no_group=frozenset(refused))) as new:
        given |= {"capture": str(capture), "old": old, "new": new, "options": "--speed max --clean"}
        values = {f"inputs.{name}": value for name, value in given.items()} | {"github.action_path": str(ROOT)}

        def filled(text: str) -> str:
            return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: values[match[1]], text)

        codes = []
        for step in action["runs"]["steps"]:
            if "run" in step:
                assert "${{" not in step["run"], "what a caller gives is no code"
                variables = {name: filled(text) for name, text in step["env"].items()}
                ran = bash(step["run"], tmp_path, RUNNER_TEMP=str(tmp_path), **files, **variables)
                codes.append(ran.returncode)
    assert codes == [0, code], ran.stderr
    assert Path(files["GITHUB_OUTPUT"]).read_text() == f"exit-code={code}\n"
    assert Path(files["GITHUB_STEP_SUMMARY"]).read_text().startswith("### kwire rehearse: ")
    paths = filled(action["runs"]["steps"][-1]["with"]["path"]).split()
    assert all((tmp_path / path).is_file() for path in paths)


def test_the_script_of_the_pipeline(capture: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/rehearse-an-upgrade.md").read_text(encoding="utf-8")
    [job] = (
        document["rehearse"]
        for text in re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
        if "rehearse" in (document := yaml.safe_load(text))
    )
    with listening(Shop(empty=True)) as old, listening(Shop(empty=True)) as new:
        variables = {**job["variables"], "CAPTURE": str(capture), "OLD": old, "NEW": new}
        for line in job["script"]:
            ran = bash(line, tmp_path, **variables)
            assert ran.returncode == 0, ran.stderr
    paths = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((tmp_path / path).is_file() for path in paths)


def test_the_guide_has_every_reason() -> None:
    guide = (ROOT / "docs/guides/rehearse-an-upgrade.md").read_text(encoding="utf-8")
    for name, (code, _) in REASONS.items():
        row = next(line for line in guide.splitlines() if line.startswith(f"| {code} |"))
        assert f"`{name}`" in row
