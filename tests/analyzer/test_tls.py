"""Decrypt TLS with keys, end to end, and compare the exchanges with those of the plain capture.

(proves: captures/tls/stage.py, captures/tls/certificates.py, analyzer/bulk/engine.py (keys),
analyzer/pipeline/read_options.py)
"""

from __future__ import annotations

import datetime
import json
import random
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline import shares
from kwire.analyzer.pipeline.points import AnalysisOptions, joined
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.errors import CaptureError
from kwire.captures.extras import install
from kwire.captures.files import capture_points
from kwire.captures.files.write import pcap, pcapng
from tests.analyzer import forging
from tests.analyzer.cli.test_parser import kwire, refused
from tests.captures.forge import START_NS, Segment, Write, converse, interleaved, rendered
from tests.captures.tls.records import Forged
from tests.captures.tls.sealing import HOST, How, Talk
from tests.shared import shared_folder

pytest.importorskip("cryptography", reason="TLS needs the package cryptography: pip install 'kwire[tls]'")

TIMED = {
    "request_time",
    "request_end",
    "response_time",
    "response_end",
    "latency_us",
    "total_us",
    "queue_us",
    "muted_us",
    "network_us",
    "hold_us",
    "broker_us",
    "broker_low_us",
    "broker_high_us",
    "cause",
    "request_packet",
    "response_packet",
    "request_offset",
    "response_offset",
    "capture",
    "request_file",
    "response_file",
}
"""Columns of times and positions, which differ because a handshake comes first and packets are larger."""


def talked(turns: int = 16) -> list[Write]:
    """Return requests of several APIs and their answers, some larger than a TLS record."""
    out = []
    for number in range(turns):
        records = forging.batch(3 + number, 40 * (1 + number % 40))
        ask, answer = [
            (forging.produce(number, records=records), forging.produce_answer(number)),
            (forging.fetch(number), forging.fetch_answer(number, records)),
            (forging.metadata(number), forging.metadata_answer(number)),
            (forging.heartbeat(number), forging.heartbeat_answer(number)),
        ][number % 4]
        out += [forging.asking(ask), forging.answering(answer)]
    return out


def plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


def log_of(folder: Path, keys: bytes) -> Path:
    path = folder / "given.log"
    path.write_bytes(keys)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def plain_capture(tmp_path_factory: pytest.TempPathFactory) -> forging.CaptureRows:
    """Read the conversation without TLS."""
    return forging.read(tmp_path_factory.mktemp("plain"), converse(talked()))


