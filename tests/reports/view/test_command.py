"""`kwire view` as a user starts it: the address, what is refused, what is kept and what goes.

Proves: reports/view/command, opening
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.options.questions import ViewOptions
from kwire.reports.view import command, open_view
from tests.reports.forging import Forged
from tests.reports.view.conftest import TXN, Asking, viewed
from tests.shared import KWIRE


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        parser.main(["view", *map(str, arguments), "--no-open"])
    assert left.value.code == 2
    output = capsys.readouterr()
    assert not output.out
    assert "\nhint: " in output.err
    return output.err


def test_it_serves_until_it_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    dataset = Forged(tmp_path / "forged")
    dataset.exchange("Fetch")
    started = subprocess.Popen(
        [*KWIRE, "view", str(dataset.write()), "--no-open", "--no-cache"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert started.stdout is not None
    with started.stdout:
        address = urlsplit(started.stdout.readline().strip())
        assert str(address.hostname).startswith("127.")
        asking = http.client.HTTPConnection(address.netloc, timeout=60)
        asking.request("GET", f"{address.path}?{address.query}")
        answer = asking.getresponse()
        answer.read()
        assert answer.status == 303
        cookie = str(answer.getheader("set-cookie")).split(";")[0]
        asking.request("GET", "/api/1/info", headers={"Cookie": cookie})
        assert b'"exchanges":1' in asking.getresponse().read()
        asking.close()
        started.terminate()
        assert started.wait(60) == 143
    assert not list(tmp_path.glob("kwire-view-*"))


def test_what_cannot_be_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--token-file" in refused(capsys, TXN, "--listen", "0.0.0.0:0")
    assert "--token-file" in refused(capsys, TXN, "--listen", "[::]:0")
    assert "not [HOST:]PORT" in refused(capsys, TXN, "--listen", "nowhere")
    assert "not [HOST:]PORT" in refused(capsys, TXN, "--listen", "127.0.0.1:99999")
    elsewhere = "203.0.113.7:1"
    assert f"--listen {elsewhere}" in refused(capsys, TXN, "--listen", elsewhere, "--token-file", token(tmp_path))
    assert "No such file" in refused(capsys, TXN, "--token-file", tmp_path / "none")
    short = token(tmp_path, "short")
    assert "16 or more" in refused(capsys, TXN, "--token-file", short)
    seen = token(tmp_path)
    seen.chmod(0o644)
    assert "others may read" in refused(capsys, TXN, "--token-file", seen)
    assert "no-such" in refused(capsys, tmp_path / "no-such.pcap")
    dataset = Forged(tmp_path / "forged").write()
    assert "alone" in refused(capsys, dataset, TXN)
    assert "go with a CAPTURE" in refused(capsys, dataset, "--port", "9092")
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))


def test_an_analysis_that_fails_before_there_is_anything_to_look_at_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UsageError("the disk is full", "make room")

    monkeypatch.setattr(open_view._CaptureSource, "analyse", full)
    with pytest.raises(SystemExit) as left:
        parser.main(["view", str(TXN), "--no-open", "--no-cache"])
    assert left.value.code == 2
    output = capsys.readouterr()
    assert output.out.startswith("http://127.")
    assert output.err == "kwire: the disk is full\nhint: make room\n"


def test_what_is_plain_is_opened_behind_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its errors end the command as if they had been reported before."""
    dataset = Forged(tmp_path / "forged").write()
    text = tmp_path / "text"
    text.write_text("no capture, and longer than what a capture begins with")
    plain = [(str(TXN),), (str(TXN), str(TXN)), (str(dataset),)]
    other = [(str(tmp_path),), (str(text),), (str(tmp_path / "none"),), ("-",), (str(dataset), str(TXN)), ("a\0",)]
    options = ViewOptions(sources=[])
    assert [command.has_plain_input(source, options) for source in (*plain, *other)] == 3 * [True] + 6 * [False]
    assert not command.has_plain_input(plain[2], ViewOptions(sources=[], port=[9092]))
    assert not command.has_plain_input(plain[0], ViewOptions(sources=[], rotated=True))
    (dataset / "_kwire.json").write_text("{}")
    with pytest.raises(SystemExit) as left:
        parser.main(["view", str(dataset), "--no-open", "--no-cache"])
    assert left.value.code == 2
    output = capsys.readouterr()
    assert output.out.startswith("http://127.")
    assert "not a manifest of kwire\nhint: " in output.err


