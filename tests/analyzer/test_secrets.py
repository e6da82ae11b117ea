"""Mask secrets in unmarked places: answers without requests, raw SASL tokens, copied metadata logs.

proves: kwire.analyzer.messages.raw_messages, kwire.analyzer.records.internal_topics, kwire.analyzer.records.log_names.
(Passwords are made up.)
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kwire import analyzer
from kwire.analyzer.messages.raw_messages import masked
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Node
from kwire.analyzer.records.record_trees import record_set
from tests.analyzer import forging
from tests.captures.forge import converse
from tests.shared import KWIRE, ROOT

CASES = ROOT / "tests" / "fuzz" / "cases"
TOKEN = CASES / "orphan-delegation-token.capture"
RAW_SASL = CASES / "sasl-v0-no-handshake.capture"
COPIED = CASES / "copied-metadata.segment"


def stored_frames(capture: Path, keep_secrets: bool = False) -> list[tuple[str, int | None, bytes]]:
    """Return (direction, ordinal, frame) of each message that `--keep-bytes` stores."""
    rows = analyzer.analyze(capture, keep_bytes=True, keep_secrets=keep_secrets).messages.to_pylist()
    return [(row["direction"], row["exchange"], row["bytes"]) for row in rows]


def test_an_answer_whose_request_was_not_seen_is_masked_but_for_length_and_correlation_id() -> None:
    (orphan,) = [
        frame for direction, _, frame in stored_frames(TOKEN) if direction == "response" and b"*" * 20 in frame
    ]
    (whole,) = [frame for _, _, frame in stored_frames(TOKEN, keep_secrets=True) if frame[:8] == orphan[:8]]
    assert len(whole) == len(orphan) == 4 + int.from_bytes(orphan[:4], "big")
    assert set(orphan[8:]) == {ord("*")}
    hmac = whole[-69:-5]
    assert not any(hmac in frame for _, _, frame in stored_frames(TOKEN))


def test_a_raw_sasl_token_without_its_handshake_is_masked_whole() -> None:
    masked_frames, whole = stored_frames(RAW_SASL), stored_frames(RAW_SASL, keep_secrets=True)
    secrets = [frame for _, _, frame in whole if b"\0alice\0" in frame]
    assert secrets
    for (_, _, frame), (_, _, clear) in zip(masked_frames, whole, strict=True):
        assert frame[:4] == clear[:4]
        assert len(frame) == len(clear)
        if clear in secrets:
            assert set(frame[4:]) == {ord("*")}
    assert any(frame == clear for (_, _, frame), (_, _, clear) in zip(masked_frames, whole, strict=True))


@pytest.mark.parametrize(
    ("api_key", "version"), [(97, 27753), (api_keys.DESCRIBE_TRANSACTIONS, 0x646D), (-1, 0), (3, -1)]
)
def test_what_no_layout_describes_is_masked(api_key: int, version: int) -> None:
    """The PLAIN token of a user `Admin` looks like a DescribeTransactions request of version 25,709."""
    frame = b"\0\0\0\x10" + b"\0Admin\0Admin-pass"[:16]
    assert masked(frame, api_key, version, request=True) == b"\0\0\0\x10" + b"*" * 16
    assert masked(frame, api_key, version, request=False) == frame[:8] + b"*" * 12


def test_what_is_decoded_is_kept_as_it_was() -> None:
    frame = bytes.fromhex("0000000c 0012 0000 00000001 0002 636c")
    assert masked(frame, api_keys.API_VERSIONS, 0, request=True) == frame


def token(user: str, password: str) -> bytes:
    """Return a PLAIN token (RFC 4616) with its length, as after SaslHandshake v0."""
    return forging.framed(f"\0{user}\0{password}".encode())


@pytest.mark.parametrize("user", ["alice", "Admin", "a", "A", "0", "\x00"])
def test_a_raw_sasl_token_is_no_api_key_no_version_no_correlation_id(user: str, tmp_path: Path) -> None:
    """Its first eight bytes look like a header; those of a user `A` like ListTransactions and the password."""
    token_write = forging.asking(token(user, "Sup3rS3cretPassw0rd"))
    writes = [forging.asking(forging.heartbeat(1)), forging.answering(forging.heartbeat_answer(1)), token_write]
    result = forging.read(tmp_path, converse(writes))
    row = result.exchanges[-1]
    assert row["request_bytes"] == 4 + 21 + len(user)
    values = [row[name] for name in ("api_key", "api", "api_version", "correlation_id", "client_id")]
    assert values == [None] * 5
    assert (row["request_state"], row["status"]) == ("undecoded", "unanswered")


def test_an_api_of_the_future_is_named_by_its_number(tmp_path: Path) -> None:
    writes = [forging.asking(forging.heartbeat(1)), forging.answering(forging.heartbeat_answer(1))]
    for api_key, expected in ((2047, (2047, 1, 2)), (2048, (None, None, None))):
        frame = forging.framed(api_key.to_bytes(2, "big") + bytes.fromhex("0001 0000 0002 ffff") + b"body")
        row = forging.read(tmp_path, converse([*writes, forging.asking(frame)])).exchanges[-1]
        assert (row["api_key"], row["api_version"], row["correlation_id"]) == expected


def test_keep_secrets_goes_with_keep_bytes(tmp_path: Path) -> None:
    command = [*KWIRE, "analyze", str(TOKEN), "-o", str(tmp_path / "data"), "--keep-secrets"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "kwire: --keep-secrets goes with --keep-bytes\nhint: without it no message is kept\n"


def secrets_of(segment: bytes) -> list[bytes]:
    """Return salt, both keys and the keystore's password, by their length bytes, without decoding records."""
    at = segment.index(b"alice\x01") + 6
    salt, stored, server = segment[at + 1 : at + 21], segment[at + 22 : at + 54], segment[at + 55 : at + 87]
    at = segment.index(b"ssl.keystore.password") + 21
    return [salt, stored, server, segment[at + 1 : at + segment[at]]]


