"""Names of addresses, from files that people have: hosts, CSV, what kubectl prints, and captures.

In: files of `--names`. Out: a name by address, in its usual form (RFC 5952), for the whole process while they are
`opened`. Rules: the form is told by the content; where an address has several names the first counts; a pod on its
node's network is not a name of the node's address; a name is printable, and whoever writes it escapes it as any text.
"""

from __future__ import annotations

import contextlib
import csv
import ipaddress
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable

MOST_BYTES: Final = 256 << 20
"""Of a file: a cluster's pods as JSON are some 10 kB each."""
LONGEST_NAME: Final = 253
"""Characters of a name, as of a host (RFC 1035)."""
_FORMS: Final = "a hosts file, CSV (address,name), kubectl get pods -o json or -o wide, or a capture with names"

COLUMNS: Final = {"client_name": "client_ip", "broker_name": "broker_ip"}
"""Columns of names that exchanges and connections have while names are opened, and the address of each."""

_names: dict[str, str] = {}
_using = threading.RLock()


@contextlib.contextmanager
def opened(paths: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """Have the names of some files meanwhile, in the whole process. Raises UsageError, and CaptureError of captures."""
    global _names
    with _using:
        before = _names
        try:
            _names = read_names([os.fspath(path) for path in paths]) if paths else before
            yield
        finally:
            _names = before


def known_names() -> Mapping[str, str]:
    """The names that are opened, by address."""
    return _names


def name_of(ip: str | None) -> str | None:
    """The name of an address; None: it has none."""
    return _names.get(ip) if ip is not None else None


def of_row(row: Mapping[str, str | None]) -> dict[str, str | None]:
    """The columns of names of an exchange or a connection."""
    return {column: name_of(row[ip]) for column, ip in COLUMNS.items()}


def without_port(end: str) -> str:
    """The address of `10.1.0.7:9092` or `[::1]:9092`."""
    ip, _, _ = end.rpartition(":")
    return ip.strip("[]")


_ADDRESS: Final = re.compile(
    r"(?<![\w.:\[#-])(?:(\d{1,3}(?:\.\d{1,3}){3})|\[([0-9a-f:.]+)\](?=:\d)|((?:[0-9a-f]{0,4}:){2,7}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{0,4})))"
    r"(:\d{1,5})?(?![\w-]|:\d|\.\w)"
)
"""An address in a sentence, with or without a port, but none in the name of a connection (`1.2.3.4:5-6.7.8.9:10#1`)."""


def in_text(text: str, brief: bool = False) -> str:
    """A sentence with the name of each address that has one: `kafka-0 (10.1.0.7:9092)`, between parentheses
    `kafka-0 at 10.1.0.7:9092`; in brief `kafka-0:9092`."""
    if not _names:
        return text

    def named(match: re.Match[str]) -> str:
        name = _names.get(match[1] or match[2] or match[3])
        if name is None:
            return match[0]
        if brief:
            return f"{name}{match[4] or ''}"
        before = text[: match.start()]
        return f"{name} at {match[0]}" if before.count("(") > before.count(")") else f"{name} ({match[0]})"

    return _ADDRESS.sub(named, text)


def address(text: str) -> str | None:
    """An address in its usual form; None if it is none. IPv4 within IPv6 is IPv4."""
    try:
        ip = ipaddress.ip_address(text.strip().strip("[]"))
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def read_names(paths: list[str]) -> dict[str, str]:
    """Read files of names. Raises UsageError, and CaptureError of captures."""
    names: dict[str, str] = {}
    for path in paths:
        for ip, name in _entries_of(path):
            shown = printable(name)[:LONGEST_NAME]
            if shown:
                names.setdefault(ip, shown)
    return names


def _entries_of(path: str) -> Iterator[tuple[str, str]]:
    from kwire.analyzer.common import captured_names  # loads what reads captures

    try:
        with Path(path).open("rb") as file:
            content = file.read(4)
            if captured_names.is_capture(content):
                yield from captured_names.names_in(path)
                return
            content += file.read(MOST_BYTES - 3)
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", f"give --names {_FORMS}") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path}: larger than {MOST_BYTES >> 20} MiB", f"give --names {_FORMS}")
    yield from _entries(path, content.decode("utf-8-sig", "replace"))


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
