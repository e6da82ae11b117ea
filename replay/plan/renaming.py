"""Gives a capture other names of groups, transactions and clients, so that replays do not meet each other. Pure.

In: sessions, and a `Renaming`. Out: sessions as they would have been captured under these names: requests and answers
are decoded, renamed and encoded again, so the RUN's captured side has the new names too. Rules: what cannot be decoded
stays as it is (and is not sent for that reason); keys, values and topics stay (`--map-topic` is for those); a copy has
producer ids of its own. What consumers fetched has the producer ids of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.config_changes import GROUP_RESOURCE
from kwire.replay.plan.sessions import Request, Session

COPY: Final = "copy-{}."
"""Prefix of a copy's names; the first copy is the capture itself."""
_APART: Final = 1 << 48
"""Distance between the producer ids of one copy and those of the next: brokers count from 0."""

_GROUP: Final = frozenset(("groupId",))
_GROUP_LISTS: Final = frozenset(("groups", "groupIds", "groupsNames"))
_TRANSACTION: Final = frozenset(("transactionalId", "v3AndBelowTransactionalId"))
_TRANSACTION_LISTS: Final = frozenset(("transactionalIds",))
_PRODUCER: Final = frozenset(("producerId", "v3AndBelowProducerId"))


@dataclass(frozen=True, slots=True)
class Renaming:
    """New names.

    - `groups`: new names of some groups; `prefix`: of all other groups, transactional ids and client ids
    - `copy`: whose producer ids these are, 0 for the capture's own
    """

    groups: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    copy: int = 0

    def __bool__(self) -> bool:
        return bool(self.groups or self.prefix or self.copy)

    def group(self, name: str) -> str:
        if not name:
            return name
        return self.groups.get(name) or self.prefix + name

    def transaction(self, name: str) -> str:
        return self.prefix + name if name else name

    def producer(self, producer_id: int) -> int:
        return producer_id + self.copy * _APART if producer_id >= 0 else producer_id

    def is_ours(self, group: str) -> bool:
        """Whether this is the new name of a group, and not one that others may have on the target."""
        return group in self.groups.values() or bool(self.prefix and group.startswith(self.prefix))


def renamed(sessions: Iterable[Session], how: Renaming) -> list[Session]:
    """Rename the sessions."""
    if not how:
        return list(sessions)
    return [
        replace(session, requests=tuple(request(captured, how) for captured in session.requests), beside=session.beside)
        for session in sessions
    ]


def copies(sessions: Sequence[Session], times: int) -> list[Session]:
    """Copy the sessions this many times, side by side. Each copy has its own client ids, groups, transactional ids,
    producers and connections."""
    copied = list(sessions)
    for number in range(2, times + 1):
        how = Renaming(prefix=COPY.format(number), copy=number - 1)
        copied += [_elsewhere(session, number) for session in renamed(sessions, how)]
    return copied


def _elsewhere(session: Session, number: int) -> Session:
    """Put a copy's session on a connection of its own."""
    connection = f"{session.connection}~{number}"
    requests = tuple(replace(request, row={**request.row, "connection": connection}) for request in session.requests)
    orphans = tuple({**row, "connection": connection} for row in session.orphans)
    return replace(session, connection=connection, requests=requests, orphans=orphans, beside=(), copy=number - 1)


# --- one request ---


def request(request: Request, how: Renaming) -> Request:
    """Rename a request and its answer."""
    row = request.row
    named = {
        "group_id": how.group(row["group_id"] or "") or None,
        "transactional_id": how.transaction(row["transactional_id"] or "") or None,
        "client_id": how.transaction(row["client_id"] or "") or row["client_id"],
    }
    decoded = request.decoded() if row["api_key"] is not None else None
    if decoded is None or decoded.status != OK or decoded.body is None or decoded.header is None:
        return replace(request, row={**row, **named})
    kind = decoded.body.get("keyType", api_keys.GROUP_COORDINATOR)
    body = _named(request.api_key, decoded.body, how, kind)
    client = decoded.header.get("clientId")
    data = encode_request(
        request.api_key,
        decoded.version,
        decoded.header["correlationId"],
        client if not client else how.transaction(client),
        body,
    )
    return replace(request, row={**row, **named}, data=data, answer=_answer(request, how, kind))


def _answer(request: Request, how: Renaming, kind: int) -> bytes | None:
    answer = request.decoded_answer()
    if request.answer is None or answer is None or answer.status != OK or answer.body is None:
        return request.answer
    if request.api_key == api_keys.FETCH:
        return request.answer  # has no names, and may be large
    correlation = int.from_bytes(request.answer[:4], "big", signed=True)
    body = _named(request.api_key, answer.body, how, kind)
    return encode_response(request.api_key, answer.version, correlation, body)


def _named(api_key: int, body: Body, how: Renaming, kind: int) -> Body:
    """Rename what a body names. `kind`: of the coordinator that FindCoordinator asks for (`keyType`)."""
    named: Body = _walked(body, how)
    if api_key == api_keys.FIND_COORDINATOR:
        _coordinators(named, how, kind)
    elif api_key in (api_keys.DESCRIBE_CONFIGS, api_keys.ALTER_CONFIGS, api_keys.INCREMENTAL_ALTER_CONFIGS):
        for resource in _each(named, ("resources", "results", "responses")):
            if resource.get("resourceType") == GROUP_RESOURCE:
                resource["resourceName"] = how.group(resource["resourceName"])
    elif api_key == api_keys.PRODUCE and how.copy:
        for topic in _each(named, ("topicData",)):
            for part in topic["partitionData"]:
                part["records"] = _records(part["records"], how)
    return named


def _each(body: Body, lists: tuple[str, ...]) -> Iterator[Body]:
    for name in lists:
        yield from body.get(name) or ()


def _coordinators(body: Body, how: Renaming, kind: int) -> None:
    """Rename the keys of FindCoordinator, which are groups or transactional ids."""
    kinds: dict[int, Callable[[str], str]] = {
        api_keys.GROUP_COORDINATOR: how.group,
        api_keys.TRANSACTION_COORDINATOR: how.transaction,
    }
    name = kinds.get(kind)
    if name is None:
        return
    for coordinator in (body, *(body.get("coordinators") or ())):
        if "key" in coordinator:
            coordinator["key"] = name(coordinator["key"])
    if "coordinatorKeys" in body:
        body["coordinatorKeys"] = [name(key) for key in body["coordinatorKeys"]]


def _walked(value: Any, how: Renaming, called: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _walked(inner, how, name) for name, inner in value.items()}
    if isinstance(value, list):
        if called in _GROUP_LISTS:
            return [how.group(element) if isinstance(element, str) else _walked(element, how) for element in value]
        if called in _TRANSACTION_LISTS:
            return [
                how.transaction(element) if isinstance(element, str) else _walked(element, how) for element in value
            ]
        return [_walked(element, how) for element in value]
    if isinstance(value, str):
        return how.group(value) if called in _GROUP else how.transaction(value) if called in _TRANSACTION else value
    if called in _PRODUCER and isinstance(value, int):
        return how.producer(value)
    return value


def _records(records: bytes | None, how: Renaming) -> bytes | None:
    """Give batches the producer ids of a copy."""
    changed: bytearray | None = None
    for batch in batches.produced(records):
        if batch.producer_id >= 0:
            changed = changed if changed is not None else bytearray(records or b"")
            here = how.producer(batch.producer_id)
            batches.set_producer(changed, batch.at, batch.size, here, batch.producer_epoch, batch.base_sequence)
    return records if changed is None else bytes(changed)
