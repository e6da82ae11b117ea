"""Translates fetch sessions (KIP-227) and share sessions (KIP-932), and the positions from which fetches read. Pure.

Rules: the target's session is told what the captured client's was told, and its epochs are counted anew. A session
belongs to one broker, so on a target with several brokers, or one without sessions, fetches name all of their
partitions each time (`share_sessions` has those of share groups).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME, Partition, answered, partitions
from kwire.replay.remap import share_sessions
from kwire.replay.remap.offsets import AS_IS, POSITION, Offsets, asked_offsets
from kwire.replay.remap.share_sessions import ShareSessions
from kwire.replay.remap.topics import Topics

_SESSIONLESS = 0, -1
_NEW = 0, 0
"""(session id, epoch) of a fetch outside sessions, and of one that creates a session."""
_KNOWS_SESSIONS = 7
"""The first version of Fetch with sessions."""
_ADOPTED_BYTES = 1 << 20
"""`partition_max_bytes` of a partition that no captured request names: the default of clients."""


@dataclass(slots=True)
class FetchSession:
    """A fetch session of the capture. It has the partitions as the client last named them, and the target's session (id
    0: none; `epoch` is the next one to send). `partial`: its start was not captured, so partitions may be missing."""

    partitions: dict[Partition, Body] = field(default_factory=dict)
    id: int = 0
    epoch: int = 0
    partial: bool = False

    def track(self, body: Body) -> None:
        """Track the partitions that a fetch adds, as it was made for the target, and those that it removes."""
        for topic in body["topics"]:
            for partition in topic["partitions"]:
                self.partitions[topic.get(NAME, ""), partition["partition"]] = partition
        for topic in body.get("forgottenTopicsData") or ():
            for number in topic["partitions"]:
                self.partitions.pop((topic.get(NAME, ""), number), None)

    def name_all(self, body: Body) -> None:
        """Name all partitions of the session."""
        topics: dict[str, Body] = {}
        for (name, _), partition in self.partitions.items():
            topics.setdefault(name, {NAME: name, "topic": name, "topicId": ZERO_UUID, "partitions": []})
            topics[name]["partitions"].append(partition)
        body["topics"] = list(topics.values())
        body["forgottenTopicsData"] = []


class Fetches:
    """Fetch sessions by connection and captured id. `shares`: sessions of share groups; `_shares_made`: those that the
    target has created, by group, member and captured connection."""

    def __init__(self, topics: Topics, offsets: Offsets) -> None:
        self._topics = topics
        self._offsets = offsets
        self._sessions: dict[tuple[str, int], FetchSession] = {}
        self._shares_made: set[tuple[str, str, str]] = set()
        self.shares = ShareSessions()

    def enter(self, step: Step, body: Body, captured: Body | None, several: bool) -> str | None:
        """Put a fetch into the target's session; return the rule if it became something else. `several`: the target
        has several brokers."""
        several |= step.version < _KNOWS_SESSIONS
        if "sessionId" not in body:
            body["sessionId"], body["sessionEpoch"] = _SESSIONLESS
        captured_id, epoch = body["sessionId"], body["sessionEpoch"]
        if (captured_id, epoch) == _SESSIONLESS:
            return None
        key = step.request.connection, captured_id
        session = self._sessions.get(key)
        if epoch > 0:
            if session is None:
                session = self._sessions[key] = FetchSession(partial=True)
            if session.partial:
                self._adopt(session, body, captured)
            session.track(body)
            if not session.partitions:
                return "no_session"
            if session.id and not several:
                body["sessionId"], body["sessionEpoch"] = session.id, session.epoch
                return None
            session.name_all(body)
        elif session is None:
            # (0, 0) makes a session; the answer says its captured id, see `_learn_session`.
            session = self._sessions[key] = FetchSession()
            session.track(body)
        if several or epoch == -1:
            if epoch == -1 and session.id and not several:
                body["sessionId"] = session.id
                session.id = 0
                return None
            body["sessionId"], body["sessionEpoch"] = _SESSIONLESS
            return "sessionless" if several and epoch >= 0 else None
        if epoch == 0:
            session.partitions.clear()
            session.track(body)
            body["sessionId"] = session.id
            return None
        body["sessionId"], body["sessionEpoch"] = _NEW
        return "session_remade"

    def _adopt(self, session: FetchSession, body: Body, captured: Body | None) -> None:
        """Name the partitions that the captured answer has records of and that no request has named since the capture
        began: they were read from these records on."""
        requested = {
            (topic.get(NAME, ""), part["partition"]) for topic in body["topics"] for part in topic["partitions"]
        }
        for topic in (captured or {}).get("responses", ()):
            name = topic.get(NAME)
            for partition in topic["partitions"]:
                where = name, partition["partitionIndex"]
                inside = batches.produced(partition.get("records"))
                if name and inside and where not in requested and where not in session.partitions:
                    adopted = {
                        "partition": partition["partitionIndex"],
                        "fetchOffset": self._offsets.offset(where, inside[0].base_offset),
                        "partitionMaxBytes": _ADOPTED_BYTES,
                    }
                    body["topics"].append({NAME: name, "topic": name, "topicId": ZERO_UUID, "partitions": [adopted]})

    # --- places that are out of range ---

    def lost_places(
        self, step: Step, sent: Body, captured: Body | None, replayed: Body
    ) -> Iterator[tuple[str, int, int]]:
        """Give (captured topic, partition, captured high watermark) where a fetch is out of range only on the target.
        Nothing had shown yet how captured and target offsets correspond when it was sent."""
        if self._offsets.mode == AS_IS:
            return
        before = answered(api_keys.FETCH, captured)
        requested, had = asked_offsets(step.body), asked_offsets(sent)
        for (topic, partition), now in answered(api_keys.FETCH, replayed).items():
            where = self._topics.captured(topic), partition
            was = before.get(where)
            if now["errorCode"] != errors.OFFSET_OUT_OF_RANGE or was is None:
                continue
            if was["errorCode"] or was["highWatermark"] < 0:
                continue
            known = self._offsets.map_of(where)
            if (
                known is None
                or not known.produced
                or (where in requested and known.start(requested[where]) != had.get(where))
            ):
                yield *where, was["highWatermark"]

    def found_places(self, step: Step, body: Body, ends: dict[Partition, tuple[int, int]]) -> None:
        """Take both high watermarks of each such partition: read as far from the target's as it was from the captured
        one.

        The session is created again. (What ListOffsets answered about another position is no hint for one that is out
        of range.)
        """
        requested = asked_offsets(step.body)
        for where, partition in self.places(step, body).items():
            if where in ends:
                captured, replayed = self._offsets.guess(where, ends[where])
                known = self._offsets.map_of(where)
                assert known is not None
                at = requested.get(where, partition["fetchOffset"] + captured - replayed)
                if known.hints and not known.produced:
                    known.hint(at, max(ends[where][1] + at - ends[where][0], 0))
                partition["fetchOffset"] = known.start(at)
        self.again(step, body, "session_remade", None, None)

    def places(self, step: Step, body: Body) -> dict[Partition, Body]:
        """The partitions that a fetch reads, by captured name, and its session if it is in one."""
        session = self._session(step)
        places = dict(session.partitions) if session is not None else {}
        places |= {(name, number): part for name, number, part in partitions(api_keys.FETCH, body) if part is not None}
        return places

    def has_read(self, step: Step, sent: Body, captured: Body) -> bool:
        """Whether a fetch begins after all the records of its captured answer. Its reader is ahead: it got them earlier
        than in the capture, and there may be no more. (With other modes no reader is ahead.)"""
        if self._offsets.mode != POSITION:
            return False
        had = [
            ((topic.get(NAME, ""), partition["partitionIndex"]), partition["records"])
            for topic in captured["responses"]
            for partition in topic["partitions"]
            if partition.get("records")
        ]
        places = self.places(step, sent)
        return bool(had) and all(
            where in places and self._offsets.lie_before(where, records, places[where]["fetchOffset"])
            for where, records in had
        )

    def lacks_share_session(self, step: Step) -> bool:
        """Whether a request continues a share session that the target has not created."""
        if step.request.api_key not in share_sessions.APIS:
            return False
        return step.body["shareSessionEpoch"] > 0 and _share(step, step.body) not in self._shares_made

    # --- as a family ---

    def write(self, step: Step, body: Body) -> None:
        if step.request.api_key == api_keys.FETCH:
            self._fetch(step, body)

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        if step.request.api_key == api_keys.FETCH:
            self._learn_session(step, sent, captured, replayed)
        elif step.request.api_key in share_sessions.APIS and not replayed["errorCode"]:
            self._shares_made.add(_share(step, sent))

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> None:
        if step.request.api_key == api_keys.SHARE_FETCH and rule == "session_remade":
            self.shares.begin_anew(body)
        if step.request.api_key != api_keys.FETCH or body["sessionEpoch"] == -1:
            return
        session = self._session(step)
        if session is None:
            body["sessionId"], body["sessionEpoch"] = _SESSIONLESS
        elif rule in ("session_remade", "reconnected") or replayed is None or not replayed.get("sessionId"):
            session.name_all(body)
            body["sessionId"], body["sessionEpoch"] = _NEW
        else:
            body["sessionId"], body["sessionEpoch"] = replayed["sessionId"], body["sessionEpoch"] + 1

    def _session(self, step: Step) -> FetchSession | None:
        return self._sessions.get((step.request.connection, step.body.get("sessionId", 0)))

    def _fetch(self, step: Step, body: Body) -> None:
        body.pop("clusterId", None)
        body["replicaId"] = -1
        body.pop("replicaState", None)
        for topic in body["topics"]:
            for partition in topic["partitions"]:
                where = topic.get(NAME, ""), partition["partition"]
                partition["currentLeaderEpoch"] = -1
                partition["lastFetchedEpoch"] = -1
                partition["logStartOffset"] = -1
                partition["fetchOffset"] = self._offsets.read_from(
                    step.request.connection, where, partition["fetchOffset"]
                )
                partition.pop("replicaDirectoryId", None)
                partition.pop("highWatermark", None)

    def _learn_session(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Keep the session by its captured id; take the target's id, and count its epoch."""
        session = self._session(step)
        if session is None:
            return
        captured_id = step.body.get("sessionId", 0)
        if captured_id == 0 and captured is not None and captured.get("sessionId"):
            del self._sessions[step.request.connection, captured_id]
            self._sessions[step.request.connection, captured["sessionId"]] = session
        if sent["sessionEpoch"] == -1 or replayed.get("errorCode"):
            return
        session.id = replayed.get("sessionId", 0)
        session.epoch = sent["sessionEpoch"] + 1


def _share(step: Step, body: Body) -> tuple[str, str, str]:
    return body["groupId"] or "", body["memberId"] or "", step.request.connection
