"""Targets that lead elsewhere, and targets that talk nonsense: whom the replayer dials, and what it calls a replay.

The rogue brokers are servers of the test on the loopback; that nothing else is dialled is seen where links are opened.

Proves: replay/send/reach.py, replay/send/link.py
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.encoding import encode_response
from kwire.analyzer.protocol.tree import Body
from kwire.replay import run
from kwire.replay.options import Options
from kwire.replay.outcome import Counts
from kwire.replay.remap import retry
from kwire.replay.send import link, login
from kwire.replay.send.link import Dial, Link, LinkError, Receiver
from kwire.replay.send.reach import ForbiddenAddressError, Reach, is_loopback, parsed, same_host
from kwire.replay.send.settings import Settings
from kwire.replay.send.workers import Access
from kwire.replay.source import MemorySource
from tests.bench.replay import VERSION, Sink, sessions
from tests.replay.batching import produced_answer
from tests.replay.test_commands import CAPTURE, kwire, refused, serving

HERE = "127.0.0.1"


# --- names of hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1",
        "127.1.2.3",
        "::1",
        "[::1]",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "::",
        "::1%lo",
    ],
)
def test_names_of_the_loopback_are_one_host(host: str) -> None:
    assert same_host(host) == same_host("localhost")
    assert is_loopback(host)
    assert Reach(("localhost", 9092)).place(host, 19093) == (host, 19093), "another port is the same host"


@pytest.mark.parametrize(
    "host", ["128.0.0.1", "10.0.0.1", "localhost.example", "127.0.0.1.example", "2130706433", "localhostx", "::2"]
)
def test_what_only_looks_like_the_loopback_is_not(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ForbiddenAddressError):
        Reach(("localhost", 9092)).place(host, 9092)


@pytest.mark.parametrize("host", ["Kafka-1.Example", "kafka-1.example."])
def test_a_host_is_told_by_its_name(host: str) -> None:
    assert Reach(("kafka-1.example", 9092)).place(host, 9093) == (host, 9093)
    assert Reach(("2001:db8::1", 9092)).place("2001:DB8:0::1", 9093) == ("2001:DB8:0::1", 9093)


@pytest.mark.parametrize(("host", "port"), [("", 9092), ("localhost", 0), ("localhost", -1), ("localhost", 1 << 20)])
def test_what_is_no_address_is_never_dialled(host: str, port: int) -> None:
    with pytest.raises(ForbiddenAddressError, match="no address"):
        Reach(("localhost", 9092), follow=True).place(host, port)


@pytest.mark.parametrize(
    ("hosts", "there"),
    [
        ({"kafka-1": "localhost"}, ("localhost", 9092)),
        ({"kafka-1": "localhost:19092"}, ("localhost", 19092)),
        ({"kafka-1:9092": "[::1]:19092"}, ("::1", 19092)),
        ({"kafka-1:9093": "localhost", "KAFKA-1": "127.0.0.1"}, ("127.0.0.1", 9092)),
    ],
)
def test_a_mapped_host_is_dialled_where_the_user_says(hosts: dict[str, str], there: tuple[str, int]) -> None:
    assert Reach(("localhost", 9092), hosts=hosts).place("kafka-1", 9092) == there


def test_the_target_itself_is_dialled_as_it_was_named() -> None:
    reach = Reach(("localhost", 19092), hosts={"localhost": "kafka-1"})
    assert reach.place("localhost", 19092) == ("localhost", 19092)
    assert reach.place("localhost", 9092) == ("kafka-1", 9092)


@pytest.mark.parametrize("wrong", ["", ":9092", "a:0", "a:99999", "a:b", "a:-1", "[]:1"])
def test_what_is_no_host_cannot_be_mapped(wrong: str) -> None:
    with pytest.raises(ValueError):
        parsed(wrong)


@pytest.mark.parametrize("wrong", ["a", "a=b:0", "a=b=c"])
def test_a_map_that_is_none_is_told(wrong: str, tmp_path: Path) -> None:
    line = refused(kwire("replay", CAPTURE, "--to", "h:1", "-o", tmp_path / "run", "--map-host", wrong))
    assert line == f"kwire: --map-host {wrong}: not A=B"


def test_a_host_cannot_be_mapped_to_two(tmp_path: Path) -> None:
    twice = "--map-host", "a=b", "--map-host", "a=c"
    line = refused(kwire("replay", CAPTURE, "--to", "h:1", "-o", tmp_path / "run", *twice))
    assert line == "kwire: --map-host: a is both b and c"


def test_a_map_of_a_host_that_the_target_does_not_name_is_told(tmp_path: Path) -> None:
    with rogue(("localhost", None)) as port:
        to = "--to", f"{HERE}:{port}", "--map-host", f"kafka-9=localhost:{port}", "--map-host", f"localhost={HERE}"
        dry = kwire("replay", CAPTURE, *to, "--dry-run", "--json")
        sent = kwire("replay", CAPTURE, *to, "-o", tmp_path / "run", "--filter", "api==Metadata", "--speed", "max")
    expected = f"--map-host kafka-9=localhost:{port}: the target names no broker at kafka-9"
    assert [line for line in json.loads(dry.stdout)["warnings"] if "--map-host" in line] == [expected]
    assert [line for line in sent.stderr.splitlines() if "names no broker" in line] == [f"note: {expected}"]


# --- the login --------------------------------------------------------------------------------------------------------


def access(mechanism: str, tls: bool = False, **options: Any) -> Access:
    return Access(tls=tls, credentials=login.Credentials(mechanism, "alice", "secret"), **options)


def test_a_password_does_not_leave_this_machine_in_the_clear() -> None:
    """192.0.2.1 is in a network for documentation (RFC 5737); it is refused before anything is dialled."""
    with pytest.raises(ForbiddenAddressError, match="SASL PLAIN without TLS"):
        asyncio.run(access("PLAIN").dial("192.0.2.1", 9092)("192.0.2.1", 9092, _Nobody()))
    for allowed in (access("PLAIN", tls=True), access("SCRAM-SHA-512"), access("PLAIN", plaintext_login=True)):
        assert allowed.reach("192.0.2.1", 9092).place("192.0.2.1", 9092) == ("192.0.2.1", 9092)
    assert access("PLAIN").reach("localhost", 9092).place(HERE, 9093) == (HERE, 9093)


def test_nor_by_way_of_a_target_on_this_machine() -> None:
    followed = access("PLAIN", follow_advertised=True).reach("localhost", 9092)
    with pytest.raises(ForbiddenAddressError, match="in the clear"):
        followed.place("192.0.2.1", 9092)
    with pytest.raises(ForbiddenAddressError, match="in the clear"):
        access("PLAIN", map_host={"kafka-1": "192.0.2.1"}).reach("localhost", 9092).place("kafka-1", 9092)


class _Nobody:
    def frame(self, data: bytes) -> None:
        raise AssertionError("nothing was to be said")

    def closed(self, reason: str) -> None:
        """Nothing was opened."""


# --- rogue brokers ----------------------------------------------------------------------------------------------------


class Rogue(Sink):
    """A broker of one node that names others: `named` in its first Metadata answer, the first of them leads; `later` in
    those after it (None: the same), the last leads."""

    named: ClassVar[list[Body]] = []
    later: ClassVar[list[Body] | None] = None
    metadata_requests = 0

    def other(self, key: int, version: int) -> bytes:
        whole = super().other(key, version)
        if key == api_keys.METADATA:
            type(self).metadata_requests += 1
            brokers = self.named if self.metadata_requests == 1 or self.later is None else self.later
            leads = brokers[0 if brokers is self.named else -1]["nodeId"]
            partition = {
                "errorCode": 0,
                "partitionIndex": 0,
                "leaderId": leads,
                "replicaNodes": [1],
                "isrNodes": [1],
                "offlineReplicas": [],
            }
            body = {
                "brokers": brokers,
                "clusterId": "rogue",
                "controllerId": 1,
                "topics": [{"errorCode": 0, "name": "orders", "isInternal": False, "partitions": [partition]}],
            }
            return encode_response(key, version, 0, body)[4:]
        return whole


def node(number: int, host: str, port: int) -> Body:
    return {"nodeId": number, "host": host, "port": port, "rack": None}


@contextlib.contextmanager
def rogue(*named: tuple[str, int | None], later: list[tuple[str, int]] | None = None) -> Iterator[int]:
    """A rogue broker that names these addresses (port None: its own)."""

    class SingleRogue(Rogue):
        pass

    with serving(SingleRogue) as port:
        SingleRogue.port = port
        SingleRogue.named = [node(number, host, at or port) for number, (host, at) in enumerate(named, 1)]
        SingleRogue.later = (
            None if later is None else [node(number, host, at) for number, (host, at) in enumerate(later, 1)]
        )
        yield port


def watched(dialled: list[tuple[str, int]], inner: Dial | None = None) -> Dial:
    """Notes what is dialled; off the loopback nothing is."""

    async def dial(host: str, port: int, receiver: Receiver) -> Link:
        dialled.append((host, port))
        if not is_loopback(host):
            raise LinkError(f"{host} is not this machine")
        return await (inner or link.tcp())(host, port, receiver)

    return dial


def replayed(port: int, out: Path, dialled: list[tuple[str, int]], how: Access | None = None) -> run.Result:
    options = Options(
        HERE,
        port,
        settings=Settings(speed=None, reconnect=0.2),
        yes=True,
        missing_topics_ok=True,
        access=how or Access(),
    )
    dial = options.access.reach(HERE, port).guard(watched(dialled))
    return asyncio.run(run.replay(MemorySource(sessions(2, 5, None)), options, dial, out, []))


def test_a_target_that_names_another_host_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    dialled: list[tuple[str, int]] = []
    with rogue((HERE, None), ("kafka.example", 9092)) as port, pytest.raises(ForbiddenAddressError) as refusal:
        replayed(port, tmp_path / "run", dialled)
    assert refusal.value.message == "the target names a broker at kafka.example:9092, which is another host than --to's"
    assert "--follow-advertised" in refusal.value.hint
    assert set(dialled) == {(HERE, port)}
    assert not (tmp_path / "run").exists()


def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    with rogue(("evil\x1b[2J\u202e.example", 9092)) as port:
        line = refused(kwire("replay", CAPTURE, "--to", f"{HERE}:{port}", "-o", tmp_path / "run"))
    assert line == (
        "kwire: the target names a broker at evil\\x1b[2J\\u202e.example:9092, which is another host than --to's"
    )


def test_a_host_that_is_named_later_is_not_dialled_either(tmp_path: Path) -> None:
    """The leader moves, in the middle of the run, to where the requests and the login would go next."""
    dialled: list[tuple[str, int]] = []

    class Moving(Rogue):
        produce = encode_response(api_keys.PRODUCE, VERSION, 0, produced_answer(0, errors.NOT_LEADER_OR_FOLLOWER))[4:]

    with serving(Moving) as port:
        Moving.port = port
        Moving.named = [node(1, HERE, port), node(2, HERE, port)]
        Moving.later = [*Moving.named, node(3, "kafka.example", 9092)]
        result = replayed(port, tmp_path / "run", dialled)
    assert not result.valid
    assert isinstance(result.failure, ForbiddenAddressError)
    assert "kafka.example:9092" in str(result.failure)
    assert {host for host, _ in dialled} == {HERE}


def test_it_is_dialled_where_the_user_wants_it(tmp_path: Path) -> None:
    dialled: list[tuple[str, int]] = []
    with rogue(("kafka.example", 9092)) as port:
        mapped = Access(map_host={"kafka.example:9092": f"localhost:{port}"})
        assert replayed(port, tmp_path / "mapped", dialled, mapped).valid
        assert set(dialled) == {(HERE, port), ("localhost", port)}
        result = replayed(port, tmp_path / "followed", dialled, Access(follow_advertised=True))
    assert ("kafka.example", 9092) in dialled
    assert not result.valid


def test_three_brokers_of_this_machine_need_no_option(tmp_path: Path) -> None:
    dialled: list[tuple[str, int]] = []
    with rogue(("localhost", None), (HERE, None), ("127.0.0.2", None)) as port:
        assert replayed(port, tmp_path / "run", dialled).valid


def test_workers_are_bound_by_it_too(tmp_path: Path) -> None:
    with rogue(("kafka.example", 9092)) as port:
        options = Options(
            HERE,
            port,
            settings=Settings(speed=None),
            yes=True,
            processes=2,
            access=Access(map_host={"kafka.example": f"{HERE}:{port}"}),
        )
        result = asyncio.run(
            run.replay(
                MemorySource(sessions(4, 5, None)), options, options.access.dial(HERE, port), tmp_path / "run", []
            )
        )
    assert result.valid
    assert result.counts.verdicts == {"answered": 4 * 6}


# --- what is listed ---------------------------------------------------------------------------------------------------


def test_a_run_begins_with_the_brokers_that_are_dialled(tmp_path: Path) -> None:
    with rogue(("localhost", None), ("kafka.example", 9092)) as port:
        result = kwire(
            "replay",
            CAPTURE,
            "--to",
            f"{HERE}:{port}",
            "-o",
            tmp_path / "run",
            "--filter",
            "api==Metadata",
            "--map-host",
            f"kafka.example={HERE}:{port}",
            "--speed",
            "max",
        )
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: brokers")]
    assert notes == [
        f"note: brokers that are dialled: 1 at localhost:{port}, 2 at {HERE}:{port} in place of kafka.example:9092"
    ]


def test_a_dry_run_lists_them_and_sends_nothing(tmp_path: Path) -> None:
    with rogue((HERE, None), ("kafka.example", 9092)) as port:
        shown = kwire("replay", CAPTURE, "--to", f"{HERE}:{port}", "--dry-run")
        results = kwire("replay", CAPTURE, "--to", f"{HERE}:{port}", "--dry-run", "--json")
    assert (shown.returncode, results.returncode) == (0, 0)
    assert f"note: brokers that are dialled: 1 at {HERE}:{port}; refused: 2 at kafka.example:9092 (" in shown.stderr
    assert json.loads(results.stdout)["brokers"] == [
        {"node": 1, "named": f"{HERE}:{port}", "dialled": f"{HERE}:{port}"},
        {"node": 2, "named": "kafka.example:9092", "dialled": None},
    ]


def test_a_target_with_thousands_of_brokers_gets_a_line_as_any_other() -> None:
    line = Reach(("localhost", 9092)).text(dict.fromkeys(range(50000), ("localhost", 9092)))
    assert line.endswith("9 at localhost:9092, and 49,990 more")
    assert len(Reach(("localhost", 9092)).text({1: ("x" * 60_000, 9092)})) < 600


# --- nonsense ---------------------------------------------------------------------------------------------------------


class Nonsense(Sink):
    """Greets as a broker does, and answers what it is sent with bytes that are no answer."""

    produce = b"\xff" * 40


def test_a_target_that_answers_with_nonsense_is_no_success(tmp_path: Path) -> None:
    with serving(Nonsense) as port:
        Nonsense.port = port
        options = Options(HERE, port, settings=Settings(speed=None), yes=True, missing_topics_ok=True)
        result = asyncio.run(run.replay(MemorySource(sessions(2, 8, None)), options, link.tcp(), tmp_path / "run", []))
    assert not result.valid
    assert result.counts.verdicts["unanswered"] == 16
    assert str(result.failure).startswith(f"{HERE}:{port}: 16 of 18 requests got no answer that Kafka would give: ")
    assert "cannot be decoded" in str(result.failure)


def test_a_few_of_them_are_differences_and_nothing_more() -> None:
    options = Options(HERE, 9092)
    counts = Counts()
    counts.verdicts.update(answered=10, unanswered=10, skipped=100)
    assert run.nonsense(counts, options) is None
    counts.verdicts.update(unanswered=1)
    assert run.nonsense(counts, options) is not None


# --- what a target may fill the memory with ---------------------------------------------------------------------------


class _Flood(asyncio.Protocol):
    """Begins an answer of 1 MiB on each connection, and never ends it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(struct.pack(">i", 1 << 20) + b"x" * 300_000)


