"""Subjects and ends of certificates, as OpenSSL's own library writes them, and bytes that are no certificate.

(proves: captures/tls/certificates.py)
"""

from __future__ import annotations

import datetime
import random
import ssl

import pytest

from kwire.captures.tls.certificates import MOST_TEXT, subject_and_end
from tests.captures.tls.sealing import HOST, certificates

pytest.importorskip("cryptography", reason="TLS needs the package cryptography: pip install 'kwire[tls]'")


def certificate(name: list[tuple[str, str]], until: datetime.datetime) -> tuple[bytes, str]:
    """A certificate's DER, and its subject as `cryptography` writes it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    parts = x509.Name([x509.NameAttribute(getattr(x509.NameOID, kind), value) for kind, value in name])
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(parts)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(until)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.DER), certificate.subject.rfc4514_string()


NAMES = {
    "one part": [("COMMON_NAME", "broker-1")],
    "many parts": [("COUNTRY_NAME", "DE"), ("LOCALITY_NAME", "Köln"), ("ORGANIZATION_NAME", "A"), ("COMMON_NAME", "b")],
    "letters that need care": [("COMMON_NAME", ' #a,b+c"d\\e<f>g;h')],
    "components of a domain": [("DOMAIN_COMPONENT", "example"), ("DOMAIN_COMPONENT", "com"), ("USER_ID", "u")],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("year", [2049, 2050, 9999])
def test_a_subject_and_an_end(name: str, year: int) -> None:
    until = datetime.datetime(year, 12, 31, 23, 59, 59)
    der, expected = certificate(NAMES[name], until)
    micros = int(until.replace(tzinfo=datetime.UTC).timestamp()) * 1_000_000
    assert subject_and_end(der) == (expected, micros)


def test_a_long_subject_is_cut_off() -> None:
    der, _ = certificate([("COMMON_NAME", "x" * 64)] * 40, datetime.datetime(2030, 1, 1))
    subject, _ = subject_and_end(der)
    assert subject is not None
    assert len(subject) == MOST_TEXT


def test_what_is_no_certificate_is_nothing() -> None:
    """Every beginning of one, and one with bytes changed: a text or nothing, and no exception."""
    whole = ssl.PEM_cert_to_DER_cert(certificates()[1].split("-----BEGIN PRIVATE")[0])
    assert subject_and_end(whole)[0] == f"CN={HOST},O=kwire\\, tests"
    assert subject_and_end(b"") == (None, None)
    rng = random.Random(1)
    for size in range(len(whole)):
        assert subject_and_end(whole[:size]) == (None, None)
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        subject, end = subject_and_end(bytes(data))
        assert subject is None or len(subject) <= MOST_TEXT
        assert end is None or isinstance(end, int)
