"""Read TLS without keys: its handshake, failures, bytes before it, and connections from their middle.

(proves: captures/tls/clear_handshakes.py, captures/tls/detection.py, captures/tls/alerts.py, captures/tls/midstream.py,
analyzer/findings/tls.py)
"""

from __future__ import annotations

import dataclasses
import datetime
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli.summary_lines import summary_text
from kwire.captures.tls import midstream
from kwire.captures.tls.ciphers import Opener13
from kwire.captures.tls.keylog import TRAFFIC, KeyLog
from tests.analyzer import forging
from tests.analyzer.test_tls import HOWS, log_of, plain, talked
from tests.captures.forge import START_NS, Segment, Write, converse
from tests.captures.tls.records import CHANGE_CIPHER, HANDSHAKE, SHAKING, Forged, message
from tests.captures.tls.sealing import HOST, How, Talk, certificates, failing

pytest.importorskip("cryptography", reason="TLS needs the package cryptography: pip install 'kwire[tls]'")

NAMES = ("tls", "tls_version", "tls_cipher", "tls_sni", "tls_alpn", "tls_subject", "tls_not_after", "tls_failure")


def handshake_columns(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in NAMES]


# ---------------------------------------------------------------------------------------------------- without keys


@pytest.mark.parametrize("name", HOWS)
def test_a_connection_without_keys_says_what_its_handshake_says(name: str, tmp_path: Path) -> None:
    """Columns equal those with keys, except what TLS 1.3 encrypts: certificate and chosen protocol."""
    talk = Talk(dataclasses.replace(HOWS[name], alpn="kafka"), tmp_path)
    packets = converse(talk.sealed(talked(4)))
    known = forging.read(tmp_path, packets, keylogs=[log_of(tmp_path, talk.keys)]).connection
    for window in (2000, 1 << 20):
        row = forging.read(tmp_path, packets, ports=[9092], window_bytes=window).connection
        assert row["opaque_encrypted_bytes"] == row["payload_bytes"] == row["opaque_bytes"] > 0
        assert (row["decrypted"], known["decrypted"]) == (False, True)
        if name.startswith("1.2"):
            assert handshake_columns(row) == handshake_columns(known)
            assert row["tls_subject"] == f"CN={HOST},O=kwire\\, tests"
        else:
            assert handshake_columns(row) == [True, "1.3", known["tls_cipher"], HOST, None, None, None, None]


def test_without_a_port_it_is_in_the_list_of_what_is_no_kafka_and_in_the_summary(tmp_path: Path) -> None:
    talk = Talk(HOWS["1.2, GCM"], tmp_path)
    result = forging.read(tmp_path, converse(talk.sealed(talked(4))))
    assert result.connections == []
    (row,) = result.unrecognised["listed"]
    assert row["looks_like"] == "TLS"
    assert row["tls"] == {
        "first_time": "2023-11-14T22:13:20.000000Z",
        "tls_version": "1.2",
        "tls_sni": HOST,
        "tls_cipher": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "tls_subject": f"CN={HOST},O=kwire\\, tests",
        "tls_not_after": "2036-01-01T00:00:00.000000Z",
    }
    text = summary_of(tmp_path / "capture.pcap")
    assert f"1 connection: TLS 1.2, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, {HOST}, CN={HOST}" in text


def summary_of(capture: Path) -> str:
    return summary_text(analyzer.analyze(capture).summary, None)


# ---------------------------------------------------------------------------------------------- handshakes that fail


def context(server: bool, version: ssl.TLSVersion, folder: Path) -> ssl.SSLContext:
    ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    ssl_context.minimum_version = ssl_context.maximum_version = version
    if server:
        (folder / "server.pem").write_text(certificates()[0])
        ssl_context.load_cert_chain(folder / "server.pem")
    else:
        ssl_context.check_hostname, ssl_context.verify_mode = False, ssl.CERT_NONE
        ssl_context.keylog_filename = str(folder / "keys.log")
    return ssl_context


# fmt: off
FAILURES: dict[str, tuple[ssl.TLSVersion, ssl.TLSVersion, str, str, str]] = {
    "a client that trusts nobody": (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, "verify", "client: unknown_ca",
                                    "tls-alert"),
    "the same in TLS 1.3": (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, "verify", "client: unknown_ca",
                              "tls-alert"),
    "no common version": (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3, "", "broker: protocol_version", "tls-alert"),
    "a broker that asks for a certificate": (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, "ask",
                                             "broker: handshake_failure", "tls-alert"),
}
# fmt: on


