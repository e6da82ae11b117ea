"""Names in SASL tokens as the RFCs write them, and nothing else of them.

(proves: analyzer/analysis/logins.py)
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.analysis.logins import MAX_TOKEN, name_in_token
from tests.analyzer import forging
from tests.captures.forge import converse, pcap, rendered


def bearer(claims: Any, authzid: str = "") -> bytes:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims)]
    head = f"n,{'a=' + authzid if authzid else ''},".encode()
    return head + b"\x01auth=Bearer " + b".".join(parts) + b".\x01\x01"


@pytest.mark.parametrize(
    ("mechanism", "token", "name"),
    [
        ("PLAIN", b"\0tim\0tanstaaftanstaaf", "tim"),  # RFC 4616, section 4
        ("PLAIN", b"Ursel\0Kurt\0xipj3plmq", "Kurt"),
        ("PLAIN", b"no zero bytes at all", None),
        ("PLAIN", b"\0\0password", None),
        ("SCRAM-SHA-256", b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "user"),  # RFC 7677, section 3
        ("SCRAM-SHA-512", b"n,a=other,n=a=2Cb=3Dc,r=nonce", "a,b=c"),
        ("SCRAM-SHA-512", b"n,,n=tokenid,r=nonce,tokenauth=true", None),  # KIP-48
        ("SCRAM-SHA-512", b"n,,r=nonce", None),
        ("OAUTHBEARER", bearer({"sub": "svc-a", "exp": 1}), "svc-a"),
        ("OAUTHBEARER", bearer({"sub": "svc-a"}, authzid="user@example.com"), "user@example.com"),
        ("OAUTHBEARER", bearer({"sub": 7}), None),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01", None),  # RFC 7628
        ("OAUTHBEARER", b"n,,\x01auth=Bearer a." + base64.b64encode(b"[" * 40_000) + b".\x01\x01", None),
        ("OAUTHBEARER", b"\x01", None),
        ("GSSAPI", b"`\x82", None),
        (None, b"\0tim\0tanstaaftanstaaf", None),
        ("PLAIN", b"\0tim\0" + b"x" * MAX_TOKEN, None),
    ],
)
def test_names_are_read_where_a_token_says_them_plainly(mechanism: str | None, token: bytes, name: str | None) -> None:
    assert name_in_token(mechanism, token) == name


def principal(
    tmp_path: Path, mechanism: str, steps: list[tuple[bytes, bytes, int]], column: str = "principal"
) -> str | None:
    writes = [
        forging.asking(forging.request(17, 1, 0, {"mechanism": mechanism})),
        forging.answering(forging.response(17, 1, 0, {"errorCode": 0, "mechanisms": [mechanism]})),
    ]
    for number, (token, answer, error) in enumerate(steps, 1):
        sent, answered = (base64.b64encode(data).decode() for data in (token, answer))
        body = {"errorCode": error, "errorMessage": None, "authBytes": answered, "sessionLifetimeMs": 0}
        writes += [
            forging.asking(forging.request(36, 2, number, {"authBytes": sent})),
            forging.answering(forging.response(36, 2, number, body)),
        ]
    writes += [forging.asking(forging.heartbeat(9)), forging.answering(forging.heartbeat_answer(9))]
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(converse(writes))))
    [row] = analyzer.analyze(path).clients.to_pylist()
    name: str | None = row[column]
    return name


def test_a_name_counts_when_the_login_has_succeeded(tmp_path: Path) -> None:
    plain, first, proof = b"\0alice\0secret", b"n,,n=bob,r=abc", b"c=biws,r=abcdef,p=dj0="
    assert principal(tmp_path, "PLAIN", [(plain, b"", 0)]) == "alice"
    assert principal(tmp_path, "PLAIN", [(plain, b"", 58)]) is None
    assert principal(tmp_path, "SCRAM-SHA-256", [(first, b"r=abcdef,s=QQ==,i=4096", 0), (proof, b"v=QQ==", 0)]) == "bob"
    assert principal(tmp_path, "SCRAM-SHA-256", [(first, b"r=abcdef,s=QQ==,i=4096", 0), (proof, b"", 58)]) is None
    assert principal(tmp_path, "SCRAM-SHA-256", [(first, b"r=abcdef,s=QQ==,i=4096", 0)]) is None
    token = bearer({"sub": "svc-a"})
    assert principal(tmp_path, "OAUTHBEARER", [(token, b"", 0)]) == "svc-a"
    refused = b'{"status":"invalid_token"}'
    assert principal(tmp_path, "OAUTHBEARER", [(token, refused, 0), (b"\x01", b"", 58)]) is None
    assert principal(tmp_path, "OAUTHBEARER", [(token, refused, 0), (b"\x01", b"", 0)]) is None


def test_a_name_that_was_not_let_in_is_kept_apart(tmp_path: Path) -> None:
    def refused(mechanism: str, *steps: tuple[bytes, bytes, int]) -> str | None:
        return principal(tmp_path, mechanism, list(steps), "refused_principal")

    alice, bob = (f"\0{name}\0secret".encode() for name in ("alice", "bob"))
    assert refused("PLAIN", (alice, b"", 58)) == "alice"
    assert refused("PLAIN", (alice, b"", 58), (alice, b"", 58), (bob, b"", 0)) == "alice"
    assert refused("PLAIN", (alice, b"", 58), (bob, b"", 58)) is None
    assert refused("PLAIN", (alice, b"", 34)) is None
    assert refused("PLAIN", (alice, b"", 0)) is None
    first, proof, challenge = b"n,,n=bob,r=abc", b"c=biws,r=abcdef,p=dj0=", b"r=abcdef,s=QQ==,i=4096"
    assert refused("SCRAM-SHA-256", (first, challenge, 0), (proof, b"", 58)) == "bob"
    assert refused("SCRAM-SHA-256", (first, b"", 58)) == "bob"
    assert refused("SCRAM-SHA-256", (first, challenge, 0), (proof, b"v=QQ==", 0)) is None
    token, why = bearer({"sub": "svc-a"}), b'{"status":"invalid_token"}'
    assert refused("OAUTHBEARER", (token, why, 0), (b"\x01", b"", 58)) == "svc-a"


def test_clients_that_share_an_id_and_log_in_under_several_names_have_none(tmp_path: Path) -> None:
    """Default ids are shared by all clients of a host: one is not refused what another may not do."""
    alice, bob = (f"\0{name}\0secret".encode() for name in ("alice", "bob"))
    assert principal(tmp_path, "PLAIN", [(alice, b"", 0), (alice, b"", 0)]) == "alice"
    assert principal(tmp_path, "PLAIN", [(alice, b"", 0), (bob, b"", 0), (bob, b"", 0)]) is None


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (b'{"status":"invalid_token","scope":"a"}', 0, "invalid_token"),
        (b'{"scope":"a"}', 0, "unknown"),
        (b'{"status":"two words"}', 0, "unknown"),
        (b"{not json", 0, None),
        (b"", 0, None),
        (b'{"status":"invalid_token"}', 58, None),
    ],
)
def test_a_challenge_without_an_error_is_a_refusal(
    answer: bytes, error: int, status: str | None, tmp_path: Path
) -> None:
    """As brokers answer a token that they do not accept (RFC 7628, section 3.2.2)."""
    assert principal(tmp_path, "OAUTHBEARER", [(bearer({"sub": "svc-a"}), answer, error)], "refused_status") == status