@pytest.mark.parametrize(
    "name",
    [
        "elsewhere/00000000000000000000.log",
        "orders-0/00000000000000000000.log",
        "__cluster_metadata-0/00000000000000000000.log",
        "orders-0/00000000000000000100-0000000001.checkpoint",
        "elsewhere/00000000000000000100-0000000001.checkpoint",
    ],
)
def test_a_metadata_log_hides_its_secrets_wherever_it_lies(name: str, tmp_path: Path) -> None:
    segment = tmp_path / name
    segment.parent.mkdir()
    shutil.copy(COPIED, segment)
    secrets = secrets_of(COPIED.read_bytes())
    assert len(set(secrets)) == 4
    records = analyzer.analyze(segment, records="full").records.to_pylist()
    texts = [record["value"] for record in records] + [(record["decoded"] or "").encode() for record in records]
    assert len(records) == 2
    for form in ("--tree", "--json"):
        shown = subprocess.run([*KWIRE, "show", str(segment), form], cwd=ROOT, capture_output=True, check=True)
        texts.append(shown.stdout)
    import base64

    for secret in secrets:
        for hidden in (secret, secret.hex().encode(), base64.b64encode(secret)[:-4]):
            assert not any(hidden in text for text in texts)
    assert any(b"alice" in text for text in texts), "what is no secret is there"
    is_decoded = "checkpoint" in name or "__cluster" in name
    assert all((record["decoded"] is not None) == is_decoded for record in records)


@pytest.mark.parametrize("topic", ["copied", "__cluster_metadata", "__consumer_offsets"])
def test_a_copied_metadata_log_hides_its_secrets_on_the_wire_too(topic: str) -> None:
    """The log is produced to a topic of any name; `show --tree` shows it with the bytes of each field."""
    data = COPIED.read_bytes()
    shown: list[str] = []

    def visit(nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            shown.append(f"{node.name}: {node.value}")
            if not node.children and not node.secret:
                shown.append(data[node.start : node.end].hex())
            visit(node.children)

    visit(record_set(data, topic).nodes)
    text = "\n".join(shown)
    for secret in secrets_of(data):
        assert secret.hex() not in text
        assert secret[1:9].hex() not in text
        assert secret.decode(errors="replace") not in text
    assert "offset 0" in text
    if topic == "copied":
        assert text.count("value: {'redactedBytes': ") == 2


def test_values_that_only_begin_like_metadata_are_kept(tmp_path: Path) -> None:
    """Longer or cut off, it is no metadata record, so its value is treated like any other."""
    from kwire.analyzer.protocol import embedded

    value = analyzer.analyze(_segment(tmp_path), records="full")
    assert value.records.num_rows == 2
    record = b"\x01\x0b\x00\x06alice\x01\x15" + b"s" * 20 + b"\x21" + b"k" * 32 + b"\x21" + b"v" * 32 + b"\0\0\x10\0\0"
    assert embedded.copied_secrets(record) == [(11, 31), (32, 64), (65, 97)]
    for other in (record + b"x", record[:-1], b"\x01\x0b\x63" + record[3:], b"\x01\x7f" + record[2:], b"\x01", b""):
        assert embedded.copied_secrets(other) == []


def _segment(folder: Path) -> Path:
    path = folder / "00000000000000000000.log"
    shutil.copy(COPIED, path)
    return path
