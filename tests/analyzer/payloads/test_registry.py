"""`--registry`: schemas of a server of Confluent's API, its secrets, its cache, and servers that mean harm."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError
from kwire.analyzer.payloads.registry import SchemaRegistry
from tests.analyzer.cli.test_parser import kwire
from tests.analyzer.payloads.golden_payloads import decoder, golden, golden_capture

SECRET = "s3cr3t-pass"


class Registry(ThreadingHTTPServer):
    """A registry with the golden schemas. `answer` replaces what it does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.logins: list[str | None] = []
        self.answer: Callable[[BaseHTTPRequestHandler], object] | None = None
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.server.logins.append(self.headers.get("Authorization"))
        if self.server.answer is not None:
            self.server.answer(self)
            return
        schemas, _ = golden()
        body: Any = None
        kind, name = self.path.split("/")[1:3]
        if kind == "schemas" and self.path.endswith("/subjects"):
            body = ["orders-value"]
        elif kind == "schemas" and (schema := schemas.get(self.path.split("/")[3])):
            references = [{"name": name, "subject": name, "version": 1} for name in schema["references"]]
            body = {"schema": schema["schema"], "schemaType": schema["type"], "references": references}
        elif kind == "subjects":
            text = next(s["references"][name] for s in schemas.values() if name in s["references"])
            body = {"subject": name, "version": 1, "schema": text}
        reply(self, 200 if body is not None else 404, json.dumps(body or {"error_code": 40403}).encode())


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def source_of(registry: Registry, seconds: float = 10.0) -> SchemaRegistry:
    return SchemaRegistry(registry.url, PayloadLimits(), seconds)


def test_payloads_are_decoded_with_its_schemas_and_each_id_is_asked_for_once(registry: Registry) -> None:
    for _ in range(2):  # the second time from the cache
        reader = decoder(source_of(registry))
        for case in golden()[1]:
            if case.name.startswith("protobuf-shop.orders"):
                continue  # its references are descriptors, which this server serves as Avro's are
            if case.name != "fastavro":
                payload = reader.decode(case.data, case.topic, case.side, dict(case.headers))
                assert payload.json is not None, payload
                assert json.loads(payload.json) == case.json
    assert len(registry.paths) == len(set(registry.paths))
    assert {path.split("/")[1] for path in registry.paths} == {"schemas", "subjects"}
    assert [schema.subject for schema in reader.schemas.used.values()] == ["orders-value"] * len(reader.schemas.used)


def test_an_id_that_it_has_not_is_not_asked_for_again(registry: Registry) -> None:
    reader = decoder(source_of(registry))
    for _ in range(3):
        assert reader.decode(b"\0\0\0\x27\x0fwxyz", "t", "value").reason == "schema 9999 is not known"
    assert registry.paths == ["/schemas/ids/9999"]


def test_it_is_asked_only_when_given_and_only_for_what_records_name(registry: Registry, tmp_path: Path) -> None:
    capture = golden_capture(tmp_path / "golden.pcap")
    assert kwire("show", "--records", "--payloads", capture).returncode == 0
    assert registry.paths == []


def test_the_login_is_in_no_output_and_no_file(registry: Registry, tmp_path: Path) -> None:
    capture = golden_capture(tmp_path / "golden.pcap")
    cache = tmp_path / "cache"
    environment = {**os.environ, "KWIRE_REGISTRY_AUTH": f"reader:{SECRET}"}
    done = kwire("analyze", capture, "-o", tmp_path / "d", "--registry", registry.url, env=environment)
    assert done.returncode == 0, done.stderr
    login = "Basic " + base64.b64encode(f"reader:{SECRET}".encode()).decode()
    assert set(registry.logins) == {login}
    registry.answer = lambda handler: reply(handler, 401, SECRET.encode())
    refused = kwire("show", "--records", capture, "--registry", f"{registry.url}/other", env=environment)
    assert "refuses (401)" in refused.stdout
    for text in (done.stdout, done.stderr, refused.stdout, refused.stderr):
        assert SECRET not in text
        assert login not in text
    for folder in (tmp_path / "d", cache):
        for file in (file for file in folder.rglob("*") if file.is_file() and "kernels" not in file.parts):
            content = file.read_bytes()
            assert SECRET.encode() not in content
            assert login.encode() not in content


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://host", "not a URL"),
        ("registry:8081", "not a URL"),
        ("http://host:99999999", "not a URL"),
        (f"http://user:{SECRET}@host", "password"),
        ("http://host?a=b", "query"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as refused:
        SchemaRegistry(url, PayloadLimits())
    assert SECRET not in str(refused.value)


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" " * 65536)


