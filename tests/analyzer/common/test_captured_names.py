"""Names in captures: name resolution blocks of pcapng, answers of DNS.

Proves: analyzer/common/captured_names.py
"""

from __future__ import annotations

import gzip
import ipaddress
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import dpkt
import pytest

from kwire.analyzer.cli import parser
from kwire.analyzer.common import address_names, captured_names
from kwire.captures.files.write import Record, block_of, option, pcap, pcapng
from tests.captures.forge import framed
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
Answers = Sequence[tuple[int, str, bytes]]
"""Type, name and content of records."""
A, AAAA, PTR = dpkt.dns.DNS_A, dpkt.dns.DNS_AAAA, dpkt.dns.DNS_PTR


def packed(ip: str) -> bytes:
    return ipaddress.ip_address(ip).packed


def udp(payload: bytes, port: int = 53) -> Record:
    """An Ethernet frame with UDP from a port of a server of DNS."""
    datagram = dpkt.udp.UDP(sport=port, dport=40000, data=payload, ulen=8 + len(payload))
    ip = dpkt.ip.IP(src=packed("10.0.0.53"), dst=packed("10.0.0.1"), p=17, data=datagram)
    ip.len = len(ip)
    data = framed(bytes(ip), 1)
    return Record(0, data, len(data))


def message(name: str, answers: Answers, *, response: bool = True) -> bytes:
    """A message of DNS: a question, and records of an answer."""
    dns = dpkt.dns.DNS(id=7, qd=[dpkt.dns.DNS.Q(name=name, type=A)])
    dns.qr = int(response)
    for kind, owner, content in answers:
        record = dpkt.dns.DNS.RR(name=owner, type=kind, ttl=60)
        if kind == PTR:
            record.ptrname = content.decode()
        elif kind == dpkt.dns.DNS_CNAME:
            record.cname = content.decode()
        else:
            record.rdata = content
            record.ip = record.ip6 = content
        dns.an.append(record)
    return bytes(dns)


def named(content: bytes, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "capture"
    path.write_bytes(content)
    return address_names.read_names([str(path)])


def block(records: Sequence[tuple[int, bytes]], order: str = "<") -> bytes:
    """A name resolution block."""
    return block_of(order, 4, b"".join(option(order, kind, value) for kind, value in records) + option(order, 0, b""))


# ---------------------------------------------------------------------------------------------------------------- DNS


def test_addresses_have_the_name_that_was_asked_for(tmp_path: Path) -> None:
    alias = [(dpkt.dns.DNS_CNAME, "kafka.shop", b"kafka-0.internal"), (A, "kafka-0.internal", packed("10.1.0.7"))]
    packets = [
        udp(message("kafka.shop", alias)),
        udp(message("six.shop", [(AAAA, "six.shop", packed("fd00::7"))]), 5353),
        udp(message("8.0.1.10.in-addr.arpa", [(PTR, "8.0.1.10.in-addr.arpa", b"kafka-1.shop")])),
    ]
    assert named(pcap(packets), tmp_path) == {
        "10.1.0.7": "kafka.shop",
        "fd00::7": "six.shop",
        "10.1.0.8": "kafka-1.shop",
    }


def test_a_name_of_one_address_counts_before_a_name_of_many(tmp_path: Path) -> None:
    """`kafka` is a headless service: all brokers have it, and each has its own."""
    brokers = [f"10.1.0.{number}" for number in range(3)]
    packets = [udp(message("kafka.shop", [(A, "kafka.shop", packed(ip)) for ip in brokers]))]
    packets += [
        udp(message(f"kafka-{number}.shop", [(A, f"kafka-{number}.shop", packed(ip))]))
        for number, ip in enumerate(brokers[:2])
    ]
    expected = {"10.1.0.0": "kafka-0.shop", "10.1.0.1": "kafka-1.shop", "10.1.0.2": "kafka.shop"}
    assert named(pcap(packets), tmp_path) == expected
    assert named(gzip.compress(pcap(packets)), tmp_path) == expected


def test_questions_other_ports_and_tcp_name_nothing(tmp_path: Path) -> None:
    answers = [(A, "a.b", packed("10.1.0.7"))]
    packets = [udp(message("a.b", answers, response=False)), udp(message("a.b", answers), 54), udp(b"")]
    assert named(pcap(packets), tmp_path) == {}
    assert named(CAPTURE.read_bytes(), tmp_path) == {}


def test_reversed_names_of_ipv6() -> None:
    name = ".".join(reversed(packed("fd00::1:7").hex())) + ".ip6.arpa"
    assert captured_names._reversed(name) == "fd00::1:7"
    for wrong in ("", "arpa", "x.in-addr.arpa", "1.2.3.in-addr.arpa", "1.ip6.arpa", "7.0.1.10.in-addr.example"):
        assert captured_names._reversed(wrong) is None


@pytest.mark.parametrize("seed", range(20))
def test_damaged_answers_are_passed_over(seed: int, tmp_path: Path) -> None:
    """Whatever the bytes are, what comes out are addresses and printable names."""
    rng = random.Random(seed)
    packets = []
    for _ in range(40):
        content = bytearray(message("kafka.shop", [(A, "kafka.shop", packed("10.1.0.7")), (PTR, "x.y", b"z" * 60)]))
        for _ in range(rng.randrange(6)):
            content[rng.randrange(2, len(content))] = rng.randrange(256)
        packets.append(udp(bytes(content[: rng.randrange(len(content) + 1)] if rng.random() < 0.3 else content)))
    packets.append(udp(message("last.shop", [(A, "last.shop", packed("10.1.0.9"))])))
    names = named(pcap(packets), tmp_path)
    assert names["10.1.0.9"] == "last.shop"
    for ip, name in names.items():
        ipaddress.ip_address(ip)
        assert name.isprintable()


def test_a_capture_of_endless_names_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_names, "MOST_NAMES", 100)
    packets = [udp(message(f"n{number}", [(A, f"n{number}", number.to_bytes(4, "big"))])) for number in range(1, 1000)]
    assert len(named(pcap(packets), tmp_path)) == 100


