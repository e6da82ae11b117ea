"""Rules about authentication, authorization, and traffic in the clear."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kwire.analyzer.findings.capture import ANSWERED, SECOND, CaptureFrame, api_name, once
from kwire.analyzer.findings.error_answers import about, claim, match_of, of, times
from kwire.analyzer.findings.rules import Limits, Match, replaced, rule
from kwire.analyzer.findings.runs import Trouble
from kwire.analyzer.findings.wording import client, count, listed, moment, name, size, some
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import max_by, split
from kwire.analyzer.protocol import api_keys

_LOGIN = claim((api_keys.SASL_HANDSHAKE, api_keys.SASL_AUTHENTICATE), (33, 34, 58))
_RIGHTS = claim((), (29, 30, 31, 53, 65))


def _principal(capture: CaptureFrame, client_: int, column: str = "principal") -> str | None:
    """The principal of a client, or (`refused_principal`) the one that was refused, from table `clients`."""
    return _principals(capture).get(capture.clients[client_], {}).get(column)


@once
def _principals(capture: CaptureFrame) -> dict[tuple[str, str | None], dict[str, str | None]]:
    columns = ["client_id", "client_ip", "principal", "refused_principal", "refused_status"]
    rows = capture.table("clients").every(columns)
    return {(row["client_ip"], row["client_id"]): row for row in rows}


def _mechanisms(capture: CaptureFrame) -> list[str | None]:
    """The SASL mechanism of each connection."""
    codes, mechanisms = capture.table("connections").text("sasl_mechanism")
    return [mechanisms[code] if code >= 0 else None for code in codes.tolist()]


@rule(
    "security",
    "authentication-failed",
    "error",
    "10.0.0.1:9095 refused the login of svc-a (10.0.0.4) by PLAIN as bob: SASL_AUTHENTICATION_FAILED (58), 14 times, "
    "10:01:03 to 10:01:09.",
    why="A refusal is final for that try. The name may show, the secret never. To tokens that are no requests (of "
    "clients before SaslAuthenticate) the broker says a refusal by closing the connection, some 0.1 s later.",
    suppressed_when="A login of the same client succeeded after (a warning). A close without an answer: bytes are "
    "missing, or packets from the capture; more than 2 s passed; the broker said something after the token; a note of "
    "fewer than three, for who closed is not known, and a client may just have left.",
    advice="The secret, or the mechanism: the answer to SaslHandshake lists those there are.",
    evidence="sasl-librdkafka-4.3; forged: refused, and refused and then let in; closed on a token, and after an "
    "answer to it; a challenge of OAUTHBEARER without an error (RFC 7628)",
    close_s=2,
    closes=3,
)
def authentication_failed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    mechanisms = _mechanisms(capture)
    good = capture.of_api(api_keys.SASL_AUTHENTICATE)
    good = good[capture.exchanges.error[good] == 0]
    troubles = of(capture, _LOGIN)
    # SCRAM's first message is answered well although the second will not be: what counts is what came after.
    final = good[_went_on(capture)[capture.exchanges.link[good]]] if troubles else good
    last_in = max_by(capture.client[final], capture.exchanges.request_time[final], len(capture.clients), NULL)
    for trouble in troubles:
        last = int(trouble.rows[-1])
        link = int(capture.exchanges.link[last])
        mechanism = mechanisms[link] if link < len(mechanisms) else None
        principal = _principal(capture, trouble.client, "refused_principal")
        let_in = bool(last_in[trouble.client] > trouble.until)
        who = capture.who(trouble.client, int(capture.broker[last]))
        text = f"{who['broker']} refused the login of {client(who)}" + (f" by {name(mechanism)}" if mechanism else "")
        text += (f" as {name(principal)}" if principal else "") + f": {trouble.error}, {times(trouble)}"
        status = _principal(capture, trouble.client, "refused_status")
        text += f"; the challenge before it says {name(status)}" if status else ""
        text += "; it was let in after." if let_in else "."
        cause = f"the broker does not accept the token: {name(status)}" if status else None
        yield match_of(capture, trouble, text, "warning" if let_in else None, cause, True if cause else None)
    yield from _challenged(capture, {trouble.client for trouble in troubles})
    shut = _shut_out(capture, int(at.close_s * SECOND))
    into = spill.true_rows(_went_on(capture)) if shut else np.zeros(0, np.int64)
    began, ends = capture.link_times("first_time"), capture.link_times("last_time")
    last_into = max_by(capture.client_of[into], began[into], len(capture.clients), NULL)
    for (client_, broker, mechanism), links in shut.items():
        who, principal, ended = capture.who(client_, broker), _principal(capture, client_), ends[links]
        let_in = bool(last_into[client_] > ended.max())
        text = f"{count(len(links), 'connection')} of {client(who)} to {who['broker']} ended on the login by "
        text += name(mechanism) + (f" as {name(principal)}" if principal else "") + ", without an answer, "
        text += f"{moment(int(ended.min()))} to {moment(int(ended.max()))}" if len(links) > 1 else moment(int(ended[0]))
        text += "; it was let in after." if let_in else "."
        yield Match(
            text,
            len(links),
            int(ended.min()),
            int(ended.max()),
            who,
            {"mechanism": mechanism},
            links=(links[0], links[0], links[-1]),
            cause="a login that was refused",
            proven=False,
            severity="note" if len(links) < at.closes else "warning" if let_in else None,
        )


def _challenged(capture: CaptureFrame, reported: set[int]) -> Iterator[Match]:
    """Logins by OAUTHBEARER that were refused by a challenge alone: the answer has no error, and says why."""
    mechanisms = [(mechanism or "").upper() for mechanism in _mechanisms(capture)]
    bearing = np.array([mechanism == "OAUTHBEARER" for mechanism in mechanisms], bool)
    rows = capture.of_api(api_keys.SASL_AUTHENTICATE)
    rows = rows[(capture.exchanges.error[rows] == 0) & (capture.exchanges.link[rows] < len(bearing))]
    rows = rows[bearing[capture.exchanges.link[rows]]] if len(rows) else rows
    if not len(rows):
        return
    rows = rows[(capture.column("response_bytes")[rows] >= _OF_CHALLENGES)]
    went_on = _went_on(capture)
    for some_rows in split(rows, capture.client[rows]):
        client_ = int(capture.client[some_rows[0]])
        status = _principal(capture, client_, "refused_status")
        if status is None or client_ in reported:
            continue
        links = np.flatnonzero((capture.client_of == client_) & went_on)
        answered = capture.exchanges.response_end[some_rows]
        let_in = bool((capture.link_times("last_time")[links] > answered.max()).any())
        who = capture.who(client_, int(capture.broker[some_rows[-1]]))
        principal = _principal(capture, client_, "refused_principal")
        text = f"{who['broker']} refused the login of {client(who)} by OAUTHBEARER"
        text += (f" as {name(principal)}" if principal else "") + f" by a challenge: {name(status)}, "
        text += f"{count(len(some_rows), 'time')}, {moment(int(answered.min()))}"
        text += f" to {moment(int(answered.max()))}" if len(some_rows) > 1 else ""
        text += "; it was let in after." if let_in else "."
        yield Match(
            text,
            len(some_rows),
            int(answered.min()),
            int(answered.max()),
            who,
            {"mechanism": "OAUTHBEARER", "status": status},
            tuple(some_rows[[0, 0, -1]].tolist()),
            severity="warning" if let_in else None,
            cause=f"the broker does not accept the token: {name(status)}",
            proven=True,
        )


_OF_CHALLENGES = 36
"""Bytes of an answer with a challenge or more; one that lets in has 24 or less."""


def _shut_out(capture: CaptureFrame, within: int) -> dict[tuple[int, int, str], list[int]]:
    """Connections that ended soon after an opaque token without an answer, by client, broker and mechanism."""
    codes, mechanisms = capture.table("connections").text("sasl_mechanism")
    closed = np.array([end != "open" for end in capture.closed], bool)
    asking = spill.true_rows(codes >= 0)
    asking = (
        asking[(closed & capture.whole & ~_went_on(capture))[asking]]
        if len(asking) and not capture.loses
        else asking[:0]
    )
    if not len(asking):
        return {}
    rows, sizes = capture.exchanges, capture.column("response_bytes")
    tokens, broker_bytes = capture.link_numbers("opaque_sasl_bytes"), capture.link_numbers("broker_bytes")
    ended, asking_rows = capture.link_times("last_time"), spill.true_rows(arrow.among(rows.link, asking))
    shut_out: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for group_rows in split(asking_rows, rows.link[asking_rows]):
        link, last = int(rows.link[group_rows[0]]), int(group_rows[rows.request_time[group_rows].argmax()])
        sent = rows.api[last] == api_keys.SASL_HANDSHAKE and rows.error[last] == 0 and tokens[link] > 0
        silent = (
            broker_bytes[link] <= np.maximum(sizes[group_rows], 0).sum()
            and ended[link] - rows.request_time[last] <= within
        )
        if sent and silent:
            shut_out[int(capture.client_of[link]), int(capture.broker_of[link]), mechanisms[codes[link]]].append(link)
    return shut_out


def _went_on(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: the client got an answer to a request other than a login."""
    has_asked = ~arrow.among(
        capture.exchanges.api, (api_keys.SASL_HANDSHAKE, api_keys.SASL_AUTHENTICATE, api_keys.API_VERSIONS)
    )
    went_on = np.zeros(len(capture.links), bool)
    went_on[capture.exchanges.link[has_asked & (capture.exchanges.status <= 1)]] = True
    return went_on


