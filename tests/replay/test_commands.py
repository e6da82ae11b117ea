"""`kwire replay` as a user runs it: what it prints, its exit codes, and one clear line for each thing that is wrong.

The target is a server in the test process: the benchmark's sink, or one that misbehaves.

Proves: replay/commands.py, replay/run.py, replay/options.py, replay/send/seeding.py, replay/audit/auditor.py
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import signal
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.protocol import api_keys
from kwire.replay import commands, inputs, run
from kwire.replay import request as asked
from kwire.replay.diff import pairs
from kwire.replay.diff.compare import compare
from kwire.replay.options import Options
from kwire.replay.plan.sessions import Session
from kwire.replay.send import link, seeding
from kwire.replay.send.channel import Channel
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests import forked
from tests.bench.replay import VERSION, Sink, sessions
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import Captured
from tests.shared import KWIRE, ROOT, SAMPLES, shared_folder

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
CREATES = "api == CreateTopics"
SECONDS = 600
"""How long a command may take before a test gives up on it: kernels may have to be compiled."""


@contextmanager
def serving(protocol: Callable[[], asyncio.BaseProtocol]) -> Iterator[int]:
    """A server on a port of the loopback, in a thread."""
    loop = asyncio.new_event_loop()
    protocols: list[asyncio.BaseProtocol] = []

    def connected() -> asyncio.BaseProtocol:
        protocols.append(protocol())
        return protocols[-1]

    def end() -> None:
        server.close()
        for protocol in protocols:
            if (transport := getattr(protocol, "transport", None)) is not None:
                transport.abort()
        loop.call_soon(loop.stop)  # once they have ended

    server = loop.run_until_complete(loop.create_server(connected, "127.0.0.1", 0))
    port: int = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(end)
        thread.join(10)
        loop.close()


@contextmanager
def sinking() -> Iterator[int]:
    with serving(Sink) as port:
        Sink.port = port
        yield port


class _Garbage(asyncio.Protocol):
    """Answers like a web server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class _WrongAnswer(_Garbage):
    """Answers with a frame, which is somebody else's."""

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"\0\0\0\x08\0\0\x12\x34wxyz")


class _HangUp(_Garbage):
    """Closes whatever is said."""

    def data_received(self, data: bytes) -> None:
        self.transport.close()


