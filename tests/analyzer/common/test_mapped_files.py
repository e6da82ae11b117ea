"""Files that are mapped and written have their blocks reserved, so a full disk is an error and no signal.

(proves: analyzer/common/mapped_files.py)
"""

from __future__ import annotations

import ast
import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.analyzer.common import mapped_files
from tests.shared import KWIRE, ROOT, SAMPLES

ALLOWED = {"analyzer/common/mapped_files.py", "captures/live/ring.py"}
"""The helper itself; the ring is memory that the system shares with a socket."""
READING = {"ACCESS_COPY", "ACCESS_READ"}
TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


def written_maps(tree: ast.AST) -> Iterator[int]:
    """Yield lines that map a file so that it can be written: by `mmap.mmap`, `np.memmap` or `np.load`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        values = [ast.unparse(argument) for argument in node.args]
        if name.endswith("mmap.mmap") or name == "mmap":
            is_read = keywords.get("access", "").rpartition(".")[2] in READING
            if not is_read and values[:1] != ["-1"]:
                yield node.lineno
        elif name.endswith("memmap"):
            mode = keywords.get("mode", values[2] if len(values) > 2 else "'r+'")
            if mode not in ("'r'", "'c'"):
                yield node.lineno
        elif name.endswith("open_memmap") or keywords.get("mmap_mode", "'r'") not in ("'r'", "'c'", "None"):
            yield node.lineno


def test_no_other_file_is_mapped_to_be_written() -> None:
    loose = []
    for folder in ("captures", "analyzer", "replay", "reports", "kwire"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in ALLOWED and not name.startswith("kwire/captures/"):
                loose += [f"{name}:{line}" for line in written_maps(ast.parse(path.read_text(encoding="utf-8")))]
    assert not loose, "use kwire.analyzer.common.mapped_files"


@pytest.mark.parametrize(
    ("code", "is_written"),
    [
        ("mmap.mmap(file.fileno(), 5)", True),
        ("mmap.mmap(file.fileno(), 5, mmap.MAP_SHARED, mmap.PROT_WRITE)", True),
        ("mmap.mmap(file.fileno(), 5, access=mmap.ACCESS_WRITE)", True),
        ("mmap.mmap(file.fileno(), 5, access=mmap.ACCESS_COPY)", False),
        ("mmap.mmap(-1, 5)", False),
        ("np.memmap(file, np.uint8)", True),
        ("np.memmap(file, np.uint8, 'w+')", True),
        ("np.memmap(file, np.uint8, mode='r')", False),
        ("np.load(path, mmap_mode='r+')", True),
        ("np.load(path, mmap_mode='r')", False),
        ("np.lib.format.open_memmap(path, 'w+')", True),
    ],
)
def test_the_search_knows_what_is_written(code: str, is_written: bool) -> None:
    assert bool(list(written_maps(ast.parse(code)))) == is_written


@pytest.mark.parametrize("has_system_call", [True, False])
def test_a_reserved_file_has_its_blocks(has_system_call: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_system_call:
        monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "file").open("w+b") as file:
        memory = mapped_files.mapped(file.fileno(), 3_000_000)
        memory[:3] = b"abc"
        status = os.fstat(file.fileno())
        assert (len(memory), memory[:4], status.st_size) == (3_000_000, b"abc\0", 3_000_000)
        assert status.st_blocks * 512 >= 3_000_000
        memory.close()


def test_what_is_there_stays_when_a_file_is_mapped(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        mapped_files.write_all(file.fileno(), b"abcdef", 0)
        with mapped_files.mapped(file.fileno(), 6) as memory:
            assert memory[:] == b"abcdef"


def test_all_is_written_though_the_system_takes_it_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: whole(descriptor, bytes(data[:2]), at))
    with (tmp_path / "file").open("w+b") as file:
        mapped_files.write_all(file.fileno(), b"abcdefg", 3)
        assert file.read() == b"\0\0\0abcdefg"


ON_SMALL_DISK = """
mount -t tmpfs -o size={size}k tmpfs {disk} || exit 77
{kwire} scrub {capture} -o {disk}/clean.pcapng
code=$?
ls -A {disk}
exit $code
"""


@pytest.mark.parametrize("share", [0.1, 0.5, 1.2, 1.9])
def test_scrub_says_that_a_disk_is_full(share: float, tmp_path: Path) -> None:
    """Wherever the disk is full on the way, the command ends by itself, and leaves nothing."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = ON_SMALL_DISK.format(
        size=round(TXN.stat().st_size * share / 1024), disk=disk, capture=TXN, kwire=shlex.join(map(str, KWIRE))
    )
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    if ran.returncode in (1, 77) and ("unshare" in ran.stderr or ran.returncode == 77):
        pytest.skip("no file systems of one's own here")
    assert ran.returncode == 2, (ran.returncode, ran.stderr[-500:])
    assert os.strerror(errno.ENOSPC) in ran.stderr
    assert ran.stdout == ""


if sys.platform != "linux":
    pytest.skip("unshare and tmpfs are Linux's", allow_module_level=True)
