"""Refresh `analyzer/definitions/` from Apache Kafka's published jars.

    python tools/refresh_definitions.py [--check]

Needs Maven and a JDK (11 or newer). What comes in: two kafka-clients releases, the last that still has the old
versions of every message (3.9: KIP-896 removed them in 4.0) and the newest; and of the newest release the jars whose
code writes internal topics. (Their definitions were never cut down: 4.4 has all that 3.9 had, but for a draft of share
groups.) What goes out:

- `kafka-RELEASE.json`: the message definitions, one message a line, without comments and prose;
- `ARTIFACT-RELEASE.json`: the same of the other jars: records of internal topics;
- `errors.json`: every error code with its name, whether it is retriable, and its message;
- `LICENSE` and `NOTICE` as the newest jar carries them.

The releases are named here and nowhere else; `--check` makes the files again and compares instead of writing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

OLD_RELEASE = "3.9.2"
NEW_RELEASE = "4.4.0"
# kafka-clients does not need Jackson at run time, its JSON converters do.
JACKSON = "com.fasterxml.jackson.core:jackson-databind:2.17.1"
RECORD_ARTIFACTS = (
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
    "kafka-metadata",
    "kafka-raft",
)
FOLDER = Path(__file__).resolve().parent.parent / "analyzer" / "definitions"

# What the wire layout and its JSON form depend on. The rest (about, listeners, mapKey, zeroCopy ...) only matters
# to Kafka's code generator or to readers of the original.
_MESSAGE_KEYS = ("apiKey", "type", "name", "validVersions", "flexibleVersions", "commonStructs", "fields")
_FIELD_KEYS = (
    "name",
    "type",
    "versions",
    "nullableVersions",
    "flexibleVersions",
    "taggedVersions",
    "tag",
    "default",
    "entityType",
    "fields",
)


def pom(*coordinates: str) -> str:
    """A Maven project that does nothing but depend on the coordinates (`group:artifact:version`)."""
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *coordinate.split(":")
        )
        for coordinate in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>kwire</groupId><artifactId>tools</artifactId><version>0</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def fetch_jars(release: str, folder: Path, *artifacts: str) -> Path:
    """Copy kafka-clients of a release, its other `artifacts` and what they run with into `folder`; return the
    kafka-clients jar."""
    folder.mkdir(parents=True, exist_ok=True)
    jar = folder / f"kafka-clients-{release}.jar"
    wanted = ("kafka-clients", *artifacts)
    if not all((folder / f"{artifact}-{release}.jar").exists() for artifact in wanted):
        coordinates = [f"org.apache.kafka:{artifact}:{release}" for artifact in wanted]
        (folder / "pom.xml").write_text(pom(*coordinates, JACKSON))
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."], cwd=folder, check=True
        )
    return jar


def minify(definition: dict[str, Any]) -> dict[str, Any]:
    """Only the keys that decide the layout, in a fixed order."""

    def fields(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {key: fields(item[key]) if key == "fields" else item[key] for key in _FIELD_KEYS if key in item}
            for item in items
        ]

    out: dict[str, Any] = {key: definition[key] for key in _MESSAGE_KEYS if key in definition}
    if "commonStructs" in out:
        out["commonStructs"] = fields(out["commonStructs"])
    if "fields" in out:
        out["fields"] = fields(out["fields"])
    return out


def definitions_of(jar: Path) -> str:
    """The jar's message definitions as a JSON array, one message a line, sorted by file name."""
    lines = []
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(("common/message/", "common/metadata/")) and name.endswith(".json"):
                # The originals have // comments, each on a line of its own (a // inside a string is not one).
                text = re.sub(r"(?m)^\s*//.*$", "", archive.read(name).decode())
                lines.append(json.dumps(minify(json.loads(text)), separators=(",", ":")))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def errors_of(folder: Path) -> str:
    """Every error code of the release whose jars are in `folder`, as a JSON array, one error a line."""
    program = Path(__file__).resolve().parent / "Errors.java"
    out = subprocess.run(
        ["java", "-cp", str(folder / "*"), str(program)], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split("\t") for line in out.splitlines()]
    rows.sort(key=lambda row: int(row[0]))
    lines = [
        json.dumps({"code": int(code), "name": name, "retriable": retriable == "true", "message": message})
        for code, name, retriable, message in rows
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def make(work: Path) -> dict[str, bytes]:
    """The files of `analyzer/definitions/` by name."""
    files: dict[str, bytes] = {}
    for release in (OLD_RELEASE, NEW_RELEASE):
        artifacts = RECORD_ARTIFACTS if release == NEW_RELEASE else ()
        jar = fetch_jars(release, work / release, *artifacts)
        files[f"kafka-{release}.json"] = definitions_of(jar).encode()
        for artifact in artifacts:
            files[f"{artifact}-{release}.json"] = definitions_of(jar.with_name(f"{artifact}-{release}.jar")).encode()
    files["errors.json"] = errors_of(work / NEW_RELEASE).encode()
    with zipfile.ZipFile(work / NEW_RELEASE / f"kafka-clients-{NEW_RELEASE}.jar") as archive:
        for name in ("LICENSE", "NOTICE"):
            files[name] = archive.read(name)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    parser.add_argument("--jars", type=Path, help="keep the jars in this folder and use those already there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = make(arguments.jars or Path(temporary))
    different = 0
    for name, content in files.items():
        path = FOLDER / name
        if arguments.check:
            if not path.exists() or path.read_bytes() != content:
                different += 1
                print(f"{name}: differs from a fresh copy")
        else:
            path.write_bytes(content)
            print(f"{name}: {len(content)} bytes")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
