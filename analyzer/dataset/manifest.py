"""Manifest of a dataset, `_kwire.json`: checked as untrusted input.

In: a folder. Out: its manifest, whose parts are there and name no files but those of its own tables. Rule: what a
manifest must have is said here and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from kwire.analyzer.common import times
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.locks import DatasetError

MANIFEST = "_kwire.json"


def is_dataset(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a dataset."""
    try:
        return (Path(path) / MANIFEST).is_file()
    except OSError:  # a name that is too long, say
        return False


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """`_kwire.json` of a dataset. Raises DatasetError where there is none, or none that this version can read."""
    where = Path(path) / MANIFEST
    try:
        if where.exists() and not where.is_file():  # a pipe would be waited for
            raise FileNotFoundError
        manifest: dict[str, Any] = json.loads(where.read_bytes())
        version = manifest["format_version"]
    except (FileNotFoundError, NotADirectoryError):
        hint = "kwire analyze CAPTURE -o DATASET makes one"
        raise DatasetError(f"{path}: not a dataset (no {MANIFEST})", hint) from None
    except OSError as failure:
        raise DatasetError(f"{where}: {failure.strerror}", "check the folder's permissions") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DatasetError(f"{where}: not a manifest of kwire", "analyse the capture again") from None
    if version not in tables.READABLE_VERSIONS:
        known = " and ".join(map(str, tables.READABLE_VERSIONS))
        raise DatasetError(
            f"{path}: dataset format {version}, this kwire reads {known}",
            "analyse the capture again, or use the kwire that wrote it",
        )
    if not _well_formed(manifest):
        raise DatasetError(f"{where}: not a manifest of kwire", "analyse the capture again")
    return manifest


def _well_formed(manifest: dict[str, Any]) -> bool:
    """A manifest is input: it must have its parts, and name no files but its own tables', each once."""
    parts = (("captures", list), ("files", list), ("coverage", dict), ("unrecognised", dict))
    if not all(isinstance(manifest.get(name), kind) for name, kind in parts):
        return False
    return (
        all(_is_file(entry) for entry in manifest["files"])
        and len({entry["path"] for entry in manifest["files"]}) == len(manifest["files"])
        and all(_is_capture(entry) for entry in manifest["captures"])
        and all(_is_count(part) or _counts(part) for part in manifest["coverage"].values())
        and _is_unrecognised(manifest["unrecognised"])
    )


_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")
_TIMES = ("first_time", "last_time")


def _is_time(value: Any) -> bool:
    """Whether this is a time with its zone as RFC 3339 writes it, or null."""
    if value is None:
        return True
    return isinstance(value, str) and bool(_RFC_3339.fullmatch(value)) and times.micros(value, None) is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_count(count) for count in value.values())


def _is_file(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        return False
    if not (_is_count(entry.get("rows")) and _is_count(entry.get("size"))):
        return False
    folder, _, file = entry["path"].partition("/")
    matches = folder in tables.TABLES and entry.get("table") == folder
    return matches and "/" not in file and "\0" not in file and file.endswith(".parquet")


def _is_capture(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("files"), list)
        and all(isinstance(file, dict) and _is_count(file.get("size", 0)) for file in entry["files"])
        and all(_is_time(part.get(name)) for part in (entry, *entry["files"]) for name in _TIMES)
        and isinstance(entry.get("link_types", []), list)
        and all(isinstance(link, str) for link in entry.get("link_types", []))
        and isinstance(entry.get("meaning", False), bool)
        and isinstance(entry.get("schema_sources", []), list)
        and isinstance(entry.get("attempts", []), list)
        and all(_is_attempt(attempt) for attempt in entry.get("attempts", []))
        and isinstance(entry.get("advertised", []), list)
        and all(_is_advertised(address) for address in entry.get("advertised", []))
        and isinstance(entry.get("packets", {}), dict)
        and all(count is None or _is_count(count) for count in entry.get("packets", {}).values())
        and _counts(entry.get("not_understood", {}))
        and isinstance(entry.get("answered_otherwise", []), list)
        and all(_is_answered_otherwise(connection) for connection in entry.get("answered_otherwise", []))
    )


def _is_answered_otherwise(connection: Any) -> bool:
    """Whether this is a connection of a capture point whose answers are of another protocol than Kafka."""
    names = ("connection", "looks_like")
    return isinstance(connection, dict) and all(isinstance(connection.get(name), str) for name in names)


def _is_attempt(attempt: Any) -> bool:
    """Of a capture point: connections of a client to an end point that never were."""
    return (
        isinstance(attempt, dict)
        and all(isinstance(attempt.get(name), str) for name in ("client", "server", *_TIMES))
        and all(_is_time(attempt[name]) for name in _TIMES)
        and all(_is_count(attempt.get(name)) for name in ("refused", "unanswered", "most_in_a_minute"))
    )


def _is_advertised(address: Any) -> bool:
    """Of a capture point: an address that answers of an end point sent clients to."""
    return (
        isinstance(address, dict)
        and all(isinstance(address.get(name), str) for name in ("broker", "host"))
        and all(_is_integer(value) for value in (address.get("port"), *address.get("nodes", [None])))
        and isinstance(address.get("shared"), bool)
    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31


def _is_texts(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def _is_unrecognised(part: dict[str, Any]) -> bool:
    listed = part.get("listed")
    return (
        _is_count(part.get("connections"))
        and _is_count(part.get("payload_bytes"))
        and isinstance(listed, list)
        and all(
            isinstance(entry, dict)
            and isinstance(entry.get("capture"), str)
            and isinstance(entry.get("connection"), str)
            and _is_count(entry.get("payload_bytes"))
            and isinstance(entry.get("looks_like"), str | None)
            and _is_texts(entry.get("tls", {}))
            for entry in listed
        )
    )


def joined_manifests(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a dataset that was added to."""
    coverage = dict(old["coverage"])
    for key, value in new["coverage"].items():
        if isinstance(value, dict):
            coverage[key] = {name: amount + coverage[key].get(name, 0) for name, amount in value.items()}
        else:
            coverage[key] = coverage.get(key, 0) + value
    unrecognised = {
        "connections": old["unrecognised"]["connections"] + new["unrecognised"]["connections"],
        "payload_bytes": old["unrecognised"]["payload_bytes"] + new["unrecognised"]["payload_bytes"],
        "listed": old["unrecognised"]["listed"] + new["unrecognised"]["listed"],
    }
    captures = [*old["captures"], *new["captures"]]
    if old.get("decrypted"):
        new = {**new, "decrypted": True}
    return {**new, "captures": captures, "coverage": coverage, "unrecognised": unrecognised}
