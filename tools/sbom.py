"""`python tools/sbom.py`: a software bill of materials of kwire, in CycloneDX 1.6 (JSON).

In: pyproject.toml, requirements.lock, and the metadata of the installed packages. Out: kwire as the component that is
described, each package that it needs at run time, by the extra that brings it, with the version, the hashes of the
lock's files and the licence; and what depends on what. Rule: the same sources give the same bytes: no time, no random
number.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a program
    sys.path.insert(0, str(ROOT))
from tools.licenses import canonical, licence  # noqa: E402

NOT_SHIPPED = frozenset(("dev", "all"))
"""Extras that nobody installs for their own: `dev` is for development, `all` names others."""


def locked(lock: Path) -> dict[str, tuple[str, list[str]]]:
    """Version and SHA-256 sums of the files of each package in a lock file."""
    packages: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in lock.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", line):
            name = canonical(match[1])
            packages[name] = (str(Version(match[2])), [])
        packages[name][1].extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)) if name else None
    return packages


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def needed(requirement: str) -> list[tuple[str, frozenset[str]]]:
    """The package that a requirement names here, with its extras; none where its marker excludes it."""
    wanted = Requirement(requirement)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return []
    return [(canonical(wanted.name), frozenset(wanted.extras))]


def needs_of(name: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """List what an installed package with these extras needs."""
    try:
        requirements = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    result = []
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            result.append((canonical(wanted.name), frozenset(wanted.extras)))
    return result


def document(project: dict[str, Any], packages: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    """The bill of materials. `project`: of pyproject.toml; `packages`: of the lock."""
    name, version = project["name"], project["version"]
    roots = {"": project["dependencies"]} | {
        extra: requirements
        for extra, requirements in project["optional-dependencies"].items()
        if extra not in NOT_SHIPPED
    }
    brought: dict[str, set[str]] = {}
    depends: dict[str, set[str]] = {}
    direct: set[str] = set()
    for extra, requirements in roots.items():
        waiting = [wanted for text in requirements for wanted in needed(text)]
        direct.update(package for package, _ in waiting if package in packages)
        seen: set[tuple[str, frozenset[str]]] = set()
        while waiting:
            wanted = waiting.pop()
            if wanted in seen or wanted[0] not in packages:
                continue
            seen.add(wanted)
            brought.setdefault(wanted[0], set()).add(extra)
            further = needs_of(*wanted)
            depends.setdefault(wanted[0], set()).update(package for package, _ in further if package in packages)
            waiting += further
    components = [
        {
            "type": "library",
            "bom-ref": purl(package, packages[package][0]),
            "name": package,
            "version": packages[package][0],
            "purl": purl(package, packages[package][0]),
            "scope": "required" if "" in extras else "optional",
            "licenses": [{"expression": licence(package)}] if _is_spdx(licence(package)) else _named(licence(package)),
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": purl(package, packages[package][0]),
                    "hashes": [{"alg": "SHA-256", "content": content} for content in sorted(packages[package][1])],
                }
            ],
            "properties": [{"name": "kwire:extra", "value": extra or "base"} for extra in sorted(extras)],
        }
        for package, extras in sorted(brought.items())
    ]
    own = purl(name, version)
    refs = {package: purl(package, packages[package][0]) for package in brought}
    tree = [{"ref": own, "dependsOn": sorted(refs[package] for package in direct)}]
    tree += [
        {"ref": refs[package], "dependsOn": sorted(refs[other] for other in depends[package])}
        for package in sorted(brought)
    ]
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": name,
                "version": version,
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": tree,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", **content} | {
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"
    }


def _is_spdx(text: str) -> bool:
    if text == "BSD":  # of older metadata, which does not say how many clauses
        return False
    return re.fullmatch(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*", text) is not None


def _named(text: str) -> list[dict[str, Any]]:
    return [{"license": {"name": text}}] if text else []


def text_of(sources: Path) -> str:
    """The document of a checkout."""
    project = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return json.dumps(document(project, locked(sources / "requirements.lock")), indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, help="default: stdout")
    parser.add_argument("--sources", type=Path, default=ROOT)
    options = parser.parse_args()
    text = text_of(options.sources)
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
