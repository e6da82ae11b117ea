"""Captured users and who logs in for each: the file, who had logged in when captured, and whose connection is whose.

Proves: replay/send/principals.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.encoding import encode_response
from kwire.analyzer.protocol.tree import decode_request
from kwire.replay import inputs
from kwire.replay import request as asked
from kwire.replay.options import Options
from kwire.replay.plan import stored_exchanges
from kwire.replay.plan.sessions import Session
from kwire.replay.send import login, principals
from kwire.replay.send.link import Link, LinkError, Receiver
from kwire.replay.send.login import Credentials
from kwire.replay.send.workers import Access
from tests.replay.conversation import Captured, Target, replayed
from tests.replay.send.test_login import ReceivedFrames
from tests.shared import SAMPLES

SECRET = "correct horse battery staple"
ALICE = f"""
[alice]
mechanism = "PLAIN"
username = "alice-staging"
password = "{SECRET}"
"""


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "principals.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_table_is_a_captured_user(tmp_path: Path) -> None:
    logins = principals.read(written(tmp_path, ALICE + ALICE.replace("[alice]", '["CN=bob, O=shop"]')))
    assert list(logins) == ["alice", "CN=bob, O=shop"]
    assert logins["alice"] == Credentials("PLAIN", "alice-staging", SECRET)
    assert SECRET not in repr(logins)
    options = asked.resolve("h", 1, asked.ReplayRequest(principals=tmp_path / "principals.toml"))
    assert options.access.principals == logins
    assert SECRET not in repr(options)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(LinkError, match="others can read it, and it has passwords") as refused:
        principals.read(written(tmp_path, ALICE, mode))
    assert refused.value.hint.startswith("chmod 600")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no table"),
        ("alice = 1", r"\[alice\] is no table"),
        (ALICE.replace("username", "user"), r"\[alice\] has no username"),
        (ALICE.replace(f'"{SECRET}"', "5"), r"\[alice\] has no password"),
        (ALICE + "also = 1", r"\[alice\] has more than mechanism, username, password"),
        (ALICE.replace("PLAIN", "GSSAPI"), r"\[alice\]: mechanism is not one of PLAIN"),
        (f"[alice]\npassword = {SECRET}", "(?m)not TOML, line 2$"),
        ("\x00", "not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_without_its_secrets(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(LinkError, match=expected) as wrong:
        principals.read(written(tmp_path, text))
    assert not set(SECRET.split()) & set((str(wrong.value) + wrong.value.hint).replace(":", " ").split())


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="No such file"):
        principals.read(str(tmp_path / "nowhere"))
    (tmp_path / "latin").write_bytes(b"[\xe9]")
    (tmp_path / "latin").chmod(0o600)
    with pytest.raises(LinkError, match="not UTF-8"):
        principals.read(str(tmp_path / "latin"))
    with pytest.raises(LinkError, match="Is a directory"):
        principals.read(os.fspath(tmp_path))


def test_who_had_logged_in_is_known_from_a_capture_and_from_a_dataset(tmp_path: Path) -> None:
    capture = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
    analyzer.analyze(capture, tmp_path / "data", keep_bytes=True)
    principals_of_dataset = {
        row["principal"] for row in analyzer.open_dataset(tmp_path / "data").clients.to_table().to_pylist()
    }
    for exchange in (stored_exchanges.from_dataset(tmp_path / "data"), inputs.read(capture)):
        users = {session.user for session in exchange}
        assert "alice" in users
        assert users - {None} <= principals_of_dataset


def user_of(who: str | None) -> Session:
    capture = Captured().add(
        0.0, api_keys.METADATA, 1, {"topics": []}, {"brokers": [], "controllerId": 1, "topics": []}
    )
    return dataclasses.replace(capture.session(), user=who)


def test_a_captured_user_without_a_login_is_told_before_anything_is_sent() -> None:
    access = Access(principals={"alice": Credentials("PLAIN", "a", SECRET)})
    some = [user_of("alice"), user_of("bob"), user_of("eve"), user_of(None)]
    with pytest.raises(principals.MissingCredentialsError, match=r"(?m)no table for the captured users bob, eve$"):
        inputs.prepared(some, Options("h", 1, access=access), [])
    assert len(inputs.prepared(some[:1], Options("h", 1, access=access), [])) == 1
    # With --sasl, that one logs in for everybody else.
    both = dataclasses.replace(access, credentials=Credentials("PLAIN", "kwire", SECRET))
    assert len(inputs.prepared(some, Options("h", 1, access=both), [])) == 4


@pytest.mark.parametrize(
    ("users", "tables", "all_of_them"),
    [
        (["alice", "bob"], ["alice", "bob", "eve"], True),
        (["alice", None], ["alice"], True),
        (["alice"], [], False),
        (["alice", "bob"], ["alice"], False),
    ],
)
def test_whether_all_captured_users_are_themselves(
    users: list[str | None], tables: list[str], all_of_them: bool
) -> None:
    """With --sasl that one may log in for some of them."""
    known = {name: Credentials("PLAIN", name, SECRET) for name in tables}
    assert principals.are_all(map(user_of, users), known) is all_of_them


def test_each_connection_is_its_users() -> None:
    """Requests of the replayer's own use its own credentials."""
    target = Target().on(api_keys.METADATA, {"brokers": [], "controllerId": 1, "topics": []})
    dialled: list[str] = []

    def dial_of(who: str) -> Any:
        async def dial(host: str, port: int, receiver: Receiver) -> Link:
            dialled.append(who)
            return await Target.dial(target, host, port, receiver)

        return dial

    class Of(Captured):
        user: str | None = None

        def session(self) -> Session:
            return dataclasses.replace(super().session(), user=self.user)

    some = []
    for number, user in enumerate(("alice", "bob", None, "eve")):
        capture = Of(f"10.0.0.{number}:5000-10.0.0.9:9092#1")
        capture.user = user
        capture.add(number, api_keys.METADATA, 1, {"topics": []}, {"brokers": [], "controllerId": 1, "topics": []})
        some.append(capture)
    target.dial = principals.Dials(dial_of("own"), {name: dial_of(name) for name in ("alice", "bob")})  # type: ignore
    played = replayed(some, target, speed=1.0)
    assert [capture.verdict for capture in played.outcomes] == ["answered"] * 4
    assert dialled == ["alice", "bob", "own", "own"]


