"""Decrypt other programs' connections, and compare with their plaintext and with Wireshark.

(proves: captures/tls/session.py, captures/tls/ciphers.py, captures/tls/keylog.py)
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from kwire.captures.files.write import pcap
from kwire.captures.tls.keylog import SESSION, KeyLog
from tests.captures.forge import START_NS, Segment, Write, converse, rendered
from tests.captures.tls.recorded import names, recorded
from tests.captures.tls.records import Forged
from tests.captures.tls.sealing import NO_ENCRYPT_THEN_MAC, NO_EXTENDED_MASTER, How, Talk, sealed13
from tests.captures.tls.test_session import SUITES12, SUITES13, check, text

pytest.importorskip("cryptography", reason="TLS needs the package cryptography: pip install 'kwire[tls]'")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("mss", [1448, 33])
def test_a_recording_is_opened_as_it_was_said(name: str, mss: int) -> None:
    """Java's agent names sessions of TLS 1.2 by their id: what resumes one is opened by the same line."""
    recording = recorded(name)
    for link in recording.connections:
        session = check(recording.keys, link.wire, link.plain, mss)
        assert session.version == (0x0303 if "1.2" in name else 0x0304)
    assert len(recording.connections) == (1 if name.endswith(("chacha", "updates")) else 2)


def test_the_recordings_hold_what_they_are_there_for() -> None:
    """Session lines, a session that resumes, key updates, early data."""
    for name in ("java-1.2-gcm", "java-1.2-cbc", "java-1.2-chacha"):
        recording = recorded(name)
        log = KeyLog()
        assert log.take(recording.keys) == len(log) == len(log.names(SESSION)) == 1
    # Four records of 700 B fill a kilobyte's limit again and again; JSSE answers an update with its own.
    recording = recorded("java-1.3-key-updates")
    sent = sum(len(write.data) for write in recording.connections[0].plain)
    assert sent > 7000
    early = recorded("openssl-1.3-early-data").connections[1]
    assert early.plain[0] == Write(True, b"early bird\n")
    assert b"CLIENT_EARLY_TRAFFIC_SECRET" in recorded("openssl-1.3-early-data").keys


# ----------------------------------------------------------------------------------------------------------- Wireshark

Sealed = tuple[list[Write], list[Write]]
"""What went over the wire, and what was said."""


def spoken(number: int) -> list[Write]:
    """Texts that differ from connection to connection, one longer than a record."""
    sizes = (30, 700, 20_000, 64)
    return [Write(turn % 2 == 0, bytes([33 + number]) * size) for turn, size in enumerate(sizes)]


def talks(folder: Path) -> tuple[dict[str, Sealed], bytes]:
    """Every suite of TLS 1.2 and 1.3 whole, one of each kind resumed by ticket and by id, with and without
    encrypt-then-MAC; a HelloRetryRequest, key updates, early data; and all recordings."""
    sealed: dict[str, Sealed] = {}
    keys = b""
    resumed = ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES256-SHA384")
    hows = {name: (How(ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0"), name in resumed) for name in SUITES12}
    for name in resumed:
        cipher = f"{name}:@SECLEVEL=0"
        hows[f"{name}, by id"] = How(ssl.TLSVersion.TLSv1_2, cipher, ssl.OP_NO_TICKET), True
        plain = NO_ENCRYPT_THEN_MAC | NO_EXTENDED_MASTER
        hows[f"{name}, without extensions"] = How(ssl.TLSVersion.TLSv1_2, cipher, plain), True
    hows |= {"1.3": (How(), True), "1.3, hello again": (How(group="secp384r1"), True)}
    for name, (how, again) in hows.items():
        place = folder / str(len(sealed))
        place.mkdir()
        talk = Talk(how, place)
        for turn in range(1 + again):
            written = spoken(len(sealed))
            sealed[f"{name}{', resumed' * turn}"] = talk.sealed(written), written
            assert talk.resumed == bool(turn)
        keys += talk.keys
    for name in SUITES13:
        written = spoken(len(sealed))
        writes, log = sealed13(name, written)
        sealed[name], keys = (writes, written), keys + log
    recording, written, out = Forged(2), spoken(len(sealed)), []
    for write in written:
        for at in range(0, len(write.data), 16_000):
            out.append(recording.sealed_write(Write(write.to_broker, write.data[at : at + 16_000])))
        out.append(Write(write.to_broker, recording.updated(write.to_broker)))
    sealed["key updates"], keys = ([*recording.shaken(), *out], written), keys + recording.log
    for name in names():
        program = recorded(name)
        keys += program.keys
        for number, link in enumerate(program.connections):
            sealed[f"{name} {number}"] = link.wire, link.plain
    return sealed, keys


_DIGITS = set("0123456789abcdef")


def followed(capture: Path, keys: Path, count: int) -> dict[int, tuple[bytes, bytes]]:
    """By number of the connection: what tshark sees each side of a connection say, inside TLS."""
    wanted = [word for number in range(count) for word in ("-z", f"follow,tls,raw,{number}")]
    done = subprocess.run(
        ["tshark", "-r", str(capture), "-o", f"tls.keylog_file:{keys}", "-d", "tcp.port==9092,tls", "-q", *wanted],
        capture_output=True,
        text=True,
        check=True,
    )
    out: dict[int, tuple[bytes, bytes]] = {}
    for part in done.stdout.split("Follow: tls,raw")[1:]:
        nodes = [line.partition(": ")[2] for line in part.splitlines() if line.startswith("Node ")]
        lines = [line for line in part.splitlines() if line.strip() and set(line.strip()) <= _DIGITS]
        sides = [
            b"".join(bytes.fromhex(line) for line in lines if line.startswith("\t") == tab) for tab in (False, True)
        ]
        client = int(not nodes[0].startswith("10.0.0.1:"))
        out[int(part.partition("tcp.stream eq ")[2].split()[0])] = (sides[client], sides[1 - client])
    return out


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: it is the witness here")
def test_tshark_sees_the_same_bytes_of_every_cipher_and_way_to_resume(tmp_path: Path) -> None:
    sealed, keys = talks(tmp_path)
    packets: list[Segment] = []
    for number, (writes, _) in enumerate(sealed.values()):
        packets += converse(writes, client=("10.0.0.1", 40_000 + number), start_ns=START_NS + number * 10**9)
    capture, log = tmp_path / "capture.pcap", tmp_path / "given.log"
    capture.write_bytes(pcap(rendered(packets), 1, nanoseconds=True))
    log.write_bytes(keys)
    seen = followed(capture, log, len(sealed))
    wrong: list[str] = []
    for number, (name, (writes, plain)) in enumerate(sealed.items()):
        check(keys, writes, plain)
        if seen.get(number) != (text(plain, True), text(plain, False)):
            wrong.append(name)
    assert wrong == []
    assert len(sealed) > 50
