"""Compare the packets of each tap with those sent: libpcap, Linux's ring, and other tools.

Each packet is one that the test sends on an interface of its own; a tap that is stopped still hands over all of them.

Each packet is one that the test sends on an interface of its own; what is told to stop still hands over all that came.

(proves: captures/live/libpcap.py, pcap_library.py, ring.py, tools.py, by_scapy.py, open_interface.py)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kwire.captures.errors import CaptureError
from kwire.captures.files.write import Record, pcap
from kwire.captures.live import libpcap, open_interface, pcap_library
from kwire.captures.live.capture_queue import CaptureQueue
from kwire.captures.live.interfaces import SshConnection
from kwire.captures.live.open_interface import CaptureOptions, opened
from kwire.captures.live.ring import Ring
from kwire.captures.live.taps import no_rights
from kwire.captures.live.tools import TOOLS
from tests.captures.live.scripted import HEADER_BYTES, packets_in
from tests.live import Wire, sample_records
from tests.shared import ROOT

OWN_WAYS = ("libpcap", "ring")


@pytest.fixture
def records() -> list[Record]:
    return sample_records()


def way(name: str) -> str:
    """Skips where a tool is not installed."""
    if name == "libpcap" and pcap_library.library() is None:
        pytest.skip("libpcap is not installed")
    if name in ("tcpdump", "dumpcap") and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "scapy" and importlib.util.find_spec("scapy") is None:
        pytest.skip("scapy is not installed")
    return name


def captured(wire: Wire, options: CaptureOptions, frames: list[bytes]) -> list[bytes]:
    """The records that a tap gives of frames that are sent when it is open. It is told to stop at once; but another
    tool, which is ended a while after that, once it gave them all: on a busy machine it may take longer."""
    queue = CaptureQueue(opened(options))
    with queue:
        wire.send(frames)
        packets = 0
        if options.via not in TOOLS:
            queue.stop()
        data = b""
        while not queue.over:
            if (chunk := queue.take(60)) is not None:
                assert len(packets_in(chunk.data)) == chunk.packets
                data += chunk.data
                packets += chunk.packets
            if packets >= len(frames):
                queue.stop()
    assert queue.tap.problem == ""
    assert queue.drops().total == 0
    return packets_in(data)


def all_of(queue: CaptureQueue) -> bytes:
    """Return the rest of a queue that is stopped, and close it."""
    queue.stop()
    data = b""
    while not queue.over:
        chunk = queue.take(60)
        data += chunk.data if chunk is not None else b""
    queue.close()
    return data


@pytest.mark.parametrize("name", [*OWN_WAYS, "dumpcap", "tcpdump", "scapy"])
def test_every_packet_is_there_to_the_last_byte(name: str, wire: Wire, records: list[Record]) -> None:
    if name == "scapy":
        records = records[:20]  # more at once than that it may lose
    got = captured(wire, CaptureOptions(wire.name, via=way(name)), [record.data for record in records])
    assert [packet[16:] for packet in got] == [record.data for record in records]


def test_the_ring_gives_byte_for_byte_what_libpcap_gives(wire: Wire, records: list[Record]) -> None:
    """Times too: both have them of the kernel."""
    queues = [CaptureQueue(opened(CaptureOptions(wire.name, via=way(name)))).start() for name in OWN_WAYS]
    assert queues[0].tap.header == queues[1].tap.header
    wire.send(record.data for record in records)
    given = [all_of(queue) for queue in queues]
    assert given[0] == given[1]


@pytest.mark.parametrize("name", OWN_WAYS)
def test_packets_are_cut_at_the_snap_length(name: str, wire: Wire, records: list[Record]) -> None:
    got = captured(wire, CaptureOptions(wire.name, snaplen=96, via=way(name)), [record.data for record in records])
    assert [packet[16:] for packet in got] == [record.data[:96] for record in records]
    assert [int.from_bytes(packet[12:16], "little") for packet in got] == [len(record.data) for record in records]


@pytest.mark.parametrize("name", OWN_WAYS)
def test_by_default_tcp_and_nothing_else(name: str, wire: Wire, records: list[Record]) -> None:
    tcp = [record.data for record in records[:20]]
    udp = tcp[0][:23] + b"\x11" + tcp[0][24:]
    arp = tcp[0][:12] + b"\x08\x06" + bytes(28)
    got = captured(wire, CaptureOptions(wire.name, via=way(name)), [udp, *tcp[:10], arp, *tcp[10:]])
    assert [packet[16:] for packet in got] == tcp
    got = captured(wire, CaptureOptions(wire.name, "", via=name), [udp, arp, *tcp])
    assert [packet[16:] for packet in got if packet[16:] in (udp, arp, *tcp)] == [udp, arp, *tcp]


def connections(count: int) -> list[tuple[bytes, bytes]]:
    """A packet each way of so many TCP connections to port 9092, over IPv4 and IPv6 in turn, as clients open them: one
    port after the other, of one parity."""
    from scapy.layers.inet import IP, TCP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether

    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    both = []
    for number in range(count):
        client, broker = 33_000 + 2 * number, 9092
        out, back = (
            (IP(src="10.0.0.1", dst="10.0.0.2"), IP(src="10.0.0.2", dst="10.0.0.1"))
            if number % 4 < 2
            else (IPv6(src="fd00::1", dst="fd00::2"), IPv6(src="fd00::2", dst="fd00::1"))
        )
        request, answer = TCP(sport=client, dport=broker), TCP(sport=broker, dport=client)
        both.append((bytes(link / out / request), bytes(link / back / answer)))
    return both


@pytest.mark.parametrize("expression", [None, ""])
def test_one_of_four_connections_is_captured_whole_and_every_way_chooses_the_same(
    wire: Wire, expression: str | None
) -> None:
    pairs = connections(200)
    udp = pairs[0][0][:23] + b"\x11" + pairs[0][0][24:]
    frames = [udp, *(packet for pair in pairs for packet in pair)]
    ways = [way(name) for name in (*OWN_WAYS, "tcpdump")]
    queues = [CaptureQueue(opened(CaptureOptions(wire.name, expression, via=name, one_of=4))).start() for name in ways]
    wire.send(frames)
    time.sleep(2)  # tcpdump is ended a while after it has begun to give them
    given = [[packet[16:] for packet in packets_in(all_of(queue))] for queue in queues]
    given = [[packet for packet in some if packet in set(frames)] for some in given]
    assert given[1:] == given[:-1]
    assert (udp in given[0]) == (expression == "")
    whole = [(out in given[0], back in given[0]) for out, back in pairs]
    assert set(whole) == {(True, True), (False, False)}
    for version in (0, 2):  # IPv4, IPv6
        chosen = [out for number, (out, _) in enumerate(whole) if number % 4 // 2 * 2 == version]
        assert 0.2 <= sum(chosen) / len(chosen) <= 0.3


@pytest.mark.parametrize("name", OWN_WAYS)
def test_ones_own_ssh_session_is_left_out(
    name: str, wire: Wire, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretending that a connection of the sample is the session."""

    def ports(frame: bytes) -> set[int]:
        return {int.from_bytes(frame[34:36], "big"), int.from_bytes(frame[36:38], "big")}

    frames = [record.data for record in records]
    client, broker = (int.from_bytes(frames[0][at : at + 2], "big") for at in (34, 36))
    monkeypatch.setenv("SSH_CONNECTION", f"127.0.0.1 {client} 127.0.0.1 {broker}")
    got = [packet[16:] for packet in captured(wire, CaptureOptions(wire.name, via=way(name)), frames)]
    assert got == [frame for frame in frames if ports(frame) != {client, broker}]
    assert 0 < len(got) < len(frames)


