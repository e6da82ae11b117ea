"""A store that speaks as much of Amazon S3's protocol as reading takes, for real clients of it on loopback.

Sources: the API reference's HeadObject, GetObject (ranges) and ListObjectsV2. Signatures are asked for and not checked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KEY, SECRET = "AKIAEXAMPLE", "example-secret-key"
_TIMES = {"Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT"}


@contextmanager
def serving(objects: dict[str, bytes]) -> Iterator[str]:
    """Serve objects, by `bucket/key`; yields what follows `?` in their URLs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            path = unquote(url.path).lstrip("/")
            if KEY not in self.headers.get("Authorization", ""):
                self._send(403, b"", body)
            elif "list-type" in query:
                self._send(200, _listing(objects, path.rstrip("/"), query), body)
            elif path in objects:
                self._send_object(objects[path], body)
            else:
                self._send(404, b"", body)

        def _send_object(self, data: bytes, body: bool) -> None:
            ranged = self.headers.get("Range")
            if ranged is None:
                self._send(200, data, body)
                return
            first, last = ranged.removeprefix("bytes=").split("-")
            part = data[int(first) : int(last) + 1]
            self._send(206, part, body, {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"})

        def _send(self, status: int, data: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {**_TIMES, **(headers or {}), "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _listing(objects: dict[str, bytes], bucket: str, query: dict[str, list[str]]) -> bytes:
    prefix = query.get("prefix", [""])[0]
    inside = [name.removeprefix(f"{bucket}/") for name in objects if name.startswith(f"{bucket}/{prefix}")]
    files = [key for key in inside if "/" not in key.removeprefix(prefix)]
    folders = sorted({prefix + key.removeprefix(prefix).split("/")[0] + "/" for key in inside if key not in files})
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[f'{bucket}/{key}'])}</Size>"
        "<LastModified>2026-11-21T10:00:00.000Z</LastModified></Contents>"
        for key in files
    )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(path)}</Prefix></CommonPrefixes>" for path in folders)
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(files) + len(folders)}</KeyCount>"
        f"<IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
    ).encode()