HOWS = {
    "1.3": How(),
    "1.3, asked to say hello again": How(group="secp384r1"),
    "1.2, GCM": How(ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES256-GCM-SHA384"),
    "1.2, CBC": How(ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES256-SHA384:@SECLEVEL=0"),
}


@pytest.mark.parametrize("name", HOWS)
def test_the_exchanges_are_those_of_the_plain_capture(
    name: str, tmp_path: Path, plain_capture: forging.CaptureRows
) -> None:
    talk = Talk(HOWS[name], tmp_path)
    for mss in (1448, 60_000):
        result = forging.read(tmp_path, converse(talk.sealed(talked()), mss=mss), keylogs=[log_of(tmp_path, talk.keys)])
        assert plain(result.exchanges) == plain(plain_capture.exchanges)
        connection = result.connection
        assert (connection["tls"], connection["decrypted"], connection["tls_sni"]) == (True, True, HOST)
        assert connection["tls_version"] == name[:3]
        assert connection["decoded_bytes"] == plain_capture.connection["decoded_bytes"]
        opaque = connection["payload_bytes"] - connection["decoded_bytes"]
        assert connection["opaque_encrypted_bytes"] == connection["opaque_bytes"] == opaque > 0
    assert connection["tls_subject"] is None  # resumed: no certificate


def test_what_the_handshake_says_is_in_connections(tmp_path: Path) -> None:
    talk = Talk(How(alpn="kafka"), tmp_path)
    result = forging.read(tmp_path, converse(talk.sealed(talked(2))), keylogs=[log_of(tmp_path, talk.keys)])
    names = ("tls_version", "tls_cipher", "tls_alpn", "tls_subject", "tls_not_after")
    assert [result.connection[name] for name in names] == [
        "1.3",
        "TLS_AES_256_GCM_SHA384",
        "kafka",
        f"CN={HOST},O=kwire\\, tests",
        datetime.datetime(2036, 1, 1, tzinfo=datetime.UTC),
    ]


def several(folder: Path, count: int = 6) -> tuple[list[Segment], bytes]:
    """Return packets of connections at the same time, some lost or out of order, and their keys.

    Connections are of both TLS versions; one has no keys, and one no TLS.
    """
    rng = random.Random(1)
    talks, talk_of = [], []
    for number, how in enumerate((How(), HOWS["1.2, GCM"])):
        own = folder / f"talk-{number}"
        own.mkdir()
        talk_of.append(Talk(how, own))
    for number in range(count):
        writes = talk_of[number % 2].sealed(talked(12))
        if number == 4:
            forged = Forged(1)
            writes = [
                *forged.shaken(),
                *(forged.sealed_write(write) for write in talked(4) if len(write.data) < 16_000),
            ]
        if number == 5:
            writes = talked(12)
        segments = converse(writes, client=("10.0.0.1", 40_000 + number), start_ns=START_NS + number * 70_000)
        talks.append([segment for position, segment in enumerate(segments) if position < 12 or rng.random() > 0.02])
    packets = interleaved(*talks)
    for position in range(40, len(packets) - 1, 37):
        packets[position], packets[position + 1] = packets[position + 1], packets[position]
    return packets, b"".join(talk.keys for talk in talk_of)


def tables_of(capture: Path, **how: Any) -> dict[str, list[dict[str, Any]]]:
    dataset = analyzer.analyze(capture, **how)
    forging.check_coverage(dataset.coverage, dataset.connections.to_pylist())
    names = ("exchanges", "partitions", "connections", "batches", "messages")
    return {name: getattr(dataset, name).to_pylist() for name in names} | {"unrecognised": [dataset.unrecognised]}


def test_windows_and_threads_change_nothing(tmp_path: Path) -> None:
    packets, keys = several(tmp_path)
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(pcap(rendered(packets), 1, nanoseconds=True))
    how = {"keylogs": [log_of(tmp_path, keys)], "keep_bytes": True}
    expected = tables_of(capture, threads=1, **how)
    assert [row["decrypted"] for row in expected["connections"]].count(True) == 4
    assert [each["looks_like"] for each in expected["unrecognised"][0]["listed"]] == ["TLS"]
    assert len(expected["exchanges"]) > 50
    assert {"answered", "unanswered", "orphan_response"} == {row["status"] for row in expected["exchanges"]}
    for threads, window in ((2, 1000), (4, 3000), (6, 20_000)):
        assert tables_of(capture, threads=threads, window_bytes=window, **how) == expected


@pytest.mark.parametrize("ports", [(), (9092,)])
def test_what_keys_do_not_open_is_as_without_them(tmp_path: Path, ports: tuple[int, ...]) -> None:
    """Connections stay encrypted, and plain ones as they are; columns from the hellos are filled either way."""
    packets, _ = several(tmp_path)
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(pcap(rendered(packets), 1, nanoseconds=True))
    without = tables_of(capture, ports=ports, keep_bytes=True)
    with_keys = tables_of(capture, ports=ports, keep_bytes=True, keylogs=[log_of(tmp_path, Forged(99).log)])
    handshakes = [[row[name] for name in ("tls_version", "tls_sni")] for row in with_keys["connections"]]
    assert with_keys == without
    assert len(handshakes) == (6 if ports else 1)
    assert handshakes.count([None, None]) == 1
    assert not ports or ["1.2", HOST] in handshakes


def test_shares_of_connections_give_the_same(tmp_path: Path) -> None:
    packets, keys = several(tmp_path)
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(pcap(rendered(packets), 1, nanoseconds=True))
    how = ReadOptions(window_bytes=20_000, keylogs=[log_of(tmp_path, keys)])
    [point] = capture_points([str(capture)], False)
    options = AnalysisOptions.of()
    results = [
        shares.share(point, how.settings(options.keep), options, shares.Share(number, 3), 100, tmp_path / f"p{number}")
        for number in range(3)
    ]
    rows, facts = shares.by_range(results)
    parts, small = TableFiles(tmp_path, "rows"), TableFiles(tmp_path, "facts")
    read, _, more = shares.take_facts(facts, results, point, options, small, tmp_path / "decided")
    import pyarrow.parquet as pq

    files, own = shares.merge(point, results[0].files, rows, parts, tmp_path / "decided")
    read.summary.own.join(own)
    tables = {entry["table"]: pq.read_table(tmp_path / entry["path"], partitioning=None) for entry in [*files, *more]}
    expected = analyzer.analyze(capture, window_bytes=20_000, keylogs=how.keylogs)
    for name in ("exchanges", "partitions", "connections", "batches"):
        assert tables[name].to_pylist() == getattr(expected, name).to_pylist(), name
    assert joined([read]).captures == expected.captures
    assert joined([read]).summary["apis"] == expected.summary["apis"]
    assert expected.captures[0]["decrypted"] is True


def test_a_file_that_was_cut_off_gives_the_beginning(tmp_path: Path, plain_capture: forging.CaptureRows) -> None:
    talk = Talk(How(), tmp_path)
    data = pcap(rendered(converse(talk.sealed(talked()))), 1, nanoseconds=True)
    log = log_of(tmp_path, talk.keys)
    for share in (0.3, 0.61, 0.9):
        result = forging.read(tmp_path, data[: int(len(data) * share)], keylogs=[log])
        done = [row for row in plain(result.exchanges) if row["status"] == "answered"]
        assert done == plain(plain_capture.exchanges)[: len(done)]
        assert len(done) > 3


def test_lost_packets_take_what_was_in_them_and_no_more(tmp_path: Path) -> None:
    """Every exchange remains a row, and all messages without a lost packet are decoded."""
    writes = [write for number in range(300) for write in forging.turns([number])]
    talk = Talk(How(), tmp_path)
    packets = converse(talk.sealed(writes))
    positions = [position for position, packet in enumerate(packets) if packet.payload][20:-4]
    lost = random.Random(5).sample(positions, 12)
    result = forging.read(tmp_path, forging.without(packets, *lost), keylogs=[log_of(tmp_path, talk.keys)])
    hit = sum(packets[position].target[1] == 9092 for position in lost)
    decoded_requests = {row["correlation_id"] for row in result.exchanges if row["request_state"] == "decoded"}
    decoded_responses = [row for row in result.exchanges if row["response_state"] == "decoded"]
    orphans = [row for row in result.exchanges if row["status"] == "orphan_response"]
    assert len(decoded_requests) == 300 - hit
    assert len(orphans) == hit
    assert len(decoded_responses) == 300 - len(lost)
    assert result.connection["skipped_bytes"] == result.connection["incomplete_bytes"] == 0


# --------------------------------------------------------------------------------------------- where keys come from


def block(kind: int, body: bytes) -> bytes:
    """Encode a pcapng block."""
    body += bytes(-len(body) % 4)
    size = (len(body) + 12).to_bytes(4, "little")
    return kind.to_bytes(4, "little") + size + body + size


def secrets_block(keys: bytes) -> bytes:
    return block(10, b"KSLT" + len(keys).to_bytes(4, "little") + keys)


def with_secrets(packets: Sequence[Segment], keys: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a pcapng file with secrets before some of its packets."""
    data = pcapng(rendered(packets))
    blocks, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        blocks.append(data[at : at + size])
        at += size
    head = len(blocks) - len(packets)
    out = blocks[:head]
    for number, packet_block in enumerate(blocks[head:]):
        out += [secrets_block(secret) for position, secret in keys if position == number]
        out.append(packet_block)
    return b"".join(out)


def test_secrets_in_the_capture_open_it(tmp_path: Path, plain_capture: forging.CaptureRows) -> None:
    talk = Talk(How(), tmp_path)
    capture = tmp_path / "capture.pcapng"
    capture.write_bytes(with_secrets(converse(talk.sealed(talked())), [(0, talk.keys)]))
    assert plain(forging.read_files(capture).exchanges) == plain(plain_capture.exchanges)


@pytest.mark.parametrize("window", [2000, 1 << 20])
def test_secrets_that_come_later_open_what_waited_for_them(tmp_path: Path, window: int) -> None:
    """Secrets open connections that begin after the first secrets; earlier ones stay encrypted."""
    talks = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        talks.append(Talk(How(), folder))
    conversations = [
        converse(talk.sealed(talked(4)), client=("10.0.0.1", 40_000 + number), start_ns=START_NS + number * 10**9)
        for number, talk in enumerate(talks)
    ]
    first, second = len(conversations[0]), len(conversations[1])
    keys = [(first - 4, talks[0].keys), (first + 12, talks[1].keys), (first + second, talks[2].keys)]
    capture = tmp_path / "capture.pcapng"
    capture.write_bytes(with_secrets([packet for talk in conversations for packet in talk], keys))
    result = forging.read_files(capture, window_bytes=window)
    assert [row["client_port"] for row in result.connections] == [40_001, 40_002]
    assert all(row["decrypted"] for row in result.connections)
    assert len(result.exchanges) == 8
    assert [row["looks_like"] for row in result.unrecognised["listed"]] == ["TLS"]


def test_without_the_package_secrets_are_left_alone_and_a_key_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    talk = Talk(How(), tmp_path)
    capture = tmp_path / "capture.pcapng"
    capture.write_bytes(with_secrets(converse(talk.sealed(talked(4))), [(0, talk.keys)]))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    dataset = analyzer.analyze(capture)
    assert len(dataset.exchanges) == 0
    assert [note for note in dataset.notes if install("tls") in note]
    with pytest.raises(CaptureError, match="not installed") as error:
        analyzer.analyze(capture, keylogs=[talk.path])
    assert error.value.hint == install("tls")


def test_a_growing_key_log_opens_a_live_capture(tmp_path: Path) -> None:
    """The keys are written after the handshake, as an agent for Java does; the capture comes through a pipe."""
    import io

    talk = Talk(How(), tmp_path)
    packets = converse(talk.sealed(talked()), start_ns=START_NS)
    data = pcap(rendered(packets), 1, nanoseconds=True)
    log = tmp_path / "growing.log"
    log.touch(0o600)

    class Slow(io.RawIOBase):
        """Stream of the capture in pieces; the keys are written before the third."""

        def __init__(self) -> None:
            self.at = self.pieces = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.pieces += 1
            if self.pieces == 3:
                log.write_bytes(talk.keys)
            piece = data[self.at : self.at + min(len(buffer), 6000)]
            buffer[: len(piece)] = piece
            self.at += len(piece)
            return len(piece)

    [point] = capture_points(["-"], False)
    engine = Engine(point, Settings(threads=1, window_bytes=6000, keylogs=(str(log),)), stdin=io.BufferedReader(Slow()))
    assert sum(len(window.exchanges) for window in engine.windows()) == 16


# --------------------------------------------------------------------------------------------- commands and secrets


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a capture and its key log."""
    folder = tmp_path_factory.mktemp("given")
    talk = Talk(How(), folder)
    capture = folder / "capture.pcap"
    capture.write_bytes(pcap(rendered(converse(talk.sealed(talked(8)))), 1, nanoseconds=True))
    return capture, talk.path


def test_no_secret_is_in_a_dataset_or_printed(given: tuple[Path, Path], tmp_path: Path) -> None:
    capture, keys = given
    secrets = [line.split()[2] for line in keys.read_text().splitlines() if not line.startswith("#")]
    done = kwire("analyze", capture, "--keylog", keys, "-o", tmp_path / "dataset", "--keep-bytes")
    assert done.returncode == 0, done.stderr
    shown = kwire("show", capture, "--keylog", keys, "--tree", "--hex", "--no-pager")
    assert shown.returncode == 0, shown.stderr
    stored = b"".join(path.read_bytes() for path in (tmp_path / "dataset").rglob("*") if path.is_file())
    for secret in secrets:
        for text in (secret, secret.upper()):
            assert text.encode() not in stored
            assert text not in done.stdout + done.stderr + shown.stdout + shown.stderr
        assert bytes.fromhex(secret) not in stored
    manifest = json.loads((tmp_path / "dataset" / "_kwire.json").read_text())
    assert manifest["decrypted"] is True
    assert "8 exchanges on 1 connection" in done.stdout
    assert "encrypted" not in done.stdout.split("coverage:")[0]  # no finding says that it stays shut


@pytest.mark.parametrize(
    "words",
    [
        "show {capture} --keylog {keys} --fields api",
        "findings {capture} --keylog {keys} --json",
        "story {capture} --keylog {keys}",
        "sql {capture} SELECT_count(*)_FROM_exchanges --keylog {keys} --format csv",
        "report {capture} --keylog {keys} --format json",
        "show {capture} --keylog {keys} --count-by api",
        "replay {capture} --keylog {keys} --dry-run --assume 4.3",
    ],
)
def test_every_command_that_takes_a_capture_takes_keys(words: str, given: tuple[Path, Path]) -> None:
    arguments = [word.replace("_", " ") for word in words.split()]
    done = kwire(*(word.format(capture=given[0], keys=given[1]) for word in arguments))
    assert done.returncode == 0, done.stderr
    assert "stays shut" not in done.stderr
    if arguments[0] == "sql":
        assert done.stdout.split()[-1] == "8"
    elif arguments[0] != "findings":
        assert "Produce" in done.stdout or "app" in done.stdout, done.stdout


def test_what_is_no_key_log_is_one_line_and_a_hint(given: tuple[Path, Path], tmp_path: Path) -> None:
    capture, _ = given
    refused(kwire("show", capture, "--keylog", tmp_path / "absent"), "key log cannot be read", "check the name")
    refused(kwire("show", capture, "--keylog", capture), "holds no TLS key")


def test_keys_go_with_a_capture(given: tuple[Path, Path], tmp_path: Path) -> None:
    capture, keys = given
    dataset = tmp_path / "dataset"
    assert kwire("analyze", capture, "--keylog", keys, "-o", dataset).returncode == 0
    for words in (["findings", dataset], ["story", dataset], ["report", dataset], ["sql", dataset, "SELECT 1"]):
        refused(kwire(*words, "--keylog", keys), "--keylog goes with a CAPTURE")


# ---------------------------------------------------------------------------------------------------------- witnesses


def test_the_shared_capture_is_what_its_client_did() -> None:
    """Counts by API and version are those of the broker's request log (27 requests of 5 connections)."""
    folder = shared_folder("tls13-aiokafka-4.3")
    dataset = analyzer.analyze(folder / "capture.pcap", keylogs=[folder / "keys.log"])
    rows = dataset.exchanges.to_pylist()
    assert {(row["status"], row["request_state"], row["response_state"]) for row in rows} == {
        ("answered", "decoded", "decoded")
    }
    truth = json.loads((folder / "truth.json").read_text())["broker_requests"]
    counted = Counter(f"{row['api']}({row['api_key']}) v{row['api_version']}" for row in rows)
    assert counted == truth
    assert len(rows) == 27
    connections = dataset.connections.to_pylist()
    forging.check_coverage(dataset.coverage, connections)
    assert {(row["tls_version"], row["tls_cipher"], row["decrypted"]) for row in connections} == {
        ("1.3", "TLS_AES_256_GCM_SHA384", True)
    }
    assert dataset.coverage["skipped_bytes"] == dataset.coverage["incomplete_bytes"] == 0


def decrypted_by_tshark(capture: Path, keys: Path, stream: int = 0) -> tuple[bytes, bytes]:
    """Return the decrypted bytes of client and broker of a connection, as tshark reads them."""
    done = subprocess.run(
        [
            "tshark",
            "-r",
            str(capture),
            "-o",
            f"tls.keylog_file:{keys}",
            "-d",
            "tcp.port==9092,tls",
            "-q",
            "-z",
            f"follow,tls,raw,{stream}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip() and set(line.strip()) <= set("0123456789abcdef")]
    sides = [b"".join(bytes.fromhex(line) for line in lines if line.startswith("\t") == server) for server in (0, 1)]
    return (sides[1], sides[0]) if "Node 0: 10.0.0.2" in done.stdout else (sides[0], sides[1])


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: it is the witness here")
@pytest.mark.parametrize("name", ["1.3", "1.2, CBC", "forged 1.3"])
def test_tshark_sees_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Compare stored messages with Wireshark's decryption of the same capture by the same key log.

    `tests/captures/tls/test_recorded` compares the bytes for every suite and kind of resumption.
    """
    plain_writes = talked(8)
    if name == "forged 1.3":
        forged = Forged(3)
        plain_writes = [write for write in plain_writes if len(write.data) < 16_000]
        writes, keys = [*forged.shaken(), *(forged.sealed_write(write) for write in plain_writes)], forged.log
    else:
        talk = Talk(HOWS[name], tmp_path)
        writes = talk.sealed(plain_writes)
        keys = talk.keys
    capture, log = tmp_path / "capture.pcap", log_of(tmp_path, keys)
    capture.write_bytes(pcap(rendered(converse(writes)), 1, nanoseconds=True))
    from_client, from_broker = decrypted_by_tshark(capture, log)
    assert from_client == b"".join(write.data for write in plain_writes if write.to_broker)
    assert from_broker == b"".join(write.data for write in plain_writes if not write.to_broker)
    messages = analyzer.analyze(capture, keylogs=[log], keep_bytes=True, keep_secrets=True).messages.to_pylist()
    for direction, expected in (("request", from_client), ("response", from_broker)):
        frames = [row["bytes"] for row in messages if row["direction"] == direction]
        assert b"".join(frames) == expected
