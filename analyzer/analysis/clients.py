"""Clients: table `clients`, a row for each client id and address.

In: windows, and the exchanges of logins. Out: software, name, groups, topics, APIs with their versions, counts and
times of each client. Rules: counted by columns, no object a row; exchanges of a connection without a client id (its
first requests, responses whose requests were not captured; an empty id is none) count for its first client id. State
grows with the rows of the table and with the open connections. Limits: beyond `MAX_CLIENTS` clients, in order of their
first exchange, the rest are one row without client id and address; beyond `MAX_NAMED` names in one list, those that
come last in the alphabet are left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName
from kwire.analyzer.analysis.combinations import pairs
from kwire.analyzer.analysis.control_exchanges import Border, ControlExchange
from kwire.analyzer.analysis.logins import Login, session_lifetime
from kwire.analyzer.bulk import row_groups as c
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.bulk.shard_result import Connections
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import schema

MAX_CLIENTS: Final = 100_000
"""Rows of `clients` but one. Each takes about half a kilobyte until the end, and a client id is any text."""
MAX_NAMED: Final = 1000
"""Names in one list of a row."""
_AT_ONCE: Final = 8192
"""Rows that are Python objects at a time."""

Key = tuple[str | None, str | None]
"""Client id and address."""
Place = tuple[int, int]
Named = tuple[str, ...] | set[str] | None
"""Names, each once: of up to `FEW_NAMES` a tuple."""
FEW_NAMES: Final = 8

_WRITING: Final = np.array([apis.PRODUCE])
_READING: Final = np.array([apis.FETCH, apis.SHARE_FETCH])
_LOGINS: Final = (apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE)


@dataclass(slots=True)
class _Client:
    """Counts of one client, or of a connection that has no client id yet."""

    first: Place
    connections: int = 0
    exchanges: int = 0
    errors: int = 0
    first_ns: int = s.NULL
    last_ns: int = s.NULL
    uses: tuple[int, ...] = ()  # of each API four: key, lowest and highest version, exchanges; a dict takes 300 bytes
    # Most clients have nothing of some of these, and little of others: a set takes 200 bytes.
    groups: Named = None
    written: Named = None
    read: Named = None
    software: Counter[tuple[str | None, str | None]] | None = None
    principals: tuple[str, ...] = ()  # two at most: with several there is no principal
    refused: tuple[str, ...] = ()
    refused_status: str | None = None  # of the last challenge
    lifetime_ms: int = 0  # the shortest session that a broker granted; 0: none has an end

    def granted(self, lifetime_ms: int) -> None:
        """A session that ends after this time, or (0) never."""
        if lifetime_ms > 0:
            self.lifetime_ms = min(self.lifetime_ms or lifetime_ms, lifetime_ms)

    def count(self, exchanges: int, errors: int, first_ns: int, last_ns: int) -> None:
        """Exchanges, those with an error, the first and the last byte of them."""
        self.exchanges += exchanges
        self.errors += errors
        if first_ns != s.NULL:
            self.first_ns = first_ns if self.first_ns == s.NULL else min(self.first_ns, first_ns)
        self.last_ns = max(self.last_ns, last_ns)  # NULL is below all times

    def used(self, api: int, lowest: int, highest: int, exchanges: int) -> None:
        uses = self.uses
        for at in range(0, len(uses), 4):
            if uses[at] == api:
                use = api, min(uses[at + 1], lowest), max(uses[at + 2], highest), uses[at + 3] + exchanges
                self.uses = (*uses[:at], *use, *uses[at + 4 :])
                return
        self.uses = (*uses, api, lowest, highest, exchanges)

    def used_apis(self) -> Iterator[tuple[int, ...]]:
        """(key, lowest version, highest, exchanges) of each API."""
        return (self.uses[at : at + 4] for at in range(0, len(self.uses), 4))

    def join(self, other: _Client) -> None:
        self.first = min(self.first, other.first)
        self.connections += other.connections
        self.count(other.exchanges, other.errors, other.first_ns, other.last_ns)
        for use in other.used_apis():
            self.used(*use)
        self.groups = _added(self.groups, other.groups)
        self.written = _added(self.written, other.written)
        self.read = _added(self.read, other.read)
        self.software = _counted(self.software, other.software)
        self.principals = _few(self.principals, other.principals)
        self.refused = _few(self.refused, other.refused)
        self.refused_status = other.refused_status or self.refused_status
        self.granted(other.lifetime_ms)


def _added(names: Named, more: Named) -> Named:
    """With more names; of too many, those that come first in the alphabet stay, in whatever order they came."""
    if not more:
        return names
    if not names and len(more) <= FEW_NAMES:
        return tuple(more)
    if isinstance(names, tuple):
        new = [name for name in more if name not in names]
        if not new:
            return names
        if len(names) + len(new) <= FEW_NAMES:
            return (*names, *new)
    merged = names if isinstance(names, set) else set(names or ())
    merged.update(more)
    if len(merged) > 2 * MAX_NAMED:
        merged.intersection_update(sorted(merged)[:MAX_NAMED])
    return merged


def _counted(counter: Counter[Any] | None, more: Iterable[Any] | None) -> Counter[Any] | None:
    """With more, counted or one by one."""
    if not more:
        return counter
    if counter is None:
        counter = Counter()
    counter.update(more)
    return counter


def _few(names: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    """With more, as far as it matters whether these are none, one or several."""
    return tuple(dict.fromkeys((*names, *more)))[:2]


@dataclass(slots=True)
class _Open:
    """An open connection. A hundred thousand may be open: most have one client id, and no login."""

    born: int
    ip: str
    first: str | None = None
    unnamed: str | None = None  # its id until then: none, or an empty one
    counted: bool = False
    others: set[str] | None = None
    waiting: _Client | None = None
    login: Login | None = None
    principal: str | None = None  # the last login
    since: str | None = None  # the login at the start of this rotation


@dataclass(slots=True)
class Clients:
    """Counts what clients do (a `ResumableCollector`)."""

    _clients: dict[Key, _Client] = field(default_factory=dict)
    _rest: _Client | None = None  # those beyond MAX_CLIENTS
    _latest: Place | None = None  # once there was one: no client that is kept began later
    _open: dict[int, _Open] = field(default_factory=dict)  # by number of the connection
    groups_before: dict[Key, set[str]] = field(default_factory=dict)
    """Groups of clients that an earlier rotation left connected."""

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        if len(window.every):
            self._count(window, control)
        names = window.names
        ended = window.connections
        for i in np.flatnonzero(ended["is_kafka"]).tolist() if len(ended) else ():
            self._software(ended, i, names)
        for number in ended.number.tolist():
            connection = self._open.pop(number, None)
            if connection is not None and connection.born == names.serials[number]:
                self._close(connection)
        self._cut()

    def _count(self, window: Window, control: Sequence[ControlExchange]) -> None:
        """Count all that columns hold, and logins."""
        every, names = window.every, window.names
        table, place = c.used(every.columns, every.connection)
        uses = table.tolist()
        client_ids = [names.strings[use[c.U_CLIENT]] if use[c.U_CLIENT] != s.NULL else None for use in uses]
        # In order: a connection's first client id is the first of its exchanges.
        for use, client in zip(uses, client_ids, strict=True):
            self._learn(use[c.U_CONNECTION], client, names)
        trigger = every.column("completed_by")[table[:, c.U_FIRST]].tolist()
        of: list[_Client] = []
        for use, client, packet in zip(uses, client_ids, trigger, strict=True):
            number = use[c.U_CONNECTION]
            client_of_use = self._of(number, client, (packet, names.serials[number]))
            client_of_use.count(*use[c.U_EXCHANGES : c.U_COLUMNS])
            if s.NULL not in (use[c.U_API], use[c.U_VERSION]):
                client_of_use.used(use[c.U_API], use[c.U_VERSION], use[c.U_VERSION], use[c.U_EXCHANGES])
            if use[c.U_GROUP] != s.NULL:
                client_of_use.groups = _added(client_of_use.groups, (names.strings[use[c.U_GROUP]],))
            of.append(client_of_use)
        self._topics(window, place, table[:, c.U_API], of)
        for login in control:
            if login.exchange.api_key in _LOGINS:
                speaker = self._open[int(every.connection[login.row])]
                speaker.login = speaker.login or Login()
                ended, client_of = speaker.login.take(login.exchange), of[place[login.row]]
                client_of.granted(session_lifetime(login.exchange))
                if ended is not None and ended.let_in:
                    speaker.principal = ended.name
                    client_of.principals = _few(client_of.principals, (ended.name,))
                elif ended is not None:
                    client_of.refused = _few(client_of.refused, (ended.name,) if ended.name else ())
                    client_of.refused_status = ended.status or client_of.refused_status

    def _learn(self, number: int, client: str | None, names: Names) -> None:
        """Note that a connection has sent something with this client id."""
        connection = self._open.get(number)
        if connection is None or connection.born != names.serials[number]:
            if connection is not None:
                self._close(connection)  # its number was given to another: it has ended
            connection = self._open[number] = _Open(names.serials[number], names.strings[names.ends[number][0]])
        if client == "":
            connection.unnamed = ""
        elif client is not None and connection.first is None:
            connection.first = client
            if connection.waiting is not None:
                self._client((client, connection.ip), connection.waiting.first).join(connection.waiting)
                connection.waiting = None
                connection.counted = True

    def _of(self, number: int, client: str | None, place: Place) -> _Client:
        """Whose what is counted is; the connection is counted where it is new there."""
        connection = self._open[number]
        client = client or connection.first
        if client is None:
            if connection.waiting is None:
                connection.waiting = _Client(place)
                self._comes(connection, connection.waiting)
            connection.waiting.first = min(connection.waiting.first, place)
            return connection.waiting
        counted = self._client((client, connection.ip), place)
        if client == connection.first:
            if not connection.counted:
                connection.counted = True
                self._comes(connection, counted)
        elif connection.others is None or client not in connection.others:
            connection.others = connection.others or set()
            connection.others.add(client)
            self._comes(connection, counted)
        return counted

    @staticmethod
    def _comes(connection: _Open, client: _Client) -> None:
        """Count a connection that is new for a client in this rotation."""
        client.connections += 1
        if connection.since is not None:
            client.principals = _few(client.principals, (connection.since,))

    def _client(self, key: Key, place: Place) -> _Client:
        known = self._clients.get(key)
        if known is None:
            known = self._clients[key] = _Client(place)
        known.first = min(known.first, place)
        return known

    @staticmethod
    def _topics(window: Window, place: np.ndarray, api: np.ndarray, of: list[_Client]) -> None:
        """Topics written and read. place int64[n]: which use each exchange is of; api: of each use."""
        every, strings = window.every, window.names.strings
        parts = every.partitions
        written, read = arrow.among(api, _WRITING), arrow.among(api, _READING)
        if not (written | read).any():
            return
        use = place[every.owner]
        topic = np.where(parts[s.P_TOPIC] != s.NULL, parts[s.P_TOPIC], parts[s.P_TOPIC_ID])
        rows = (written | read)[use] & (topic != s.NULL)
        if not rows.all():
            use, topic = use[rows], topic[rows]
        if not len(use):
            return
        for use_number, named in zip(*(column.tolist() for column in pairs(use, topic)), strict=True):
            client = of[use_number]
            if written[use_number]:
                client.written = _added(client.written, (strings[named],))
            else:
                client.read = _added(client.read, (strings[named],))

    def _software(self, ended: Connections, i: int, names: Names) -> None:
        """Count the client software that a connection that has ended reported (ApiVersions, KIP-511)."""
        symbols = [int(ended[column][i]) for column in ("client_id", "software_name", "software_version")]
        if symbols[1] == s.NULL:
            return
        client, *software = (None if symbol == s.NULL else names.strings[symbol] for symbol in symbols)
        number = int(ended.number[i])
        key = client, names.strings[names.ends[number][0]]
        place = (int(ended.completed_by[i]), names.serials[number])
        counted = self._client(key, place)
        counted.software = _counted(counted.software, ((software[0], software[1]),))

    def _close(self, connection: _Open) -> None:
        if connection.waiting is not None:
            self._client((connection.unnamed, connection.ip), connection.waiting.first).join(connection.waiting)

    def _cut(self) -> None:
        """Clients beyond MAX_CLIENTS become part of the rest, those that began last."""
        over = len(self._clients) - MAX_CLIENTS
        if over <= 0:
            return
        clients = self._clients
        later = list(itertools.islice(reversed(clients), over))  # those that came last began last, but for a few
        if self._latest is None or any(clients[key].first <= self._latest for key in later):
            ordered = sorted(clients, key=lambda key: clients[key].first)
            later = ordered[MAX_CLIENTS:]
            self._latest = clients[ordered[MAX_CLIENTS - 1]].first if MAX_CLIENTS else (-1, -1)
        for key in later:
            client = self._clients.pop(key)
            if self._rest is None:
                self._rest = _Client(client.first)
            counted = _Client(client.first, client.connections)
            counted.count(client.exchanges, client.errors, client.first_ns, client.last_ns)
            self._rest.join(counted)

    def join(self, other: Clients) -> None:
        for key, client in other._clients.items():
            self._client(key, client.first).join(client)
        for connection in other._open.values():
            self._close(connection)
        if other._rest is not None:
            self._rest = self._rest or _Client(other._rest.first)
            self._rest.join(other._rest)
        self._cut()

    @property
    def held_bytes(self) -> int:
        """None that would go: a client is one row, whenever it speaks."""
        return 0

    def onward(self, border: Border) -> Clients:
        """Connections that are open: who speaks on them."""
        del border
        after = Clients()
        for number, connection in self._open.items():
            login = None if connection.login is None else replace(connection.login)
            after._open[number] = replace(
                connection, counted=False, others=None, waiting=None, login=login, since=connection.principal
            )
            for key in ((client, connection.ip) for client in {connection.first, *(connection.others or ())}):
                groups = set((self._clients[key].groups if key in self._clients else None) or ())
                if groups or key in self.groups_before:
                    after.groups_before[key] = groups | self.groups_before.get(key, set())
        return after

    def groups(self) -> dict[Key, list[str]]:
        """The groups that each client took part in so far; those that took part in none are left out."""
        return {key: _listed(client.groups) for key, client in self._clients.items() if client.groups}

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        for connection in self._open.values():
            self._close(connection)
        self._open = {}
        silent = [key for key, client in self._clients.items() if not client.exchanges]
        for key in silent:  # software that a connection told whose exchanges were beyond what is kept
            del self._clients[key]
        self._cut()
        ordered = sorted(self._clients, key=lambda key: (self._clients[key].first, str(key)))
        those = [(key, self._clients[key]) for key in ordered]
        if self._rest is not None:
            those.append(((None, None), self._rest))
        schema = tables.schema("clients")
        parts = [schema.empty_table()]
        for at in range(0, len(those), _AT_ONCE):
            rows = [_row(capture, key, client, topic_name) for key, client in those[at : at + _AT_ONCE]]
            parts.append(pa.Table.from_pylist(rows, schema=schema))
        yield "clients", pa.concat_tables(parts)


def _row(capture: str, key: Key, client: _Client, topic_name: TopicName) -> dict[str, Any]:
    software = _most(client.software) or (None, None)
    written, read = ({topic_name(topic) for topic in topics or ()} for topics in (client.written, client.read))
    used = [
        {"api": schema.api_name(api), "min_version": low, "max_version": high, "exchanges": count}
        for api, low, high, count in sorted(client.used_apis())
    ]
    return {
        "capture": capture,
        "client_id": key[0],
        "client_ip": key[1],
        "software_name": software[0],
        "software_version": software[1],
        "principal": _only(client.principals),
        "group_ids": _listed(client.groups),
        "topics_written": _listed(written),
        "topics_read": _listed(read),
        "apis": used,
        "connections": client.connections,
        "exchanges": client.exchanges,
        "errors": client.errors,
        "first_time": None if client.first_ns == s.NULL else client.first_ns // 1000,
        "last_time": None if client.last_ns == s.NULL else client.last_ns // 1000,
        "refused_principal": _only(client.refused),
        "refused_status": client.refused_status,
        "session_lifetime_ms": client.lifetime_ms or None,
    }


def _listed(names: Iterable[str] | None) -> list[str]:
    return sorted(names or ())[:MAX_NAMED]


def _only(names: tuple[str, ...]) -> str | None:
    """Return the name if there is only one: clients that share an id and an address are different clients."""
    return names[0] if len(names) == 1 else None


def _most(counter: Counter[Any] | None) -> Any:
    """Return the most frequent value, of several the first in the alphabet."""
    return min(counter, key=lambda value: (-counter[value], str(value))) if counter else None