def findings(folder: Path, **how: Any) -> list[dict[str, Any]]:
    """Return the security findings of the capture that was written last, without `plain-traffic`."""
    rows: list[dict[str, Any]] = analyzer.analyze(folder / "capture.pcap", **how).findings.to_pylist()
    return [row for row in rows if row["family"] == "security" and row["code"] != "plain-traffic"]


def codes(folder: Path, **how: Any) -> dict[str, str]:
    """Return the severity of each finding by its code."""
    return {row["code"]: row["severity"] for row in findings(folder, **how)}


@pytest.mark.parametrize("name", FAILURES)
def test_a_handshake_that_fails_says_who_broke_it_off(name: str, tmp_path: Path) -> None:
    """OpenSSL is client and broker, with these versions."""
    client, server, how, expected, code = FAILURES[name]
    client_context, broker_context = context(False, client, tmp_path), context(True, server, tmp_path)
    if how == "verify":
        client_context.verify_mode = ssl.CERT_REQUIRED
    if how == "ask":
        broker_context.verify_mode = ssl.CERT_REQUIRED
    writes = failing(client_context, broker_context)
    for ports in ([9092], []):
        result = forging.read(tmp_path, converse(writes), ports=ports)
        row = result.connection if ports else result.unrecognised["listed"][0]["tls"]
        assert row["tls_failure"] == expected
        assert codes(tmp_path, ports=ports) == {code: "error"}
    dataset = analyzer.analyze(tmp_path / "capture.pcap")
    assert "tls-not-decoded" not in dataset.findings["code"].to_pylist()  # there is nothing that keys could decrypt
    assert "no handshake came to an end" in summary_text(dataset.summary, None)


def hello() -> bytes:
    return Forged(1).client_hello()


def test_tls_to_a_listener_that_speaks_none(tmp_path: Path) -> None:
    """The broker closes without an answer, or answers in another protocol.

    A capture that ends earlier, or has only the client's packets, gives no finding.
    """
    silent, other = [Write(True, hello())], [Write(True, hello()), Write(False, b"\0\0\0\x06\0\0\0\x01\0\x23")]
    for writes, expected in ((silent, "broker: no answer"), (other, "broker: not TLS")):
        result = forging.read(tmp_path, converse(writes))
        assert result.unrecognised["listed"][0]["tls"]["tls_failure"] == expected
        assert codes(tmp_path) == {"not-tls": "error"}
    for packets in (converse(silent, close=None), [packet for packet in converse(silent) if packet.target[1] == 9092]):
        near = forging.read(tmp_path, packets)
        assert "tls_failure" not in near.unrecognised["listed"][0]["tls"]
        assert codes(tmp_path) == {}


def test_a_plain_client_at_a_listener_of_tls_is_told_by_the_alert(tmp_path: Path) -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x0a"
    result = forging.read(tmp_path, converse([Write(True, forging.metadata(1)), Write(False, alert)]), ports=[9092])
    assert result.connection["tls_failure"] == "broker: unexpected_message"


@pytest.mark.parametrize("port", [9092, 50000])
def test_clients_in_the_clear_at_a_listener_of_tls_are_no_handshakes(port: int, tmp_path: Path) -> None:
    """Kafka 4.3 answers with alert 80; the order of the two addresses must not decide who the client is."""
    packets: list[Segment] = []
    for number, client_id in enumerate(("orders", "orders", "billing")):
        ask = forging.request(3, 1, 1, {"topics": [{"name": "orders"}]}, client_id)
        writes = [Write(True, ask), Write(False, b"\x15\x03\x03\x00\x02\x02\x50")]
        packets += converse(
            writes, client=("10.0.0.3", 40000 + number), broker=("10.0.0.3", port), start_ns=START_NS + number * 10**9
        )
    result = forging.read(tmp_path, packets)
    assert {row["tls_failure"] for row in result.connections} == {"broker: internal_error"}
    alerts = [row for row in findings(tmp_path) if row["code"] == "tls-alert"]
    texts = {dict(row["who"])["client_id"]: row["text"] for row in alerts}
    assert sorted(texts) == ["billing", "orders"]
    assert texts["orders"].startswith(
        f"orders (10.0.0.3) spoke in the clear to 10.0.0.3:{port}, a listener of TLS, 2 times, "
    )
    assert texts["orders"].endswith(": the broker said internal_error.")


def test_an_alert_that_closes_in_order_is_none(tmp_path: Path) -> None:
    talk = Talk(HOWS["1.2, GCM"], tmp_path)
    result = forging.read(tmp_path, converse(talk.sealed(talked(2))), ports=[9092])
    assert result.connection["tls_failure"] is None
    assert codes(tmp_path, ports=[9092]) == {}