def kwire(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, timeout=SECONDS)


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error; a hint follows, nothing else."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("kwire: compiling")]
    assert [line.split(" ")[0] for line in lines] == ["kwire:", "hint:"], result.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "localhost"], "--to localhost: not HOST:PORT"),
        (["--to", "h:1", "--speed", "0"], "--speed 0: neither a positive number nor max"),
        (["--to", "h:1", "--allow", "Produce"], "--allow Produce: not an API to allow"),
        (["--to", "h:1", "--allow", "Nonsense"], "--allow Nonsense: no such API"),
        (["--to", "h:1", "--map-topic", "a"], "--map-topic a: not A=B"),
        (["--to", "h:1", "--tls-ca", "x.pem"], "--tls-ca goes with --tls"),
        (["--to", "h:1", "--tls", "--tls-key", "x.pem"], "--tls-key goes with --tls-cert"),
        (["--to", "h:1", "--sasl-file", "x"], "--sasl-file goes with --sasl"),
        (["--to", "h:1", "--sasl", "PLAIN"], "SASL PLAIN: KWIRE_SASL_USERNAME is not set"),
    ],
)
def test_a_wrong_option_is_one_line_and_a_hint(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert refused(kwire("replay", CAPTURE, "-o", tmp_path / "run", *arguments)) == f"kwire: {message}"


def test_replay_needs_somewhere_to_write() -> None:
    assert "needs -o RUN" in refused(kwire("replay", CAPTURE, "--to", "localhost:1"))


def test_a_dataset_without_messages_cannot_be_replayed(tmp_path: Path) -> None:
    analyzer.analyze(CAPTURE, tmp_path / "data")
    result = kwire("replay", tmp_path / "data", "--to", "localhost:1", "-o", tmp_path / "run")
    assert "has no messages to send" in refused(result)


def test_a_key_log_says_nothing_of_a_dataset(tmp_path: Path) -> None:
    analyzer.analyze(CAPTURE, tmp_path / "data", keep_bytes=True)
    result = kwire("replay", tmp_path / "data", "--to", "localhost:1", "-o", tmp_path / "run", "--keylog", "keys.log")
    assert refused(result) == "kwire: --keylog goes with a CAPTURE"


def test_a_capture_without_a_request_is_told_and_no_success(tmp_path: Path) -> None:
    tls = shared_folder("tls13-aiokafka-4.3") / "capture.pcap"
    message = refused(kwire("replay", tls, "--to", "localhost:1", "-o", tmp_path / "run"))
    assert message.startswith("kwire: nothing to replay: capture.pcap: 5 connections are TLS (24,236 bytes): encrypted")
    assert not (tmp_path / "run").exists()


def test_a_run_in_which_all_was_skipped_is_no_success_and_can_be_compared(tmp_path: Path) -> None:
    """Topics are not created without being allowed."""
    with sinking() as port:
        where = ("--to", f"127.0.0.1:{port}", "-o", tmp_path / "run")
        result = kwire("replay", SAMPLES / "admin-kafkapython-3.9" / "capture.pcap", *where, "--filter", CREATES)
    assert result.returncode == commands.EXIT_NOTHING_SENT == 2
    assert "kwire: nothing was sent: " in result.stderr
    assert "each was skipped (mutating " in result.stderr
    compared = kwire("diff", tmp_path / "run")
    assert compared.stdout.splitlines()[0] == "verdict: nothing was compared", compared.stderr


def test_a_run_without_any_outcome_can_be_compared(tmp_path: Path) -> None:
    with sinking() as port:
        options = Options("127.0.0.1", port, settings=Settings(speed=None))
        asyncio.run(run.replay(MemorySource([]), options, link.tcp(), tmp_path / "run", []))
    comparison = compare(pairs.from_run(tmp_path / "run"))
    assert (comparison.total, list(comparison.differences)) == (0, [])


def test_a_topic_with_fewer_partitions_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    """The sink has one partition of `orders`."""
    capture = Captured()
    records = {0: batch(), 2: batch()}
    capture.add(0.0, api_keys.PRODUCE, VERSION, produced(records), produced_answer({0: 0, 2: 0}))
    capture.add(0.1, api_keys.PRODUCE, VERSION, produced({2: batch()}), produced_answer({2: 3}))
    with sinking() as port:
        options = Options("127.0.0.1", port, settings=Settings(speed=None), yes=True, missing_topics_ok=True)
        with pytest.raises(seeding.TooFewPartitionsError, match="orders has 1 partitions, the captured one 3"):
            asyncio.run(run.replay(MemorySource([capture.session()]), options, link.tcp(), tmp_path / "run", []))
        assert not (tmp_path / "run").exists()
        partial = dataclasses.replace(options, partial=True)
        result = asyncio.run(run.replay(MemorySource([capture.session()]), partial, link.tcp(), tmp_path / "run", []))
    assert result.counts.actions == {"converted": 1, "skipped": 1}
    assert result.counts.skipped == {"partition_absent": 1}
    (step,) = result.plan.steps
    assert [partition["index"] for partition in (step.body or {})["topicData"][0]["partitionData"]] == [0]


def test_a_closed_port(tmp_path: Path) -> None:
    with sinking() as port:
        pass
    message = refused(kwire("replay", CAPTURE, "--to", f"127.0.0.1:{port}", "-o", tmp_path / "run"))
    assert f"127.0.0.1:{port}: " in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (_Garbage, "not Kafka: answered with a frame of 1213486160 bytes"),
        (_WrongAnswer, "answered correlation id 4660, 1 was due"),
        (_HangUp, "closed by the target"),
    ],
)
def test_a_target_that_is_no_kafka(target: type[_Garbage], message: str, tmp_path: Path) -> None:
    with serving(target) as port:
        assert message in refused(kwire("replay", CAPTURE, "--to", f"127.0.0.1:{port}", "-o", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_would_be_done_with_each_api_and_sends_nothing(tmp_path: Path) -> None:
    with sinking() as port:
        result = kwire("replay", CAPTURE, "--to", f"127.0.0.1:{port}", "--dry-run", "--json")
    assert result.returncode == 0, result.stderr
    rows = {(row["api"], row["version"]): row for row in json.loads(result.stdout)["apis"]}
    assert rows["Produce", 13]["converted"] == 16  # the sink offers Produce up to version 9
    assert rows["Produce", 13]["to"] == {"9": 16}
    assert rows["ApiVersions", 4]["skipped"] == {"replayer": 20}
    assert rows["JoinGroup", 9]["skipped"] == {"target_lacks_api: JoinGroup": 2}
    total = sum(row["sent"] + row["converted"] + sum(row["skipped"].values()) for row in rows.values())
    assert total == 77


class _Screen(io.StringIO):
    """A stderr that is, or is not, a terminal."""

    terminal = True

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_a_run_is_stands_on_a_terminal_only(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "run"):  # the first one's kernels may have to be compiled, which they say
        screen = _Screen()
        screen.terminal = terminal
        monkeypatch.setattr("sys.stderr", screen)
        with sinking() as port, commands.telling() as tell:
            options = Options("127.0.0.1", port, settings=Settings(speed=None), yes=True, missing_topics_ok=True)
            asyncio.run(
                run.replay(MemorySource(sessions(1, 5, None)), options, link.tcp(), tmp_path / name, [], tell=tell)
            )
    lines = screen.getvalue().split("\r\x1b[K")
    assert lines == (
        [
            "",
            "planning 6 requests",
            "writing the captured side",
            "writing what was answered",
            "reading what was acknowledged",
            "",
        ]
        if terminal
        else [""]
    )


def test_a_dry_run_at_an_assumed_release_asks_nobody() -> None:
    """The plan is that of a broker that offers these versions; Kafka 4 no longer takes versions too old for it."""
    new = kwire("replay", CAPTURE, "--dry-run", "--assume", "4.3", "--json")
    assert (new.returncode, new.stderr) == (0, "")
    plan = json.loads(new.stdout)
    assert plan["missing"] == []
    assert sum(row["sent"] + row["converted"] for row in plan["apis"]) > 0
    old = json.loads(kwire("replay", CAPTURE, "--dry-run", "--assume", "0.10.1", "--json").stdout)
    assert {row["api"] for row in old["apis"]} == {row["api"] for row in plan["apis"]}
    assert old != plan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run"], "replay needs --to HOST:PORT"),
        (["--assume", "4.3", "-o", "run"], "--assume goes with --dry-run, and without --to"),
        (["--assume", "4.3", "--dry-run", "--to", "h:1"], "--assume goes with --dry-run, and without --to"),
        (["--assume", "7.7", "--dry-run"], "--assume 7.7: no Kafka release that is known"),
    ],
)
def test_what_is_assumed_of_a_target_is_checked(arguments: list[str], message: str) -> None:
    assert message in refused(kwire("replay", CAPTURE, *arguments))


