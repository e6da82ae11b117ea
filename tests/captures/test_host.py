"""Compare the machine's description without LLVM to LLVM's own.

(proves: captures/host.py, captures/crc32c_sums.py)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import crc32c
import llvmlite
import llvmlite.binding as llvm
import numba
import pytest

from kwire.captures import crc32c_sums, host

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R)
stepping\t: 8
cpu MHz\t\t: 2000.000
flags\t\t: fpu avx2

processor\t: 1
vendor_id\t: Another
"""


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    host.host.cache_clear()


def test_it_is_what_llvm_says_asked_or_kept() -> None:
    expected = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    for _ in range(2):
        assert tuple(host.host()) == expected
        host.host.cache_clear()
    assert host.host().has == {name for name, there in llvm.get_host_cpu_features().items() if there}


def test_where_the_system_says_nothing_llvm_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "_system_description", lambda: None)
    assert host.host().processor == llvm.get_host_cpu_name()
    assert not list(tmp_path.rglob("host.*"))


def test_another_processor_is_another_one(tmp_path: Path) -> None:
    """Values that change from moment to moment, and other cores, are left out."""
    path = tmp_path / "cpuinfo"
    path.write_text(X86)
    description = host._system_description(str(path))
    assert description is not None
    assert "GenuineIntel" in description
    assert "Another" not in description
    path.write_text(X86.replace("2000.000", "2100.000"))
    assert host._system_description(str(path)) == description
    for old, new in (("avx2", "avx2 avx512f"), ("143", "85"), ("GenuineIntel", "AuthenticAMD"), (": 8", ": 9")):
        path.write_text(X86.replace(old, new))
        assert host._system_description(str(path)) not in (description, None)
    path.write_text("processor\t: 0\nmodel name\t: of no use\n")
    assert host._system_description(str(path)) is None
    assert host._system_description(str(tmp_path / "absent")) is None


def test_versions_are_those_that_the_packages_say() -> None:
    assert host.version("numba") == numba.__version__
    assert host.version("llvmlite") == llvmlite.__version__
    assert host.version("no_such_package") == "not installed"


def test_the_checksum_is_the_librarys_with_and_without_its_package() -> None:
    assert crc32c_sums.crc32c(b"123456789") == crc32c.crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4
    assert crc32c_sums.crc32c(b"6789", crc32c_sums.crc32c(b"12345")) == 0xE3069283
    code = (
        "import sys; from kwire.captures.crc32c_sums import crc32c; "
        "print('importlib.metadata' in sys.modules, crc32c(b'1'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(crc32c.crc32c(b"1"))]