@pytest.mark.parametrize(("ends", "severity"), [(-1, "error"), (13 * 86400, "warning"), (15 * 86400, None)])
def test_a_certificate_that_has_ended_or_will_soon(ends: int, severity: str | None, tmp_path: Path) -> None:
    until = datetime.datetime(2023, 11, 14, 22, 13, 20) + datetime.timedelta(seconds=ends)
    talk = Talk(dataclasses.replace(HOWS["1.2, GCM"], until=until), tmp_path)
    packets = converse(talk.sealed(talked(2)))
    ways: list[dict[str, Any]] = [{"ports": [9092]}, {}, {"keylogs": [log_of(tmp_path, talk.keys)]}]
    for how in ways:
        forging.read(tmp_path, packets, **how)
        assert codes(tmp_path, **how) == ({"certificate-expired": severity} if severity else {})
        for row in findings(tmp_path, **how):
            assert dict(row["who"])["broker"] == "10.0.0.2:9092"
            assert f"CN={HOST}" in row["text"]


# --------------------------------------------------------------------------------------------------- bytes before TLS

PROXY_1 = b"PROXY TCP4 192.0.2.7 198.51.100.9 50123 9093\r\n"
PROXY_2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11"
    + struct.pack(">H", 12 + 5)
    + bytes([192, 0, 2, 7, 198, 51, 100, 9])
    + struct.pack(">HH", 50123, 9093)
    + b"\x04\x00\x02ab"
)
SOCKS = (b"\x05\x01\x00", b"\x05\x00", b"\x05\x01\x00\x01\xc6\x33\x64\x09\x23\x85", b"\x05\x00\x00\x01" + bytes(6))
CONNECT = (b"CONNECT broker:9093 HTTP/1.1\r\nHost: broker\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n")


def behind(writes: Sequence[Write], name: str) -> list[Write]:
    """Put the bytes for a load balancer or a proxy before a conversation."""
    if name == "a line in the hello's segment":
        return [Write(True, PROXY_1 + writes[0].data), *writes[1:]]
    before = {"a line": (PROXY_1,), "a header": (PROXY_2,), "SOCKS5": SOCKS, "CONNECT": CONNECT}[name]
    return [*(Write(position % 2 == 0, data) for position, data in enumerate(before)), *writes]


@pytest.mark.parametrize("name", ["a line", "a line in the hello's segment", "a header", "SOCKS5", "CONNECT"])
@pytest.mark.parametrize("mss", [1448, 9])
def test_tls_behind_what_a_balancer_or_proxy_is_told(name: str, mss: int, tmp_path: Path) -> None:
    talk = Talk(How(), tmp_path)
    plainly = talked(4)
    packets = converse(behind(talk.sealed(plainly), name), mss=mss)
    log = log_of(tmp_path, talk.keys)
    expected = forging.read(tmp_path, converse(behind(plainly, name)))
    before = expected.connection["opaque_prefix_bytes"]
    assert before > 0
    for window in (1000, 1 << 20):
        result = forging.read(tmp_path, packets, keylogs=[log], window_bytes=window)
        assert plain(result.exchanges) == plain(expected.exchanges)
        for column in ("proxied_from", "proxied_to", "opaque_prefix_bytes"):
            assert result.connection[column] == expected.connection[column]
        assert (result.connection["tls_version"], result.connection["decrypted"]) == ("1.3", True)
    if not name.startswith(("a line", "a header")):
        return  # without keys only the proxy's handshake is visible
    shut = forging.read(tmp_path, packets, ports=[9092])
    assert (shut.connection["tls_version"], shut.connection["tls_sni"]) == ("1.3", HOST)


def test_a_line_without_tls_behind_it_is_read_as_before(tmp_path: Path) -> None:
    """A key log of other connections changes nothing, in segments of any size."""
    packets = converse(behind(talked(4), "a line"), mss=7)
    log = log_of(tmp_path, Forged(1).log)
    for window in (1000, 1 << 20):
        result = forging.read(tmp_path, packets, keylogs=[log], window_bytes=window)
        assert plain(result.exchanges) == plain(forging.read(tmp_path, packets).exchanges)
        assert result.connection["tls"] is False
    for count in (1, 3):  # it ends before anything can be detected
        forging.read(tmp_path, converse([Write(True, b"PROXY "[:count])]), keylogs=[log], ports=[9092])


# -------------------------------------------------------------------------------------------- TLS 1.3 from its middle


