"""Translates members of groups (classic, KIP-848 and share groups): ids, generations and epochs. Pure.

Rules: a member has its id, its generation or epoch and its partitions from the target; the leader there hands out what
the captured leader did. A member that the target lost joins again with everything it has said of itself.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis
from kwire.replay.plan.steps import Step
from kwire.replay.remap.topics import Topics

_LOST: Final = frozenset((errors.ILLEGAL_GENERATION, errors.UNKNOWN_MEMBER_ID))
"""Errors: the target has no such member, or not in this generation."""

_SUBSCRIPTION: Final = (
    "instanceId",
    "rackId",
    "rebalanceTimeoutMs",
    "subscribedTopicNames",
    "subscribedTopicRegex",
    "serverAssignor",
)
"""Fields that a member sends when it joins, and later only if they change (KIP-848)."""

MOST_REJOINS: Final = 8
"""How often a member joins again because the target lost it, since it last joined as in the capture.

A member that is lost more often is being expired again and again: joining for it makes all others of its group join
too.
"""

_SESSION_TIMEOUT_MS: Final = 45_000
"""Timeout if a join does not have one (KIP-735); for KIP-848 and share groups, which do not tell it to their members,
the brokers' default."""

_CLASSIC_HEARTBEAT: Final = 3
_GROUP_HEARTBEAT: Final = 1
"""Versions of the replayer's own heartbeats: the first that know static members (KIP-345), and the newest form."""

Who = tuple[str, str]
"""A group, and a member of it by its captured id."""


@dataclass(slots=True)
class Member:
    """A member of a KIP-848 or share group on the target.

    - `assignment`: the target's last one; `owned`: what the member has confirmed
    - `subscription`: what it has said of itself, as it was sent; `api_key`: of its heartbeats
    - `apart`: the assignment came in answer to a heartbeat of the replayer's own
    """

    api_key: int = api_keys.CONSUMER_GROUP_HEARTBEAT
    epoch: int = 0
    subscription: Body = field(default_factory=dict)
    assignment: list[Body] | None = None
    owned: list[Body] | None = None
    apart: bool = False

    def take(self, sent: Body, answer: Body) -> None:
        """Take the answer to its heartbeat."""
        subscription = {name: sent.get(name) for name in _SUBSCRIPTION}
        self.subscription |= {name: value for name, value in subscription.items() if value not in (None, -1)}
        if answer["errorCode"]:
            return
        self.epoch = answer["memberEpoch"]
        if answer.get("assignment") is not None:
            self.assignment = answer["assignment"]["topicPartitions"]