def replayed(
    port: int, out: Path, speed: float | None = None, rate: float | None = None, **options: object
) -> run.Result:
    chosen = Options("127.0.0.1", port, settings=Settings(speed=speed), yes=True, missing_topics_ok=True, **options)  # type: ignore[arg-type]
    return asyncio.run(run.replay(MemorySource(sessions(4, 25, rate)), chosen, link.tcp(), out, []))


def test_a_run_is_a_dataset_whose_counts_add_up(tmp_path: Path) -> None:
    with sinking() as port:
        result = replayed(port, tmp_path / "run")
    stored = analyzer.open_dataset(tmp_path / "run")
    outcomes = stored.outcomes.to_table().to_pylist()
    counts = stored.manifest["replay"]["counts"]
    assert len(outcomes) == counts["total"] == 4 * 26
    assert sum(counts["actions"].values()) == sum(counts["verdicts"].values()) == counts["total"]
    assert result.counts.verdicts == {"answered": 4 * 26}
    exchanges = stored.exchanges.to_table().to_pylist()
    sides = {name: [row for row in exchanges if row["capture"] == name] for name in ("bench", "replay:bench")}
    assert {name: len(rows) for name, rows in sides.items()} == {"bench": 104, "replay:bench": 104}
    keys = [{(row["connection"], row["exchange"]) for row in rows} for rows in sides.values()]
    assert keys[0] == keys[1]
    assert len(stored.messages.to_table()) == 4 * 104
    for row in outcomes:
        assert row["latency_us"] >= 0
        assert row["lag_us"] >= 0
        assert row["queue_us"] >= 0