def middle(turns: int, suite: int = 0x1302, skipped: int = 40, padding: int = 0) -> tuple[list[Write], bytes]:
    """Return requests and answers of a TLS session without its first records, and its keys."""
    forged = Forged(21, suite)
    writes = [
        forged.sealed_write(write, 0 if write.to_broker else padding)
        for write in talked(turns)
        if len(write.data) <= 16_000
    ]
    return writes[skipped:], forged.log


@pytest.mark.parametrize("suite, padding", [(0x1301, 0), (0x1302, 0), (0x1303, 0), (0x1302, 16), (0x1303, 16)])
def test_tls_1_3_is_opened_from_its_middle(suite: int, padding: int, tmp_path: Path) -> None:
    """Brokers run on Java, which pads each TLS record by 16 bytes."""
    writes, keys = middle(60, suite, padding=padding)
    packets = converse(writes, handshake=False)
    log = log_of(tmp_path, b"".join(Forged(number).log for number in range(30, 40)) + keys)
    expected = forging.read(
        tmp_path, converse([write for write in talked(60) if len(write.data) <= 16_000][40:], handshake=False)
    )
    for window in (3000, 1 << 20):
        result = forging.read(tmp_path, packets, keylogs=[log], window_bytes=window)
        assert result.brief() == expected.brief()
        assert len(result.exchanges) > 30
        assert (result.connection["tls_version"], result.connection["decrypted"]) == ("1.3", True)
    assert forging.read(tmp_path, packets, keylogs=[log_of(tmp_path, Forged(1).log)]).exchanges == []


def test_it_begins_inside_a_record(tmp_path: Path) -> None:
    writes, keys = middle(60)
    first = next(position for position, write in enumerate(writes) if len(write.data) > 3000)
    cut = [Write(writes[first].to_broker, writes[first].data[2000:]), *writes[first + 1 :]]
    result = forging.read(tmp_path, converse(cut, handshake=False), keylogs=[log_of(tmp_path, keys)])
    assert result.connection["decrypted"] is True
    rest = [write for write in talked(60) if len(write.data) <= 16_000][40 + first + 1 :]
    expected = forging.read(tmp_path, converse(rest, handshake=False))
    assert result.brief() == expected.brief()
    assert len(result.exchanges) > 15


def test_a_plain_connection_from_its_middle_stays_plain(tmp_path: Path) -> None:
    """The capture begins inside a message, with arbitrary bytes."""
    writes = talked(12)
    packets: list[Segment] = converse([Write(True, writes[0].data[9:]), *writes[1:]], handshake=False)
    log = log_of(tmp_path, Forged(1).log)
    for window in (1000, 1 << 20):
        with_keys = forging.read(tmp_path, packets, keylogs=[log], window_bytes=window)
        assert plain(with_keys.exchanges) == plain(forging.read(tmp_path, packets).exchanges)
        assert with_keys.connection["tls"] is False


def test_a_number_far_from_the_first_is_found_and_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = Forged(5)
    forged._numbers[2, True] = 200_000
    sealed = forged.sealed(True, 2, 23, b"asked")
    keys = KeyLog()
    keys.take(Forged(6).log + forged.log)
    search = midstream.Search()
    match = search.find(midstream.guesses(keys), sealed[:5], sealed[5:])
    assert match is not None
    assert (match.random, match.server, match.number, match.opened.plain) == (forged.random, False, 200_000, b"asked")
    known = midstream.guesses(keys, forged.random, server=True)
    assert [(guess.random, guess.server) for guess in known] == [(forged.random, True)]
    assert len(keys.names(TRAFFIC[0])) == 2
    tried = []
    monkeypatch.setattr(Opener13, "open", lambda self, number, head, body: tried.append(number))
    bounded = midstream.Search(100_000)
    assert bounded.find(midstream.guesses(keys), sealed[:5], sealed[5:]) is None
    assert bounded.budget == 50_000
    assert len(tried) < 1000


def test_the_alert_of_a_client_is_told_by_its_size_alone_where_it_is_its_first(tmp_path: Path) -> None:
    """A Finished is longer than an alert; records after it may have any size."""
    forged = Forged(8)
    hellos = [Write(True, forged.client_hello()), Write(False, forged.answered())]
    finished = Write(True, CHANGE_CIPHER + forged.sealed(True, SHAKING, HANDSHAKE, message(20, bytes(48))))
    closed = Write(True, forged.sealed(True, 2, 21, b"\x01\x00"))
    alert = Write(True, CHANGE_CIPHER + Forged(8).sealed(True, SHAKING, 21, b"\x02\x30"))
    for writes, expected in (([*hellos, finished, closed], None), ([*hellos, alert], "client: sealed")):
        result = forging.read(tmp_path, converse(writes), ports=[9092])
        assert result.connection["tls_failure"] == expected