class _Ended(_Nobody):
    def __init__(self) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def closed(self, reason: str) -> None:
        self.reason.set_result(reason)


def test_answers_that_never_end_are_bounded_over_all_connections() -> None:
    async def flooded(port: int) -> list[str]:
        dial = link.tcp(most=1_000_000)
        ends = [_Ended() for _ in range(4)]
        links = [await dial(HERE, port, end) for end in ends]
        first, _ = await asyncio.wait([end.reason for end in ends], return_when=asyncio.FIRST_COMPLETED)
        results = [done.result() for done in first]
        for connection in links:
            connection.close()
        await asyncio.gather(*(end.reason for end in ends))
        # All that was held is free again: four more come as far as the first four.
        again = [_Ended() for _ in range(3)]
        links = [await dial(HERE, port, end) for end in again]
        await asyncio.sleep(0.2)
        assert not any(end.reason.done() for end in again)
        for connection in links:
            connection.close()
        await asyncio.gather(*(end.reason for end in again))
        return results

    with serving(_Flood) as port:
        assert asyncio.run(flooded(port)) == ["more than 0 MiB of answers have come in part"]


def test_a_frame_that_claims_more_than_any_answer_ends_its_connection(tmp_path: Path) -> None:
    class Claims(_Flood):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            transport.write(struct.pack(">i", link.MAX_FRAME + 1))

    with serving(Claims) as port:
        line: subprocess.CompletedProcess[str] = kwire("replay", CAPTURE, "--to", f"{HERE}:{port}", "--dry-run")
    assert "not Kafka: answered with a frame of 268435457 bytes" in refused(line)