def test_ctrl_c_while_it_is_read_back_ends_a_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("kwire.replay.audit.auditor.audit", interrupted)
    out = tmp_path / "run"
    with sinking() as port:
        code = parser.main(
            [
                "replay",
                str(CAPTURE),
                "--to",
                f"127.0.0.1:{port}",
                "-o",
                str(out),
                "--speed",
                "max",
                "--yes",
                "--missing-topics-ok",
                "--loop",
            ]
        )
    assert code == 130
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == f"kwire: interrupted; what was done is in {out}"
    assert "round 2" not in captured.err
    assert "audit      none: the audit was interrupted\n" in captured.out
    assert (out / "_kwire.json").exists()


def test_what_was_not_audited_is_not_called_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sink acknowledges and keeps nothing, and lets nobody read; the audit can be left out, and be done later."""
    out = str(tmp_path / "run")
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, VERSION, produced(batch()), produced_answer(0))
    row = capture.requests[0].row
    assert isinstance(row, dict)
    row["status"] = "answered"

    def first_line() -> str:
        assert parser.main(["diff", out]) == 0
        return capsys.readouterr().out.splitlines()[0]

    with sinking() as port:
        options = Options(
            "127.0.0.1", port, settings=Settings(speed=None), yes=True, missing_topics_ok=True, audit=False
        )
        result = asyncio.run(run.replay(MemorySource([capture.session()]), options, link.tcp(), out, []))
        assert (result.audit, result.not_audited) == (None, "--no-audit")
        before = analyzer.open_dataset(out)
        assert first_line() == "verdict: same answers, not audited"
        assert parser.main(["replay", "--audit", out, "--to", f"127.0.0.1:{port}"]) == 3
    captured = capsys.readouterr()
    assert captured.out == "audit: 3 records were acknowledged in 1 partitions: none of these could be read\n"
    assert "kwire: not valid: 1 of 1 partitions could not be read\nhint: " in captured.err
    assert "note: orders-0 could not be read: TOPIC_AUTHORIZATION_FAILED (29)\n" in captured.err
    assert first_line() == "verdict: same answers, 1 partition not audited"
    (row,) = analyzer.open_dataset(out).audit.to_table().to_pylist()
    assert (row["topic"], row["acknowledged"], row["readable"], row["missing"]) == ("orders", 3, None, None)
    # All else is as it was, and is there once.
    after = analyzer.open_dataset(out)
    for name in ("outcomes", "exchanges", "messages", "remaps"):
        assert getattr(after, name).to_table() == getattr(before, name).to_table()
    assert {**after.manifest["replay"], "audited": False, "unread": []} == {**before.manifest["replay"], "unread": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--audit", "run", str(CAPTURE), "--to", "h:1"], "--audit sends nothing"),
        (["--audit", "run"], "--audit needs --to HOST:PORT"),
        (["--audit", "nowhere", "--to", "h:1"], "nowhere: not a dataset"),
        (["--to", "h:1", "-o", "run"], "replay needs a CAPTURE or DATASET"),
    ],
)
def test_an_audit_is_of_a_run_at_a_target(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.main(["replay", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"kwire: {message}")


def test_a_run_whose_own_lag_was_too_large_is_not_valid(tmp_path: Path) -> None:
    with sinking() as port:
        assert replayed(port, tmp_path / "a", 1.0, 1000.0, lag_limit_us=10**9).valid
        assert not replayed(port, tmp_path / "b", 1.0, 1000.0, lag_limit_us=-1).valid


def test_workers_write_one_run(tmp_path: Path) -> None:
    with sinking() as port:
        result = replayed(port, tmp_path / "run", processes=2)
    assert result.counts.total == 104
    stored = analyzer.open_dataset(tmp_path / "run")
    outcomes = stored.outcomes.to_table().to_pylist()
    assert sorted(row["step"] for row in outcomes) == list(range(104))
    assert len(stored.messages.to_table()) == 4 * 104


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("while_", ["it starts", "it sends"])
def test_ctrl_c_leaves_a_readable_run(processes: int, while_: str, tmp_path: Path) -> None:
    check_interrupted(tmp_path, signal.SIGINT, while_, "--workers", str(processes))


@pytest.mark.parametrize("how", [["--workers", "1"], ["--workers", "2"], ["--in-windows"], ["--loop"]], ids=" ".join)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_service_leaves_a_readable_run(number: signal.Signals, how: list[str], tmp_path: Path) -> None:
    check_interrupted(tmp_path, number, "it sends", *how)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_shadow_that_is_ended_before_anything_came_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*KWIRE, "replay", "-", "--to", "127.0.0.1:1", "-o", str(tmp_path / "run")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=_as_from_a_terminal,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # Packets without Kafka, more than a pipe holds: once they are taken, it reads.
        process.stdin.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        process.stdin.write((struct.pack("<IIII", 0, 0, 1000, 1000) + bytes(1000)) * 1000)
        process.stdin.flush()
        process.send_signal(signal.SIGTERM)
        complaints = process.stderr.read()  # until it ends: nobody has ended its stdin
    ending = f"kwire: ended by SIGTERM; nothing was written to {tmp_path / 'run'}"
    assert (process.returncode, complaints.decode().splitlines()[-1]) == (130, ending)
    assert not list(tmp_path.iterdir())


def check_interrupted(tmp_path: Path, number: signal.Signals, while_: str, *how: str) -> None:
    """At a hundredth of the captured speed the replay lasts an hour; like a terminal and systemd, the test signals the
    whole process group, workers included."""
    sending = threading.Event()

    class Hearing(Sink):
        def data_received(self, data: bytes) -> None:
            if b"lab-admin" in data or b"sasl-alice" in data:  # captured clients, not the replayer asking for itself
                sending.set()
            super().data_received(data)

    with serving(Hearing) as port:
        Hearing.port = port
        process = subprocess.Popen(
            [
                *KWIRE,
                "replay",
                str(SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"),
                "--to",
                f"127.0.0.1:{port}",
                "-o",
                str(tmp_path / "run"),
                "--speed",
                "0.01",
                "--missing-topics-ok",
                *how,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_as_from_a_terminal,
        )
        # The captured side is written when the sending, or the starting of the workers, begins.
        begun = sending.wait(SECONDS) if while_ == "it sends" else until(lambda: list(tmp_path.glob(".run.*/messages")))
        os.killpg(process.pid, number)
        _, complaints = process.communicate(timeout=SECONDS)
    assert begun, complaints
    assert process.returncode == 130, complaints
    assert complaints.splitlines()[-1] == f"kwire: interrupted; what was done is in {tmp_path / 'run'}"
    assert "Traceback" not in complaints
    assert until(lambda: not alive(process.pid))  # Python's own helper of processes ends when it sees that they did
    stored = analyzer.open_dataset(tmp_path / "run")
    outcomes = stored.outcomes.to_table().to_pylist()
    captured = stored.exchanges.to_table(filter=pc.field("capture") == "capture.pcap")
    assert len(outcomes) == captured.num_rows == stored.manifest["replay"]["counts"]["total"]
    assert len({(row["connection"], row["exchange"], row["reply"]) for row in outcomes}) == len(outcomes)
    assert stored.manifest["replay"]["interrupted"]
    not_sent = {row["rule"] for row in outcomes if row["verdict"] == "not_sent"}
    assert not_sent == {"aborted"}


def _as_from_a_terminal() -> None:
    """Interruptible even where the tests run in the background, or under nohup, which makes children ignore it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def until(happened: Callable[[], object]) -> bool:
    """Wait until something has happened that nobody tells about; False where it does not."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(session: int) -> list[str]:
    """The processes of a terminal session that run; those that are dead and not asked about yet do not."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            state, _, _, whose = rest.split()[:4]
            if whose == str(session) and state != "Z":
                processes.append(name)
    return processes


