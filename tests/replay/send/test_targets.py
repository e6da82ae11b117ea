"""Targets that are poor, wrong or none: what can be sent is sent, and else one clear line says what is the matter.

Proves: replay/send/target.py
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kwire.replay.send import login
from tests import forked
from tests.brokers import jars
from tests.brokers.cluster import HOST, Spec, free_port, scram_users
from tests.brokers.fixtures import Start
from tests.replay.auditing import audit
from tests.replay.replaying import replay_capture
from tests.replay.test_replaying import check_outcomes
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3"
SECURE = Spec(jars.NEWEST, listeners=(("SASL", "SASL_PLAINTEXT"), ("SSL", "SSL"), ("SASL_SSL", "SASL_SSL")))


def refused(address: str, tmp_path: Path, *options: str, password: str = "") -> tuple[str, str]:
    """The line and the hint of a `kwire replay` that cannot work; that there is nothing else is checked here."""
    environment = {**os.environ, login.USER_VARIABLE: "alice", login.PASSWORD_VARIABLE: password}
    words = ("replay", CAPTURE / "capture.pcap", "--to", address, "-o", tmp_path / "run", *options)
    process = forked.run(*words, env=environment, timeout=600)  # kernels may have to be compiled
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    assert not (tmp_path / "run").exists()
    assert password == "" or password not in process.stderr
    line, hint = [line for line in process.stderr.splitlines() if "compiling kernels" not in line]
    assert line.startswith("kwire: ")
    assert hint.startswith("hint: ")
    return line.removeprefix("kwire: "), hint.removeprefix("hint: ")


@contextlib.contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """A server that answers each connection with these bytes, none: never, and keeps it open."""
    server = socket.create_server((HOST, 0))
    server.settimeout(0.1)
    ended = threading.Event()

    def serve() -> None:
        open_ones = []
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                open_ones.append(connection)
                connection.sendall(answer)
        for connection in open_ones:
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"{HOST}:{server.getsockname()[1]}"
    finally:
        ended.set()
        thread.join()
        server.close()


def test_a_closed_port(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    line, hint = refused(address, tmp_path)
    assert (address in line, "Connect call failed" in line or "refused" in line) == (True, True)
    assert "port" in hint


def test_a_half_open_socket(tmp_path: Path) -> None:
    with listener(b"") as address:
        line, _ = refused(address, tmp_path)
    assert address in line


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08abcdefgh", b"SSH-2.0-OpenSSH_9\r\n"]
)
def test_a_target_that_answers_garbage(tmp_path: Path, garbage: bytes) -> None:
    with listener(garbage) as address:
        line, _ = refused(address, tmp_path)
    assert address in line


def test_tls_and_plain_mixed_up(shared_brokers: Start, tmp_path: Path) -> None:
    cluster = shared_brokers(SECURE)
    _, hint = refused(cluster.bootstrap, tmp_path, "--tls", "--tls-ca", str(cluster.certificate))
    assert "TLS" in hint
    line, hint = refused(cluster.address("SSL"), tmp_path)
    assert "TLS" in line + hint


def test_a_wrong_password(shared_brokers: Start, tmp_path: Path) -> None:
    cluster = shared_brokers(SECURE)
    scram_users(cluster)
    for mechanism in login.MECHANISMS:
        line, _ = refused(cluster.address("SASL"), tmp_path, "--sasl", mechanism, password="not the one")
        assert line.endswith(f"SASL {mechanism} login of 'alice': SASL_AUTHENTICATION_FAILED (58)")


def test_no_login_where_one_is_wanted(shared_brokers: Start, tmp_path: Path) -> None:
    line, hint = refused(shared_brokers(SECURE).address("SASL"), tmp_path)
    assert "login" in line + hint


def test_an_api_that_does_not_exist(tmp_path: Path) -> None:
    line, hint = refused(f"{HOST}:1", tmp_path, "--allow", "DeleteEverything")
    assert "DeleteEverything" in line
    assert "DeleteTopics" in hint


def test_a_poor_target(tmp_path: Path) -> None:
    """librdkafka's mock cluster: few APIs, old versions, no producer state. What it lacks is skipped by rule, what it
    has is converted, and the records arrive."""
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        mock.list_topics(f"franz-{codec}", timeout=30)  # it makes what it is asked about

    class Mock:
        bootstrap = f"{broker.host}:{broker.port}"

    done = replay_capture(SAMPLES / "codecs-franzgo-4.3", Mock(), tmp_path / "run", seed_topics=False)  # type: ignore[arg-type]
    check_outcomes(done)
    assert done.result.counts.actions["converted"] > 0
    problems = list(audit(done.pairs, Mock.bootstrap))
    assert [problem for problem in problems if "missing" in problem] == []
