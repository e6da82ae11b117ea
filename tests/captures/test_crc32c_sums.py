"""CRC-32C is the library's, with and without its package.

(proves: captures/crc32c_sums.py)
"""

from __future__ import annotations

import subprocess
import sys

import crc32c

from kwire.captures import crc32c_sums


def test_the_checksum_is_the_librarys_with_and_without_its_package() -> None:
    assert crc32c_sums.crc32c(b"123456789") == crc32c.crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4
    assert crc32c_sums.crc32c(b"6789", crc32c_sums.crc32c(b"12345")) == 0xE3069283
    code = (
        "import sys; from kwire.captures.crc32c_sums import crc32c; "
        "print('importlib.metadata' in sys.modules, crc32c(b'1'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(crc32c.crc32c(b"1"))]
