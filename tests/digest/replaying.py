"""Digests of what `kwire replay` plans and does, and of what `kwire diff` says of it.

In: captures that can be replayed, by the command line only. Out: JSON values. Rules: a plan is asked of a broker that
holds nothing; each replay has a fresh broker; no time, no address, and nothing that the target assigns or that depends
on how fast it answers (how often something was sent again, which long poll ended when) is kept.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kwire import analyzer
from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec
from tests.digest.columns import table_digest
from tests.digest.reading import largest_set, printed
from tests.shared import SHARED, capture_files, sample_folders

OUTCOME = (
    "capture",
    "connection",
    "exchange",
    "reply",
    "step",
    "api_key",
    "api",
    "api_version",
    "sent_version",
    "action",
    "verdict",
    "rule",
    "reason",
    "captured_error",
)
"""Columns of `outcomes` that a capture and the rules decide, not a target."""

RACE = "race"
"""The rule of differences that two replays of the same capture may have or not."""

SAME_OR_NOT = (0, 1)
"""Exit codes of a comparison: the same or not."""


def digests(names: Sequence[str] = ()) -> dict[str, Any]:
    """Plans for all captures that can be replayed; replays of the shipped samples."""
    chosen = {name: folder for name, folder in largest_set(names).items() if names or name in _replayable()}
    shipped = {folder.name for folder in sample_folders()}
    closer = {name: folder for name, folder in chosen.items() if names or name in shipped}
    with _broker() as broker:
        plans = {name: _plan(folder, broker.bootstrap) for name, folder in chosen.items()}
        texts = {name: _texts(folder, broker.bootstrap) for name, folder in closer.items()}
    return {"plans": plans, "texts": texts, "replays": {name: _replay(folder) for name, folder in closer.items()}}


def _replayable() -> set[str]:
    """Captures whose row in the shared captures' README says that they can be replayed; all samples without it."""
    readme = SHARED / "README.md"
    if not readme.exists():
        return {folder.name for folder in sample_folders()}
    return set(re.findall(r"^\| ([a-z0-9.-]+) \|.*\| (?:full|partial) \|$", readme.read_text(), re.MULTILINE))


@contextmanager
def _broker() -> Iterator[Cluster]:
    """A fresh broker of the newest version."""
    with tempfile.TemporaryDirectory(prefix="kwire-digest-") as scratch:
        cluster = Cluster(Spec(), Path(scratch, "cluster"), jars.find_java(), jars.fetch(jars.NEWEST))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _arguments(folder: Path, target: str) -> list[str]:
    files = [str(path) for path in capture_files(folder)]
    return ["replay", *files, *(["--rotated"] if len(files) > 1 else []), "--to", target]


def _plan(folder: Path, target: str) -> Any:
    """The plan as JSON."""
    return json.loads(printed(*_arguments(folder, target), "--dry-run", "--json").replace(target, "TARGET"))


def _texts(folder: Path, target: str) -> dict[str, list[str]]:
    """The plan as text, line by line, and that of other options."""
    command = [*_arguments(folder, target), "--dry-run"]
    other = ["--timestamps", "shift", "--allow", "CreateTopics", "--filter", "api != Metadata"]
    return {
        "defaults": printed(*command).replace(target, "TARGET").splitlines(),
        "other options": printed(*command, *other).replace(target, "TARGET").splitlines(),
    }


def _replay(folder: Path) -> dict[str, Any]:
    """A replay at a broker of its own as fast as answers allow, and the verdict on it."""
    with _broker() as broker, tempfile.TemporaryDirectory(prefix="kwire-digest-") as scratch:
        run = Path(scratch, "run")
        summary = json.loads(
            printed(*_arguments(folder, broker.bootstrap), "-o", str(run), "--seed-topics", "--speed", "max", "--json")
        )
        verdict = json.loads(printed("diff", str(run), "--json", codes=SAME_OR_NOT))
        outcomes = analyzer.open_dataset(run).outcomes.to_table(columns=list(OUTCOME))
    return {
        "told": {key: summary[key] for key in ("total", "actions", "verdicts", "skipped", "not_sent", "valid")},
        "outcomes": table_digest(
            outcomes.sort_by([(name, "ascending") for name in ("capture", "connection", "exchange", "reply")])
        ),
        "exchanges": {key: verdict["exchanges"][key] for key in ("total", "compared", "unexpected", "not_compared")},
        "differences": sorted(
            {json.dumps(_kind(difference)) for difference in verdict["differences"] if difference["rule"] != RACE}
        ),
        "timed": {api: sides["captured"]["count"] for api, sides in verdict["latency_us"].items()},
    }


def _kind(difference: dict[str, Any]) -> dict[str, Any]:
    """Reduce a difference to its kind, without examples and without the values of either side."""
    return {key: difference[key] for key in ("api", "api_version", "field", "kind", "rule", "verdict")}
