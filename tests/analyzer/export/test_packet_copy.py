"""Packets copied from captures of every form, with comments beside their own.

Proves: analyzer/export/packet_copy.py
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.export.packet_copy import LONGEST_COMMENT, Additions, copied_packets
from kwire.captures.files import CapturePoint
from kwire.captures.files.sources import Source
from kwire.captures.files.write import pcap, pcapng
from kwire.captures.packets import Reader
from tests.captures.forge import Write, converse, rendered

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: it is the judge here")

RECORDS = rendered(converse([Write(True, b"x" * 101), Write(False, b"y" * 50)]))
FORMS: dict[str, Any] = {
    "pcap": pcap(RECORDS),
    "pcap, big-endian, ns": pcap(RECORDS, nanoseconds=True, big_endian=True),
    "pcapng": pcapng(RECORDS),
    "pcapng, big-endian, commented": pcapng(RECORDS, big_endian=True, comment="theirs"),
    "pcapng, obsolete blocks": pcapng(RECORDS, block="obsolete"),
    "pcapng, in binary fractions": pcapng(RECORDS, resolution=0x80 | 20),
    "pcapng, simple blocks": pcapng(RECORDS, block="simple"),
}


def places(path: Path) -> list[int]:
    with Reader(CapturePoint("x", (str(path),))) as reader:
        return [place for packets in reader for place in packets.columns.record_at.tolist()]


def fields(path: Path, *names: str) -> list[list[str]]:
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "separator=\t"]
    command += [word for name in names for word in ("-e", name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("form", FORMS)
def test_packets_are_as_captured_and_have_comments(form: str, tmp_path: Path) -> None:
    source, out = tmp_path / "capture", tmp_path / "out.pcapng"
    source.write_bytes(FORMS[form])
    wanted = places(source)[1::2]
    with Source(str(source)) as file:
        out.write_bytes(b"".join(copied_packets(file, set(wanted), lambda place: f"no. {wanted.index(place)}, \u00e9")))
    facts: tuple[str, ...] = ("frame.time_epoch", "frame.len", "tcp.seq_raw", "tcp.payload", "tcp.flags")
    if form == "pcapng, simple blocks":  # without times, and without room for a comment
        facts = facts[1:]
        assert fields(out, *facts) == fields(source, *facts)[1::2]
        return
    assert fields(out, *facts) == fields(source, *facts)[1::2]
    for number, (comment,) in enumerate(fields(out, "frame.comment")):
        assert f"no. {number}, \u00e9" in comment
        assert ("theirs" in comment) == ("commented" in form)


def test_a_packet_without_a_comment_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source = tmp_path / "capture"
    source.write_bytes(FORMS["pcapng, big-endian, commented"])
    with Source(str(source)) as file:
        copied = b"".join(copied_packets(file, set(places(source))))
    assert copied == FORMS["pcapng, big-endian, commented"]


def test_a_long_comment_is_cut_between_characters(tmp_path: Path) -> None:
    source, out = tmp_path / "capture", tmp_path / "out.pcapng"
    source.write_bytes(FORMS["pcap"])
    with Source(str(source)) as file:
        out.write_bytes(b"".join(copied_packets(file, {places(source)[0]}, lambda _: "\u00e9" * 50_000)))
    assert fields(out, "frame.comment") == [["\u00e9" * (LONGEST_COMMENT // 2) + " ..."]]


def test_names_are_read_by_wireshark(tmp_path: Path) -> None:
    source, out = tmp_path / "capture", tmp_path / "out.pcapng"
    additions = Additions(names=[("10.0.0.1", "orders-7f9"), ("10.0.0.2", "kafka-0")], application="kwire")
    for form in ("pcap", "pcapng, big-endian, commented"):
        source.write_bytes(FORMS[form])
        with Source(str(source)) as file:
            out.write_bytes(b"".join(copied_packets(file, set(places(source)), additions=additions)))
        command = ["tshark", "-r", str(out), "-o", "nameres.network_name:TRUE", "-T", "fields", "-e", "ip.src_host"]
        ran = subprocess.run([*command, "-c", "2"], capture_output=True, text=True, check=True)
        assert ran.stdout.split() == ["orders-7f9", "kafka-0"]