def _drops(handler: BaseHTTPRequestHandler) -> None:
    """A byte every now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.05)


def _slow_header(handler: BaseHTTPRequestHandler) -> None:
    with contextlib.suppress(OSError):
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)


HARM: dict[str, tuple[Callable[[BaseHTTPRequestHandler], object], str]] = {
    "redirect": (lambda h: reply(h, 302, b"", {"Location": "http://127.0.0.1:1/"}), "redirects elsewhere"),
    "redirect to a file": (lambda h: reply(h, 301, b"", {"Location": "file:///etc/passwd"}), "redirects elsewhere"),
    "no JSON": (lambda h: reply(h, 200, b"<html>"), "no JSON"),
    "another shape": (lambda h: reply(h, 200, b"[1]"), "no schema"),
    "a schema that is a number": (lambda h: reply(h, 200, b'{"schema": 7}'), "no schema"),
    "a type that nobody knows": (lambda h: reply(h, 200, b'{"schema": "x", "schemaType": {"a": 1}}'), "not known"),
    "references without end": (
        lambda h: reply(h, 200, b'{"schema": "x", "references": [{"name": "%d", "subject": "a", "version": 1}]}'
                        % time.monotonic_ns()), "too many schemas"),
    "references of another form": (lambda h: reply(h, 200, b'{"schema": "x", "references": [7]}'), "another form"),
    "a failure": (lambda h: reply(h, 500, b"{}"), "fails"),
    "no HTTP": (lambda h: h.wfile.write(b"\0" * 100), "does not answer"),
    "nothing": (lambda h: None, "does not answer"),
    "endless": (_endless, "does not answer"),
    "drops": (_drops, "does not answer"),
    "slow header": (_slow_header, "does not answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", HARM)
def test_a_registry_that_means_harm_is_a_reason(name: str, registry: Registry) -> None:
    registry.answer, expected = HARM[name]
    began = time.monotonic()
    with pytest.raises(UndecodableError, match=expected):
        source_of(registry, 0.4).by_id("7")
    assert time.monotonic() - began < 8  # 5 seconds are what one write may take


def test_a_registry_that_fails_is_not_asked_any_more(registry: Registry) -> None:
    registry.answer = HARM["a failure"][0]
    reader = decoder(source_of(registry))
    reasons = [reader.decode(b"\0\0\0\0" + bytes([n]) + b"wxyz", "t", "value").reason for n in range(1, 8)]
    assert len(registry.paths) == 3
    assert reasons[-1] is not None
    assert "not asked any more" in reasons[-1]


def test_tls_with_an_authority_and_a_certificate_of_the_client(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    context.load_verify_locations(files[0])
    context.verify_mode = ssl.CERT_REQUIRED
    registry.socket = context.wrap_socket(registry.socket, server_side=True)
    registry.scheme = "https"
    with pytest.raises(UndecodableError, match="does not answer: CERTIFICATE_VERIFY_FAILED"):
        source_of(registry).by_id("4")
    monkeypatch.setenv("KWIRE_REGISTRY_CA", str(files[0]))
    with pytest.raises(UndecodableError, match="does not answer"):
        source_of(registry).by_id("4")
    monkeypatch.setenv("KWIRE_REGISTRY_CERT", str(files[0]))
    monkeypatch.setenv("KWIRE_REGISTRY_KEY", str(files[1]))
    schema = source_of(registry).by_id("4")
    assert schema is not None
    assert schema.format == "json_schema"
    monkeypatch.setenv("KWIRE_REGISTRY_KEY", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="KWIRE_REGISTRY_KEY"):
        source_of(registry)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key: files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "registry.pem", folder / "registry.key"
    files[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
