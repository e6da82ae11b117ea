"""Sessions of a capture: one per client connection, with its requests in order.

In: captures, or exchanges of a dataset (`stored_exchanges`). Out: `Session`s of `Request`s, each with its bytes and
the answer's. Rules: times are int nanoseconds since the epoch (the tables' microseconds); nothing is left out here: a
response without its request is in `Session.orphans`, a request whose bytes are missing has `data` None.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kwire.analyzer.frame.cells import Row
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import tree
from kwire.analyzer.protocol.budget import FIELDS
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.project import Frame
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.produce_requests import FastPath

if TYPE_CHECKING:
    from kwire.analyzer.api import ChooseExchanges
    from kwire.analyzer.pipeline.read_options import ReadOptions

_LOGINS = (apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE)
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)

ANSWER_FIELDS: Final = 2 * FIELDS
"""Fields and elements of an answer that a replay learns from: of 250,000 partitions. Requests have `FIELDS`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One captured request with its answer.

    - `row`: the columns of the table `exchanges` (a dict, or a row of `kwire.analyzer.frame.cells`)
    - `data`, `answer`: whole frames without their four bytes of length, None if not seen or not complete
    - `sent_ns`: first byte of the request; `answered_ns`: last byte of the response, None if there is none
    """

    row: Mapping[str, Any]
    sent_ns: int
    answered_ns: int | None
    data: bytes | None = field(repr=False)
    answer: bytes | None = field(repr=False)

    @property
    def capture(self) -> str:
        return str(self.row["capture"])

    @property
    def connection(self) -> str:
        return str(self.row["connection"])

    @property
    def exchange(self) -> int:
        return int(self.row["exchange"])

    @property
    def api_key(self) -> int:
        return int(self.row["api_key"])

    @property
    def version(self) -> int:
        return int(self.row["api_version"])

    def decoded(self) -> tree.Decoded | None:
        """Decode the request exactly, so that it can be encoded again; None without its bytes."""
        return None if self.data is None else tree.decode_request(self.data, exact=True, max_rows=FIELDS)

    def decoded_answer(self) -> tree.Decoded | None:
        """Decode the answer exactly; None without its bytes."""
        if self.answer is None:
            return None
        return tree.decode_response(self.answer, self.api_key, self.version, exact=True, max_rows=ANSWER_FIELDS)


class Decoded:
    """Both bodies of a request, each decoded when first used. `fast_path`: the request, if it took the fast path."""

    __slots__ = ("_answer", "_request", "fast_path", "request")

    def __init__(self, request: Request, fast_path: FastPath | None = None) -> None:
        self.request = request
        self.fast_path = fast_path
        self._request: tuple[Body | None, int, str] | None = None
        self._answer: tuple[Body | None] | None = None

    def _decoded(self) -> tuple[Body | None, int, str]:
        """The body, its version, and why it is missing."""
        if self._request is None:
            decoded = self.request.decoded() if self.request.row["api_key"] is not None else None
            if decoded is None:
                self._request = None, -1, self.request.row["reason"] or "bytes are missing"
            else:
                self._request = decoded.body if decoded.status == OK else None, decoded.version, decoded.reason or ""
        return self._request

    @property
    def body(self) -> Body | None:
        return self._decoded()[0]

    @property
    def version(self) -> int:
        return self._decoded()[1]

    @property
    def reason(self) -> str:
        return self._decoded()[2]

    @property
    def answer(self) -> Body | None:
        """The decoded answer; None also if the request's bytes are missing."""
        if self._answer is None:
            missing = self.request.data is None or self.request.row["api_key"] is None
            decoded = None if missing else self.request.decoded_answer()
            self._answer = (decoded.body if decoded is not None and decoded.status == OK else None,)
        return self._answer[0]

    def take(self, body: Body | None, answer: Body | None) -> None:
        """Take bodies that were decoded elsewhere; those that are None are decoded when they are first used."""
        if body is not None and self.request.data is not None:
            self._request = body, int.from_bytes(self.request.data[2:4], "big", signed=True), ""
        if answer is not None:
            self._answer = (answer,)


_MANY: Final = 2_000
_MANY_BYTES: Final = 8 << 20
"""Requests, and their bytes, whose bodies are held at the same time."""


def decoded(some: Iterable[tuple[int, Decoded]]) -> Iterator[tuple[int, Decoded]]:
    """Decode requests many at a time, and pass them on, each with its session. The caller must not keep them, so that
    only one group of bodies is held at a time."""
    window: list[tuple[int, Decoded]] = []
    size = 0
    for numbered in some:
        window.append(numbered)
        if numbered[1].fast_path is None:
            size += len(numbered[1].request.data or b"") + len(numbered[1].request.answer or b"")
        if len(window) >= _MANY or size > _MANY_BYTES:
            _decode([message for _, message in window])
            yield from window
            window, size = [], 0
    _decode([message for _, message in window])
    yield from window


