"""Logging in: conversations with a scripted broker, real listeners of a real broker, and targets that are none.

Proves: replay/send/login.py, replay/send/link.py
"""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.protocol.encoding import encode_request, encode_response
from kwire.analyzer.protocol.tree import decode_request, decode_response
from kwire.replay.send import login
from kwire.replay.send.link import Link, LinkError, Receiver, tcp
from kwire.replay.send.login import Credentials
from tests.brokers import jars
from tests.brokers.cluster import SECRETS, Cluster, Spec, scram_users
from tests.brokers.fixtures import Start

PASSWORD = "correct horse battery staple"
PLAIN = Credentials("PLAIN", "alice", PASSWORD)
METADATA, API_VERSIONS = 3, 18
PATIENCE = 60
"""Seconds that a broker gets on a machine that does much else."""


class ReceivedFrames:
    """The frames that the engine would get of a link."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.ends: list[str] = []

    def frame(self, data: bytes) -> None:
        self.frames.put_nowait(data)

    def closed(self, reason: str) -> None:
        self.ends.append(reason)


# --- a scripted broker ----------------------------------------------------------------------------------------------

Answer = Callable[[int, dict[str, Any]], dict[str, Any] | None]


class Scripted:
    """A link whose other end answers each request at once as a function says; None closes."""

    def __init__(self, receiver: Receiver, answer: Answer) -> None:
        self.receiver = receiver
        self.answer = answer
        self.seen: list[int] = []
        self.open = True

    def send(self, frame: bytes) -> None:
        decoded = decode_request(frame[4:], exact=True)
        assert decoded.body is not None
        assert decoded.header is not None
        self.seen.append(decoded.api_key)
        body = self.answer(decoded.api_key, decoded.body)
        if body is None:
            self.close()
            return
        number = decoded.header["correlationId"]
        asyncio.get_running_loop().call_soon(
            self.receiver.frame, encode_response(decoded.api_key, decoded.version, number, body)
        )

    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self.receiver.closed, "closed by the target")


def _lets_in(lifetime_ms: int = 0) -> Answer:
    def answer(api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        if api_key == login.HANDSHAKE:
            return {"errorCode": 0, "mechanisms": ["PLAIN"]}
        if api_key == login.AUTHENTICATE:
            assert body["authBytes"] == b"\0alice\0" + PASSWORD.encode()
            return {"errorCode": 0, "errorMessage": None, "authBytes": b"", "sessionLifetimeMs": lifetime_ms}
        return {"brokers": [], "topics": []}

    return answer


def _frame(number: int) -> bytes:
    frame = encode_request(METADATA, 1, number, "test", {"topics": None})
    return len(frame).to_bytes(4, "big") + frame


async def _scripted(received: ReceivedFrames, answer: Answer, who: Credentials = PLAIN) -> tuple[Link, Scripted]:
    links: list[Scripted] = []

    async def dial(host: str, port: int, receiver: Receiver) -> Link:
        links.append(Scripted(receiver, answer))
        return links[0]

    return await login.sasl(dial, who, timeout=5)("broker", 9092, received), links[0]


def test_after_the_login_frames_pass_both_ways_unchanged() -> None:
    async def conversation() -> None:
        received = ReceivedFrames()
        link, broker = await _scripted(received, _lets_in())
        link.send(_frame(7))
        assert (await received.frames.get())[:4] == (7).to_bytes(4, "big")
        assert broker.seen == [login.HANDSHAKE, login.AUTHENTICATE, METADATA]
        link.close()
        await asyncio.sleep(0)
        assert received.ends == ["closed by the target"]

    asyncio.run(conversation())


def test_a_session_with_a_lifetime_logs_in_again_and_holds_back_what_is_sent_meanwhile() -> None:
    async def conversation() -> None:
        received = ReceivedFrames()
        link, broker = await _scripted(received, _lets_in(lifetime_ms=50))
        while login.HANDSHAKE not in broker.seen[2:]:
            await asyncio.sleep(0)
        link.send(_frame(8))  # the second login has begun
        assert broker.seen == [login.HANDSHAKE, login.AUTHENTICATE, login.HANDSHAKE]
        assert link.backlog() == len(_frame(8))
        assert (await received.frames.get())[:4] == (8).to_bytes(4, "big")
        # On a slow machine a third login may have begun.
        assert broker.seen[:5] == [login.HANDSHAKE, login.AUTHENTICATE] * 2 + [METADATA]
        link.close()
        await asyncio.sleep(0)

    asyncio.run(conversation())


def test_a_second_login_that_is_refused_ends_the_link_and_says_so() -> None:
    async def conversation() -> None:
        received = ReceivedFrames()
        lets_in, logins = _lets_in(lifetime_ms=20), 0

        def answer(api_key: int, body: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal logins
            logins += api_key == login.HANDSHAKE
            return {"errorCode": 33, "mechanisms": []} if logins > 1 else lets_in(api_key, body)

        await _scripted(received, answer)
        while not received.ends:
            await asyncio.sleep(0.01)
        assert received.ends == ["broker:9092: SASL PLAIN login of 'alice': UNSUPPORTED_SASL_MECHANISM (33)"]

    asyncio.run(conversation())


@pytest.mark.parametrize(
    "handshake, authenticate, expected, hint",
    [
        (
            {"errorCode": 33, "mechanisms": ["GSSAPI", "OAUTHBEARER"]},
            {},
            "UNSUPPORTED_SASL_MECHANISM (33)",
            "it offers GSSAPI, OAUTHBEARER",
        ),
        ({"errorCode": 34, "mechanisms": []}, {}, "ILLEGAL_SASL_STATE (34)", "wants no SASL"),
        (
            {"errorCode": 0, "mechanisms": []},
            {"errorCode": 58, "errorMessage": PASSWORD, "authBytes": b""},
            "SASL_AUTHENTICATION_FAILED (58)",
            "user and password",
        ),
        (None, {}, "closed by the target", ""),
    ],
)
def test_a_login_that_fails_is_one_line_without_the_password(
    handshake: dict[str, Any] | None, authenticate: dict[str, Any], expected: str, hint: str
) -> None:
    def answer(api_key: int, body: dict[str, Any]) -> dict[str, Any] | None:
        return handshake if api_key == login.HANDSHAKE else authenticate

    with pytest.raises(LinkError) as failure:
        asyncio.run(_scripted(ReceivedFrames(), answer))
    assert failure.value.message == f"broker:9092: SASL PLAIN login of 'alice': {expected}"
    assert hint in failure.value.hint
    assert PASSWORD not in "".join(traceback.format_exception(failure.value)) + repr(PLAIN)


# --- where credentials come from --------------------------------------------------------------------------------------


def test_credentials_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    environment = {login.USER_VARIABLE: "alice", login.PASSWORD_VARIABLE: PASSWORD}
    assert login.credentials("PLAIN", None, environment) == PLAIN
    file = tmp_path / "login.properties"
    file.write_text(f"# of the test cluster\nusername=alice\npassword={PASSWORD}=\n")
    assert login.credentials("PLAIN", str(file), {}) == Credentials("PLAIN", "alice", PASSWORD + "=")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as editors of Windows begin a file
    assert login.credentials("PLAIN", str(file), {}) == Credentials("PLAIN", "alice", PASSWORD + "=")


@pytest.mark.parametrize(
    "mechanism, file, expected",
    [
        ("GSSAPI", None, "not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("PLAIN", None, f"{login.USER_VARIABLE} is not set"),
        ("PLAIN", "absent", "No such file"),
        ("PLAIN", "empty", "no lines username"),
    ],
)
def test_credentials_that_are_not_there_are_one_line(
    tmp_path: Path, mechanism: str, file: str | None, expected: str
) -> None:
    (tmp_path / "empty").write_text("alice:secret\n")
    with pytest.raises(LinkError, match=expected):
        login.credentials(mechanism, str(tmp_path / file) if file else None, {})


def test_files_for_tls_that_are_none_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for file in ("ca.pem", "absent.pem"):
        with pytest.raises(LinkError, match=file):
            login.tls_context(str(tmp_path / file))


# --- real listeners ---------------------------------------------------------------------------------------------------

SECURE = Spec(jars.NEWEST, listeners=(("SASL", "SASL_PLAINTEXT"), ("SSL", "SSL"), ("SASL_SSL", "SASL_SSL")))


def _alice(mechanism: str, password: str = SECRETS["alice"]) -> Credentials:
    return Credentials(mechanism, "alice", password)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def _metadata(
    address: str, who: Credentials | None = None, context: ssl.SSLContext | None = None
) -> dict[str, Any]:
    received = ReceivedFrames()
    dial = tcp(context, timeout=PATIENCE)
    try:
        link = await (login.sasl(dial, who, timeout=PATIENCE) if who else dial)(*_place(address), received)
        link.send(_frame(1))
        answer = decode_response(await asyncio.wait_for(received.frames.get(), PATIENCE), METADATA, 1, exact=True)
        link.close()
        while not received.ends:
            await asyncio.sleep(0.01)
    finally:
        await asyncio.sleep(0.05)  # where it was refused: let the loop close what was opened
    assert answer.body is not None
    return answer.body


@pytest.fixture
def secure(shared_brokers: Start) -> Cluster:
    cluster = shared_brokers(SECURE)
    scram_users(cluster)
    return cluster


@pytest.mark.parametrize("mechanism", login.MECHANISMS)
def test_a_real_broker_lets_alice_in(secure: Cluster, mechanism: str) -> None:
    assert asyncio.run(_metadata(secure.address("SASL"), _alice(mechanism)))["brokers"]


def test_sasl_inside_tls(secure: Cluster) -> None:
    context = login.tls_context(str(secure.certificate))
    assert asyncio.run(_metadata(secure.address("SASL_SSL"), _alice("SCRAM-SHA-512"), context))["brokers"]


def test_tls_alone(secure: Cluster) -> None:
    assert asyncio.run(_metadata(secure.address("SSL"), None, login.tls_context(str(secure.certificate))))["brokers"]


@pytest.mark.parametrize("mechanism", login.MECHANISMS)
def test_a_real_broker_refuses_a_wrong_password(secure: Cluster, mechanism: str) -> None:
    with pytest.raises(LinkError, match=r"(?m)login of 'alice': SASL_AUTHENTICATION_FAILED \(58\)$"):
        asyncio.run(_metadata(secure.address("SASL"), _alice(mechanism, "wrong")))


def test_sasl_on_a_listener_without(secure: Cluster) -> None:
    with pytest.raises(LinkError, match=r"ILLEGAL_SASL_STATE \(34\)"):
        asyncio.run(_metadata(secure.bootstrap, _alice("PLAIN")))


def test_tls_against_a_plain_listener(secure: Cluster) -> None:
    with pytest.raises(LinkError) as failure:
        asyncio.run(_metadata(secure.bootstrap, None, login.tls_context(str(secure.certificate))))
    assert secure.bootstrap in failure.value.message
    assert "TLS" in failure.value.hint


def test_plain_sasl_against_a_tls_listener(secure: Cluster) -> None:
    with pytest.raises(LinkError, match="TLS"):
        asyncio.run(_metadata(secure.address("SASL_SSL"), _alice("PLAIN")))


def test_an_unknown_certificate(secure: Cluster) -> None:
    with pytest.raises(LinkError, match="TLS: certificate refused: "):
        asyncio.run(_metadata(secure.address("SSL"), None, login.tls_context()))


# --- targets that are none --------------------------------------------------------------------------------------------


async def _at(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> None:
    served: list[asyncio.Future[None]] = []

    async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.get_running_loop().create_future())
        await serve(reader, writer)
        await reader.read()  # until the other side gives up
        writer.close()
        served[-1].set_result(None)

    server = await asyncio.start_server(serve_once, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            await login.sasl(tcp(), PLAIN, timeout=0.2)("127.0.0.1", port, ReceivedFrames())
        finally:
            await asyncio.gather(*served)
            await asyncio.sleep(0.05)


def test_a_target_that_never_answers() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    with pytest.raises(LinkError, match=r"no answer to the SASL login after 0\.2 s"):
        asyncio.run(_at(silent))


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"\0\0\0\x08abcdefgh"])
def test_a_target_that_answers_garbage(garbage: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)

    with pytest.raises(LinkError) as failure:
        asyncio.run(_at(talk))
    assert "\n" not in failure.value.message
