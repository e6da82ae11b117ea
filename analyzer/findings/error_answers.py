"""Rules about error answers of brokers: every code of Kafka has a severity, and every run that is a fault is reported
once.

Rules that know more of a code take it (`TAKEN`); the rest is told here."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import CaptureFrame, api_name
from kwire.analyzer.findings.query import Severity
from kwire.analyzer.findings.rules import Limits, Match, replaced, rule
from kwire.analyzer.findings.runs import EVERY, Run, Trouble, runs, together
from kwire.analyzer.findings.wording import client, count, moment, name, partition_name, some
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.error_severity import GRACE_S

CLAIMS: list[Callable[[Run], bool]] = []
"""Tests whether a rule of its own reports a run."""


EXPLANATIONS: list[Callable[[CaptureFrame, Trouble], bool]] = []
"""Tests whether a rule reports the cause of a trouble that no rule claims."""


def claim(api: tuple[int, ...], codes: tuple[int, ...], every: bool = False) -> Callable[[Run], bool]:
    """Claim the runs of these codes of these APIs (all APIs if none is named) for a rule; `every`: also those that
    pass."""

    def named(key: int, code: int) -> bool:
        return code in codes and (not api or key in api)

    def is_claimed(run: Run) -> bool:
        return named(run.api, run.code)

    CLAIMS.append(is_claimed)
    if every:
        EVERY.append(named)
    return is_claimed


def of(capture: CaptureFrame, is_claimed: Callable[[Run], bool], lasting: bool = True) -> list[Trouble]:
    """The runs that a rule claims, by client and subject; `lasting`: only faults. Runs that a lost broker or a moved
    leader explains are left out."""
    return together(
        [
            run
            for run in runs(capture)
            if is_claimed(run) and (run.lasting or not lasting) and not _explained(capture, run)
        ]
    )


_OF_MOVES = (3, 5, 6, 14, 15, 16, 74, 75, 100, 103, 9, 13, 19, 20, 22, 25, 56, 78)
"""Errors that clients get while leaders and coordinators move."""


def _explained(capture: CaptureFrame, run: Run) -> bool:
    """Whether a run passed and began with the loss of a broker or a moved leader."""
    return run.code in _OF_MOVES and run.cleared and root_causes.near(capture, run.since, run.until)


def about(trouble: Trouble) -> str:
    """The subject of a trouble: ` for group g`, ` for topic t (3 partitions)`; ` for topics a, b or some of these` or `
    for topic a or others of these requests` if its topic is not known."""
    thing = trouble.thing
    others = " or others of these requests" if thing.several else ""
    if thing.group:
        topic = f", topic {name(thing.topic)}{others}" if thing.topic else ""
        return f" for group {name(thing.group)}{topic}"
    if thing.transaction:
        return f" for transactional id {name(thing.transaction)}"
    if thing.topic:
        if len(trouble.topic_partitions) == 1:
            return f" for {partition_name(trouble.topic_partitions[0])}"
        if thing.topics and not trouble.topic_partitions:
            return f" for topics {some(list(thing.topics))} or some of these"
        many = f" ({count(len(trouble.topic_partitions), 'partition')})" if trouble.topic_partitions else ""
        return f" for topic {name(thing.topic)}{others}{many}"
    return ""


def times(trouble: Trouble) -> str:
    """`12 times, 10:01:03 to 10:01:09`; `20 of 30 times` where good answers came between."""
    of = f"{trouble.answers:,} of " if trouble.of is not None else ""
    text = f"{of}{count(trouble.of or trouble.answers, 'time')}, {moment(trouble.since)}"
    return text + (f" to {moment(trouble.until)}" if trouble.answers > 1 else "")


def what(trouble: Trouble) -> dict[str, str | None]:
    """The subject of a finding."""
    thing = trouble.thing
    partitions = ",".join(str(partition) for _, partition in trouble.topic_partitions[:20])
    return {
        "api": api_name(trouble.api),
        "error": trouble.error,
        "group_id": thing.group,
        "topic": thing.topic,
        "partition": partitions or None,
        "transactional_id": thing.transaction,
    }


def match_of(
    capture: CaptureFrame,
    trouble: Trouble,
    text: str,
    severity: Severity | None = None,
    cause: str | None = None,
    proven: bool | None = None,
) -> Match:
    """Return the match of a trouble."""
    return Match(
        text,
        trouble.answers,
        trouble.since,
        trouble.until,
        capture.who(trouble.client),
        what(trouble),
        trouble.evidence,
        severity=severity,
        cause=cause,
        proven=proven,
    )


def _untaken(run: Run) -> bool:
    return not any(is_claimed(run) for is_claimed in CLAIMS)


@rule(
    "errors",
    "error-answers",
    "error",
    "svc-a (10.0.0.4) got UNKNOWN_SERVER_ERROR (-1) to Produce for topic orders 12 times, 10:01:03 to 10:01:09; good "
    "answers came after.",
    why="Each of Kafka's errors has a judgement and a grace: at first sight; or a run of three answers beyond the "
    "grace (5 s, or 30 s for what elections and loading take), or of ten over a second. So are errors that alternate "
    "with good answers, ten and one in five of all or more.",
    suppressed_when="The error belongs to the protocol's course (`judgements.json`), passed within its grace, was what "
    "somebody's question deserved (admin-refused), or a broker's loss explains it.",
    advice="The error's own meaning says what to do; begin with the first exchange named.",
    evidence="forged: each code of the enum, once, as a run that passes and as one that stays",
)
def error_answers(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _untaken):
        judgement = trouble.runs[0].judgement
        if judgement.kind == "admin" or any(tells(capture, trouble) for tells in EXPLANATIONS):
            continue
        between = "good answers came between" + ("" if trouble.cleared else ", none after the last")
        after = "good answers came after" if trouble.cleared else "no good answer came after"
        after = between if trouble.of is not None else after
        text = f"{client(capture.who(trouble.client))} got {trouble.error} to {api_name(trouble.api)}{about(trouble)} "
        text += f"{times(trouble)}; {after}. {judgement.why}"
        # At first sight it is one; a run that lasted and passed is one to look after.
        severity: Severity = "error" if judgement.grace_s == 0 or not trouble.cleared else "warning"
        yield match_of(capture, trouble, text, severity)


_ADVICE: Mapping[int, str] = {
    errors.TOPIC_ALREADY_EXISTS: "Nothing, where a program creates its topics each time that it starts.",
    errors.INVALID_REPLICATION_FACTOR: "A replication factor of at most the number of brokers.",
    errors.INVALID_PARTITIONS: "More partitions than the topic has: their number only grows.",
    errors.INVALID_TOPIC_EXCEPTION: "A name of up to 249 letters, digits, dots, underscores and hyphens.",
    errors.POLICY_VIOLATION: "See the brokers' create.topic.policy.class.name and alter.config.policy.class.name.",
    errors.NON_EMPTY_GROUP: "Stop the members of the group first.",
}
"""Advice to whom an administrative request was refused, by error."""


@rule(
    "errors",
    "admin-refused",
    "note",
    "admin (10.0.0.4) was refused CreateTopics for topic orders: TOPIC_ALREADY_EXISTS (36), 1 time, 10:01:03.",
    why="A fact: it answers what somebody asked.",
    suppressed_when="Brokers that ask their controller for an internal topic, each as it needs one "
    "(TOPIC_ALREADY_EXISTS).",
    advice="See what was asked for: kwire show --tree shows the request.",
    evidence="errors-librdkafka-4.3, admin-*; forged: a topic that is there, asked for by an application and by a "
    "broker",
)
def admin_refused(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _untaken, lasting=False):
        if trouble.code == errors.TOPIC_ALREADY_EXISTS and capture.between_brokers[trouble.client]:
            continue
        if trouble.runs[0].judgement.kind == "admin":
            text = f"{client(capture.who(trouble.client))} was refused {api_name(trouble.api)}{about(trouble)}: "
            match = match_of(capture, trouble, text + f"{trouble.error}, {times(trouble)}.")
            yield replaced(match, advice=_ADVICE.get(trouble.code))


# ---------------------------------------------------------------------------------------------- topics that are missing

_MISSING = claim((api_keys.METADATA,), (3,))


def _misnamed(run: Run) -> bool:
    """Whether a name that no topic can have was requested repeatedly; once, it is a user's request (admin-refused)."""
    return run.api == api_keys.METADATA and run.code == 17 and run.lasts(GRACE_S)