_CLUSTER = 31
_RESOURCES: Mapping[int, str] = {29: "topic", 30: "group", _CLUSTER: "cluster", 53: "transactional id"}
"""Kinds of resources by the error that refuses their use."""

_DESCRIBE = "Describe (which Read and Write include)"
_OPERATIONS: Mapping[tuple[int, int], str] = {
    **{(api, 29): "Read" for api in (api_keys.FETCH, api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT)},
    **{(api, 29): "Read" for api in (api_keys.SHARE_FETCH, api_keys.SHARE_ACKNOWLEDGE, api_keys.OFFSET_DELETE)},
    **{(api, 29): "Write" for api in (api_keys.PRODUCE, api_keys.ADD_PARTITIONS_TO_TXN)},
    **{(api, 29): _DESCRIBE for api in (api_keys.METADATA, api_keys.LIST_OFFSETS, api_keys.OFFSET_FETCH)},
    **{(api, 29): _DESCRIBE for api in (api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT)},
    **{(api, 29): "Delete" for api in (api_keys.DELETE_TOPICS, api_keys.DELETE_RECORDS)},
    (api_keys.CREATE_TOPICS, 29): "Create",
    (api_keys.CREATE_PARTITIONS, 29): "Alter",
    **{(api, 30): "Read" for api in (api_keys.FIND_COORDINATOR, api_keys.JOIN_GROUP, api_keys.SYNC_GROUP)},
    **{(api, 30): "Read" for api in (api_keys.HEARTBEAT, api_keys.LEAVE_GROUP, api_keys.OFFSET_COMMIT)},
    **{(api, 30): "Read" for api in (api_keys.TXN_OFFSET_COMMIT, api_keys.ADD_OFFSETS_TO_TXN)},
    **{(api, 30): "Read" for api in (api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT)},
    **{(api, 30): "Read" for api in (api_keys.SHARE_FETCH, api_keys.SHARE_ACKNOWLEDGE)},
    **{(api, 30): "Describe" for api in (api_keys.OFFSET_FETCH, api_keys.DESCRIBE_GROUPS)},
    **{(api, 30): "Delete" for api in (api_keys.DELETE_GROUPS, api_keys.OFFSET_DELETE)},
    (api_keys.INIT_PRODUCER_ID, _CLUSTER): "IdempotentWrite",
    (api_keys.CREATE_TOPICS, _CLUSTER): "Create",
    **{(api, _CLUSTER): "Alter" for api in (api_keys.CREATE_ACLS, api_keys.DELETE_ACLS)},
    (api_keys.DESCRIBE_ACLS, _CLUSTER): "Describe",
    **{(api, 53): "Write" for api in (api_keys.FIND_COORDINATOR, api_keys.INIT_PRODUCER_ID, api_keys.PRODUCE)},
    **{(api, 53): "Write" for api in (api_keys.ADD_PARTITIONS_TO_TXN, api_keys.ADD_OFFSETS_TO_TXN)},
    **{(api, 53): "Write" for api in (api_keys.TXN_OFFSET_COMMIT, api_keys.END_TXN)},
}
"""The operation that a request needs, by API and error code (Kafka's documentation, "Operations and Resources on
Protocols"). Of a group or transactional id the one that its next requests need, which allows to look it up as well."""


