"""Refresh `tests/golden/`: messages that Kafka's own code wrote, with what Kafka's own JSON converters say of them.

    python tools/refresh_golden.py [--jars FOLDER]

Needs Maven and a JDK (17 or newer). `Golden.java` makes them, from a fixed seed, for every API, version and direction
of the two releases that `analyzer/definitions/` was made from. Out:

- `kafka-RELEASE.tsv.xz` with lines of api_key, direction (0 request, 1 response), version, bytes (hex), JSON;
- `data-RELEASE.tsv.xz` of the newest release with lines of definition, version, bytes, JSON for all data definitions:
  records of internal topics, control records, the consumer protocol;
- `records-RELEASE.tsv.xz`, by `GoldenRecords.java`, with lines of topic, key, value, JSON: each record of the internal
  topics in each version, as the coordinators' and the controller's own serdes write and read them;
- `embedded-RELEASE.tsv` with the same, by `GoldenEmbedded.java`, for what `definitions/embedded.json` says by hand;
- `payloads-RELEASE.tsv`, by `GoldenPayloads.java`, with lines of topic, side, bytes, JSON: keys and values of topics of
  MirrorMaker, Connect and Kafka Streams;
- `tests/analyzer/payloads/golden/`: `apicurio.json`, `glue.json`, by `GoldenApicurio.java` and `GoldenGlue.java`, with
  schemas and cases: what the serializers of these registries write.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from refresh_definitions import NEW_RELEASE, OLD_RELEASE, RECORD_ARTIFACTS, definitions_of, fetch_jars, pom

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden"
PAYLOADS = FOLDER.parent / "analyzer" / "payloads" / "golden"
PROGRAMS = Path(__file__).resolve().parent
SEED = "1"
MESSAGES_PER_LAYOUT = "5"
CONNECT_RELEASE = "4.3.1"
"""The newest release whose connect-runtime and kafka-streams are published where Maven looks by default."""


SERIALIZERS = {
    "GoldenApicurio.java": [
        "io.apicurio:apicurio-registry-serdes-avro-serde:2.6.6.Final",
        "io.apicurio:apicurio-registry-serdes-protobuf-serde:2.6.6.Final",
    ],
    "GoldenGlue.java": ["software.amazon.glue:schema-registry-serde:1.1.24"],
}
"""Programs that write with the serializers of registries, and what these need."""


def fetch(folder: Path, *coordinates: str) -> None:
    """Copy artifacts and what they run with into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(pom(*coordinates))
    subprocess.run(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."], cwd=folder, check=True)


def run(folder: Path, program: str, *arguments: str, read: bytes = b"") -> bytes:
    """Run a Java program of this folder and return its output, with all jars of `folder` on its class path and `read`
    on stdin."""
    command = ["java", "-cp", str(folder / "*"), str(PROGRAMS / program), *arguments]
    return subprocess.run(command, check=True, input=read, stdout=subprocess.PIPE).stdout


def write(name: str, lines: bytes) -> None:
    path = FOLDER / name
    path.write_bytes(lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME) if name.endswith(".xz") else lines)
    print(f"{name}: {len(lines.splitlines())} messages, {path.stat().st_size} bytes")


def data_classes(folder: Path) -> list[str]:
    """The generated classes of all data definitions of the newest release's jars."""
    classes = []
    for artifact in ("kafka-clients", *RECORD_ARTIFACTS):
        jar = folder / f"{artifact}-{NEW_RELEASE}.jar"
        of_messages = ("request", "response", "header")
        defined = {item["name"] for item in json.loads(definitions_of(jar)) if item["type"] not in of_messages}
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                path, _, end = name.rpartition("JsonConverter.class")
                if not end and path.rpartition("/")[2] in defined:
                    classes.append(path.replace("/", "."))
    return sorted(classes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jars", type=Path, help="keep the jars in this folder and use those already there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for release in (OLD_RELEASE, NEW_RELEASE):
            folder = (arguments.jars or Path(temporary)) / release
            fetch_jars(release, folder, *(RECORD_ARTIFACTS if release == NEW_RELEASE else ()))
            write(f"kafka-{release}.tsv.xz", run(folder, "Golden.java", SEED, MESSAGES_PER_LAYOUT))
            if release == NEW_RELEASE:
                data = run(folder, "Golden.java", SEED, MESSAGES_PER_LAYOUT, *data_classes(folder))
                write(f"data-{release}.tsv.xz", data)
                write(f"records-{release}.tsv.xz", run(folder, "GoldenRecords.java", read=data))
        folder = (arguments.jars or Path(temporary)) / f"connect-{CONNECT_RELEASE}"
        fetch_jars(CONNECT_RELEASE, folder, "connect-runtime", "kafka-streams")
        write(f"embedded-{CONNECT_RELEASE}.tsv", run(folder, "GoldenEmbedded.java"))
        fetch_jars(CONNECT_RELEASE, folder, "connect-mirror")
        write(f"payloads-{CONNECT_RELEASE}.tsv", run(folder, "GoldenPayloads.java"))
        for program, coordinates in SERIALIZERS.items():
            folder = (arguments.jars or Path(temporary)) / program
            fetch(folder, *coordinates)
            name = program.removeprefix("Golden").removesuffix(".java").lower()
            (PAYLOADS / f"{name}.json").write_bytes(run(folder, program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
