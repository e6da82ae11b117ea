"""Zones of addresses, which a user's file says (`--zones FILE`), for the view `zones`.

In: a text file, a line for each network: CIDR (or an address), a space or comma, and the name of its zone; `#` begins a
comment. Out: the zone of each address of datasets, by the narrowest network that holds it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset.dataset import StoredDataset
from kwire.reports import named_ends

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_networks: list[tuple[Network, str]] = []
_using = threading.RLock()


@contextlib.contextmanager
def opened(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Have the zones of a file meanwhile, in the whole process. Raises UsageError."""
    global _networks
    with _using:
        before = _networks
        try:
            _networks = before if path is None else read(path)
            yield
        finally:
            _networks = before


def read(path: str | os.PathLike[str]) -> list[tuple[Network, str]]:
    """Networks and their zones, the narrowest first. Raises UsageError."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"--zones {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--zones {path}: this is no text in UTF-8") from None
    networks: list[tuple[Network, str]] = []
    for number, line in enumerate(lines, 1):
        words = re.split(r"[\s,;=]+", line.partition("#")[0].strip(), maxsplit=1)
        if words == [""]:
            continue
        try:
            network, zone = words
            networks.append((ipaddress.ip_network(network, strict=False), zone.strip()))
        except ValueError:
            raise UsageError(
                f"--zones {path}: line {number} is not a network and a zone", "10.1.0.0/16 eu-west-1a"
            ) from None
    return sorted(networks, key=lambda pair: -pair[0].prefixlen)


def rows(datasets: Sequence[StoredDataset]) -> list[list[str]]:
    """(address, zone) of the addresses in datasets that a network of the file holds."""
    if not _networks:
        return []
    return [[address, zone] for address in named_ends.addresses(datasets) if (zone := zone_of(address)) is not None]


def zone_of(address: str) -> str | None:
    """The zone of an address, None: no network holds it."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return None
    return next((zone for network, zone in _networks if known in network), None)