def test_the_rings_filter_knows_ipv6(wire: Wire) -> None:
    head = bytes(12) + b"\x86\xdd" + b"\x60\0\0\0" + (20).to_bytes(2, "big")
    tcp, udp = (head + bytes([protocol, 64]) + bytes(32) + bytes([1, 2, 3, 4]) + bytes(16) for protocol in (6, 17))
    assert [packet[16:] for packet in captured(wire, CaptureOptions(wire.name, via="ring"), [udp, tcp])] == [tcp]


def test_the_ring_keeps_later_fragments_of_the_session_too(wire: Wire, records: list[Record]) -> None:
    """They have no ports: what looks like some is content."""
    frame = bytearray(records[0].data)
    client, broker = (int.from_bytes(frame[at : at + 2], "big") for at in (34, 36))
    frame[20:22] = (7).to_bytes(2, "big")
    tap = Ring(wire.name, "tcp", SshConnection("127.0.0.1", client, "127.0.0.1", broker), 262_144)
    with CaptureQueue(tap) as queue:
        wire.send([records[0].data, bytes(frame)])
        queue.stop()
        chunk = queue.take(60)
        assert chunk is not None
        assert [packet[16:] for packet in packets_in(chunk.data)] == [bytes(frame)]


@pytest.mark.parametrize("name", OWN_WAYS)
def test_any_says_where_a_packet_was_seen(name: str, wire: Wire, records: list[Record]) -> None:
    """Cooked, SLL2: the header ends with the interface; other interfaces may be busy."""
    got = captured(wire, CaptureOptions("any", via=way(name)), [record.data for record in records[:5]])
    index = socket.if_nametoindex(wire.name)
    packets_of_wire = [packet[16:] for packet in got if int.from_bytes(packet[20:24], "big") == index]
    assert [packet[20:] for packet in packets_of_wire] == [record.data[14:] for record in records[:5]]
    assert {packet[:2] for packet in packets_of_wire} == {b"\x08\x00"}


