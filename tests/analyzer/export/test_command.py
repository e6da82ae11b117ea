"""`kwire show -w`: packets of chosen exchanges for Wireshark, as tshark reads them.

Proves: analyzer/export/command.py, analyzer/export/comments.py, analyzer/export/tls_secrets.py
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from kwire.analyzer.cli import parser
from kwire.captures.files.write import pcap
from tests.analyzer import forging
from tests.captures.forge import converse, rendered
from tests.shared import SAMPLES, shared_folder

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: it is the judge here")

CODECS = str(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")
SASL = str(SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap")


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `kwire show`."""
    capsys.readouterr()
    try:
        code = parser.main(["show", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def tshark(path: Path | str, *fields: str, shown: str = "frame", kafka: str = "tcp.port==9092") -> list[list[str]]:
    """Fields of the packets that a display filter shows, as tshark prints them."""
    command = ["tshark", "-n", "-r", str(path), "-Y", shown, "-T", "fields", "-E", "separator=\t"]
    command += ["-d", f"{kafka},kafka"]
    command += [word for name in fields for word in ("-e", name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in ran.stdout.splitlines()]


def messages(path: Path | str, port: int, layer: str = "tcp") -> set[tuple[int, int, bool]]:
    """Client's port, correlation id, whether it is a request: of all messages that tshark understands."""
    fields = "tcp.srcport", "tcp.dstport", "kafka.correlation_id"
    rows = tshark(path, *fields, shown="kafka", kafka=f"{layer}.port=={port}")
    return {
        (int(to if source == str(port) else source), int(number), source != str(port))
        for source, to, numbers in rows
        for number in numbers.split(",")
        if number
    }


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in show(capsys, *arguments, "--json")[1].splitlines()]


# ---------------------------------------------------------------------------------------------- what tshark reads of it


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("codecs-franzgo-4.3", "api == Produce"),
        ("txn-librdkafka-4.3", "api == EndTxn or api == AddPartitionsToTxn"),
        ("client-kafkajs-3.9", "latency > 2ms"),
    ],
)
def test_tshark_understands_every_message_that_was_chosen(
    name: str, chosen: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capture, out = str(SAMPLES / name / "capture.pcap"), tmp_path / "out.pcapng"
    code, printed, err = show(capsys, capture, "--filter", chosen, "-w", str(out))
    assert (code, printed) == (0, "")
    rows = rows_of(capsys, capture, "--filter", chosen)
    assert rows
    assert f" of {len(rows)} exchange" in err
    (port,) = {row["broker_port"] for row in rows}
    assert isinstance(port, int)
    sides = ((True, "request_time"), (False, "response_time"))
    expected = {
        (row["client_port"], row["correlation_id"], request)
        for row in rows
        for request, time in sides
        if row[time] is not None
    }
    assert expected <= messages(out, port)
    assert len(tshark(out, "frame.number")) < len(tshark(capture, "frame.number"))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_messages_of_a_lossy_network_are_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Retransmissions come along, from a compressed file too."""
    capture, out = str(shared_folder("net-lossy-4.3") / "capture.pcap.gz"), tmp_path / "out.pcapng"
    chosen = "api == Fetch and status == answered"
    assert show(capsys, capture, "--filter", chosen, "-w", str(out))[0] == 0
    rows = rows_of(capsys, capture, "--filter", chosen)
    both = {(row["client_port"], row["correlation_id"], request) for row in rows for request in (True, False)}
    assert len(both) == 2 * len(rows) > 0
    assert both <= messages(out, 9092)


def test_a_message_that_begins_within_a_packet_is_found_by_those_before(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two requests in three packets: the second begins where the first one ends."""
    both = forging.produce(1, records=forging.batch(3, 1500)) + forging.produce(2, records=forging.batch(3, 1500))
    other = forging.heartbeat(3)
    answers = [forging.answering(forging.produce_answer(n)) for n in (1, 2)]
    talk = [forging.asking(both), *answers, forging.asking(other), forging.answering(forging.heartbeat_answer(3))]
    capture, out = tmp_path / "capture.pcap", tmp_path / "out.pcapng"
    capture.write_bytes(pcap(rendered(converse(talk))))
    assert show(capsys, str(capture), "--filter", "correlation_id == 2", "-w", str(out))[0] == 0
    assert (40000, 2, True) in messages(out, 9092)
    assert (40000, 3, True) not in messages(out, 9092)


def test_limit_and_connection_choose_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    connection = rows_of(capsys, CODECS, "--filter", "api == Produce", "--limit", "1")[0]["connection"]
    out = tmp_path / "out.pcapng"
    assert show(capsys, CODECS, "--follow", str(connection), "--limit", "3", "-w", str(out))[0] == 0
    comments = [comment for (comment,) in tshark(out, "frame.comment") if comment]
    assert len(comments) == 6
    assert all(str(connection) in comment for comment in comments)


def test_a_filter_that_nothing_matches_leaves_an_empty_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    code, _, err = show(capsys, CODECS, "--filter", "latency > 900s", "-w", str(out))
    assert (code, "0 packets of 0 exchanges" in err) == (0, True)
    assert tshark(out, "frame.number") == []


# ------------------------------------------------------------------------------------------------------------ comments


def test_comments_say_what_kwire_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    chosen = "api == SaslAuthenticate and error_code != 0"
    show(capsys, SASL, "--filter", chosen, "-w", str(out))
    rows = rows_of(capsys, SASL, "--filter", chosen)
    comments = "\n".join(comment for (comment,) in tshark(out, "frame.comment") if comment)
    for row in rows:
        latency = int(str(row["latency_us"]))
        took = f"{latency} us" if latency < 1000 else f"{latency / 1000:.1f} ms"
        text = f"SaslAuthenticate v{row['api_version']} response to exchange {row['exchange']} of {row['connection']}: "
        assert f"{text}SASL_AUTHENTICATION_FAILED (58); latency {took}" in comments
    assert "error authentication-failed: 127.0.0.1:9095 refused the login of sasl-bob-PLAIN" in comments


def test_a_request_without_an_answer_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    capture, out = tmp_path / "capture.pcap", tmp_path / "out.pcapng"
    capture.write_bytes(pcap(rendered(converse([forging.asking(forging.heartbeat(1))]))))
    show(capsys, str(capture), "-w", str(out))
    ((comment,),) = [row for row in tshark(out, "frame.comment") if row[0]]
    assert "kwire: Heartbeat v0 request by orders-app, exchange 0 of 10.0.0.1:40000-10.0.0.2:9092#1" in comment
    assert comment.endswith("unanswered")
    assert comment.startswith("kwire: note plain-traffic: ")  # a finding of the connection as a whole


def test_topics_are_named_where_messages_hold_ids(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    show(capsys, CODECS, "--filter", "api == Produce", "-w", str(out))
    topics = set(show(capsys, CODECS, "--filter", "api == Metadata", "--fields", "topics")[1].split())
    comments = " ".join(comment for (comment,) in tshark(out, "frame.comment"))
    named = {topic for text in topics if text.startswith("[") for topic in json.loads(text)}
    assert any(f"topics {topic}" in comments for topic in named)


def test_hostile_names_stay_within_a_comment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hostile = "a\x1b]0;x\x07\n\u202e\x00" + "y" * 30_000
    write = forging.produce(1, topic=hostile)
    capture, out = tmp_path / "capture.pcap", tmp_path / "out.pcapng"
    talk = [forging.asking(write), forging.answering(forging.produce_answer(1))]
    capture.write_bytes(pcap(rendered(converse(talk))))
    assert show(capsys, str(capture), "-w", str(out))[0] == 0
    comments = [comment for (comment,) in tshark(out, "frame.comment") if comment]
    assert len(comments) == 2
    assert "topics a\\x1b]0;x\\x07\\n\\u202e\\x00" in comments[0].replace("\\\\", "\\")
    assert all(comment.isprintable() and len(comment) < 5000 for comment in comments)


# ----------------------------------------------------------------------------------------------------------------- TLS


def test_tshark_opens_tls_by_the_secrets_in_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, out = shared_folder("tls13-aiokafka-4.3"), tmp_path / "out.pcapng"
    keys = tmp_path / "keys.log"
    foreign = "CLIENT_RANDOM " + "ab" * 32 + " " + "cd" * 48
    keys.write_text((folder / "keys.log").read_text() + foreign + "\n")
    keys.chmod(0o600)
    capture = str(folder / "capture.pcap")
    arguments = (capture, "--keylog", str(keys), "--filter", "api == Produce")
    code, _, err = show(capsys, *arguments, "-w", str(out))
    assert code == 0
    assert "TLS connection" in err
    rows = rows_of(capsys, *arguments)
    (port,) = {row["broker_port"] for row in rows}
    assert isinstance(port, int)
    both = {(row["client_port"], row["correlation_id"], request) for row in rows for request in (True, False)}
    assert both <= messages(out, port, "tls")
    content = out.read_bytes()
    assert b"CLIENT_TRAFFIC_SECRET_0 " in content
    assert foreign.encode() not in content


def test_without_a_key_log_there_are_no_secrets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    show(capsys, CODECS, "-w", str(out), "--limit", "3")
    assert b"SECRET" not in out.read_bytes()


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("arguments", "reading"),
    [
        ((CODECS, "--json"), "-w does not go with --json"),
        ((CODECS, "--count-by", "api"), "-w does not go with --count-by"),
        (("-",), "-w reads a capture more than once"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], reading: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = show(capsys, *arguments, "-w", str(tmp_path / "out.pcapng"))
    assert code == 2
    assert reading in err


def test_a_file_that_cannot_be_written_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = show(capsys, "/no/such/capture.pcap", "-w", "/nowhere/out.pcapng")
    assert code == 2
    assert "/nowhere/out.pcapng: cannot be written" in err
