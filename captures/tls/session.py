"""One TLS connection: the bytes of both directions in, the plaintext that its keys open out.

In: runs of payload in order, each with the packet that brought it, and holes. Out: to a `PlaintextSink`, plaintext with
the packets that brought its ciphertext, and holes of plaintext. Rules

- Keys by trial: a record that does not open with the keys at hand is tried with those of the next epoch (early data,
  handshake, traffic). So a Finished or an EndOfEarlyData that was lost, a HelloRetryRequest, and a ChangeCipherSpec
  that says nothing need no care. A KeyUpdate changes the keys of its direction.
- After a hole, or a record that does not authenticate, the next header is sought whose record authenticates under one
  of the sequence numbers that so many bytes can have used. How many are tried is bounded by what the direction said.
- What is missing is said once it is known: exactly where each record has the same overhead, as a hole of unknown size
  else (`UNKNOWN`).
- Where the beginning was not captured (`midstream`), the first record that a traffic secret of TLS 1.3 opens says whose
  connection it is.
- Early data is handed on when the server has accepted it, and not at all where it was refused: it is said again then.
- All of it depends on the connection's bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from kwire.captures.stream_tables import SEG_COMPLETED_BY, SEG_KEY, SEG_LENGTH, SEG_PACKET_INDEX
from kwire.captures.tls import hello
from kwire.captures.tls.alerts import SEALED, alert_name, fatal
from kwire.captures.tls.ciphers import HEADER, TLS13, Keys, Opened, Opener, Opener13, opener12
from kwire.captures.tls.direction import BYTES_PER_TRIAL, EARLY_DATA, LARGEST, SHAKING, TRAFFIC_DATA, Direction, Row
from kwire.captures.tls.keylog import EARLY, HANDSHAKE, MASTER, SESSION, TRAFFIC, KeyLog
from kwire.captures.tls.midstream import MOST_SECRETS, Search, guesses
from kwire.captures.tls.runs import PlaintextSink as Many
from kwire.captures.tls.runs import Run
from kwire.captures.tls.suites import BY_SECRET, SUITES

UNKNOWN: Final = 1 << 40
"""Size of a hole of which nobody knows how much plaintext it took: more than any frame, so that none is followed
through it."""

_CHANGE_CIPHER, _ALERT, _HANDSHAKE, _DATA = 20, 21, 22, 23

_JAVAS_PADDING: Final = 16
"""Zeros that Java (from 11 on: OutputRecord's T13PaddingHolder) puts behind the text of every record of TLS 1.3."""

MOST_HANDSHAKE: Final = 1 << 18
"""Bytes kept of a handshake message that is not whole: more than chains of certificates have."""

MOST_EARLY: Final = 1 << 20
"""Bytes of early data kept until the server says whether it takes them; servers take 16 KiB by default."""

MOST_WAITING: Final = 1 << 20
"""Bytes of a connection that wait for its keys, where keys may come later."""

MOST_PASSED: Final = 32
"""Records that may fail to open before traffic does: handshakes whose keys are not logged, early data refused."""

_FEW: Final = 32
_LEAST_RECORD: Final = 21
"""Bytes of a record without content: header and tag (TLS 1.2 with ChaCha20)."""


class Sink(Protocol):
    """Takes what a session gives."""

    def text(self, row: Row, data: bytes) -> None:
        """Plaintext whose ciphertext `row` brought."""
        ...

    def hole(self, size: int, row: Row) -> None:
        """So many bytes of plaintext are missing; `row` is the hole, or where it was noticed."""
        ...


class SinkOfMany(Sink, Many, Protocol):
    """Takes many rows at once, too."""


class Session:
    """One TLS connection.

    first       the first 8 bytes of each side, as one number
    taken       bytes of payload that were taken
    given       bytes of plaintext that came of them
    version, suite   as the ServerHello says; 0: it was not seen
    server_name, protocol, certificate   what the hellos and the server's Certificate say; None, b"": nothing
    alert       who gave it up and why: the side that said it, and the alert's name; None: nobody did
    client      the side that a hello says is the client's; -1: none was seen
    retried     the server asked for another ClientHello
    """

    __slots__ = (
        "_accepted",
        "_client",
        "_gaps",
        "_keys",
        "_nameless",
        "_offers_early",
        "_openers",
        "_outside",
        "_patient",
        "_random",
        "_search_of",
        "_server_random",
        "_session",
        "_sides",
        "_waiting",
        "_waiting_bytes",
        "alert",
        "bytes_in",
        "certificate",
        "first",
        "given",
        "protocol",
        "retried",
        "server_name",
        "suite",
        "version",
    )

    def __init__(self, keys: KeyLog, patient: bool = False, midstream: bool = False) -> None:
        self._keys = keys
        self._search_of = Search() if midstream else None
        self._patient = patient
        self._sides = (Direction(), Direction())
        self._client = -1
        self._random: bytes | None = None
        self._server_random = self._session = b""
        self._nameless: bytes | None = None  # the master secret of a session without a name
        self._accepted: bool | None = None  # early data
        self._offers_early = self._outside = False
        self._openers: dict[tuple[int, int, int], tuple[Opener13, ...]] = {}
        self._waiting: list[tuple[Row, bytes | None]] | None = None
        self._waiting_bytes = 0
        self.first = [0, 0]
        self.bytes_in = self.given = 0
        self.version = self.suite = 0
        self.server_name: str | None = None
        self.protocol: str | None = None
        self.certificate = b""
        self.alert: tuple[int, str] | None = None
        self.retried = self._gaps = False
        for d in self._sides:
            d.lost = d.has_data = midstream

    # -- what is known of it -------------------------------------------------------------------------------------------
    @property
    def saw_client_hello(self) -> bool:
        """Whether a ClientHello was seen, and no handshake byte is missing."""
        return self._random is not None and self._client >= 0 and not self._gaps

    @property
    def client(self) -> int:
        return self._client

    @property
    def answered(self) -> bool:
        """Something came of both sides."""
        return all(d.end for d in self._sides)

    @property
    def settled(self) -> bool:
        """Whether all further records need keys."""
        return all(d.sealed or d.lost for d in self._sides) or self.bytes_in > MOST_HANDSHAKE

    @property
    def known(self) -> bool:
        """Whose connection it is has been found out."""
        return self._random is not None

    def forget(self) -> None:
        """Nothing more comes: give up the bytes of records that are not whole."""
        for d in self._sides:
            d.pieces, d.have, d.message = [], 0, b""
            d.runs.clear()

    def take_up(self, keys: KeyLog) -> None:
        """It was stored without its keys, and goes on with those of a log. A direction whose keys are not there, or
        were not known by a name, is as after a hole."""
        self._keys = keys
        for side, d in enumerate(self._sides):
            if d.rank < 0:
                continue
            if self.version == TLS13:
                d.opener = self._opener13(d, side)
            else:
                self._derive(d, side)
            if d.opener is None:
                d.rank, d.lost = -1, True

    def _opener13(self, d: Direction, side: int) -> Opener | None:
        """That of the epoch that a direction is in."""
        server = int(side != self._client)
        secret = self._keys.find(("" if server else EARLY, HANDSHAKE[server], TRAFFIC[server])[d.rank], self._random)
        if secret is None or self.suite not in BY_SECRET.get(len(secret), ()):
            return None
        opener = Opener13(secret, self.suite)
        for _ in range(d.updates):
            opener = opener.following()
        return opener

    # -- what comes in -------------------------------------------------------------------------------------------------
    def data(self, row: Row, data: bytes, sink: Sink) -> None:
        """Payload in order; `row` is its row of `Segments`."""
        side = row[SEG_KEY] & 1
        self.bytes_in += len(data)
        if not self.first[side]:
            self.first[side] = int.from_bytes(data[:8].ljust(8, b"\0"), "big", signed=True)
        if self._waiting is None and self._patient and self.version and not self._has_keys():
            self._waiting = []
        if self._waiting is not None:
            self._wait(row, data, sink)
        else:
            self._data(row, data, sink)

    def missing(self, row: Row, sink: Sink) -> None:
        """Payload that was not captured."""
        self._gaps = True
        if self._waiting is not None:
            self._wait(row, None, sink)
        else:
            self._missing(row)

    def over(self, row: Row, sink: Sink) -> None:
        """No more comes from this side: what is missing at its end is said before that."""
        if self._waiting is not None:
            self._stop_waiting(sink)
        d = self._sides[row[SEG_KEY] & 1]
        if d.rank >= 0 and d.lost:
            sink.hole(UNKNOWN, d.hole or row)
            d.lost, d.hole = False, None
        d.pieces, d.have, d.begin, d.good, d.need, d.early = [], 0, d.end, d.end, HEADER, []
        d.runs.clear()

    def oldest(self) -> int | None:
        """Index of the first packet with bytes that wait; None: there is none."""
        rows = [d.runs[0][1] for d in self._sides if d.runs]
        rows += [d.early[0][0] for d in self._sides if d.early]
        rows += [row for row, _ in (self._waiting or [])[:1]]
        return min((row[SEG_PACKET_INDEX] for row in rows), default=None)

    # -- waiting for keys ----------------------------------------------------------------------------------------------
    @property
    def waits(self) -> bool:
        """Bytes wait for keys."""
        return self._waiting is not None

    def resume(self, sink: Sink) -> None:
        """Go on with what waits, if there are keys now."""
        if self._waiting is not None and self._has_keys():
            self._stop_waiting(sink)

    def _wait(self, row: Row, data: bytes | None, sink: Sink) -> None:
        assert self._waiting is not None
        self._waiting.append((row, data))
        self._waiting_bytes += len(data or b"")
        if self._waiting_bytes > MOST_WAITING or len(self._waiting) > MOST_WAITING >> 6:
            self._stop_waiting(sink)

    def _stop_waiting(self, sink: Sink) -> None:
        """Go on without waiting any more."""
        waiting, self._waiting, self._patient = self._waiting or [], None, False
        for row, data in waiting:
            if data is None:
                self._missing(row)
            else:
                self._data(row, data, sink)

    def _has_keys(self) -> bool:
        """Whether there is any secret of this connection; also True if it cannot be told whose they would be."""
        if self._random is None:
            return True
        labels = (MASTER, *HANDSHAKE, *TRAFFIC)
        has_secret = any(self._keys.find(label, self._random) is not None for label in labels)
        return has_secret or self._keys.find(SESSION, self._session) is not None

    # -- records -------------------------------------------------------------------------------------------------------
    def _missing(self, row: Row) -> None:
        d = self._sides[row[SEG_KEY] & 1]
        d.end += row[SEG_LENGTH]
        d.pieces, d.have, d.need, d.begin, d.message = [], 0, HEADER, d.end, b""
        d.runs.clear()
        self._lose(d, row)

    def _lose(self, d: Direction, row: Row) -> None:
        d.lost = True
        d.message = b""
        if d.hole is None:
            d.hole = row

    def _data(self, row: Row, data: bytes, sink: Sink) -> None:
        side = row[SEG_KEY] & 1
        d = self._sides[side]
        d.runs.append((d.end, row))
        d.pieces.append(data)
        d.have += len(data)
        d.end += len(data)
        d.trials += len(data) // BYTES_PER_TRIAL + 1
        if d.have >= d.need:
            self._records(d, row, sink)

    def _records(self, d: Direction, row: Row, sink: Sink) -> None:
        """Open the records that are whole; `row` brought the last bytes."""
        side = row[SEG_KEY] & 1
        data = d.pieces[0] if len(d.pieces) == 1 else b"".join(d.pieces)
        at = 0
        d.need = HEADER
        while len(data) - at >= HEADER:
            if d.lost:
                at, d.need = self._seek(d, side, data, at, sink)
                if d.lost:
                    break
                continue
            size = data[at + 3] << 8 | data[at + 4]
            if not _CHANGE_CIPHER <= data[at] <= _DATA or data[at + 1] != 3 or size > LARGEST:
                self._lose(d, row)
                continue
            end = at + HEADER + size
            if len(data) < end:
                d.need = HEADER + size
                break
            head, body = data[at : at + HEADER], data[at + HEADER : end]
            if data[at] == _DATA or d.protected:
                self._sealed(d, side, size)
            if data[at] == _DATA or (d.protected and self.version != TLS13):
                opened = self._open(d, side, head, body)
                if opened is not None:
                    self._deliver(d, side, opened, d.begin + at, sink)
                elif not self._may_pass(d, side):
                    self._lose(d, row)
                    continue
            elif data[at] == _HANDSHAKE:
                self._handshake(d, side, body, False, sink)
            elif data[at] == _ALERT:
                self._alert(side, body)
            elif data[at] == _CHANGE_CIPHER and self.version not in (0, TLS13):
                d.protected, d.message = True, b""
            at = end
            if not d.passed:
                d.good = d.begin + at
        d.pieces = [data[at:]] if at < len(data) else []
        d.begin += at
        d.have = len(data) - at
        while d.runs and d.runs[0][0] + d.runs[0][1][SEG_LENGTH] <= d.begin:
            d.runs.popleft()

    def _may_pass(self, d: Direction, side: int) -> bool:
        """Whether a record that does not open is simply passed over: there are no keys, or they are those of later
        records."""
        if d.opener is None and not any(True for _ in self._later(d, side)):
            return True
        if d.rank < TRAFFIC_DATA and d.passed < MOST_PASSED:
            d.passed += 1
            return True
        return False

    def _open(self, d: Direction, side: int, head: bytes, body: bytes) -> Opened | None:
        """A protected record, where nothing is missing before it."""
        if d.opener is None and self.version and self.version != TLS13:
            if self._nameless is None and not self._session and not d.passed:
                self._name(side, head, body)
            self._derive(d, side)
        if d.opener is not None:
            opened = d.opener.open(d.number, head, body)
            if opened is not None:
                d.number += 1
                return opened
        for rank, opener in self._later(d, side):
            opened = opener.open(0, head, body)
            if opened is not None:
                d.opener, d.rank, d.number, d.passed = opener, rank, 1, 0
                return opened
        return None

    def _derive(self, d: Direction, side: int) -> None:
        """The keys of TLS 1.2, once the ServerHello is known."""
        master = self._keys.find(MASTER, self._random) or self._keys.find(SESSION, self._session or None)
        master = master or self._nameless
        if master is not None:
            d.opener = self._opener12(master, side)
        if d.opener is not None:
            d.rank = TRAFFIC_DATA

    def _opener12(self, master: bytes, side: int) -> Opener | None:
        if self._random is None or self._client < 0:
            return None
        randoms = self._server_random + self._random
        return opener12(master, randoms, self.suite, self.version, side != self._client, self._outside)

    def _name(self, side: int, head: bytes, body: bytes) -> None:
        """A server that gives tickets names no session, so a line of an agent for Java does not say that it is of this
        one: the name in it comes with the next connection. Which it is, the first record tells."""
        if self._keys.find(MASTER, self._random) is not None:
            return
        for name in self._keys.names(SESSION)[:MOST_SECRETS]:
            master = self._keys.find(SESSION, name)
            opener = self._opener12(master, side) if master is not None else None
            if opener is not None and opener.open(0, head, body) is not None:
                self._nameless = master
                return

    def _later(self, d: Direction, side: int) -> Iterator[tuple[int, Opener13]]:
        """Keys of TLS 1.3 for the epochs after the one at hand."""
        if self._random is None or (self.version and self.version != TLS13):
            return
        server = int(side != self._client)
        labels = ("" if server else EARLY, HANDSHAKE[server], TRAFFIC[server])
        for rank in range(d.rank + 1, TRAFFIC_DATA + 1):
            known = self.suite if rank > EARLY_DATA else 0
            if (server, rank, known) not in self._openers:
                secret = self._keys.find(labels[rank], self._random)
                if secret is None:
                    continue
                suites = [suite for suite in BY_SECRET.get(len(secret), ()) if not known or suite == known]
                self._openers[server, rank, known] = tuple(Opener13(secret, suite) for suite in suites)
            for opener in self._openers[server, rank, known]:
                yield rank, opener

    # -- many records at once ------------------------------------------------------------------------------------------
    def steady(self, side: int) -> tuple[Keys, Direction] | None:
        """Return the keys for many records of a side at once; None: they need a look one by one."""
        d = self._sides[side]
        if d.rank != TRAFFIC_DATA or d.lost or d.message or d.opener is None or self._waiting is not None:
            return None
        keys = d.opener.keys
        return (keys, d) if keys is not None else None

    def worked(self, side: int, run: Run, rows: np.ndarray, sink: SinkOfMany) -> None:
        """Rows of a side that is steady were worked on, and the direction knows what is left; where that is more than a
        part of a record, it is looked at."""
        if not run.whole:
            return
        d = self._sides[side]
        d.number = run.number
        d.trials += run.trials
        d.sealed = True
        d.has_data = d.has_data or run.given > 0
        self.bytes_in += run.bytes_in
        self.given += run.given
        if d.have >= d.need:
            row = rows[run.place].tolist()
            sink.at(run.place, row[SEG_COMPLETED_BY])
            self._records(d, row, sink)

    # -- after a hole --------------------------------------------------------------------------------------------------
    def _seek(self, d: Direction, side: int, data: bytes, at: int, sink: Sink) -> tuple[int, int]:
        """Find the next record that opens, from `at` on: where the one behind it begins, or (`lost` stays) what to keep
        and how many bytes it takes to look again."""
        while True:
            place = data.find(b"\x17\x03", at)
            if place < 0:
                return max(at, len(data) - HEADER + 1), HEADER
            if place + HEADER > len(data):
                return place, HEADER
            at = place + 1
            size = data[place + 3] << 8 | data[place + 4]
            if data[place + 2] > 4 or not 16 < size <= LARGEST:
                continue
            end = place + HEADER + size
            if end > len(data):
                return place, HEADER + size
            if end + 2 <= len(data) and (data[end + 1] != 3 or not _CHANGE_CIPHER <= data[end] <= _DATA):
                continue  # no header follows
            head, body = data[place : place + HEADER], data[place + HEADER : end]
            missing = d.begin + place - d.good
            opened = self._search(d, side, head, body, missing, sink)
            if opened is not None:
                d.lost, d.hole, d.passed = False, None, 0
                d.protected = d.protected or self.version != TLS13
                self._deliver(d, side, opened, d.begin + place, sink)
                d.good = d.begin + end
                return end, HEADER

    def _search(self, d: Direction, side: int, head: bytes, body: bytes, missing: int, sink: Sink) -> Opened | None:
        """Open a record after a hole of so many bytes, whatever its number is, and say what is missing before it."""
        if self._search_of is not None and d.opener is None:
            return self._recall(self._search_of, d, side, head, body)
        if d.opener is None and self.version and self.version != TLS13:
            self._derive(d, side)
        most = missing // _LEAST_RECORD + 2
        ways: list[tuple[Opener, int, int]] = []
        if d.opener is not None:
            ways.append((d.opener, d.rank, d.number))
        ways += [(opener, rank, 0) for rank, opener in self._later(d, side)]
        if d.opener is not None and d.rank == TRAFFIC_DATA:
            following = d.opener.following()
            if following is not None:
                ways.append((following, d.rank, 0))
        for begin, stop in ((0, min(_FEW, most)), (_FEW, most)):  # the likely ones first
            for opener, rank, first in ways:
                if begin and rank < TRAFFIC_DATA:
                    continue
                for number in range(first + begin, first + stop):
                    if d.trials <= 0 or d.left <= 0:
                        return None
                    d.trials -= 1
                    d.left -= 1
                    opened = opener.open(number, head, body)
                    if opened is not None:
                        padding = len(body) - len(opened.plain) - (opener.overhead or 0) + HEADER
                        size = self._missed(d, opener, rank, number, missing, padding)
                        if size and d.hole is not None:
                            sink.hole(size, d.hole)
                        d.updates += int(d.opener is not None and rank == d.rank and opener is not d.opener)
                        d.opener, d.rank, d.number = opener, rank, number + 1
                        return opened
        return None

    def _recall(self, search: Search, d: Direction, side: int, head: bytes, body: bytes) -> Opened | None:
        """Open a record of a direction whose beginning was not captured."""
        server = None if self._client < 0 else side != self._client
        known = guesses(self._keys, self._random, server, self.suite)[: 2 * MOST_SECRETS]
        match = search.find(known, head, body)
        if match is None:
            return None
        self._random, self.version, self.suite = match.random, TLS13, match.opener.suite
        self._client = 1 - side if match.server else side
        d.opener, d.rank, d.number = match.opener, TRAFFIC_DATA, match.number + 1
        return match.opened

    def _missed(self, d: Direction, opener: Opener, rank: int, number: int, missing: int, padding: int) -> int:
        """Return the plaintext bytes that a hole took, UNKNOWN if that cannot be told.

        padding: of the record that follows it; senders that pad in another way than Java may have padded each
        missing record differently."""
        if rank < TRAFFIC_DATA:
            return 0
        if not d.has_data:
            first = 0 if self.version == TLS13 else 1  # behind a Finished
            return 0 if number <= first else UNKNOWN
        if opener is not d.opener or opener.overhead is None or padding not in (0, _JAVAS_PADDING):
            return UNKNOWN
        size = missing - (number - d.number) * (opener.overhead + padding)
        return size if size >= 0 else UNKNOWN

    # -- what records hold ---------------------------------------------------------------------------------------------
    def _deliver(self, d: Direction, side: int, opened: Opened, at: int, sink: Sink) -> None:
        """`at`: where the record begins."""
        if opened.kind == _HANDSHAKE:
            self._handshake(d, side, opened.plain, True, sink)
            return
        if opened.kind == _ALERT:
            self._alert(side, opened.plain)
        if opened.kind != _DATA or not opened.plain:
            return
        early = d.rank == EARLY_DATA and self._accepted is not True
        if early and self._accepted is False:
            return
        d.has_data = d.has_data or d.rank == TRAFFIC_DATA
        plain, begin = opened.plain, at + HEADER + opened.skip
        end = begin + len(plain)
        for first, row in d.runs:
            last = first + row[SEG_LENGTH]
            if last <= begin:
                continue
            if first >= end:
                break
            piece = plain[max(first, begin) - begin : min(last, end) - begin]
            if early:
                d.early.append((row, piece))
                d.early_bytes += len(piece)
            else:
                self.given += len(piece)
                sink.text(row, piece)
        if d.early_bytes > MOST_EARLY:
            self._accept(False, sink)

    def _accept(self, accepted: bool, sink: Sink) -> None:
        """The server takes early data, or it does not: then it is said again."""
        if self._accepted is not None:
            return
        self._accepted = accepted
        for d in self._sides:
            waiting, d.early, d.early_bytes = d.early, [], 0
            for row, piece in waiting if accepted else ():
                self.given += len(piece)
                sink.text(row, piece)

    def _handshake(self, d: Direction, side: int, data: bytes, protected: bool, sink: Sink) -> None:
        d.message += data
        while len(d.message) >= 4:
            size = int.from_bytes(d.message[1:4], "big")
            if size > MOST_HANDSHAKE:
                d.message = b""
                return
            if len(d.message) < 4 + size:
                return
            kind, body, d.message = d.message[0], d.message[4 : 4 + size], d.message[4 + size :]
            if protected:
                self._read_sealed(d, side, kind, body, sink)
            else:
                self._read_hello(side, kind, body, sink)

    def _alert(self, side: int, body: bytes) -> None:
        """An alert in the clear, or one that was opened."""
        number = fatal(body, self.version == TLS13)
        if number is not None and (self.alert is None or self.alert[1] == SEALED):
            self.alert = (side, alert_name(number))

    def _sealed(self, d: Direction, side: int, size: int) -> None:
        """A record that only keys open. The first of a client of TLS 1.3 is its Finished, or an alert: that has two
        bytes, and the content type (RFC 8446, 5.2 and 6)."""
        if not d.sealed and self.version == TLS13 and side == self._client and not self._offers_early:
            suite = SUITES.get(self.suite)
            if suite is not None and size == 3 + suite.tag:
                self.alert = (side, SEALED)
        d.sealed = True

    def _read_hello(self, side: int, kind: int, body: bytes, sink: Sink) -> None:
        """A handshake message in the clear."""
        if kind == hello.CLIENT_HELLO and self._client in (-1, side) and self._random is None:
            client = hello.client_hello(body)
            if client is not None:
                self._client, self._random = side, client.random
                self.server_name, self._offers_early = client.server_name, client.early
        elif kind == hello.SERVER_HELLO and self._client in (-1, 1 - side) and not self.version:
            answer = hello.server_hello(body)
            if answer is not None:
                self._client = 1 - side
                if answer.retry:
                    self.retried = True
                    self._accept(False, sink)
                    return
                self.version, self.suite = answer.version, answer.suite
                self._server_random, self._session, self._outside = answer.random, answer.session, answer.outside
                self.protocol = answer.protocol
        elif kind == hello.CERTIFICATE and side != self._client and not self.certificate:
            self.certificate = hello.first_certificate(body, self.version)

    def _read_sealed(self, d: Direction, side: int, kind: int, body: bytes, sink: Sink) -> None:
        """A handshake message inside a record that was opened."""
        server = side != self._client
        if kind == hello.KEY_UPDATE and d.rank == TRAFFIC_DATA and d.opener is not None:
            following = d.opener.following()
            if following is not None:
                d.opener, d.number, d.updates = following, 0, d.updates + 1
        elif kind == hello.ENCRYPTED_EXTENSIONS and server and d.rank == SHAKING:
            self.protocol, accepted = hello.encrypted_extensions(body)
            self._accept(accepted, sink)
        elif kind == hello.END_OF_EARLY and not server and d.rank == EARLY_DATA:
            self._accept(True, sink)
        elif kind == hello.CERTIFICATE and server and d.rank == SHAKING and not self.certificate:
            self.certificate = hello.first_certificate(body, self.version)