CLAIMS.append(_misnamed)


@rule(
    "cluster",
    "topic-missing",
    "error",
    "svc-a (10.0.0.4) keeps asking for topic ordres, which does not exist: 14 times, 10:01:03 to 10:01:13.",
    why="A topic that was created a moment ago is known within 0.2 s; a name that does not exist was asked for 14 "
    "times in 10 s. Three answers over 3 s, or ten over one. So is a name that no topic can have (a note, "
    "admin-refused, where it was asked for less often).",
    suppressed_when="The topic is there later (then it was being created), at brokers of the same cluster: those whose "
    "Metadata has an address in common.",
    advice="Create it, or mend the name; allow.auto.create.topics hides such mistakes.",
    evidence="errors-librdkafka-4.3; captures that create topics say nothing; forged: a topic that another cluster "
    "has; tests/incidents clusters-mixed",
)
def topic_missing(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    troubles = [*of(capture, _MISSING), *of(capture, _misnamed, lasting=False)]
    troubles = sorted(troubles, key=lambda trouble: (-trouble.answers, trouble.since))
    if not troubles:
        return
    known = {topic for topic, _ in capture.known_topic_partitions}
    nearest, looked_for = Nearest(known), 0
    for trouble in troubles:
        named = trouble.thing.topics or (trouble.thing.topic,)
        missing = [topic for topic in named if topic and topic not in known]
        if trouble.cleared:
            continue
        wanted = [topic for topic in named if topic]
        elsewhere = [] if missing else _at_another_cluster(capture, trouble, wanted)
        if elsewhere:
            asks = f"{client(capture.who(trouble.client))} keeps asking for topic {some(wanted)}"
            refusing = some(_end_points(capture, trouble.rows))
            mixed = f"another cluster has it ({some(elsewhere)}): the client's bootstrap servers are of two clusters, "
            text = f"{asks}, which does not exist at {refusing}: {times(trouble)}."
            yield match_of(capture, trouble, text, None, f"{mixed}or of the wrong one", False)
        if not missing:
            continue
        looked_for += 1
        near = nearest.to(missing[0]) if looked_for <= _LOOKED_FOR else None
        why = "which does not exist" if trouble.code == 3 else "a name that no topic can have"
        text = f"{client(capture.who(trouble.client))} keeps asking for topic {some(missing)}, {why}: {times(trouble)}."
        cause = f"there is a topic {name(near)}" if near else None
        yield match_of(capture, trouble, text, None, cause, False if near else None)


def _end_points(capture: CaptureFrame, rows: np.ndarray) -> list[str]:
    """Brokers of some exchanges, by `ip:port`."""
    return sorted(capture.brokers[number] for number in arrow.distinct(capture.broker[rows]).tolist())


def _at_another_cluster(capture: CaptureFrame, trouble: Trouble, topics: list[str]) -> list[str]:
    """End points that have all of these topics, and whose Metadata has no address in common with that of those who
    refuse. Empty where one of the two says no addresses."""
    addresses_of: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for entry in capture.entry.get("advertised", ()):
        addresses_of[entry["broker"]].add((entry["host"], entry["port"]))
    refusing = set[tuple[str, int]]().union(*(addresses_of[end] for end in _end_points(capture, trouble.rows)))
    if not topics or not refusing or all(addresses & refusing for addresses in addresses_of.values()):
        return []
    parts = capture.partitions
    numbers = [number for number, (topic, _) in enumerate(capture.topic_partitions) if topic in topics]
    rows = spill.where(
        len(parts.owner),
        lambda block: arrow.among(parts.topic_partition[block], numbers) & (parts.error[block] == 0),
    )
    having = _end_points(capture, arrow.distinct(parts.owner[rows])) if len(rows) else []
    addresses = set[tuple[str, int]]().union(*(addresses_of[end] for end in having if end in addresses_of))
    return having if addresses and not addresses & refusing else []


def _is_of_another_cluster(capture: CaptureFrame, trouble: Trouble) -> bool:
    """Whether a topic is refused because the client mixes two clusters: topic-missing tells of it."""
    topic = trouble.thing.topic
    return trouble.code == 3 and topic is not None and bool(_at_another_cluster(capture, trouble, [topic]))


EXPLANATIONS.append(_is_of_another_cluster)

_LOOKED_FOR = 200
"""Missing topics, the most requested ones, for which a similar name is searched."""
_COMPARED = 500
"""Names that a missing one is compared with; of more, those with the most similar letters."""


class Nearest:
    """Names of topics, searched for the one most similar to another."""

    def __init__(self, known: set[str]) -> None:
        self._known = sorted(known)

    @functools.cached_property
    def _letters(self) -> np.ndarray:
        """int16[names, letters]: how often each name has each letter."""
        return np.array([_letters(name_) for name_ in self._known], np.int16).reshape(-1, _LETTERS)

    def to(self, topic: str) -> str | None:
        """Return the most similar name, or None."""
        import difflib

        some_ = self._known
        if len(some_) > _COMPARED:
            common = np.minimum(self._letters, _letters(topic)).sum(1)
            alike = common / (self._letters.sum(1) + len(topic))
            some_ = [some_[at] for at in np.sort(np.argsort(-alike, kind="stable")[:_COMPARED]).tolist()]
        return next(iter(difflib.get_close_matches(topic, some_, 1)), None)


_LETTERS = 64


def _letters(text: str) -> np.ndarray:
    """int16[_LETTERS]: how often a text has each letter."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32) % _LETTERS
    return np.bincount(points, minlength=_LETTERS).astype(np.int16)