def _decode(window: Sequence[Decoded]) -> None:
    unread = (message for message in window if message.fast_path is None)
    wanted = [message for message in unread if message.request.data and message.request.row["api_key"] is not None]
    frames: list[Frame] = []
    for message in wanted:
        request = message.request
        assert request.data is not None
        key, version = (int.from_bytes(request.data[at : at + 2], "big", signed=True) for at in (0, 2))
        frames.append((request.data, key, version, REQUEST))
        frames.append((request.answer or b"", request.api_key, request.version, RESPONSE))
    bodies = tree.decode_frames(frames)
    for message, body, answer in zip(wanted, bodies[::2], bodies[1::2], strict=True):
        message.take(body, answer)


@dataclass(frozen=True, slots=True)
class Session:
    """One captured client connection.

    - `requests`: in the order in which they were sent; `orphans`: rows of responses whose request was not seen
    - `topic_ids`: names by topic id, which a dataset also has of messages that it does not have
    - `beside`: requests that are not sent, and say something of the captured cluster
    - `copy`: which copy of the capture it belongs to, 0 for the capture itself
    - `user`: the user that logged in, if the capture shows that (SASL)
    """

    capture: str
    connection: str
    broker: tuple[str, int]
    requests: tuple[Request, ...]
    orphans: tuple[Mapping[str, Any], ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[Request, ...] = ()
    copy: int = 0
    user: str | None = None


def _nanoseconds(row: Mapping[str, Any], name: str) -> int | None:
    if type(row) is Row:
        micros = row.micros(name)
        return None if micros is None else micros * 1000
    moment = row[name]
    return None if moment is None else ((moment - _EPOCH) // datetime.timedelta(microseconds=1)) * 1000


def request_of(row: Mapping[str, Any], data: bytes | None, answer: bytes | None) -> Request:
    """Make a request from a row and its frames."""
    sent = _nanoseconds(row, "request_time")
    assert sent is not None
    return Request(row, sent, _nanoseconds(row, "response_end"), data, answer)


def gathered(some: Iterable[CapturedExchange], topic_ids: Mapping[str, str] | None = None) -> list[Session]:
    """Group exchanges, in any order, into sessions in order of their first request."""
    requests: dict[tuple[str, str], list[Request]] = {}
    orphans: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    brokers: dict[tuple[str, str], tuple[str, int]] = {}
    users: dict[tuple[str, str], str] = {}
    for row, data, answer, user in some:
        key = row["capture"], row["connection"]
        brokers[key] = row["broker_ip"], row["broker_port"]
        requests.setdefault(key, [])
        if user is not None:
            users.setdefault(key, user)
        if row["exchange"] is None:
            orphans.setdefault(key, []).append(row)
        else:
            requests[key].append(request_of(row, data, answer))
    sessions = []
    for key, session_requests in requests.items():
        session_requests.sort(key=lambda request: request.exchange)
        orphaned = tuple(orphans.get(key, ()))
        named, user = topic_ids or {}, users.get(key)
        sessions.append(Session(*key, brokers[key], tuple(session_requests), orphaned, named, user=user))
    return sorted(sessions, key=_begun)


def _begun(session: Session) -> tuple[int, str]:
    return session.requests[0].sent_ns if session.requests else 0, session.connection


class CapturedExchange(NamedTuple):
    """A captured exchange: its row of the table `exchanges`, both frames without their lengths (None: not seen, or not
    whole), and the user that has logged in with it."""

    row: Mapping[str, Any]
    data: bytes | None
    answer: bytes | None
    user: str | None


def read_exchanges(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    how: ReadOptions,
    filter: Any = None,
    notes: list[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    ordered: bool | None = None,
    look: ChooseExchanges | None = None,
) -> Iterator[CapturedExchange]:
    """Read the exchanges of captures, about in order of their requests, or (not `ordered`; stdin always) as they end.

    `look`: as of `kwire.analyzer.api.light`; frames of Produce and Fetch are not kept then. Raises CaptureError and
    FilterError as `kwire.exchanges` does.
    """
    from kwire.analyzer import api
    from kwire.analyzer.analysis import traffic_summary
    from kwire.analyzer.analysis.logins import Login

    logins: dict[tuple[str, str], Login] = {}
    bodies = None if look is None else traffic_summary.OTHERS
    for light_exchange in api.raw_exchanges(
        captures, how, filter=filter, ordered=ordered, notes=notes, progress=progress, bodies=bodies, look=look
    ):
        row, data, answer = light_exchange
        user = None
        if row["api_key"] in _LOGINS:
            ended = logins.setdefault((row["capture"], row["connection"]), Login()).take(light_exchange.exchange())
            user = ended.name if ended is not None and ended.let_in else None
        yield CapturedExchange(
            row,
            data.data[4:] if data is not None and data.complete else None,
            answer.data[4:] if answer is not None and answer.complete else None,
            user,
        )


def from_captures(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    how: ReadOptions,
    filter: Any = None,
    notes: list[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Session]:
    """Read captures as `how` says. Raises CaptureError and FilterError as `kwire.exchanges` does."""
    return gathered(read_exchanges(captures, how=how, filter=filter, notes=notes, progress=progress))