# --- what does not fit together ---------------------------------------------------------------------------------------


def test_a_target_without_what_seeding_needs_is_one_line(tmp_path: Path) -> None:
    """The sink offers no CreateTopics."""
    with serving(Sink) as port:
        Sink.port = port
        done = kwire(
            "replay",
            CAPTURE,
            "--to",
            f"{HERE}:{port}",
            "-o",
            tmp_path / "run",
            "--seed-topics",
            "--yes",
            "--missing-topics-ok",
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [f"kwire: {HERE}:{port}: does not offer CreateTopics", "hint: is it Kafka?"]
    assert not (tmp_path / "run").exists()


def test_a_leader_without_an_address_is_no_leader(tmp_path: Path) -> None:
    dialled: list[tuple[str, int]] = []

    class Leaderless(Rogue):
        named: ClassVar[list[Body]] = []

        def other(self, key: int, version: int) -> bytes:
            whole = super().other(key, version)
            return whole.replace(b"\0\0\0\x63", b"\0\0\0\x01", 1) if key == api_keys.METADATA else whole

    with serving(Leaderless) as port:
        Leaderless.port = port
        Leaderless.named = [node(99, HERE, port)]
        options = Options(HERE, port, settings=Settings(speed=None))
        result = asyncio.run(
            run.replay(MemorySource(sessions(1, 2, None)), options, watched(dialled), tmp_path / "run", [])
        )
    assert result.counts.total == 3
    assert not result.counts.tool_errors


def test_an_error_that_only_joins_get_is_no_reason_to_join() -> None:
    """MEMBER_ID_REQUIRED (79) in the answer to a Fetch."""
    answer = {"errorCode": errors.MEMBER_ID_REQUIRED, "responses": []}
    assert retry.rule_for(api_keys.FETCH, {"errorCode": 0, "responses": []}, answer, False) is None
    joined = {"errorCode": errors.MEMBER_ID_REQUIRED, "memberId": "m"}
    assert retry.rule_for(api_keys.JOIN_GROUP, {"errorCode": 0, "memberId": "m"}, joined, False) == "member_id_given"