def _needed_acl(trouble: Trouble, principal: str | None, groups: Sequence[str]) -> str | None:
    """Return an advice that names the ACL which would have let a request through; None if it is not known."""
    operation = _OPERATIONS.get((trouble.api, trouble.code))
    if operation is None:
        return None
    thing = trouble.thing
    about_many = thing.several or bool(thing.topics and not trouble.topic_partitions)
    names: Mapping[int, Sequence[str | None]] = {
        29: () if about_many else (thing.topic,),
        30: groups or (thing.group,),
        53: (thing.transaction,),
    }
    known = [value for value in names.get(trouble.code, ()) if value]
    kind = _RESOURCES[trouble.code]
    resource = f"{kind}{'s' * (len(known) > 1)} {some(known)}" if known else f"the {kind}"
    who = f"User:{name(principal)}" if principal else "that principal"
    return f"An ACL that allows {who} {operation} on {resource}."


@rule(
    "security",
    "authorization-failed",
    "error",
    "carol, svc-a (10.0.0.4), may not use Metadata for topic secret: TOPIC_AUTHORIZATION_FAILED (29), 4 times, "
    "10:01:03 to 10:01:09.",
    why="Deterministic, no threshold.",
    suppressed_when="Metadata of all topics: what is hidden is left out there, not refused.",
    advice="An ACL for that principal.",
    evidence="sasl-librdkafka-4.3; forged: one refusal",
)
def authorization_failed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _RIGHTS):
        principal = _principal(capture, trouble.client)
        who = f"{name(principal)}, " if principal else ""
        groups = _groups_asked_for(capture, trouble) if trouble.api == api_keys.FIND_COORDINATOR else []
        target = f" for {'group' if len(groups) == 1 else 'groups'} {some(groups)}" if groups else about(trouble)
        text = f"{who}{client(capture.who(trouble.client))}, may not use {api_name(trouble.api)}{target}: "
        match = match_of(capture, trouble, f"{text}{trouble.error}, {times(trouble)}.")
        match = replaced(match, advice=_needed_acl(trouble, principal, groups))
        yield replaced(match, what={**match.what, "group_id": ",".join(groups)}) if groups else match


