"""TLS sessions for tests: what two applications write, as OpenSSL puts it on the wire, and the keys it logs.

In: writes in plaintext. Out: writes of TLS records, and the lines of a key log. Python's `ssl` does it, over memory;
suites of TLS 1.3 can only be chosen for a whole process, so they are chosen in one of their own (`python -m`).
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.captures.forge import Write
from tests.shared import ROOT

NO_ENCRYPT_THEN_MAC, NO_EXTENDED_MASTER = 1 << 19, 1 << 0
"""SSL_OP_NO_ENCRYPT_THEN_MAC and SSL_OP_NO_EXTENDED_MASTER_SECRET of OpenSSL 3, which `ssl` has no names for."""

HOST = "broker.example"


@functools.cache
def certificates(until: datetime.datetime = datetime.datetime(2036, 1, 1)) -> tuple[str, str]:
    """PEM of a certificate with its key, RSA and elliptic."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.x509.oid import NameOID

    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kwire, tests"),
            x509.NameAttribute(NameOID.COMMON_NAME, HOST),
        ]
    )
    out = []
    keys: list[Any] = [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())]
    for key in keys:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(until - datetime.timedelta(days=3650))
            .not_valid_after(until)
            .sign(key, hashes.SHA256())
        )
        out.append(
            (
                builder.public_bytes(serialization.Encoding.PEM)
                + key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            ).decode()
        )
    return out[0], out[1]


@dataclass(frozen=True)
class How:
    """How two sides talk.

    version   of TLS
    ciphers   names of OpenSSL, for TLS 1.2
    options   of OpenSSL, besides
    group     the server's only group: the client asks with another, and again (HelloRetryRequest)
    alpn      what both speak
    until     when the server's certificate ends
    """

    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ciphers: str | None = None
    options: int = 0
    group: str | None = None
    alpn: str | None = None
    until: datetime.datetime = datetime.datetime(2036, 1, 1)


class Talk:
    """Contexts of a client and a server, which remember sessions; `keys` is the client's key log."""

    def __init__(self, how: How, folder: Path) -> None:
        self.path = folder / "keys.log"
        self.path.touch(0o600)
        self._session: ssl.SSLSession | None = None
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.check_hostname, self._client.verify_mode = False, ssl.CERT_NONE
        self._client.keylog_filename = str(self.path)
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for number, pem in enumerate(certificates(how.until)):
            place = folder / f"server-{number}.pem"
            place.write_text(pem)
            self._server.load_cert_chain(place)
        for context in (self._client, self._server):
            context.minimum_version = context.maximum_version = how.version
            context.options |= how.options
            if how.ciphers:
                context.set_ciphers(how.ciphers)
            if how.alpn:
                context.set_alpn_protocols([how.alpn])
        if how.group:
            self._server.set_ecdh_curve(how.group)
        self.suite = ""
        self.resumed = False

    def sealed(self, writes: Sequence[Write]) -> list[Write]:
        """One connection: the handshake, then these writes."""
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._client.wrap_bio(to_client, to_server, server_hostname=HOST, session=self._session)
        server = self._server.wrap_bio(to_server, to_client, server_side=True)
        out: list[Write] = []
        done = {False: False, True: False}
        # What one side writes lies in the other's BIO until it reads: each flight is taken out, noted, and put back.
        while not all(done.values()):
            for is_client, side, outgoing in ((True, client, to_server), (False, server, to_client)):
                before = outgoing.pending
                try:
                    side.do_handshake()
                    done[is_client] = True
                except ssl.SSLWantReadError:
                    pass
                _note(out, is_client, outgoing, before)
        for write in writes:
            side, outgoing, other = (client, to_server, server) if write.to_broker else (server, to_client, client)
            before = outgoing.pending
            side.write(write.data)
            _note(out, write.to_broker, outgoing, before)
            left = len(write.data)
            while left:
                left -= len(other.read(left))
        both = [(True, client, to_server), (False, server, to_client)]
        for to_broker, side, outgoing in (*both, *both):
            before = outgoing.pending  # who does not say that it closes, loses its session
            with contextlib.suppress(ssl.SSLError):
                side.unwrap()
            _note(out, to_broker, outgoing, before)
        self.suite = (client.cipher() or ("", "", 0))[0]
        self.resumed = bool(client.session_reused)
        self._session = client.session
        return out

    @property
    def keys(self) -> bytes:
        return self.path.read_bytes()


def failing(asking: ssl.SSLContext, answering: ssl.SSLContext) -> list[Write]:
    """A handshake of these two that does not come about: what both write until one gives it up."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server, server_hostname=HOST)
    server = answering.wrap_bio(to_server, to_client, server_side=True)
    out: list[Write] = []
    failed = False
    while not failed:
        for is_client, side, outgoing in ((True, client, to_server), (False, server, to_client)):
            before = outgoing.pending
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                failed = True
            _note(out, is_client, outgoing, before)
            if failed:
                break
    return out


def _note(out: list[Write], to_broker: bool, bio: ssl.MemoryBIO, before: int) -> None:
    """Note what was written behind `before` bytes, and put it back."""
    data = bio.read()
    bio.write(data)
    if len(data) > before:
        out.append(Write(to_broker, data[before:]))


def sealed13(suite: str, writes: Sequence[Write]) -> tuple[list[Write], bytes]:
    """Like `Talk.sealed`, for a suite of TLS 1.3, by OpenSSL's configuration of another process."""
    with tempfile.TemporaryDirectory(prefix="kwire-tls-") as folder:
        settings = Path(folder, "openssl.cnf")
        settings.write_text(
            "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\n"
            f"Ciphersuites = {suite}\nMinProtocol = TLSv1.3\n"
        )
        encoded = json.dumps([[write.to_broker, base64.b64encode(write.data).decode()] for write in writes])
        done = subprocess.run(
            [sys.executable, "-m", "tests.captures.tls.sealing"],
            input=encoded,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "OPENSSL_CONF": str(settings)},
        )
    output = json.loads(done.stdout)
    if output["suite"] != suite:
        raise RuntimeError(f"asked for {suite}, got {output['suite']}")
    return [Write(who, base64.b64decode(data)) for who, data in output["writes"]], output["keys"].encode()


def main() -> None:
    writes = [Write(who, base64.b64decode(data)) for who, data in json.load(sys.stdin)]
    with tempfile.TemporaryDirectory(prefix="kwire-tls-") as folder:
        talk = Talk(How(), Path(folder))
        sealed = talk.sealed(writes)
        encoded_writes = [[write.to_broker, base64.b64encode(write.data).decode()] for write in sealed]
        json.dump({"suite": talk.suite, "writes": encoded_writes, "keys": talk.keys.decode()}, sys.stdout)


if __name__ == "__main__":
    main()
