"""The server: who may ask, and what is handed out. Everything that is answered is made in `answers`.

In: requests of HTTP. Out: the page's files, and answers. Rules: who asks must have the token, as a cookie that the
first visit got for it, or in a header; another site's page may not ask, whatever it has (`Host` against names that
point here, `Sec-Fetch-Site` against its requests); the page may load nothing but itself; what answers are made with is
loaded when there is something to answer from, so that the page comes meanwhile.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captures.errors import KwireError
from reports.view.current_view import Stage

if TYPE_CHECKING:
    from reports.view.answers import Answer

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
"""Bytes of what somebody sends to be kept (`notes.MOST_BYTES`)."""

TELL_SECONDS: Final = 0.25
"""Between two looks at how far an analysis is."""

WHO: Final = (
    "kwire: this page needs the link that kwire view printed, which works once.\n"
    "hint: to open it again, start kwire view again\n"
)


@dataclass
class Door:
    """Who may come in. `token` opens once, or (`again`) as often as somebody has it; `hosts`: what browsers may call
    this server, none: anything, where it listens on all addresses."""

    token: str
    again: bool = False
    hosts: frozenset[str] = frozenset()
    port: int = 0
    _spent: bool = False
    _cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def _name(self) -> str:
        return f"kwire-{self.port}"  # cookies know no ports

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused whoever sends it; None: it is not."""
        if self.hosts and request.headers.get("host", "") not in self.hosts:
            return "kwire: this is not a name of this server\n"
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "kwire: another site's page may not ask this server\n"
        return None

    def knows(self, request: Request) -> bool:
        """Has the request the cookie, or the token in a header?"""
        said = request.headers.get("authorization", "")
        if self.again and hmac.compare_digest(said.encode(), f"Bearer {self.token}".encode()):
            return True
        return hmac.compare_digest(request.cookies.get(self._name, "").encode(), self._cookie.encode())

    def opened(self, token: str) -> bool:
        """Does the token of a link open? It is spent then."""
        if self._spent or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self._spent = not self.again
        return True

    def let_in(self, response: Response) -> Response:
        """Give the cookie along."""
        response.set_cookie(self._name, self._cookie, httponly=True, samesite="strict", path="/")
        return response


def application(stage: Stage, door: Door) -> ASGIApp:
    """The server's application."""
    files = {
        entry.name: entry.read_bytes()
        for entry in resources.files("reports.view").joinpath("page").iterdir()
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

        watching = asyncio.create_task(_left(request, gone))
        try:
            found = await run_in_threadpool(_answer, stage, what, query, gone)
        finally:
            watching.cancel()
        if what == "rows":
            stage.looked.set()
        if found.pieces is not None:
            return StreamingResponse(found.pieces, found.status, found.headers, found.type)
        return Response(found.content, found.status, found.headers, found.type)

    async def keep(request: Request) -> Response:
        content = b""
        async for part in request.stream():
            content += part
            if len(content) > MOST_SENT:
                return PlainTextResponse("kwire: too long\n", 413)
        found = await run_in_threadpool(_keep, stage, content)
        return Response(found.content, found.status, found.headers, found.type)

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(stage), media_type="text/event-stream")

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
                message["headers"] = [*message["headers"], *_RAW_HEADERS]
            await send(message)

        if scope["type"] != "http":
            raise RuntimeError("this server speaks HTTP and nothing else")
        refused = _refused(Request(scope), door)
        await (app if refused is None else refused)(scope, receive, with_headers)

    return guarded


def _answer(stage: Stage, what: str, query: dict[str, str], gone: threading.Event) -> Answer:
    """An answer, as soon as there is something to answer from; it ends where nobody waits for it (`gone`)."""
    try:
        view = stage.shown()
    except KwireError as problem:  # there is nothing to look at, and never will be
        from reports.view.answers import refusal

        return refusal(500, problem)
    from reports.view.answers import answered
    from reports.view.value_counts import asked

    with asked(gone):
        return answered(view, what, query)


def _keep(stage: Stage, content: bytes) -> Answer:
    from reports.view.answers import kept

    return kept(stage.shown(), content)


async def _events(stage: Stage) -> AsyncIterator[str]:
    """How far the analysis is, whenever that is something else, until it is done."""
    before = None
    while True:
        told = stage.told()
        if told != before:
            yield f"data: {json.dumps(told)}\n\n"
            before = told
        if told["done"]:
            return
        await asyncio.sleep(TELL_SECONDS)


async def _left(request: Request, gone: threading.Event) -> None:
    """Tell when who asked does not wait for the answer any more."""
    for _ in range(2):  # the end of the request, then that who asked has left; nothing else comes of a GET
        if (await request.receive())["type"] == "http.disconnect":
            gone.set()
            return


def _refused(request: Request, door: Door) -> Response | None:
    """What is answered before anything is looked at; None: nothing, go on."""
    refusal = door.refusal(request)
    if refusal is not None:
        return PlainTextResponse(refusal, 403)
    if door.knows(request):
        return None
    token = request.query_params.get("token")
    if request.url.path == "/" and token is not None and door.opened(token):
        kept = str(request.url.remove_query_params("token").query)
        return door.let_in(RedirectResponse("/" + (f"?{kept}" if kept else ""), 303))
    return PlainTextResponse(WHO, 403)
