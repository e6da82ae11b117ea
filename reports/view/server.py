"""HTTP server of `kwire view`: access control, the page's files, and the API (`answers`).

In: HTTP requests. Out: the page's files, and answers. Rules: a client must have the token, as a cookie set on its first
visit or in a header; other sites' pages are refused whatever they send (`Host` against DNS rebinding, `Sec-Fetch-Site`
and `Origin` against cross-site requests); the page may load nothing from elsewhere; `answers` is imported with the
first view, so that the page loads meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import threading
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kwire.captures.errors import KwireError
from kwire.reports.view.current_view import CurrentView

if TYPE_CHECKING:
    from kwire.reports.view.answers import Answer

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PAGE: Final = "view.html"

MOST_SENT: Final = 1 << 20
"""Bytes of the largest request body (`notes.MOST_BYTES`)."""

TELL_SECONDS: Final = 0.25
"""Between two events with an analysis's progress."""

TOKEN: Final = "/token"
"""Where the form of a page that needs a token sends it."""

MOST_TYPED: Final = 4 << 10
"""Bytes of that form: a token is read from a file of that size."""

_STYLE: Final = (
    "body { font: 16px system-ui, sans-serif; background: Canvas; color: CanvasText; margin: 15vh auto; "
    "max-width: 22rem; padding: 0 1rem; } input, button { font: inherit; padding: .35rem .6rem; margin-top: .4rem; }"
)

FORM: Final = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>kwire view</title>
<link rel="icon" href="data:,"><style>{_STYLE}</style></head>
<body><main><h1>kwire view</h1>
<form method="post" action="/token">
<p><label>The secret in the file of --token-file<br>
<input type="password" name="token" autocomplete="current-password" autofocus required></label>
<button>open</button></p>
</form></main></body>
</html>
"""
"""The page of a browser without a token, where the user chose the token: it takes it in a field, so that it is in no
address."""

_FORM_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; base-uri 'none'; form-action 'self'; "
    f"frame-ancestors 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "Referrer-Policy": "same-origin",  # without, browsers do not say that a form is this server's own
}

UNAUTHORISED: Final = (
    "kwire: this page needs the link that kwire view printed, which works once.\n"
    "hint: to open it again, start kwire view again\n"
)

UNAUTHORISED_AGAIN: Final = (
    "kwire: this page needs the secret in the file of --token-file\n"
    "hint: ?token=SECRET in the address, or a header: Authorization: Bearer SECRET\n"
)


@dataclass
class Access:
    """Access control.

    token  secret of the link, valid once, or repeatedly if `again`
    hosts  names that browsers may use for this server; empty: any, if it listens on all addresses
    """

    token: str
    again: bool = False
    hosts: frozenset[str] = frozenset()
    port: int = 0
    _spent: bool = False
    _cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def _name(self) -> str:
        return f"kwire-{self.port}"  # cookies are shared by all ports of a host

    def refusal(self, request: Request) -> str | None:
        """Explain why a request is refused regardless of its token; None if it is not."""
        if self.hosts and request.headers.get("host", "") not in self.hosts:
            return "kwire: unknown name of this server (Host header)\n"
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "kwire: pages of other sites may not use this server\n"
        origin = request.headers.get("origin")
        # A page on another port of this host is same-site for cookies. Host names the server, whatever is between.
        if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
            return "kwire: pages of other origins may not use this server\n"
        return None

    def is_authorised(self, request: Request) -> bool:
        """Tell whether the request has the cookie, or the token in a header."""
        header = request.headers.get("authorization", "")
        if self.again and hmac.compare_digest(header.encode(), f"Bearer {self.token}".encode()):
            return True
        return hmac.compare_digest(request.cookies.get(self._name, "").encode(), self._cookie.encode())

    def accept_token(self, token: str) -> bool:
        """Check the token of a link, and use it up."""
        if self._spent or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self._spent = not self.again
        return True

    def set_cookie(self, response: Response) -> Response:
        """Set the cookie."""
        response.set_cookie(self._name, self._cookie, httponly=True, samesite="strict", path="/")
        return response


def application(current: CurrentView, door: Access) -> ASGIApp:
    """Make the server's ASGI application."""
    files = {
        entry.name: entry.read_bytes()
        for entry in resources.files("kwire.reports.view").joinpath("page").iterdir()
        if entry.name.rpartition(".")[2] in TYPES
    }

    def file(name: str) -> Response:
        if name not in files:
            return PlainTextResponse("not here\n", 404)
        return Response(files[name], media_type=TYPES[name.rpartition(".")[2]])

    async def page(request: Request) -> Response:
        return file(PAGE)

    async def part(request: Request) -> Response:
        return file(request.path_params["name"])

    async def call(request: Request) -> Response:
        what, query, gone = request.path_params["what"], dict(request.query_params), threading.Event()

        watching = asyncio.create_task(_watch_disconnect(request, gone))
        try:
            answer = await run_in_threadpool(_answer, current, what, query, gone)
        except asyncio.CancelledError:  # the server ends, and must not wait for the answer
            gone.set()
            raise
        finally:
            watching.cancel()
        if what == "rows":
            current.looked.set()
        if answer.pieces is not None:
            return StreamingResponse(answer.pieces, answer.status, answer.headers, answer.type)
        return Response(answer.content, answer.status, answer.headers, answer.type)

    async def keep(request: Request) -> Response:
        content = b""
        async for part in request.stream():
            content += part
            if len(content) > MOST_SENT:
                return PlainTextResponse("kwire: too long\n", 413)
        answer = await run_in_threadpool(_keep, current, content)
        return Response(answer.content, answer.status, answer.headers, answer.type)

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(current), media_type="text/event-stream")

    routes = [
        Route("/", page),
        Route("/page/{name}", part),
        Route("/api/1/events", events),
        Route("/api/1/notes", keep, methods=["PUT"]),
        Route("/api/1/{what}", call),
    ]
    app = Starlette(routes=routes)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [header for header in _RAW_HEADERS if header[0] not in own]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        if scope["type"] != "http":
            raise RuntimeError("this server speaks HTTP and nothing else")
        request = Request(scope, receive)
        refused = _check_access(request, door)
        if request.url.path == TOKEN and request.method == "POST" and door.refusal(request) is None:
            refused = await _take_token(request, door)
        await (app if refused is None else refused)(scope, receive, with_headers)

    return guarded


