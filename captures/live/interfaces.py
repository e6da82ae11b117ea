"""Which interfaces there are, what to leave out by default, and whom we are when we listen.

In: the environment. Out: names, the default filter, a user. Rules: one's own ssh session is never captured by default:
each packet that is shown would be another packet. Rights are given up as soon as the interface is open, where somebody
else's name stands behind them (sudo).
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from kwire.captures.errors import CaptureError

ANY = "any"
"""All interfaces at once, where the system is Linux."""

_ETHTOOL: Final = 0x8946
_GET_GRO: Final = 0x2B
SPREAD: Final = 2_654_435_769
"""Times 32 bits: neighbours get upper halves far from each other (Fibonacci hashing)."""

_PARENTS = 32
"""How many parents up the session is looked for."""


class SshConnection(NamedTuple):
    """An ssh connection: both ends."""

    client: str
    client_port: int
    server: str
    server_port: int


def names() -> list[str]:
    """The interfaces of this machine."""
    interfaces = [name for _, name in socket.if_nameindex()]
    return [*interfaces, ANY] if sys.platform == "linux" else interfaces


def unknown(interface: str) -> CaptureError:
    """The error for an interface that is not there."""
    return CaptureError(f"-i {interface}: no such interface", f"there are {', '.join(names())}")


def session_of(variable: str) -> SshConnection | None:
    """Parse the value of `SSH_CONNECTION`; None if it is not of that form."""
    words = variable.split()
    if len(words) != 4 or not (words[1].isdigit() and words[3].isdigit()):
        return None
    try:
        ends = [str(ipaddress.ip_address(words[i].split("%")[0])) for i in (0, 2)]
    except ValueError:
        return None
    return SshConnection(ends[0], int(words[1]), ends[1], int(words[3]))


def own_session(environment: Mapping[str, str] | None = None) -> SshConnection | None:
    """The ssh session that we run in; sudo hides the variable, so parents are asked too."""
    environment = os.environ if environment is None else environment
    if "SSH_CONNECTION" in environment:
        return session_of(environment["SSH_CONNECTION"])
    process = os.getppid()
    for _ in range(_PARENTS):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None  # not Linux, not ours to read, or gone
        for variable in variables:
            if variable.startswith(b"SSH_CONNECTION="):
                return session_of(variable.partition(b"=")[2].decode("ascii", "replace"))
        if process < 2:
            return None
    return None


def default_filter(session: SshConnection | None) -> str:
    """TCP, without the session that we run in."""
    if session is None:
        return "tcp"
    client, client_port, server, server_port = session
    return f"tcp and not (host {client} and port {client_port} and host {server} and port {server_port})"


def sampled(expression: str, one_of: int) -> str:
    """A filter that lets through one of so many TCP connections whole, and everything else that `expression` does.

    Both ways of a connection, and whoever else sees it, add up the same two ports, so all choose alike. The sum is
    spread: a client that connects to four brokers in turn has ports in steps. Fragments without ports pass.
    """
    if one_of == 1:
        return expression
    four = f"(ip[6:2] & 0x1fff != 0 or (((tcp[0:2] + tcp[2:2]) * {SPREAD}) / 65536) % {one_of} = 0)"
    six = f"(((ip6[40:2] + ip6[42:2]) * {SPREAD}) / 65536) % {one_of} = 0"
    chosen = f"(ip proto 6 and {four}) or (ip6[6] = 6 and {six}) or not (ip proto 6 or ip6[6] = 6)"
    return f"({expression}) and ({chosen})" if expression else chosen


def joins_segments(interface: str) -> bool | None:
    """Whether an interface joins the segments that it receives (generic receive offload); None where it does not say.

    Source: ethtool(8), linux/ethtool.h (ETHTOOL_GGRO)."""
    try:
        import fcntl

        request = ctypes.create_string_buffer(struct.pack("=II", _GET_GRO, 0), 8)
        name = interface.encode("utf-8", "surrogateescape")
        described = struct.pack("16sP16x", name, ctypes.addressof(request))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _ETHTOOL, described)
    except (ImportError, OSError, struct.error):
        return None
    return bool(struct.unpack("=II", request.raw)[1])


def caller() -> tuple[int, int] | None:
    """Return user and group of the caller of sudo; None without sudo."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    numbers = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
    if not all(number.isascii() and number.isdigit() for number in numbers) or numbers[0] == "0":
        return None
    return int(numbers[0]), int(numbers[1])


def give_up_rights() -> str:
    """Become the user who called sudo, for good; return a note, empty if there were no rights to drop.

    Call it once the interface is open, and before anything looks for its cache: what is kept from run to run (compiled
    kernels) is that user's. Files are written as that user from then on.
    """
    who = caller()
    if who is None:
        return ""
    import pwd

    user, group = who
    os.setgroups([group])
    os.setgid(group)
    os.setuid(user)
    with contextlib.suppress(KeyError):
        os.environ["HOME"] = pwd.getpwuid(user).pw_dir
        os.environ.pop("XDG_CACHE_HOME", None)
    return f"the interface is open: from here on as user {user} (SUDO_UID)"