@pytest.mark.parametrize("name", [*OWN_WAYS, "dumpcap"])
def test_an_interface_that_is_not_there_names_those_that_are(name: str) -> None:
    with pytest.raises(CaptureError, match="no such interface") as raised:
        opened(CaptureOptions("nosuch0", via=way(name)))
    assert "lo" in raised.value.hint


@pytest.mark.parametrize("name", ["libpcap", "dumpcap"])
def test_a_filter_that_says_nothing_is_shown(name: str, wire: Wire) -> None:
    with pytest.raises(CaptureError, match="tcp porrt 3"):
        opened(CaptureOptions(wire.name, "tcp porrt 3", via=way(name)))


def test_the_ring_takes_no_filter_of_ones_own() -> None:
    with pytest.raises(CaptureError, match="needs libpcap"):
        opened(CaptureOptions("lo", "tcp port 1", via="ring"))


def test_without_libpcap_the_ring_takes_its_place(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcap_library, "library", lambda: None)
    tap = opened(CaptureOptions(wire.name))
    assert isinstance(tap, Ring)
    tap.close()
    with pytest.raises(CaptureError, match="libpcap is not installed"):
        opened(CaptureOptions(wire.name, via="libpcap"))


@pytest.mark.parametrize("name", OWN_WAYS)
def test_who_may_not_capture_is_told_how_to(name: str) -> None:
    """In a process that has given up root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("not root: there is nothing to give up")
    way(name)
    program = f"""