class _Fading(Sink):
    """Answers the first twenty requests to produce, each later than the one before, and then nothing any more."""

    answered = 0

    def data_received(self, data: bytes) -> None:
        if data[4:6] != b"\0\0":
            super().data_received(data)
            return
        _Fading.answered += data.count(b"orders")
        if _Fading.answered < 20:
            asyncio.get_running_loop().call_later(0.005 * _Fading.answered, super().data_received, data)


def unanswered() -> tuple[Session, int]:
    """24 MB of requests with acks=0, which the buffers of a socket do not hold; and the size of one."""
    capture = Captured()
    for number in range(200):
        capture.add(number * 0.001, api_keys.PRODUCE, VERSION, produced(batch() * 1_400, acks=0))
    size = len(capture.requests[0].data or b"") + 4
    assert 200 * size > 24_000_000
    return capture.session(), size


def test_what_expects_no_answer_is_sent_before_the_run_ends(tmp_path: Path) -> None:
    """The target stops reading when the first comes, and goes on after a while."""
    got = 0

    class Slow(Sink):
        def data_received(self, data: bytes) -> None:
            nonlocal got
            if got:
                got += len(data)
            elif data[4:6] == b"\0\0":
                got = len(data)
                self.transport.pause_reading()
                asyncio.get_running_loop().call_later(0.3, self.transport.resume_reading)
            else:
                super().data_received(data)

    session, size = unanswered()
    with serving(Slow) as port:
        Sink.port = port
        chosen = Options(
            "127.0.0.1", port, settings=Settings(speed=None, backlog_bytes=64 << 20), yes=True, missing_topics_ok=True
        )
        result = asyncio.run(run.replay(MemorySource([session]), chosen, link.tcp(), tmp_path / "run", []))
        assert until(lambda: got == 200 * size)
    assert result.valid
    assert result.counts.verdicts == {"not_comparable": 200}


