"""Access control: the token, the cookie, the server's names, other sites. Calls the application without a network.

Proves: reports/view/server
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kwire.reports.view.current_view import CurrentView
from kwire.reports.view.server import POLICY, Access, application
from tests.reports.view.conftest import Asking

PORT = 4711
HOST = f"127.0.0.1:{PORT}"


class Client:
    """Calls the application like a browser that stores cookies."""

    def __init__(self, asking: Asking, again: bool = False) -> None:
        self.door = Access("s3cret-of-the-link", again, frozenset([HOST, f"localhost:{PORT}"]), PORT)
        self._app = application(CurrentView.of(asking.view), self.door)
        self.cookie = ""

    def get(
        self, path: str, method: str = "GET", content: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        sent: list[dict[str, Any]] = []
        place, _, query = path.partition("?")
        sent_headers = {"host": HOST, **({"cookie": self.cookie} if self.cookie else {})}
        sent_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "method": method,
            "path": place,
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent_headers.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", PORT),
            "client": ("127.0.0.1", 5),
            "root_path": "",
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async def request() -> None:
            await self._app(scope, receive, send)

        with ThreadPoolExecutor(1) as pool:  # a browser's driver may have a loop running in this thread
            pool.submit(asyncio.run, request()).result()
        received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        if "set-cookie" in received:
            self.cookie = received["set-cookie"].split(";")[0]
        return sent[0]["status"], received, b"".join(part.get("body", b"") for part in sent[1:])


@pytest.fixture
def client(txn: Asking) -> Client:
    return Client(txn)


@pytest.fixture
def inside(client: Client) -> Client:
    assert client.get("/?token=s3cret-of-the-link")[0] == 303
    return client


PATHS = ("/", "/page/view.js", "/api/1/info", "/api/1/rows?count=1", "/nothing")


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_told(client: Client, path: str) -> None:
    for target in (path, path + ("&" if "?" in path else "?") + "token=wrong"):
        status, _, body = client.get(target)
        assert status == 403
        assert b"capture" not in body
    client.cookie = "kwire-4711=guessed"
    assert client.get(path)[0] == 403
    assert client.get(path, authorization="Bearer s3cret-of-the-link")[0] == 403


def test_the_link_opens_once_and_the_state_in_it_stays(client: Client) -> None:
    status, headers, _ = client.get("/?token=s3cret-of-the-link&filter=api+%3D%3D+Fetch")
    assert (status, headers["location"]) == (303, "/?filter=api+%3D%3D+Fetch")
    assert "httponly" in headers["set-cookie"].lower()
    assert "samesite=strict" in headers["set-cookie"].lower()
    assert client.get("/")[0] == 200
    client.cookie = ""
    assert client.get("/?token=s3cret-of-the-link")[0] == 403


def test_a_token_of_ones_own_opens_again_and_in_a_header(txn: Asking) -> None:
    client = Client(txn, again=True)
    for _ in range(2):
        client.cookie = ""
        assert client.get("/?token=s3cret-of-the-link")[0] == 303
    client.cookie = ""
    status, _, body = client.get("/api/1/info", authorization="Bearer s3cret-of-the-link")
    assert (status, json.loads(body)["exchanges"]) == (200, 188)
    assert client.get("/api/1/info", authorization="Bearer s3cret-of-the-lin")[0] == 403


def test_a_browser_without_the_token_may_type_it_where_it_is_ones_own(txn: Asking) -> None:
    client = Client(txn, again=True)
    status, headers, body = client.get("/", accept="text/html,*/*")
    assert status == 403
    assert b'<input type="password" name="token"' in body
    assert "form-action 'self'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    for wrong in (b"", b"token=", b"token=s3cret-of-the-lin", b"token=%ff%00", b"other=s3cret-of-the-link"):
        assert client.get("/token", "POST", wrong)[0] == 403
        assert client.cookie == ""
    assert client.get("/token", "POST", b"token=" + b"x" * 10_000)[0] == 413
    right = b"token=s3cret-of-the-link"
    for foreign in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
        assert client.get("/token", "POST", right, **foreign)[0] == 403
    assert client.get("/token", "POST", right, host="evil.example")[0] == 403
    status, headers, _ = client.get("/token", "POST", right, origin=f"http://{HOST}", sec_fetch_site="same-origin")
    assert (status, headers["location"]) == (303, "/")
    assert client.get("/")[0] == 200
    text = Client(txn, again=True).get("/")[2]  # a script is told in a line
    assert b"password" not in text
    assert b"Authorization: Bearer" in text


def test_a_link_that_works_once_is_no_form(client: Client) -> None:
    assert b"password" not in client.get("/", accept="text/html")[2]
    assert client.get("/token", "POST", b"token=s3cret-of-the-link")[0] == 403
    assert client.cookie == ""


@pytest.mark.parametrize("path", PATHS)
def test_another_name_or_another_sites_page_is_refused_whatever_it_has(inside: Client, path: str) -> None:
    for host in ("evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:80", ""):
        assert inside.get(path, host=host)[0] == 403
    for site in ("cross-site", "same-site"):
        assert inside.get(path, sec_fetch_site=site)[0] == 403
    for origin in ("http://evil.example", "http://127.0.0.1:80", "http://127.0.0.1", "null", ""):
        assert inside.get(path, origin=origin)[0] == 403
    assert inside.get("/api/1/info", host=f"localhost:{PORT}", sec_fetch_site="same-origin")[0] == 200
    assert inside.get("/api/1/info", origin=f"http://{HOST}")[0] == 200
    assert inside.get("/api/1/info", host=f"localhost:{PORT}", origin=f"http://localhost:{PORT}")[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_says_what_the_page_may_load(inside: Client, path: str) -> None:
    for host in (HOST, "evil.example"):
        headers = inside.get(path, host=host)[1]
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert not [name for name in headers if name.startswith("access-control")]


def test_only_reading_is_possible(inside: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert inside.get("/api/1/info", method)[0] == 405


def test_the_page_is_served_and_nothing_beside_it(inside: Client) -> None:
    status, headers, body = inside.get("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'<script type="module" src="/page/view.js"></script>' in body
    assert b"style=" not in body  # the policy would stop it
    assert b"onclick" not in body
    assert inside.get("/page/rows.js")[1]["content-type"].startswith("text/javascript")
    for name in ("server.py", "..%2fserver.py", "%2e%2e/server.py", "nothing.js"):
        assert inside.get(f"/page/{name}")[0] == 404


def test_answers_of_the_api_say_how_long_they_took_and_what_is_wrong(inside: Client) -> None:
    status, headers, body = inside.get("/api/1/rows?filter=api+%3D%3D+Fetch&count=1")
    assert (status, json.loads(body)["total"]) == (200, 11)
    assert headers["server-timing"].startswith("answer;dur=")
    assert inside.get("/api/1/rows?filter=nonsense")[0] == 400
    assert inside.get("/api/1/nonsense")[0] == 404