def test_what_breaks_while_it_is_opened_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of that")

    monkeypatch.setattr(open_view, "begin_view", broken)
    with pytest.raises(ZeroDivisionError, match="nobody thought of that"):
        parser.main(["view", str(TXN), "--no-open", "--no-cache"])


def token(folder: Path, text: str = "a-token-of-my-own-1234") -> Path:
    path = folder / f"token-{len(text)}"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def test_the_server_has_a_loopback_address_of_its_own_where_the_browser_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    hosts = {command._address(None)[0] for _ in range(20)}
    if sys.platform == "linux":
        assert len(hosts) > 10
        assert all(host.startswith("127.") for host in hosts)
    for host in hosts:
        assert command._is_local(host)
        assert f"{host}:80" in command._names(host, 80)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform == "linux":
        assert command._address(None) == ("127.0.0.1", 0)


def test_names_of_the_server() -> None:
    assert command._names("127.0.0.1", 80) == {"127.0.0.1:80", "localhost:80", "[::1]:80"}
    assert command._names("0.0.0.0", 80) == frozenset()
    assert command._names("host.example", 80) == {"host.example:80"}
    assert command._address("[::1]:80") == ("::1", 80)
    assert command._address("8080") == ("127.0.0.1", 8080)


def test_what_is_made_is_kept_for_this_user_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    monkeypatch.setattr(open_view, "cache_root", lambda: root)
    capture = shutil.copy(TXN, tmp_path / "mine.pcap")
    with contextlib.ExitStack() as stack:
        first = viewed(stack, capture, cache=True)
        assert first.tables.columns.n == 188
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.is_dir()} == {0o700}
    times = {path: path.stat().st_mtime_ns for path in files}
    with contextlib.ExitStack() as stack:
        viewed(stack, capture, cache=True)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    # Columns that are damaged are made again; another file is another view.
    (column,) = root.glob("*/*/columns/latency_us.npy")
    column.write_bytes(b"nonsense")
    os.utime(capture, (1, 1))
    with contextlib.ExitStack() as stack:
        assert viewed(stack, capture, cache=True).tables.columns.n == 188
    assert len(list((root / "view").iterdir())) == 2


def test_what_was_noted_of_a_capture_is_said_whenever_it_is_viewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    capture = tmp_path / "cut.pcap"
    capture.write_bytes(TXN.read_bytes()[:60_001])
    assert parser.main(["analyze", str(capture), "-o", str(tmp_path / "data")]) == 0
    capsys.readouterr()
    for source in (capture, capture, tmp_path / "data"):
        with contextlib.ExitStack() as stack:
            [note] = Asking(viewed(stack, source, cache=True))("info")["notes"]
        assert "ends in the middle of packet 368" in note
        assert f"note: {note}\n" in capsys.readouterr().err


def test_damaged_columns_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_view, "cache_root", lambda: tmp_path / "cache")
    forged = Forged(tmp_path / "forged")
    forged.exchange("Fetch", latency_ms=7)
    dataset = forged.write()
    for damage in ("latency_us.npy", "columns.json", "topics.ends.npy"):
        with contextlib.ExitStack() as stack:
            assert Asking(viewed(stack, dataset, cache=True))("rows")["columns"]["latency_us"] == [7000]
        (place,) = (tmp_path / "cache").glob(f"*/*/columns/{damage}")
        place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_view, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(open_view, "LIMIT_BYTES", 0)
    for name in ("one", "two"):
        forged = Forged(tmp_path / name)
        forged.exchange("Fetch")
        with contextlib.ExitStack() as stack:
            viewed(stack, forged.write(), cache=True)
        assert len(list((tmp_path / "cache" / "view").iterdir())) == 1  # the one in use stays


def test_the_capture_beside_a_dataset_has_its_bytes(tmp_path: Path) -> None:
    capture = Path(shutil.copy(TXN, tmp_path / "capture.pcap"))
    analyzer.analyze(capture, tmp_path / "dataset")
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, tmp_path / "dataset"))
        key = asking("rows", count=1)["keys"][0]
        assert asking("message", key=key)["source"] == "capture.pcap, read again"
    with capture.open("ab") as file:
        file.write(b"more")
    with contextlib.ExitStack() as stack:
        assert Asking(viewed(stack, tmp_path / "dataset"))("info")["bytes"] is False