def _groups_asked_for(capture: CaptureFrame, trouble: Trouble) -> list[str]:
    """Groups for whose coordinator a client asked in vain: FindCoordinator names them in its body only."""
    table = capture.table("groups")
    wanted = ["event", "group_id", "connection", "exchange"]
    rows = set(trouble.rows.tolist())
    return sorted(
        {
            row["group_id"]
            for row in (table.every(wanted) if len(table) else ())
            if row["event"] == "coordinator_refused" and capture.row_of(row["connection"], row["exchange"]) in rows
        }
    )


_CHANGES: Mapping[str, tuple[int, ...]] = {
    "ACLs": (api_keys.CREATE_ACLS, api_keys.DELETE_ACLS),
    "SCRAM users": (api_keys.ALTER_USER_SCRAM_CREDENTIALS,),
    "quotas": (api_keys.ALTER_CLIENT_QUOTAS,),
    "configs": (api_keys.ALTER_CONFIGS, api_keys.INCREMENTAL_ALTER_CONFIGS),
}


@rule(
    "security",
    "security-changed",
    "note",
    "alice, admin (10.0.0.4), had 4 changes of ACLs accepted: 3 CreateAcls, 1 DeleteAcls, 10:01:03 to 10:01:09.",
    why="A fact: the list of who changed what an auditor asks for. Which resources it was, and which values, only the "
    "requests say; a request for configs or quotas may have asked to validate them only (validateOnly).",
    suppressed_when="The request was refused, wholly or in part (admin-refused and others tell it), or its answer was "
    "not captured; it asked for no change at all, as its answer's size shows (MirrorMaker, where there are no ACLs to "
    "take over); what a broker passes on for its client to a controller (Envelope).",
    advice="See whether it was meant: kwire show --filter 'api == CreateAcls' --tree shows each, its secrets left out.",
    evidence="admin-librdkafka-4.3, admin-java-4.3; forged: an ACL that was made, and one that was refused",
)
def changed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.of_api(*(key for keys in _CHANGES.values() for key in keys))
    rows = rows[(capture.exchanges.status[rows] == ANSWERED) & (capture.exchanges.error[rows] == 0)]
    if len(rows):
        answer = capture.column("response_bytes")[rows]
        rows = rows[(answer == NULL) | (answer > _OF_NO_CHANGE)]
    for what, keys in _CHANGES.items():
        changes = rows[arrow.among(capture.exchanges.api[rows], keys)]
        for own in split(changes, capture.client[changes]):
            client_, api = int(capture.client[own[0]]), capture.exchanges.api[own]
            many = {api_name(key): number for key in keys if (number := int((api == key).sum()))}
            who, principal = capture.who(client_), _principal(capture, client_)
            since, until = (
                int(capture.exchanges.request_time[own].min()),
                int(capture.exchanges.request_time[own].max()),
            )
            text = f"{name(principal)}, " if principal else ""
            text += f"{client(who)}, had {count(len(own), 'change')} of {what} accepted: "
            text += f"{', '.join(f'{number:,} {change}' for change, number in many.items())}, "
            text += moment(since) + (f" to {moment(until)}." if moment(until) != moment(since) else ".")
            yield Match(
                text,
                len(own),
                since,
                until,
                who,
                {"changed": what, "api": ",".join(many), "principal": principal},
                (int(own[0]), int(own[0]), int(own[-1])),
            )


