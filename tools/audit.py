"""`python tools/audit.py`: known vulnerabilities of the packages in requirements.lock, by pip-audit.

In: requirements.lock. Out: a line for each vulnerability. Exit code 0: none is known of any package; 1: some are; 2:
nobody knows, because pip-audit or its databases cannot be had here, or do not know packages, which is said in a line.
(Where a mirror stands in for PyPI, pip-audit finds no package and says that no vulnerability is known.) The lock has a
version and hashes for each package, so nothing is resolved and nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN = 2
SECONDS = 300


def command(lock: Path, service: str) -> list[str]:
    options = ["--requirement", str(lock), "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    return [sys.executable, "-m", "pip_audit", *options, "--format", "json", "--vulnerability-service", service]


def answer(lock: Path, service: str) -> tuple[list[dict[str, Any]], str]:
    """Ask what a database says of each package, and why it says nothing; empty: it does."""
    try:
        done = subprocess.run(command(lock, service), capture_output=True, text=True, check=False, timeout=SECONDS)
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return [], f"{service}: no answer in {SECONDS} s"
    except (ValueError, KeyError, TypeError):
        return [], f"{service}: {done.stderr.strip().rpartition(chr(10))[2][:200] or 'no answer'}"
    skipped = [package for package in packages if "skip_reason" in package]
    why = f"{service}: {len(skipped)} of {len(packages)} packages are not known there" if skipped else ""
    return packages, why


def audit(lock: Path, services: Sequence[str] = ("pypi", "osv")) -> int:
    """Ask one database after the other until one knows all packages."""
    if importlib.util.find_spec("pip_audit") is None:
        sys.stderr.write("audit: pip-audit is not installed, so nobody knows\nhint: pip install pip-audit\n")
        return UNKNOWN
    reasons = []
    for service in services:
        packages, why = answer(lock, service)
        known = [(package, each) for package in packages for each in package.get("vulns", ())]
        for package, each in known:
            mended = ", ".join(each.get("fix_versions") or ["no version"])
            print(f"{package['name']} {package['version']}: {each['id']}, mended in {mended}")
        if known:
            return 1
        if not why:
            print(f"{len(packages)} packages, no known vulnerability ({service})")
            return 0
        reasons.append(why)
    sys.stderr.write(
        f"audit: nobody knows: {'; '.join(reasons)}\nhint: run it where a database of advisories can be reached\n"
    )
    return UNKNOWN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements.lock")
    return audit(parser.parse_args().lock)


if __name__ == "__main__":
    sys.exit(main())