class Groups:
    """Members of all groups. `assignments`: of the captured leaders' SyncGroup, by group and generation; `fewer`: there
    are fewer partitions than in the capture, and so fewer moves of them."""

    fewer = False

    def __init__(self, topics: Topics, assignments: Mapping[tuple[str, int], list[Body]]) -> None:
        self._topics = topics
        self._assignments = assignments
        self._ids: dict[Who, str] = {}
        self._generations: dict[tuple[str, str, int], int] = {}
        self._leads: dict[tuple[str, str, int], bool] = {}
        self._joins: dict[Who, Body] = {}  # of classic groups: the last JoinGroup that was sent ...
        self._current: dict[Who, int] = {}  # ... and the generation that it brought
        self._reached: dict[Who, int] = {}  # the captured generation that a member has come to
        self._arriving: dict[int, tuple[Who, int]] = {}  # who is joining which captured generation, by step
        self._rejoins: dict[str, int] = {}  # how often members of a group had to join again ...
        self._settled: dict[Who, int] = {}  # ... and how often when this one joined last
        self._lost: Counter[Who] = Counter()  # how often the target lost this one, since it joined as captured
        self._members: dict[Who, Member] = {}
        self._refused: set[str] = set()  # groups of a kind that the target does not serve
        self._kept_out: set[Who] = set()  # who was not let in, for good, as captured
        self._left: set[Who] = set()
        self._still: set[str] = set()  # groups whose early members are all in, and where nothing has moved since

    # --- what is known ---

    def member(self, group: str, member: str) -> str:
        """A member's id on the target; the captured one if none was learned, which is not sent (`stranger`)."""
        return self._ids.get((group, member), member)

    def stranger(self, step: Step) -> Who | None:
        """The group and member that a request speaks for, if the target has given it no id or no generation. Its join
        was refused, or never answered, and the request needs them. None: everything that it names is there."""
        body, key = step.body, step.request.api_key
        assert body is not None
        speaks: list[Who] = []
        if key in (api_keys.HEARTBEAT, api_keys.SYNC_GROUP):
            speaks = [(body["groupId"], body["memberId"])]
        elif key in (api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT):
            if body.get("memberId") and body["generationIdOrMemberEpoch"] >= 0:
                speaks = [(body["groupId"], body["memberId"])]
        elif key in apis.GROUP_HEARTBEATS:
            who = body["groupId"], body["memberId"]
            speaks = [who] if body["memberEpoch"] > 0 or (body["memberEpoch"] < 0 and who in self._kept_out) else []
        elif key == api_keys.OFFSET_FETCH:
            speaks = [(group["groupId"], group["memberId"]) for group in body["groups"] if group.get("memberId")]
        elif key == api_keys.LEAVE_GROUP:
            leaving = [
                (body["groupId"], each["memberId"]) for each in body["members"] if not each.get("groupInstanceId")
            ]
            # An id is enough: librdkafka leaves while its JoinGroup is still waiting, by the id that 79 gave it.
            known = any(self._is_member(who) or who in self._ids for who in leaving)
            speaks = [] if known else leaving
        return next((who for who in speaks if who[0] not in self._refused and not self._is_member(who)), None)

    def _is_member(self, who: Who) -> bool:
        """Whether the target has given it an id, and a generation or an epoch."""
        state = self._members.get(who)
        return who in self._current or (state is not None and state.epoch > 0)

    def keeps_out(self, group: str) -> bool:
        """Whether the target refused a member of a group that was let in when captured. What its joining, leaving or
        expiry did to the others does not happen here."""
        return any(who[0] == group for who in self._kept_out)

    def stands_still(self, group: str) -> bool:
        """Whether the replayer joined all members of a group, and no member joined, left or subscribed anew since. What
        went on when the capture began is over here, and causes no rebalance."""
        return group in self._still

    def others(self, group: str, member: str) -> list[Who]:
        """The other members of a group on the target, but those that left."""
        there = [*self._current, *(who for who, state in self._members.items() if state.epoch > 0)]
        return [who for who in there if who[0] == group and who[1] != member and who not in self._left]

    def generation(self, group: str, member: str, generation: int) -> int:
        """The generation of a classic group, or the epoch that a member has now."""
        if generation < 0:
            return generation
        state = self._members.get((group, member))
        if state is not None:
            return state.epoch
        now = self._current.get((group, member), generation)
        return self._generations.get((group, member, generation), now)

    def assignment(self, group: str, generation: int, otherwise: list[Body]) -> list[Body]:
        """The assignment of the captured leader in a captured generation, with the members' current ids."""
        given = copy.deepcopy(self._assignments.get((group, generation), otherwise))
        for entry in given:
            entry["memberId"] = self.member(group, entry["memberId"])
        return given

    def subscription(self, group: str, member: str) -> Body:
        """The subscription of a member of a KIP-848 or share group; empty if it is not a member."""
        state = self._members.get((group, member))
        return copy.deepcopy(state.subscription) if state is not None else {}

    def join_of(self, group: str, member: str) -> Body:
        """The JoinGroup that was last sent for a member of a classic group."""
        return self._joins[group, member]

    def can_rejoin(self, step: Step, captured: Body | None, codes: set[int]) -> bool:
        """Whether the member that got these errors may join again.

        Not if it leaves, nor if it never joined; because of a rebalance only if that comes from another member's
        joining again: other rebalances are the capture's, with joins of their own.
        """
        who = _speaker(step, captured)
        if step.request.api_key == api_keys.JOIN_GROUP:
            return bool(step.body["memberId"])
        if step.request.api_key == api_keys.HEARTBEAT and who in self._left:
            return False
        if self.is_lost(step, captured):
            return False
        if step.request.api_key in apis.GROUP_HEARTBEATS and step.body["memberEpoch"] < 0:
            return False
        if self.subscription(*who):
            return True
        if who not in self._joins:
            return False
        return self._behind(who) or bool(codes & _LOST) or self._left_somebody(who)

    def is_late(self, step: Step) -> bool:
        """Whether a JoinGroup waits for a generation that others have reached without it. They joined it together in
        the capture. The target waits for them now, and they have to join again."""
        who, generation = self._arriving.get(step.number, (("", ""), 0))
        return any(other[0] == who[0] and reached >= generation for other, reached in self._reached.items())

    def is_past(self, step: Step) -> bool:
        """Whether the member whose heartbeat this is (of a classic group) has come to a later captured generation, or
        has left: no rebalance of its generation is to come."""
        who = step.body["groupId"], step.body["memberId"]
        return who in self._left or self._reached.get(who, -1) > step.body["generationId"]

    def _left_somebody(self, who: Who) -> bool:
        """Whether another member is only now joining the captured generation that this one has reached."""
        reached = self._reached.get(who, -1)
        return any(other[0] == who[0] and generation <= reached for other, generation in self._arriving.values())

    def moved_on(self, step: Step, sent: Body) -> bool:
        """Whether a member of a classic group is in another generation by now than a request of it that was sent. Then
        the captured generation stands for that."""
        group, member = step.body["groupId"], step.body["memberId"]
        now = self._current.get((group, member))
        name = "generationId" if "generationId" in sent else "generationIdOrMemberEpoch"
        if now is None or now == sent[name]:
            return False
        self._generations[group, member, step.body[name]] = now
        return True

    def session_timeout(self, who: Who) -> float | None:
        """Seconds for which the target lets a member be silent; None: it is not in its group."""
        if not self._is_member(who) or who in self._left:
            return None
        join = self._joins.get(who) or {}
        return float(join.get("sessionTimeoutMs") or _SESSION_TIMEOUT_MS) / 1000

    def heartbeat(self, who: Who) -> tuple[int, int, Body]:
        """A heartbeat of a member that says nothing new: API, version, body."""
        group, member = who
        state = self._members.get(who)
        if state is not None:
            return (
                state.api_key,
                _GROUP_HEARTBEAT,
                {
                    "groupId": group,
                    "memberId": self.member(group, member),
                    "memberEpoch": state.epoch,
                },
            )
        return (
            api_keys.HEARTBEAT,
            _CLASSIC_HEARTBEAT,
            {
                "groupId": group,
                "memberId": self.member(group, member),
                "generationId": self._current[who],
                "groupInstanceId": self._joins[who].get("groupInstanceId"),
            },
        )

    def learn_heartbeat(self, who: Who, sent: Body, answer: Body) -> None:
        """Learn from the answer to such a heartbeat."""
        state = self._members.get(who)
        if state is None or answer["errorCode"] or sent["memberEpoch"] != state.epoch:
            return  # its own next request hears of it, or has been there before
        state.take(sent, answer)
        state.apart |= answer.get("assignment") is not None

    def members(self) -> Iterator[tuple[str, str, str]]:
        """Give (group, captured id, id on the target)."""
        for (group, member), there in self._ids.items():
            yield group, member, there

    def generations(self) -> Iterator[tuple[str, int, int]]:
        """Give (group, captured generation, generation on the target) of each member."""
        for (group, _, generation), there in self._generations.items():
            yield group, generation, there

    # --- what the replayer did itself ---

    def joined(self, group: str, member: str, generation: int, body: Body, answer: Body) -> None:
        """Note that the replayer joined a classic group for a member. `member` and `generation` are the captured ones
        (-1: unknown), `body` is what it joined with."""
        self._ids[group, member] = answer["memberId"]
        self._settle((group, member), body, answer)
        if generation >= 0:
            self._take_generation((group, member, generation), answer)
            self._reached[group, member] = generation

    def joined_assigned(self, group: str, member: str, body: Body, answer: Body) -> None:
        """Like `joined`, for a KIP-848 group: the member has its epoch and its partitions."""
        state = self._members[group, member] = Member()
        self._take_heartbeat((group, member), state, body, answer)

    def settling(self, who: Who) -> Body | None:
        """The heartbeat of a member of a KIP-848 group that confirms what it was assigned last; None: the target has no
        such member."""
        state = self._members.get(who)
        if state is None or state.epoch <= 0:
            return None
        body = {**self.heartbeat(who)[2], "topicPartitions": None}
        if state.assignment != state.owned:
            body["topicPartitions"] = copy.deepcopy(state.assignment or [])
        return body

    def settled(self, who: Who, sent: Body, answer: Body) -> bool:
        """Take the answer to the settling heartbeat; whether the member and its assignment are unchanged."""
        state = self._members[who]
        before = state.epoch, state.assignment
        if not answer["errorCode"] and sent["topicPartitions"] is not None:
            state.owned = sent["topicPartitions"]
        state.take(sent, answer)
        return sent["topicPartitions"] is None and before == (state.epoch, state.assignment)

    def all_in(self, group: str) -> None:
        """Note that the early members of a group have joined, each with its final assignment."""
        self._still.add(group)

    def refuse(self, group: str) -> None:
        """Note that the target does not serve groups of this kind: it has no members."""
        self._refused.add(group)

    def rejoins(self, group: str, member: str) -> None:
        """Note that a member joins again, and not because another one did: the others will have to."""
        self._still.discard(group)
        if not self._behind((group, member)):
            self._rejoins[group] = self._rejoins.get(group, 0) + 1
            self._lost[group, member] += 1

    def is_lost(self, step: Step, captured: Body | None) -> bool:
        """Whether the target has lost the member that a request speaks for too often (`MOST_REJOINS`)."""
        return self._lost[_speaker(step, captured)] >= MOST_REJOINS

    def _behind(self, who: Who) -> bool:
        """Whether another member had to join again after this one did."""
        return self._rejoins.get(who[0], 0) > self._settled.get(who, 0)

    def _settle(self, who: Who, body: Body, answer: Body) -> None:
        self._joins[who] = body
        self._current[who] = answer["generationId"]
        self._settled[who] = self._rejoins.get(who[0], 0)

    def _take_generation(self, key: tuple[str, str, int], answer: Body) -> None:
        self._generations[key] = answer["generationId"]
        self._leads[key] = answer["leader"] == answer["memberId"]

    # --- as a family ---

    def write(self, step: Step, body: Body) -> None:
        match step.request.api_key:
            case api_keys.OFFSET_COMMIT | api_keys.TXN_OFFSET_COMMIT:
                self._commit(body)
            case api_keys.OFFSET_FETCH:
                self._offset_fetch(body)
            case api_keys.JOIN_GROUP:
                # By an id that it never gave the target does not know it.
                body["memberId"] = self._ids.get((body["groupId"], body["memberId"]), "")
                self._arrives(step)
            case api_keys.SYNC_GROUP:
                self._sync(body)
            case api_keys.HEARTBEAT:
                self._speak(body)
            case api_keys.LEAVE_GROUP:
                self._leave(body)
            case api_keys.CONSUMER_GROUP_HEARTBEAT:
                self._group_heartbeat(body)
            case api_keys.SHARE_GROUP_HEARTBEAT:
                self._subscribe(body)
                state = self._members.setdefault((body["groupId"], body["memberId"]), Member(step.request.api_key))
                if body["memberEpoch"] > 0:
                    body["memberEpoch"] = state.epoch

    def _arrives(self, step: Step) -> None:
        """Note that a member asks to be let into the generation of the captured answer to its JoinGroup."""
        answer = step.request.decoded_answer()
        answer_body = answer.body if answer is not None else None
        if answer_body is not None and not answer_body["errorCode"]:
            self._arriving[step.number] = (step.body["groupId"], answer_body["memberId"]), answer_body["generationId"]

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        if moves(step):
            self._still.discard(step.body["groupId"])
        if step.request.api_key == api_keys.JOIN_GROUP:
            self._arriving.pop(step.number, None)
            self._learn_join(step, sent, captured, replayed)
        elif step.request.api_key in apis.GROUP_HEARTBEATS:
            who = _speaker(step, captured)
            state = self._members.setdefault(who, Member(step.request.api_key))
            self._take_heartbeat(who, state, sent, replayed)
            self._note_entry(who, captured, replayed, leaves=sent["memberEpoch"] < 0)
        elif step.request.api_key == api_keys.LEAVE_GROUP and not replayed["errorCode"]:
            leaving = [step.body.get("memberId"), *(member["memberId"] for member in step.body["members"])]
            self._left.update((step.body["groupId"], member) for member in leaving if member)

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> None:
        if rule == "member_id_given" and replayed is not None:
            body["memberId"] = replayed["memberId"]
        if rule == "rejoined" and step.request.api_key == api_keys.JOIN_GROUP:
            body["memberId"] = ""
        if step.request.api_key in apis.GROUP_HEARTBEATS and rule in ("rebalance_awaited", "rejoined"):
            self._heartbeat_again(_speaker(step, captured), body, rule == "rejoined")

    def _commit(self, body: Body) -> None:
        group, member = body["groupId"], body.get("memberId", "")
        if group in self._refused:
            body["memberId"], body["generationIdOrMemberEpoch"] = "", -1
        elif "generationIdOrMemberEpoch" in body:
            body["generationIdOrMemberEpoch"] = self.generation(group, member, body["generationIdOrMemberEpoch"])
            body["memberId"] = self.member(group, member)

    def _offset_fetch(self, body: Body) -> None:
        for requested in body["groups"]:
            group, member = requested["groupId"], requested.get("memberId")
            if group in self._refused:
                requested["memberId"], requested["memberEpoch"] = None, -1
            elif member:
                requested["memberEpoch"] = self.generation(group, member, requested["memberEpoch"])
                requested["memberId"] = self.member(group, member)

    def _sync(self, body: Body) -> None:
        group, generation = body["groupId"], body["generationId"]
        leads = self._leads.get((group, body["memberId"], generation))
        if leads is None:
            for given in body["assignments"]:
                given["memberId"] = self.member(group, given["memberId"])
        else:
            body["assignments"] = self.assignment(group, generation, body["assignments"]) if leads else []
        self._speak(body)

    def _leave(self, body: Body) -> None:
        """Write members that leave with the ids that the target gave; static ones also by their instance alone."""
        group = body["groupId"]
        body["memberId"] = self._ids.get((group, body.get("memberId", "")), "")
        leaving = []
        for member in body["members"]:
            there = self._ids.get((group, member["memberId"]), "")
            if there or member.get("groupInstanceId"):
                leaving.append({**member, "memberId": there})
        body["members"] = leaving

    def _speak(self, body: Body) -> None:
        group, member = body["groupId"], body["memberId"]
        body["generationId"] = self.generation(group, member, body["generationId"])
        body["memberId"] = self.member(group, member)

    def _subscribe(self, body: Body) -> None:
        if body.get("subscribedTopicNames") is not None:
            body["subscribedTopicNames"] = [self._topics.name(name) for name in body["subscribedTopicNames"]]

    def _group_heartbeat(self, body: Body) -> None:
        """Write a heartbeat (KIP-848): the member has its epoch and its partitions from the target, not from the
        capture."""
        group, member = body["groupId"], body["memberId"]
        self._subscribe(body)
        if not member:  # version 0 joins without an id: whose state it is, the answer says
            body["topicPartitions"] = []
            return
        state = self._members.setdefault((group, member), Member())
        joins = body["memberEpoch"] <= 0
        if joins:
            state.assignment = state.owned = None
            del self._lost[group, member]
        else:
            body["memberEpoch"] = state.epoch
        body["memberId"] = self.member(group, member)
        if joins and body["memberEpoch"] == 0:
            body["topicPartitions"] = []
        elif not joins and state.apart:
            # Its assignment came apart: a member that says everything gets it again (KIP-848).
            body.update(copy.deepcopy(state.subscription), topicPartitions=copy.deepcopy(state.assignment or []))
            state.owned, state.apart = state.assignment, False
        elif not joins and (body.get("topicPartitions") is not None or state.assignment != state.owned):
            body["topicPartitions"] = copy.deepcopy(state.assignment or [])
            state.owned = state.assignment

    def _heartbeat_again(self, who: Who, body: Body, rejoins: bool) -> None:
        """Write a heartbeat that is repeated. The member is where its last answer put it (an older epoch is fenced), or
        it joins with everything it has said of itself, and owns nothing."""
        state = self._members.setdefault(who, Member())
        body["memberId"] = self.member(*who)
        owned: list[Body] | None = None
        if rejoins:
            body.update(copy.deepcopy(state.subscription))
            state.epoch, state.assignment, state.owned, owned = 0, None, None, []
            self._still.discard(who[0])
            self._lost[who] += 1
        elif state.assignment != state.owned:
            owned, state.owned = copy.deepcopy(state.assignment or []), state.assignment
        body["memberEpoch"] = state.epoch
        if "topicPartitions" in body:
            body["topicPartitions"] = owned

    def _learn_join(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        group, requested = step.body["groupId"], step.body["memberId"]
        was = captured["memberId"] if captured is not None else ""
        self._note_entry((group, was or requested), captured, replayed)
        if replayed["errorCode"] not in (errors.NONE, errors.MEMBER_ID_REQUIRED):
            return  # an id may stand in the answer all the same: the one that was asked with, and is not known
        for old in (requested, was):
            if old and replayed["memberId"]:
                self._ids[group, old] = replayed["memberId"]
        if replayed["errorCode"]:
            return
        if captured is None:
            self._settle((group, requested), sent, replayed)
        elif not captured["errorCode"]:
            self._take_generation((group, was, captured["generationId"]), replayed)
            self._reached[group, was] = captured["generationId"]
            self._settle((group, was), sent, replayed)
            del self._lost[group, was]

    def _note_entry(self, who: Who, captured: Body | None, replayed: Body, leaves: bool = False) -> None:
        """Note whether the member is let in, by the answers to its join or to its heartbeat."""
        error = replayed["errorCode"]
        if leaves:
            self._left.add(who)
        elif not error:
            self._kept_out.discard(who)
            self._left.discard(who)
        elif captured is not None and captured["errorCode"] in (errors.NONE, errors.MEMBER_ID_REQUIRED):
            if error != errors.MEMBER_ID_REQUIRED and not self._is_member(who):
                self._kept_out.add(who)

    def _take_heartbeat(self, who: Who, state: Member, sent: Body, replayed: Body) -> None:
        state.take(sent, replayed)
        if replayed["errorCode"] == errors.UNSUPPORTED_VERSION:  # offered, and not configured (3.9: KIP-848 groups)
            self.refuse(who[0])
        elif not replayed["errorCode"] and replayed.get("memberId"):
            self._ids[who] = replayed["memberId"]


def moves(step: Step) -> bool:
    """Whether a request starts a rebalance of its group, because its member joins, leaves or subscribes anew."""
    key = step.request.api_key
    if key not in apis.GROUP_HEARTBEATS:
        return key in (api_keys.JOIN_GROUP, api_keys.LEAVE_GROUP)
    body = step.body
    return body["memberEpoch"] <= 0 or body.get("subscribedTopicNames") is not None


def _speaker(step: Step, captured: Body | None) -> Who:
    """The group and the member, by its captured id, that a request speaks for; a group heartbeat of version 0 has it
    from the answer."""
    return step.body["groupId"], step.body.get("memberId") or (captured or {}).get("memberId") or ""
