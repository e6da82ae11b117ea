"""`-o`: a file is replaced whole, a link stays a link, and what is no file stays what it is.

(proves: analyzer/common/output_file.py)
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from kwire.analyzer.cli.parser import main
from kwire.analyzer.common import output_file
from tests.shared import SAMPLES

TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


def new_file(path: Path, content: bytes = b"new") -> str:
    """Write a file that is to replace the one at the path; return its own path."""
    folder = Path(output_file.folder_for(str(path)))
    (folder / "new").write_bytes(content)
    return str(folder / "new")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for before in (None, b"old and longer"):
        if before is not None:
            path.write_bytes(before)
        output_file.check(str(path))
        output_file.put(new_file(path), str(path))
        assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "page"
    link.symlink_to(target)
    for _ in range(2):  # it need not be there yet
        output_file.check(str(link))
        output_file.put(new_file(link), str(link))
        assert link.is_symlink()
        assert target.read_bytes() == b"new"


def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, target = tmp_path / "link", tmp_path / "precious"
    target.write_bytes(b"theirs")
    link.symlink_to(target)
    monkeypatch.setattr(os, "geteuid", lambda: os.lstat(link).st_uid + 1 if link.is_symlink() else 0)
    output_file.put(new_file(link), str(link))
    assert (target.read_bytes(), link.is_symlink(), link.read_bytes()) == (b"theirs", False, b"new")


@pytest.mark.parametrize("command", ["scrub", "report", "sql"])
def test_a_pipe_gets_what_is_written_and_stays_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    arguments = {
        "scrub": ["scrub", str(TXN)],
        "report": ["report", str(TXN), "--format", "md"],
        "sql": ["sql", str(TXN), "SELECT 1 AS one", "--format", "csv"],
    }[command]
    assert main([*arguments, "-o", str(pipe)]) == 0, capsys.readouterr().err
    reader.join()
    begin = {"scrub": b"\x0a\x0d\x0d\x0a", "report": b"# ", "sql": b"one\n1\n"}[command]
    assert read[0].startswith(begin)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("path", ["/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_the_system_lends_is_never_replaced(path: str) -> None:
    assert output_file.is_stream(path)
    assert output_file.folder_for(path) != os.path.dirname(path)


def test_a_full_disk_is_told_though_whoever_writes_takes_the_file_away(tmp_path: Path) -> None:
    """PyArrow removes what it could not write to the end."""
    path = tmp_path / "x.parquet"
    path.write_bytes(b"old")

    def write() -> None:
        with output_file.written(str(path)) as beside:
            os.unlink(beside)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.parquet"]


def test_an_ordinary_file_is_no_stream(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not output_file.is_stream(str(tmp_path / "file"))
    assert not output_file.is_stream(str(tmp_path / "not there"))


def test_a_capture_is_not_scrubbed_to_a_file_named_like_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["scrub", str(TXN), "-o", "-"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "kwire: -o -: is no file\nhint: name one, as clean.pcapng; or /dev/stdout\n"
    assert not os.listdir(tmp_path)


# --- what killed processes left ---------------------------------------------------------------------------------------


def left_by_a_killed_process(path: Path, age: float) -> Path:
    """A scratch folder beside a file, `age` seconds old, whose process is gone."""
    left = path.parent / f".{path.name}.abcd_123.kwire-part"
    left.mkdir()
    (left / "part").write_bytes(b"half")
    os.utime(left, (time.time() - age,) * 2)
    return left


def test_what_a_killed_process_left_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    left = left_by_a_killed_process(path, 100)
    others = [tmp_path / ".page.html.abcd_123", tmp_path / ".other.abcd_123.kwire-part"]
    for other in others:
        other.mkdir()
        os.utime(other, (0, 0))
    with output_file.written(str(path)) as part:
        Path(part).write_bytes(b"new")
    assert not left.exists()
    assert all(other.exists() for other in others)
    assert path.read_bytes() == b"new"


def test_what_another_process_writes_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    young = left_by_a_killed_process(path, 1)
    with output_file.scratch(str(path)):
        assert young.exists(), "somebody may be about to lock it"
    with output_file.scratch(str(path)) as held:
        os.utime(held, (0, 0))
        with output_file.scratch(str(path)):
            assert os.path.isdir(held)
