"""SCRAM as RFC 7677 shows it, and servers that do not prove what they must.

Proves: replay/send/scram.py
"""

from __future__ import annotations

import pytest

from kwire.replay.send import scram

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _conversation(password: str = "pencil") -> scram.Conversation:
    return scram.Conversation("SCRAM-SHA-256", "user", password, NONCE)


def test_the_example_of_rfc_7677() -> None:
    conversation = _conversation()
    assert conversation.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert conversation.final(SERVER_FIRST) == CLIENT_FINAL
    conversation.verify(SERVER_FINAL)


def test_commas_and_equals_signs_in_a_user_name_are_escaped() -> None:
    assert scram.Conversation("SCRAM-SHA-512", "a=b,c", "x", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    "server_first, expected",
    [
        (SERVER_FIRST.replace(b"r=rOpr", b"r=XXXX"), "nonce"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=2000000000"), "2000000000 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=many"), "salt and iterations"),
        (SERVER_FIRST.replace(b"s=W22", b"s=!!!"), "salt and iterations"),
        (b"\xff\xfe", "not text"),
        (b"", "nonce"),
    ],
)
def test_a_server_that_starts_wrong_is_refused(server_first: bytes, expected: str) -> None:
    with pytest.raises(scram.ScramError, match=expected):
        _conversation().final(server_first)


@pytest.mark.parametrize(
    "server_final, expected",
    [
        (b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "does not know this password"),
        (b"e=invalid-proof", "refused"),
        (b"v=", "does not know"),
        (b"x", "no signature"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(server_final: bytes, expected: str) -> None:
    conversation = _conversation()
    conversation.final(SERVER_FIRST)
    with pytest.raises(scram.ScramError, match=expected):
        conversation.verify(server_final)


def test_verifying_before_the_server_spoke_is_refused() -> None:
    with pytest.raises(scram.ScramError):
        _conversation().verify(b"v=")