def test_a_target_that_stops_reading_ends_the_run_and_little_is_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 MB of acks=0, which a socket's buffers do not hold: unsent stays what one connection may have."""

    closed = threading.Event()

    class Deaf(Sink):
        deaf: Deaf

        def data_received(self, data: bytes) -> None:
            if data[4:6] == b"\0\0":
                Deaf.deaf, self.loop = self, asyncio.get_running_loop()
                self.transport.pause_reading()
            else:
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if getattr(Deaf, "deaf", None) is self:
                closed.set()

    capture, frame = unanswered()
    unsent = 0
    backlog = Channel.backlog

    def watched(channel: Channel) -> int:
        nonlocal unsent
        unsent = max(unsent, backlog(channel))
        return backlog(channel)

    monkeypatch.setattr(Channel, "backlog", watched)
    settings = Settings(speed=None, answer_timeout=1.0, backlog_bytes=1 << 20)
    with serving(Deaf) as port:
        Sink.port = port
        chosen = Options("127.0.0.1", port, settings=settings, yes=True, missing_topics_ok=True)
        result = asyncio.run(run.replay(MemorySource([capture]), chosen, link.tcp(), tmp_path / "run", []))
        Deaf.deaf.loop.call_soon_threadsafe(Deaf.deaf.transport.abort)
        assert closed.wait(SECONDS)

    assert result.failure is not None
    assert result.failure.message == f"127.0.0.1:{port}: takes no more data"
    assert pairs.from_run(tmp_path / "run").runs[0].ended == result.failure.message
    assert 1 << 20 < unsent < (1 << 20) + 2 * frame
    assert not result.valid
    outcomes = analyzer.open_dataset(tmp_path / "run").outcomes.to_table().to_pylist()
    verdicts = Counter((row["verdict"], row["rule"]) for row in outcomes)
    assert verdicts.total() == 200
    assert verdicts["not_sent", "unreachable"] == 1
    assert verdicts["not_comparable", "no_answer_expected"] + verdicts["not_sent", "session_lost"] == 199
    assert verdicts["not_sent", "session_lost"] > 100


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_target_that_falls_silent_ends_the_run_with_what_was_done_kept(
    processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The patience of minutes is one of a second here."""
    monkeypatch.setattr(asked, "Settings", partial(Settings, answer_timeout=0.4))
    monkeypatch.setattr(inputs, "read", lambda *_, **__: sessions(4, 25, None))
    monkeypatch.setattr(_Fading, "answered", 0)
    with serving(_Fading) as port:
        Sink.port = port
        code = parser.main(
            [
                "replay",
                "bench",
                "--to",
                f"127.0.0.1:{port}",
                "-o",
                str(tmp_path / "run"),
                "--speed",
                "max",
                "--no-in-windows",
                "--give-up-after",
                "1s",
                "--workers",
                processes,
            ]
        )
    assert code == 3
    line, hint = capsys.readouterr().err.splitlines()[-2:]
    summary = analyzer.open_dataset(tmp_path / "run").manifest["replay"]
    lost = summary["counts"]["actions"]["not_sent"]
    assert line == f"kwire: not valid: 127.0.0.1:{port}: no answer to anything for 1 s; {lost} requests not sent"
    assert hint.startswith("hint: ")
    assert not summary["valid"]
    outcomes = analyzer.open_dataset(tmp_path / "run").outcomes.to_table().to_pylist()
    assert len(outcomes) == summary["counts"]["total"] == 4 * 26
    assert lost > 30
    assert {row["verdict"] for row in outcomes} == {"answered", "unanswered", "not_sent"}


def test_a_loop_goes_on_until_a_round_is_not_as_it_must_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each round has groups, transactional ids and client ids of its own, and writes to what the last one wrote."""
    rounds: list[tuple[bool, set[str | None]]] = []

    def sent(options: object, source: MemorySource, wanted: Options, *_: object) -> int:
        requests = (request for session in source.sessions for request in session.requests)
        rounds.append((wanted.yes, {request.row["group_id"] for request in requests} - {None}))
        return commands.EXIT_DIFFERS if len(rounds) == 3 else 0

    monkeypatch.setattr(commands, "_round", sent)
    where = ["--to", "localhost:1", "-o", str(tmp_path / "run")]
    assert parser.main(["replay", str(CAPTURE), *where, "--loop"]) == commands.EXIT_DIFFERS
    (first, groups), *others = rounds
    assert not first
    assert groups
    assert others == [(True, {f"loop-{number}.{group}" for group in groups}) for number in (2, 3)]
    rounds.clear()
    assert parser.main(["replay", str(CAPTURE), *where]) == 0
    assert len(rounds) == 1
