"""Which packets are left out by default, and who we are when the interface is open.

(proves: captures/live/interfaces.py)
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kwire.captures.live import interfaces
from kwire.captures.live.interfaces import SshConnection, default_filter, names, own_session, session_of
from tests.live import Wire
from tests.shared import ROOT


@pytest.mark.parametrize(
    ("variable", "session"),
    [
        ("203.0.113.7 50122 10.0.0.4 22", SshConnection("203.0.113.7", 50122, "10.0.0.4", 22)),
        ("fe80::1%eth0 50122 2001:DB8::4 2222", SshConnection("fe80::1", 50122, "2001:db8::4", 2222)),
        ("", None),
        ("a b c d", None),
        ("203.0.113.7 x 10.0.0.4 22", None),
        ("host 50122 10.0.0.4 22", None),
        ("203.0.113.7 50122 10.0.0.4", None),
    ],
)
def test_what_ssh_says_of_the_session(variable: str, session: SshConnection | None) -> None:
    assert session_of(variable) == session


def test_the_default_filter() -> None:
    assert default_filter(None) == "tcp"
    assert default_filter(SshConnection("203.0.113.7", 50122, "10.0.0.4", 22)) == (
        "tcp and not (host 203.0.113.7 and port 50122 and host 10.0.0.4 and port 22)"
    )


def test_the_session_is_found_though_sudo_hides_it() -> None:
    """A parent has the variable; the process that asks does not."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("parents can be asked on Linux only")
    program = "from kwire.captures.live.interfaces import own_session; print(own_session())"
    command = ["sh", "-c", 'env -u SSH_CONNECTION "$0" -c "$1"; true', sys.executable, program]
    environment = {**os.environ, "SSH_CONNECTION": "203.0.113.7 50122 10.0.0.4 22"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(SshConnection("203.0.113.7", 50122, "10.0.0.4", 22))


def test_what_the_environment_says_comes_first() -> None:
    assert own_session({"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}) == SshConnection("1.2.3.4", 5, "6.7.8.9", 22)
    assert own_session({"SSH_CONNECTION": "nonsense"}) is None


def test_loopback_is_among_the_interfaces() -> None:
    assert "lo" in names() or "lo0" in names()


def test_rights_that_sudo_lent_are_given_up_for_good() -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("not root: there is nothing to give up")
    program = """
import os
from kwire.captures.live.interfaces import give_up_rights
print(give_up_rights())
print(os.getresuid(), os.getresgid(), os.getgroups())
try:
    os.setuid(0)
except PermissionError:
    print("for good")
"""
    environment = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65533"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "the interface is open: from here on as user 65534 (SUDO_UID)",
        "(65534, 65534, 65534) (65533, 65533, 65533) [65533]",
        "for good",
    ]


@pytest.mark.parametrize("variables", [{}, {"SUDO_UID": "0", "SUDO_GID": "0"}, {"SUDO_UID": "x", "SUDO_GID": "1"}])
def test_root_itself_stays_root(variables: dict[str, str]) -> None:
    program = "import os; from kwire.captures.live.interfaces import give_up_rights as g; print([g(), os.getuid()])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(["", os.getuid()])


def test_whether_segments_are_joined_is_what_ethtool_set(wire: Wire) -> None:
    for joined in (True, False):
        request = ctypes.create_string_buffer(struct.pack("=II", 0x2C, joined), 8)  # ETHTOOL_SGRO
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, 0x8946, struct.pack("16sP16x", wire.name.encode(), ctypes.addressof(request)))
        assert interfaces.joins_segments(wire.name) is joined
    assert interfaces.joins_segments("nosuch0") is interfaces.joins_segments(interfaces.ANY) is None
