"""Schemas from a registry (`--registry URL`) with Confluent's API; Apicurio's is at `/apis/ccompat/v7`.

In: ids that records name. Out: schemas, each asked for once and then in the user's cache, because an id means the same
for ever. Secrets come from the environment: `KWIRE_REGISTRY_AUTH` (`USER:PASSWORD`), or `KWIRE_REGISTRY_TOKEN`;
`KWIRE_REGISTRY_CA`, `KWIRE_REGISTRY_CERT` and `KWIRE_REGISTRY_KEY` are files for TLS. They are sent to this address
alone, as redirects are not followed, and are in no message.

Rule: an answer has so many seconds and bytes, and a registry that fails a few times is not asked again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads import json_text
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError
from kwire.analyzer.payloads.schemas import REGISTRY, Schema, format_of
from kwire.captures.cache import cache_root, content_of, replace

AUTH, TOKEN = "KWIRE_REGISTRY_AUTH", "KWIRE_REGISTRY_TOKEN"
CA, CERT, KEY = "KWIRE_REGISTRY_CA", "KWIRE_REGISTRY_CERT", "KWIRE_REGISTRY_KEY"

SECONDS: Final = 10.0
"""For one answer, whole."""
_FAILURES: Final = 3
"""Answers in a row that may fail before the registry is not asked any more."""
_CACHED_FILES: Final = 10_000
_CACHED_BYTES: Final = 64 << 20
_REFERENCES: Final = 200
_DEPTH: Final = 20
_PIECE: Final = 1 << 16


class SchemaRegistry:
    """The schemas of a registry. Raises UsageError where the URL or the environment cannot be used."""

    def __init__(self, url: str, limits: PayloadLimits, seconds: float = SECONDS) -> None:
        self._limits = limits
        self._seconds = seconds
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise UsageError("--registry: not a URL", "as https://registry.example.com:8081")
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "--registry: a URL with a password, which other users of this machine can see",
                f"leave it out, and set {AUTH}=USER:PASSWORD",
            )
        if parts.query or parts.fragment:
            raise UsageError("--registry: a URL with a query", "as https://registry.example.com:8081")
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/")
        self._tls = _tls() if parts.scheme == "https" else None
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", **_authorization()}
        self._failures = 0
        self._problem = ""
        self._cache = _Cache(f"{parts.scheme}://{parts.netloc}{self._path}")

    def by_id(self, schema_id: str) -> Schema | None:
        """Return the schema with an id. Raises UndecodableError."""
        answer = self._cache.read(schema_id)
        if answer is None:
            if re.fullmatch("[0-9]+", schema_id):
                answer = self._answer(f"/schemas/ids/{schema_id}")
            else:
                answer = self._answer(f"/schemas/guids/{urllib.parse.quote(schema_id, safe='')}")
            if answer is None:
                return None
            answer = {
                "schema": _text(answer),
                "schemaType": answer.get("schemaType"),
                "subject": self._subject(schema_id),
                "referenced": self._references(answer),
            }
            self._cache.write(schema_id, answer)
        referenced = answer.get("referenced")
        subject = answer.get("subject")
        return Schema(
            schema_id,
            format_of(answer.get("schemaType")),
            subject if isinstance(subject, str) else None,
            REGISTRY,
            _text(answer),
            referenced if isinstance(referenced, dict) else {},
        )

    def by_subject(self, subject: str) -> Schema | None:
        """Return None: which version a payload without an id was written with, a registry does not say."""
        return None

    def every(self) -> Iterator[Schema]:
        """Yield nothing: a registry is asked for ids alone."""
        yield from ()

    def _subject(self, schema_id: str) -> str | None:
        """Return the subject of an id, if it has one alone."""
        with contextlib.suppress(UndecodableError):
            answer = self._answer(f"/schemas/ids/{schema_id}/subjects") if schema_id.isdigit() else None
            if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], str):
                return str(answer[0])
        return None

    def _references(self, answer: dict[str, Any]) -> dict[str, str]:
        """Return the texts of what a schema refers to, what they need before them. Raises UndecodableError."""
        texts: dict[str, str] = {}

        def collect(answer: dict[str, Any], depth: int) -> None:
            references = answer.get("references") or []
            if not isinstance(references, list) or depth > _DEPTH or len(texts) > _REFERENCES:
                raise UndecodableError("it refers to too many schemas")
            for reference in references:
                name, subject, version = (
                    (reference.get(key) for key in ("name", "subject", "version"))
                    if isinstance(reference, dict)
                    else (None, None, None)
                )
                if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
                    raise UndecodableError("the registry's answer has references of another form")
                if name in texts:
                    continue
                path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
                other = self._answer(path)
                if not isinstance(other, dict):
                    raise UndecodableError(f"it refers to {subject} {version}, which the registry has not")
                collect(other, depth + 1)
                texts[name] = _text(other)

        collect(answer, 0)
        return texts

    def _answer(self, path: str) -> Any:
        """Return the JSON of an answer; None: the registry has nothing of that name. Raises UndecodableError."""
        if self._failures >= _FAILURES:
            raise UndecodableError(f"{self._problem} (it is not asked any more)")
        try:
            status, body = self._get(path)
        except (OSError, http.client.HTTPException, ValueError) as failure:
            reason = failure.reason if isinstance(failure, ssl.SSLError) else None
            self._fail(f"the registry does not answer: {reason or type(failure).__name__}")
        if status == 404:
            self._failures = 0
            return None
        if status in (401, 403):
            self._fail(f"the registry refuses ({status}): see {AUTH} and {TOKEN}")
        if 300 <= status < 400:
            self._fail(f"the registry redirects elsewhere ({status}), which is not followed")
        if status != 200:
            self._fail(f"the registry fails ({status})")
        try:
            answer = json_text.load(body)
        except UndecodableError:
            self._fail("the registry's answer is no JSON")
        self._failures = 0
        return answer

    def _fail(self, problem: str) -> Any:
        self._failures += 1
        self._problem = problem
        raise UndecodableError(problem) from None

    def _get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of an answer, within its time and size. Raises OSError and HTTPException."""
        end = time.monotonic() + self._seconds
        timeout = min(self._seconds, 5.0)
        if self._tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        with contextlib.closing(connection):
            connection.connect()
            with _Deadline(connection, end):
                connection.request("GET", self._path + path, headers=self._headers)
                response = connection.getresponse()
                body = b""
                while time.monotonic() <= end and (piece := response.read1(_PIECE)):
                    body += piece
                    if len(body) > 2 * self._limits.schema_bytes:
                        raise ValueError("too long")
                if time.monotonic() > end:  # shut down: what came before may look whole
                    raise TimeoutError
                return response.status, body