_OF_NO_CHANGE = 16
"""Sizes of answers to these APIs without a change: length, header, throttle time and an empty list, with or without
tagged fields."""

_REVEALING = ("PLAIN", "OAUTHBEARER")


@rule(
    "security",
    "credentials-in-clear",
    "warning",
    "SASL/PLAIN passwords of 3 clients cross the network unencrypted: svc-a (10.0.0.4), svc-b (10.0.0.5), svc-c "
    "(10.0.0.6).",
    why="A fact. SCRAM does not show the password, but can be guessed at offline: a note.",
    suppressed_when="On the loopback interface (a note); inside TLS.",
    advice="SASL_SSL; SCRAM rather than PLAIN.",
    evidence="sasl-librdkafka-4.3 (loopback: a note); forged: PLAIN between two hosts, and SCRAM",
)
def in_clear(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    tls = capture.table("connections").numbers("tls", np.int8)
    by: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for link, mechanism in enumerate(_mechanisms(capture)):
        if mechanism is not None and tls[link] != 1 and mechanism.upper() in (*_REVEALING, *_SCRAM):
            near = _loopback(capture.clients[int(capture.client_of[link])][0])
            by[mechanism.upper(), near].append(link)
    for (mechanism, near), links in by.items():
        clients = sorted({int(capture.client_of[link]) for link in links})
        named = listed([client(capture.who(client_number)) for client_number in clients[:3]], len(clients))
        what = "Tokens" if mechanism == "OAUTHBEARER" else "Passwords" if mechanism == "PLAIN" else "Proofs"
        text = f"{what} by SASL/{name(mechanism)} of {count(len(clients), 'client')} cross "
        text += f"{'the loopback interface' if near else 'the network'} unencrypted: {named}."
        warns = mechanism in _REVEALING and not near
        first = capture.link_times("first_time")[links]
        yield Match(
            text,
            len(links),
            int(first.min()),
            int(first.max()),
            capture.who(clients[0]),
            {"mechanism": mechanism},
            links=(links[0], links[0], links[-1]),
            severity=None if warns else "note",
        )


_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@rule(
    "security",
    "plain-traffic",
    "note",
    "1.1 GB of 14 clients cross the network unencrypted.",
    why="A fact; with --policy tls=required a warning.",
    suppressed_when="On the loopback interface; what was decrypted for us.",
    advice="A TLS listener, where the network is not trusted.",
    evidence="forged: two hosts, and the loopback interface",
    depends_on=("tls",),
)
def plain_traffic(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    tls, decoded = capture.table("connections").numbers("tls", np.int8), capture.link_numbers("decoded_bytes")
    near = np.array([_loopback(address) for address, _ in capture.clients], bool)
    plain = np.flatnonzero((tls != 1) & (decoded[: len(tls)] > 0))
    plain = plain[~near[capture.client_of[plain]]]
    if len(plain):
        clients = len(arrow.distinct(capture.client_of[plain]))
        strict = capture.query.policies.get("tls") == "required"
        text = f"{size(int(decoded[plain].sum()))} of {count(clients, 'client')} cross the network unencrypted."
        yield Match(
            text,
            len(plain),
            *capture.span,
            links=tuple(plain[[0, 0, -1]].tolist()),
            severity="warning" if strict else None,
        )