def _answer(current: CurrentView, what: str, query: dict[str, str], gone: threading.Event) -> Answer:
    """Answer a call once there is a view; cancelled when the client disconnects (`gone`)."""
    try:
        view = current.first_view()
    except KwireError as problem:  # there will be no view
        from kwire.reports.view.answers import error_answer

        return error_answer(500, problem)
    from kwire.analyzer.frame.spill import cancellable
    from kwire.reports.view.answers import answer_call

    with cancellable(gone):
        return answer_call(view, what, query)


def _keep(current: CurrentView, content: bytes) -> Answer:
    from kwire.reports.view.answers import store_notes

    return store_notes(current.first_view(), content)


async def _events(current: CurrentView) -> AsyncIterator[str]:
    """Send the progress whenever it changes, until the view is complete."""
    before = None
    while True:
        progress = current.progress()
        if progress != before:
            yield f"data: {json.dumps(progress)}\n\n"
            before = progress
        if progress["done"]:
            return
        await asyncio.sleep(TELL_SECONDS)


async def _watch_disconnect(request: Request, gone: threading.Event) -> None:
    """Set `gone` when the client disconnects."""
    for _ in range(2):  # the end of the request, then the disconnect; a GET has no other messages
        if (await request.receive())["type"] == "http.disconnect":
            gone.set()
            return


def _check_access(request: Request, door: Access) -> Response | None:
    """Check access; returns a refusal or a redirect, or None to go on."""
    refusal = door.refusal(request)
    if refusal is not None:
        return PlainTextResponse(refusal, 403)
    if door.is_authorised(request):
        return None
    if door.again and request.url.path == "/" and "token" not in request.query_params and _is_browser(request):
        return HTMLResponse(FORM, 403, _FORM_HEADERS)
    token = request.query_params.get("token")
    if request.url.path == "/" and token is not None and door.accept_token(token):
        query = str(request.url.remove_query_params("token").query)
        return door.set_cookie(RedirectResponse("/" + (f"?{query}" if query else ""), 303))
    return PlainTextResponse(UNAUTHORISED_AGAIN if door.again else UNAUTHORISED, 403)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


async def _take_token(request: Request, door: Access) -> Response:
    """Check the token that a form sent: the page, or the form again."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MOST_TYPED:
            return PlainTextResponse("kwire: too long\n", 413)
    typed = urllib.parse.parse_qs(content.decode("ascii", "replace")).get("token", [""])[0].strip()
    if not door.again or not door.accept_token(typed):
        return HTMLResponse(FORM, 403, _FORM_HEADERS) if door.again else PlainTextResponse(UNAUTHORISED, 403)
    return door.set_cookie(RedirectResponse("/", 303))