class _Listener(asyncio.Protocol):
    """Lets everybody in by PLAIN but for one, and remembers who it was."""

    def __init__(self, users: list[str], refused: str = "") -> None:
        self.users = users
        self.refused = refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        decoded = decode_request(data[4:], exact=True)
        assert decoded.body is not None
        assert decoded.header is not None
        body: dict[str, Any] = {"errorCode": 0, "mechanisms": ["PLAIN"]}
        if decoded.api_key == login.AUTHENTICATE:
            self.users.append(decoded.body["authBytes"].split(b"\0")[1].decode())
            error = errors.SASL_AUTHENTICATION_FAILED if self.users[-1] == self.refused else 0
            body = {"errorCode": error, "errorMessage": None, "authBytes": b"", "sessionLifetimeMs": 0}
        answer = encode_response(decoded.api_key, decoded.version, decoded.header["correlationId"], body)
        self.transport.write(len(answer).to_bytes(4, "big") + answer)


def test_the_login_is_the_users_and_the_first_is_the_replayers_own() -> None:
    async def logins() -> list[str]:
        users: list[str] = []
        server = await asyncio.get_running_loop().create_server(lambda: _Listener(users), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        who = {name: Credentials("PLAIN", f"{name}-staging", SECRET) for name in ("alice", "bob")}
        dial = Access(principals=who).dial("127.0.0.1", port)
        for user in ("bob", None, "alice"):
            (await principals.of(dial, user)("127.0.0.1", port, ReceivedFrames())).close()
        kwire = Access(principals=who, credentials=Credentials("PLAIN", "kwire", SECRET)).dial("127.0.0.1", port)
        (await kwire("127.0.0.1", port, ReceivedFrames())).close()
        server.close()
        return users

    assert asyncio.run(logins()) == ["bob-staging", "alice-staging", "alice-staging", "kwire"]


def test_a_login_that_the_target_refuses_is_told_before_anything_is_sent() -> None:
    async def logins() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Listener(users, "eve-staging"), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        who = {name: Credentials("PLAIN", f"{name}-staging", SECRET) for name in ("alice", "bob", "eve")}
        dial = Access(principals=who).dial("127.0.0.1", port)
        await principals.log_in(dial, {"bob", "alice", "nobody", None}, "127.0.0.1", port)
        try:
            await principals.log_in(dial, {"eve", "alice"}, "127.0.0.1", port)
        finally:
            server.close()

    users: list[str] = []
    with pytest.raises(LinkError, match=r"--principals: \[eve\]: .*SASL_AUTHENTICATION_FAILED") as refused:
        asyncio.run(logins())
    assert users == ["alice-staging", "bob-staging", "alice-staging", "eve-staging"]
    assert SECRET not in str(refused.value) + refused.value.hint


def test_a_password_in_the_clear_stays_on_this_machine() -> None:
    who = {"alice": Credentials("PLAIN", "alice", SECRET)}
    assert Access(principals=who).reach("broker", 9092).clear
    assert not Access(tls=True, principals=who).reach("broker", 9092).clear
