"""Decides which brokers the replayer may connect to: the host of `--to`, and others only if the user wants it.

A target says where its brokers are, and each of them gets the requests, and the login. So a target that is not what it
seems could have both sent anywhere. In: an address that the target names. Out: the address to connect to in its place,
or a refusal. Rules: a host is known by its name, nothing is looked up for it; the port does not matter; all names of
this machine's loopback are one host; a password that PLAIN sends in the clear (RFC 4616) stays on the loopback.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.replay.send.link import Dial, Link, LinkError, Receiver

_SHOWN: Final = 10
"""Brokers that are listed by name: a target may name as many as it likes."""
_LONGEST: Final = 253
"""Characters of a host's name (RFC 1035, section 2.3.4)."""

Address = tuple[str, int]


_HINT: Final = "--map-host A=B dials host B in place of A; --follow-advertised dials what is named, and logs in there"


class ForbiddenAddressError(LinkError):
    """The replayer must not connect to an address. Trying again does not help."""


def text(host: str, port: int) -> str:
    """Format an address for people."""
    host = host if len(host) <= _LONGEST else host[:_LONGEST] + "..."
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parsed(address: str) -> tuple[str, int | None]:
    """Parse HOST, HOST:PORT, [IPV6] or [IPV6]:PORT into (host, port). Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]") or (":" in host.strip("[]") and not host.endswith("]")):
        host, port = address, ""
    elif not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(address)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host:
        raise ValueError(address)
    return host, int(port) if port else None


def same_host(host: str) -> str:
    """Normalise a host's name, so that two names of one host are equal."""
    name = host.strip("[]").rstrip(".").casefold()
    if name == "localhost":
        return "loopback"
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    # What is dialled at the unspecified address is this machine.
    return "loopback" if address.is_loopback or address.is_unspecified else str(address)


def is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this machine."""
    return same_host(host) == "loopback"


@dataclass(frozen=True, slots=True)
class Reach:
    """Which addresses may be connected to.

    - `to`: the target as the user named it; `follow`: also other hosts that it names
    - `hosts`: a named host or host:port, and the address in its place
    - `clear`: the login sends its password in the clear
    """

    to: Address
    follow: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict)
    clear: bool = False

    def place(self, host: str, port: int) -> Address:
        """The address to connect to for one that the target names. Raises ForbiddenAddressError."""
        there = self._mapped(host, port)
        if there is None:
            if not host or not 0 < port < 65536:
                raise ForbiddenAddressError(
                    f"the target names a broker at {text(host, port)}, which is no address", _HINT
                )
            if not self.follow and same_host(host) != same_host(self.to[0]):
                raise ForbiddenAddressError(
                    f"the target names a broker at {text(host, port)}, which is another host than --to's", _HINT
                )
            there = host, port
        if self.clear and not is_loopback(there[0]):
            raise ForbiddenAddressError(
                f"{text(*there)}: SASL PLAIN without TLS would send the password there in the clear",
                "--tls, or --plaintext-login where the network is yours",
            )
        return there

    def _mapped(self, host: str, port: int) -> Address | None:
        if (host, port) == self.to:
            return None
        for known, instead in self.hosts.items():
            if _means(known, host, port):
                new, other = parsed(instead)
                return new, other or port
        return None

    def check(self, brokers: Iterable[Address]) -> None:
        """Check that all of the target's brokers may be connected to. Raises ForbiddenAddressError."""
        for host, port in brokers:
            self.place(host, port)

    def unused(self, brokers: Mapping[int, Address]) -> list[str]:
        """Lines for hosts of `--map-host` at which none of the target's brokers is."""
        return [
            f"--map-host {old}={new}: the target names no broker at {old}"
            for old, new in self.hosts.items()
            if not any(_means(old, host, port) for host, port in brokers.values())
        ]

    def text(self, brokers: Mapping[int, Address]) -> str:
        """A line with the target's brokers, and the address of each connection."""
        dialled, refused = [], []
        for broker in self.listed(dict(sorted(brokers.items())[:_SHOWN])):
            if broker["dialled"] is None:
                refused.append(f"{broker['node']} at {broker['named']}")
            else:
                instead = "" if broker["dialled"] == broker["named"] else f" in place of {broker['named']}"
                dialled.append(f"{broker['node']} at {broker['dialled']}{instead}")
        more = f", and {len(brokers) - _SHOWN:,} more" if len(brokers) > _SHOWN else ""
        line = f"brokers that are dialled: {', '.join(dialled) or 'none'}{more}"
        return line + (f"; refused: {', '.join(refused)} ({_HINT})" if refused else "")

    def listed(self, brokers: Mapping[int, Address]) -> list[dict[str, Any]]:
        """List the target's brokers: node id, address (`named`), and the address to connect to (`dialled`; None:
        none)."""
        rows = []
        for node, (host, port) in sorted(brokers.items()):
            try:
                dialled = text(*self.place(host, port))
            except ForbiddenAddressError:
                dialled = None
            rows.append({"node": node, "named": text(host, port), "dialled": dialled})
        return rows

    def guard(self, dial: Dial) -> Dial:
        """Open links as `dial` does, but only to allowed addresses."""

        async def guarded(host: str, port: int, receiver: Receiver) -> Link:
            return await dial(*self.place(host, port), receiver)

        return guarded


def _means(mapped: str, host: str, port: int) -> bool:
    """Whether the user's HOST or HOST:PORT means the broker at this address."""
    name, only = parsed(mapped)
    return same_host(name) == same_host(host) and only in (None, port)