import os
from kwire.captures.live.open_interface import CaptureOptions, opened
from kwire.captures.errors import CaptureError
from numpy import zeros
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    opened(CaptureOptions("lo", via={name!r}))
except CaptureError as problem:
    print(problem.message, "|", problem.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "lo: no right to capture here (that takes CAP_NET_RAW) | sudo kwire" in done.stdout
    assert "setcap" not in done.stdout


@pytest.mark.parametrize(
    ("platform", "line", "hint"),
    [("darwin", "lo: no right to capture here", "ChmodBPF"), ("linux", "lo: no right to capture here", "CAP_NET_RAW")],
)
def test_what_other_systems_want_is_said(platform: str, line: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """(Nothing else of them was run.)"""

    def refuse(*arguments: object) -> None:
        raise no_rights("lo")

    monkeypatch.setattr("kwire.captures.live.pcap_library.library", lambda: True)
    monkeypatch.setattr("kwire.captures.live.libpcap.Libpcap", refuse)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(CaptureError) as raised:
        opened(CaptureOptions("lo", ""))
    monkeypatch.undo()
    assert raised.value.message.startswith(line)
    assert hint in str(raised.value)


# -- Windows: no Windows was there to run it on; what it has in place of POSIX's is run here by itself -----------------


@pytest.mark.parametrize("most", [1, pcap_library.NAMED_BYTES])
def test_a_dump_with_a_name_gives_what_one_in_memory_gives(
    most: int, wire: Wire, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun anew after each look, and never. It leaves nothing behind."""
    way("libpcap")
    plain = CaptureQueue(opened(CaptureOptions(wire.name)))
    dumps: list[pcap_library.Named] = []

    def named(lib: Any, handle: Any) -> pcap_library.Named:
        dumps.append(pcap_library.Named(lib, handle, most))
        return dumps[-1]

    monkeypatch.setattr(libpcap, "dump", named)
    queues = [plain, CaptureQueue(opened(CaptureOptions(wire.name)))]
    assert queues[0].tap.header == queues[1].tap.header
    assert stat.S_IMODE(Path(dumps[0].path).parent.stat().st_mode) == 0o700
    for queue in queues:
        queue.start()
    wire.send(record.data for record in records)
    given = [all_of(queue) for queue in queues]
    assert given[0] == given[1]
    assert len(packets_in(given[0])) == len(records)
    assert not Path(dumps[0].path).parent.exists()


def test_devices_are_those_that_tcpdump_lists(wire: Wire) -> None:
    way("tcpdump")
    lib = pcap_library.library()
    assert lib is not None
    listed = subprocess.run(["tcpdump", "-D"], capture_output=True, text=True, check=True).stdout.splitlines()
    devices = pcap_library.devices(lib)
    assert [f"{number}.{device.name}" for number, device in enumerate(devices, 1)] == [
        line.split()[0] for line in listed
    ]
    assert wire.name in [device.name for device in devices]


GUID = "{0F3A7F0B-6C0D-4E7B-9C55-3A8C7B3E5D11}"
DEVICES = [
    pcap_library.Device(rf"\Device\NPF_{GUID}", "Ethernet 2", "Intel(R) Ethernet Connection"),
    pcap_library.Device(r"\Device\NPF_Loopback", "", "Adapter for loopback traffic capture"),
    pcap_library.Device(r"\Device\NPF_{1}", "Wi-Fi", "Wireless"),
    pcap_library.Device(r"\Device\NPF_{2}", "VPN", "Wireless"),
]


@pytest.mark.parametrize(
    ("wanted", "number"),
    [("ethernet 2", 1), (rf"\device\npf_{GUID}", 1), ("Adapter for loopback traffic capture", 2), ("3", 3), ("vpn", 4)],
)
def test_an_interface_of_windows_is_known_by_any_of_its_names(wanted: str, number: int) -> None:
    assert pcap_library.chosen(DEVICES, wanted) == DEVICES[number - 1]


@pytest.mark.parametrize("wanted", ["", "0", "5", "Wireless", "eth0"])
def test_what_names_none_or_two_is_told_with_those_that_are_there(wanted: str) -> None:
    with pytest.raises(CaptureError) as raised:
        pcap_library.chosen(DEVICES, wanted)
    assert raised.value.message == f"-i {wanted}: no such interface"
    assert raised.value.hint == (
        "there are 1 (Ethernet 2), 2 (Adapter for loopback traffic capture), 3 (Wi-Fi), 4 (VPN)"
    )


def test_windows_opens_the_device_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_devices: list[tuple[object, ...]] = []
    monkeypatch.setattr("kwire.captures.live.pcap_library.library", lambda: "lib")
    monkeypatch.setattr("kwire.captures.live.pcap_library.devices", lambda lib: DEVICES)
    monkeypatch.setattr("kwire.captures.live.libpcap.Libpcap", lambda *given: opened_devices.append(given))
    monkeypatch.setattr(sys, "platform", "win32")
    opened(CaptureOptions("wi-fi", "tcp port 9092"))
    monkeypatch.setattr("kwire.captures.live.pcap_library.library", lambda: None)
    with pytest.raises(CaptureError, match="Npcap is not installed"):
        opened(CaptureOptions("wi-fi", ""))
    monkeypatch.undo()
    assert opened_devices == [("lib", "wi-fi", "tcp port 9092", 262_144, r"\Device\NPF_{1}", 1)]


def test_an_interface_that_goes_away_ends_the_capture() -> None:
    from tests.live import a_wire

    with a_wire() as wire:
        queue = CaptureQueue(opened(CaptureOptions(wire.name, via="ring")))
        with queue:
            wire.remove()
            while not queue.over:
                queue.take(60)
        assert "down" in queue.tap.problem


# -- other tools, played by a script: how they are called, what they say, how they are ended ---------------------------
FAKE = """#!/bin/sh
echo "$@" > {said}
echo "listening on eth0" >&2
cat {capture}
trap 'echo "3 packets captured" >&2; echo "12 packets dropped by kernel" >&2; exit 0' TERM
while :; do sleep 0.01; done
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[Record]) -> Path:
    """A tcpdump that gives a file and waits to be ended."""
    (tmp_path / "given.pcap").write_bytes(pcap(records[:7], nanoseconds=True))
    script = tmp_path / "bin" / "tcpdump"
    script.parent.mkdir()
    script.write_text(FAKE.format(said=tmp_path / "said", capture=tmp_path / "given.pcap"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_tcpdump_is_called_with_a_large_buffer_and_ended_and_says_what_it_lost(fake: Path) -> None:
    with CaptureQueue(opened(CaptureOptions("lo", "tcp port 9092", via="tcpdump"))) as queue:
        chunk = queue.take(60)
        assert chunk is not None
        assert chunk.data == (fake / "given.pcap").read_bytes()[HEADER_BYTES:]
        assert chunk.packets == 7
        queue.stop()
        assert queue.take(60) is None
        assert queue.over
    assert queue.drops().kernel == 12
    command = (fake / "said").read_text().split()
    assert command[: command.index("--")] == [
        "-i",
        "lo",
        "-U",
        "-w",
        "-",
        "-s",
        "262144",
        "-B",
        "65536",
        "--time-stamp-precision=nano",
    ]
    assert command[command.index("--") + 1 :] == ["tcp", "port", "9092"]


def test_a_tool_that_ends_by_itself_is_told(fake: Path) -> None:
    (fake / "bin" / "tcpdump").write_text(f"#!/bin/sh\ncat {fake}/given.pcap\necho 'tcpdump: cable cut' >&2\n")
    with CaptureQueue(opened(CaptureOptions("lo", via="tcpdump"))) as queue:
        while not queue.over:
            queue.take(60)
    assert queue.packets == 7
    assert queue.tap.problem == "tcpdump ended: tcpdump: cable cut"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("tcpdump: eth9: moon phase", "--via tcpdump: tcpdump: eth9: moon phase"),
        ("tcpdump: lo: You don't have permission to capture", "lo: no right to capture here"),
    ],
)
def test_a_tool_that_does_not_begin_is_told(output: str, message: str, fake: Path) -> None:
    (fake / "bin" / "tcpdump").write_text(f'#!/bin/sh\necho "{output}" >&2\nexit 1\n')
    with pytest.raises(CaptureError) as raised:
        opened(CaptureOptions("lo", via="tcpdump"))
    assert raised.value.message.startswith(message)


def test_a_tool_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CaptureError, match="--via dumpcap: it is not installed"):
        opened(CaptureOptions("lo", via="dumpcap"))


def test_the_ways_of_the_command_line_are_those_there_are() -> None:
    from kwire.analyzer.options.common import TOOLS

    assert TOOLS == open_interface.WAYS
