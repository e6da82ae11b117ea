"""Python programs in processes of their own: kernels there are compiled in another way, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.shared import ROOT

CHECKED_AND_PLAIN = pytest.mark.parametrize(
    ("variable", "value"), [("NUMBA_BOUNDSCHECK", "1"), ("NUMBA_DISABLE_JIT", "1")]
)
"""With bounds checks a read past an array raises; without compiling, narrow integers overflow."""

STRICT = ("-W", "error", "-W", "ignore:overflow encountered in scalar")
"""Warnings are errors, but for that of a hash, which wraps on purpose."""


def printed(code: str, *options: str, **environment: str) -> str:
    """Return a program's output, given Python's options and more environment."""
    variables = {**os.environ, **environment}
    variables.pop("NUMBA_CACHE_DIR", None)  # bounds-checked kernels have a folder of their own
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