# ------------------------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("big", [False, True])
def test_name_resolution_blocks(big: bool, tmp_path: Path) -> None:
    """A block counts before DNS, wherever it stands; of several names the first."""
    dns = udp(message("dns.shop", [(A, "dns.shop", packed("10.1.0.7"))]))
    section = pcapng([dns], big_endian=big)
    records = [
        (1, packed("10.1.0.7") + b"kafka-0\0kafka\0"),
        (2, packed("fd00::7") + b"six\0"),
        (3, b"\1\2\3\4\5\6ethernet\0"),
        (1, b"\1\2"),
    ]
    content = section + block(records, ">" if big else "<")
    assert named(content, tmp_path) == {"10.1.0.7": "kafka-0", "fd00::7": "six"}
    assert named(content[:-20], tmp_path) == {"10.1.0.7": "dns.shop"}  # cut off


def test_sections_have_byte_orders_of_their_own(tmp_path: Path) -> None:
    content = pcapng([], big_endian=True) + block([(1, packed("10.0.0.1") + b"a\0")], ">")
    content += pcapng([]) + block([(1, packed("10.0.0.2") + b"b\0")])
    assert named(content, tmp_path) == {"10.0.0.1": "a", "10.0.0.2": "b"}


def test_hostile_blocks(tmp_path: Path) -> None:
    name = b"\x1b]0;x\x07<b>|*evil*\n\xff\0"
    content = pcapng([]) + block([(1, packed("10.0.0.1") + name)]) + struct.pack("<II", 4, 0xFFFFFFF0)
    assert named(content, tmp_path) == {"10.0.0.1": "\\x1b]0;x\\x07<b>|*evil*\\n\ufffd"}


def test_names_that_show_wrote(tmp_path: Path) -> None:
    hosts, out = tmp_path / "hosts", tmp_path / "out.pcapng"
    hosts.write_text("127.0.0.1 kafka-0\n")
    assert parser.main(["show", str(CAPTURE), "--names", str(hosts), "--limit", "1", "-w", str(out)]) == 0
    assert address_names.read_names([str(out)]) == {"127.0.0.1": "kafka-0"}