class _Deadline:
    """Shuts a connection down when its time is over, since a timeout of a socket begins anew with every byte."""

    def __init__(self, connection: http.client.HTTPConnection, end: float) -> None:
        self._timer = threading.Timer(max(end - time.monotonic(), 0), self._shut)
        self._timer.daemon = True
        self._socket = connection.sock

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class _Cache:
    """Answers on disk, one file an id, in a folder for each registry; bounded in number and bytes."""

    def __init__(self, url: str) -> None:
        self._folder: Path = cache_root() / "registry" / hashlib.sha256(url.encode()).hexdigest()[:32]

    def read(self, schema_id: str) -> dict[str, Any] | None:
        """Return what was kept of an id."""
        with contextlib.suppress(OSError, ValueError):
            answer = json.loads(content_of(self._folder / _file(schema_id)))
            if isinstance(answer, dict) and isinstance(answer.get("schema"), str):
                return answer
        return None

    def write(self, schema_id: str, answer: dict[str, Any]) -> None:
        """Keep an answer, where there is room."""
        text = json.dumps(answer).encode()
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sizes = [file.stat().st_size for file in self._folder.iterdir()]
            if len(sizes) < _CACHED_FILES and sum(sizes) + len(text) <= _CACHED_BYTES:
                replace(self._folder / _file(schema_id), text)


def _file(schema_id: str) -> str:
    return re.sub(r"[^0-9a-f-]", "_", schema_id) + ".json"


def _text(answer: Any) -> str:
    """Return the schema of an answer. Raises UndecodableError."""
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise UndecodableError("the registry's answer has no schema")
    return str(answer["schema"])


def _authorization() -> dict[str, str]:
    """Return the header that logs in, as the environment says. Raises UsageError."""
    auth, token = os.environ.get(AUTH), os.environ.get(TOKEN)
    if auth and token:
        raise UsageError(f"{AUTH} and {TOKEN} are both set", "unset one of them")
    if auth:
        if ":" not in auth:
            raise UsageError(f"{AUTH} is not USER:PASSWORD", "a token goes into " + TOKEN)
        return {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    if token:
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise UsageError(f"{TOKEN} is no token", "it has characters that a header cannot have")
        return {"Authorization": f"Bearer {token}"}
    return {}


def _tls() -> ssl.SSLContext:
    """Return how TLS is spoken, as the environment says. Raises UsageError."""
    authority, certificate, key = (os.environ.get(name) or None for name in (CA, CERT, KEY))
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")
        return context
    except (OSError, ssl.SSLError, ValueError):
        raise UsageError(
            f"the files of {CA}, {CERT} or {KEY} cannot be used", "they are PEM, the key without a password"
        ) from None
