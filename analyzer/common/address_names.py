"""Names of addresses, from files that people have: hosts, CSV, and what kubectl prints.

In: files of `--names`. Out: a name by address, in its usual form (RFC 5952). Rules: the form is told by the content;
where an address has several names the first counts; a pod on its node's network is not a name of the node's address.
"""

from __future__ import annotations

import csv
import ipaddress
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable

MOST_BYTES: Final = 256 << 20
"""Of a file: a cluster's pods as JSON are some 10 kB each."""
LONGEST_NAME: Final = 253
"""Characters of a name, as of a host (RFC 1035)."""
_FORMS: Final = "a hosts file, CSV (address,name), or kubectl get pods -o json or -o wide"


def address(text: str) -> str | None:
    """An address in its usual form; None if it is none. IPv4 within IPv6 is IPv4."""
    try:
        ip = ipaddress.ip_address(text.strip().strip("[]"))
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def read_names(paths: list[str]) -> dict[str, str]:
    """Read files of names. Raises UsageError."""
    names: dict[str, str] = {}
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as failure:
            raise UsageError(f"{path}: {failure.strerror}", f"give --names {_FORMS}") from None
        if len(content) > MOST_BYTES:
            raise UsageError(f"{path}: larger than {MOST_BYTES >> 20} MiB", f"give --names {_FORMS}")
        for known, name in _entries(path, content.decode("utf-8-sig", "replace")):
            shown = printable(name)[:LONGEST_NAME]
            if shown:
                names.setdefault(known, shown)
    return names


def _entries(path: str, text: str) -> Iterator[tuple[str, str]]:
    if text.lstrip().startswith(("{", "[")):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as failure:
            raise UsageError(f"{path}: not JSON: {failure}", f"give --names {_FORMS}") from None
        yield from _of_objects(document if isinstance(document, list) else [document])
        return
    lines = text.splitlines()
    heading = next((line for line in lines if line.strip()), "")
    columns = {match[0]: match.start() for match in re.finditer(r"\S+(?: \S+)*", heading)}
    if {"NAME", "IP"} <= columns.keys():
        yield from _of_table(lines, columns)
        return
    yield from _of_lines(path, lines)


def _of_objects(objects: list[Any]) -> Iterator[tuple[str, str]]:
    """Names in objects of Kubernetes: pods, services, EndpointSlices, and lists of these."""
    for thing in objects:
        if not isinstance(thing, dict):
            continue
        if isinstance(items := thing.get("items"), list):
            yield from _of_objects([item for item in items if isinstance(item, dict) and "items" not in item])
            continue
        spec, status = _dict(thing.get("spec")), _dict(thing.get("status"))
        name = _dict(thing.get("metadata")).get("name")
        pairs: list[tuple[Any, Any]] = []
        if not spec.get("hostNetwork"):
            pairs += [(status.get("podIP"), name)]
            pairs += [(_dict(each).get("ip"), name) for each in _list(status.get("podIPs"))]
        pairs += [(each, name) for each in (spec.get("clusterIP"), *_list(spec.get("clusterIPs")))]
        for endpoint in map(_dict, _list(thing.get("endpoints"))):
            named = _dict(endpoint.get("targetRef")).get("name") or endpoint.get("hostname")
            pairs += [(each, named) for each in _list(endpoint.get("addresses"))]
        for text, of in pairs:
            if isinstance(text, str) and isinstance(of, str) and (known := address(text)) is not None:
                yield known, of


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _of_table(lines: list[str], columns: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Names in what `kubectl get pods -o wide` prints: columns begin where their headings do."""
    starts = sorted(columns.values())

    def cell(line: str, name: str) -> str:
        begin = columns[name]
        end = next((start for start in starts if start > begin), None)
        return line[begin:end].strip()

    for line in lines:
        if (known := address(cell(line, "IP"))) is not None and cell(line, "NAME"):
            yield known, cell(line, "NAME")


def _of_lines(path: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Names in a hosts file, or in CSV with the address in the first column; a heading is passed over."""
    begun = False
    for number, line in enumerate(lines, 1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        separator = next((mark for mark in ",;" if mark in content), None)
        try:
            cells = next(csv.reader([content], delimiter=separator)) if separator else content.split()
        except csv.Error:
            cells = []
        known = address(cells[0]) if cells else None
        if known is not None and len(cells) > 1 and cells[1].strip():
            yield known, cells[1].strip()
        elif begun or known is not None or separator is None:
            raise UsageError(f"{path}: line {number} is no address with a name", f"give --names {_FORMS}")
        begun = True
