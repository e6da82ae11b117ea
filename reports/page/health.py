"""Health at a glance: from answers to a few statements, each with a verdict in a word.

Pure. A verdict never rests on colour alone, and each threshold says why it is what it is.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analyzer.text import duration, printable, size
from reports.page.questions import Answer

Verdict = Literal["bad", "look", "note", "good"]

SLOW_P99_US = 500_000
"""A broker that answers one request in a hundred later than this is slow: on a small, overloaded machine that was 62 ms
for Produce, and a cluster that is known for its slow disks had a second."""

VERY_SLOW_P99_US = 1_000_000
"""Beyond this, clients with a timeout of a few seconds begin to send again."""

JUDGED = 100
"""Answers that a 99th percentile needs: of fewer it is the longest but one."""

QUEUED_SHARE = 0.5
"""Of the time that clients wait, more than half behind their own requests is theirs to mend."""

QUEUED_US = 1_000_000
"""Together; less is not felt."""

FAR_BEHIND = 10_000
"""Offsets: a consumer that is fewer behind is so for a batch or two."""

RISING_STEPS, RISING_SHARE = 10, 0.8
"""Ten steps of ten seconds rule out bursts."""

CONNECTIONS_A_MINUTE = 30
"""Clients that fail wait 50 ms to 1 s before they connect again, so a failing one makes 60 a minute and a script 12."""

GENERATIONS_A_PERIOD, PERIOD = 6, datetime.timedelta(minutes=10)
"""Five generations in a few minutes are what members that come one after another make."""

CULPRITS = 4
"""Statements of one kind at most: the table has the others."""

RETRANSMITTED_SHARE, RETRANSMITTED = 0.01, 10
"""TCP mends fewer than one in a hundred without anybody noticing; of a few packets the share says nothing."""

BAD_RETRANSMITTED_SHARE = 0.05
"""From about here on TCP spends its time on mending."""

UNDERSTOOD_SHARE = 0.99

WAITING = ("Fetch", "JoinGroup", "SyncGroup", "ShareFetch")
"""APIs whose answer the broker holds until there is data, or the group is complete."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement: what was looked at, the verdict, and a sentence with the numbers. `section`: where more stands."""

    subject: str
    verdict: Verdict
    text: str
    section: str


def statements(answers: Mapping[str, Answer], target: str | None) -> list[Statement]:
    """Every statement that the answers allow, the worst first."""
    order: dict[Verdict, int] = {"bad": 0, "look": 1, "note": 2, "good": 3}
    totals, links = answers["totals"].dicts()[0], answers["links"].dicts()[0]
    stated = [
        *_errors(totals, answers), *_logins(answers), *_answers(totals, answers), *_latency(totals, answers),
        *_queues(answers), *_throttling(totals, answers), *_network(links, answers), *_churn(answers),
        *_retries(answers), *_checksums(answers), *_lag(answers), *_groups(answers), *_upgrade(answers, target),
        *_coverage(links, answers),
    ]  # fmt: skip
    return sorted(stated, key=lambda statement: order[statement.verdict])


def count(number: int, one: str, many: str = "") -> str:
    """`1 exchange`, `2,000 exchanges`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share(part: float, whole: float) -> str:
    """`3.7 %`; `under 0.1 %` rather than a zero that is none."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 or part == whole else "99.9 %"


def client(row: Mapping[str, Any]) -> str:
    """Who: `orders (10.0.0.1)`."""
    name = printable(row["client_id"]) if row["client_id"] else "a client without id"
    return f"{name} ({row['client_ip']})"


def moment(when: datetime.datetime) -> str:
    return when.strftime("%H:%M:%S")


def _enough(statements: Iterable[Statement], table: str) -> Iterator[Statement]:
    """The first of them; of the others only how many there are, in the words of the last."""
    shown = list(statements)
    yield from shown[:CULPRITS]
    if left := shown[CULPRITS:]:
        yield Statement(left[0].subject, left[0].verdict, f"{len(left)} more like these: see {table}.", left[0].section)


def _about(row: Mapping[str, Any]) -> str:
    """Of what: the group, transactional id or topic."""
    if row["group_id"]:
        topic = f", topic {printable(row['topic'])}" if row["topic"] else ""
        return f" for group {printable(row['group_id'])}{topic}"
    if row["transactional_id"]:
        return f" for transactional id {printable(row['transactional_id'])}"
    if row["topic"]:
        partitions = f" ({count(row['partitions'], 'partition')})" if row["partitions"] else ""
        return f" for topic {printable(row['topic'])}{partitions}"
    return ""


def _errors(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Statement]:
    """Each fault with its culprit; what the other errors come to."""
    errors, answered = totals["errors"], totals["answered"]
    if not answered:
        return
    if not errors:
        yield Statement("Errors", "good", f"None of {count(answered, 'answer')} holds an error.", "errors")
        return
    faults = [row for row in answers["faults"].dicts() if row["api"] not in ("SaslHandshake", "SaslAuthenticate")]
    yield from _enough((_fault(row) for row in faults), "Faults")
    kinds = {row["judgement"]: row for row in answers["judged_errors"].dicts()}
    parts = [
        f"{kinds[kind]['answers']:,} {what}"
        for kind, what in (
            ("normal", "in the protocol's course"), ("transient", "that passed or did not last"),
            ("admin", "as the answer to what somebody asked"),
        )
        if kind in kinds
    ]  # fmt: skip
    if not parts:
        return
    lasting = sum(row["lasting"] for row in kinds.values())
    if lasting:
        parts.append(f"{count(lasting, 'run')} took more than 5 s to pass")
    verdict: Verdict = "note" if lasting or "admin" in kinds else "good"
    if faults:
        yield Statement("Errors", verdict, f"No faults are the other errors: {', '.join(parts)}.", "errors")
        return
    text = f"{count(errors, 'answer')} of {answered:,} {'holds an error' if errors == 1 else 'hold an error'}, none of "
    yield Statement("Errors", verdict, f"{text}them a fault: {', '.join(parts)}.", "errors")


def _fault(row: dict[str, Any]) -> Statement:
    times = moment(row["first_time"])
    if row["answers"] > 1:
        times += f" to {moment(row['last_time'])}"
    after = "good answers came after" if row["cleared"] else "no good answer came after"
    text = f"{client(row)} got {row['error']} ({row['error_code']}) to {row['api']}{_about(row)} "
    text += f"{count(row['answers'], 'time')}, {times}; {after}. {row['why']}"
    return Statement("Errors", "bad", text, "errors")


def _logins(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    rows = answers["logins"].dicts()
    refused = [row for row in rows if row["refused"]]
    yield from _enough((_refused(row) for row in refused), "Logins")
    if rows and not refused and (accepted := sum(row["accepted"] for row in rows)):
        yield Statement("Logins", "good", f"{count(accepted, 'login')} by SASL, none refused.", "clients")


def _refused(row: dict[str, Any]) -> Statement:
    how = f" by {printable(row['mechanism'])}" if row["mechanism"] else ""
    times = f"{moment(row['first_refused'])} to {moment(row['last_refused'])}"
    after = "a login succeeded after" if row["good_after"] else "none succeeded after"
    text = f"{row['broker']} refused {client(row)}{how} {count(row['refused'], 'time')} ({row['error']}), "
    return Statement("Logins", "look" if row["good_after"] else "bad", f"{text}{times}; {after}.", "clients")


def _answers(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Statement]:
    if totals["unanswered"]:
        worst = answers["silences"].dicts()[0]
        text = f"{count(totals['unanswered'], 'request')} never got an answer: {worst['requests']:,} "
        text += f"{worst['api'] or 'unknown'} of {client(worst)} at {worst['broker']}, "
        text += f"since {moment(worst['first_time'])}"
        others = totals["unanswered"] - worst["requests"]
        text += f", and {others:,} more." if others else "."
        yield Statement("Answers", "look", text, "errors")
    elif totals["requests"]:
        left = totals["in_flight"]
        also = f"; {left:,} still waited when the capture ended" if left else ""
        yield Statement("Answers", "good", f"Every request was answered{also}.", "errors")
    if totals["orphans"]:
        text = f"{count(totals['orphans'], 'response')} came whose request was not captured."
        yield Statement("Beginning", "note", text, "coverage")


def _latency(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Statement]:
    """Of brokers and APIs with enough answers, each that is slow; else what half and nearly all take."""
    if not totals["prompt"]:
        return
    rows = [row for row in answers["latency_by_broker"].dicts() if row["api"] not in WAITING and row["timed"] >= JUDGED]
    slow = sorted((row for row in rows if row["p99_us"] >= SLOW_P99_US), key=lambda row: -int(row["p99_us"]))
    for row in slow[:CULPRITS]:
        verdict: Verdict = "bad" if row["p99_us"] >= VERY_SLOW_P99_US else "look"
        text = f"{row['broker']} takes {duration(row['p99_us'])} or more for one in a hundred of {row['timed']:,} "
        text += f"{row['api']} requests (half: {duration(row['p50_us'])})."
        quotas = " Quotas made clients pause meanwhile, and that is part of it." if totals["throttled"] else ""
        yield Statement("Latency", verdict, text + quotas, "latency")
    if slow:
        return
    text = f"Half of the requests that do not wait for data or members are answered within {duration(totals['p50_us'])}"
    text += f", 99 of 100 within {duration(totals['p99_us'])}; the slowest took {duration(totals['max_us'])}."
    few = "" if rows else f" No API has the {JUDGED} answers that a judgement needs."
    yield Statement("Latency", "good" if rows else "note", text + few, "latency")


def _queues(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    for row in answers["queued"].dicts()[:CULPRITS]:
        if row["queue_us"] >= QUEUED_US and row["queue_us"] > QUEUED_SHARE * row["latency_us"]:
            text = f"{share(row['queue_us'], row['latency_us'])} of what {client(row)} waits for {row['api']} at "
            text += f"{row['broker']} is behind its own earlier requests: {duration(row['queue_us'])} of "
            text += f"{duration(row['latency_us'])} in {count(row['exchanges'], 'exchange')}."
            yield Statement("Queues", "note", text, "latency")


def _throttling(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Statement]:
    if totals["throttled"]:
        worst = answers["throttled"].dicts()[0]
        text = f"{count(totals['throttled'], 'answer')} throttled its client, most of all {client(worst)} at "
        text += f"{worst['api']}: {worst['throttled']:,} times, {duration(worst['total_us'])} together."
        yield Statement("Quotas", "look", text, "latency")


def _network(links: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Statement]:
    packets, again = links["packets"], links["retransmissions"]
    if not packets:
        return
    lossy = again >= RETRANSMITTED and again > RETRANSMITTED_SHARE * packets
    verdict: Verdict = "bad" if lossy and again > BAD_RETRANSMITTED_SHARE * packets else "look" if lossy else "good"
    pairs = answers["connection_health"].dicts()
    lost = f"{count(again, 'packet')} of {packets:,} ({share(again, packets)}) sent again"
    said = [lost + _most(pairs, "retransmissions")]
    if links["resets"]:
        resets = f"{count(links['resets'], 'connection')} of {links['connections']:,} ended with a reset"
        said.append(resets + _most(pairs, "resets"))
        verdict = "look" if verdict == "good" else verdict
    if links["zero_windows"]:
        full = f"{count(links['zero_windows'], 'packet')} said that the receiver has no room"
        said.append(full + _most(pairs, "zero_windows"))
        verdict = "look" if verdict == "good" else verdict
    yield Statement("Network", verdict, "; ".join(said) + ".", "connections")


def _most(pairs: list[dict[str, Any]], column: str) -> str:
    """Between whom most of it was."""
    worst = max(pairs, key=lambda pair: int(pair[column]), default=None)
    return f", most between {client(worst)} and {worst['broker']}" if worst and worst[column] else ""


def _churn(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    """Clients that open connections again and again."""
    for row in answers["reconnects"].dicts()[:CULPRITS]:
        if row["opened"] >= CONNECTIONS_A_MINUTE and 2 * row["brief"] > row["opened"]:
            text = f"{client(row)} opened {row['opened']:,} connections to {row['broker']} in the minute from "
            text += f"{moment(row['time'])}, {row['brief']:,} of them for less than 5 s."
            yield Statement("Churn", "look", text, "connections")


def _lag(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    growing = [
        row for row in answers["lag_trend"].dicts()
        if row["steps"] >= RISING_STEPS and row["rising"] >= RISING_SHARE * row["steps"]
        and row["last_lag"] >= FAR_BEHIND
    ]  # fmt: skip
    for row in growing[:CULPRITS]:
        text = f"{client(row)} falls behind on {printable(row['topic'])}-{row['partition']}: from {row['first_lag']:,} "
        text += f"to {row['last_lag']:,} offsets, {moment(row['first_time'])} to {moment(row['last_time'])}."
        yield Statement("Lag", "look", text, "groups")
    behind = [row for row in answers["group_lag"].dicts() if row["lag"] is not None and row["commit_time"] is not None]
    if not behind or growing:
        return
    worst = max(behind, key=lambda row: int(row["lag"]))
    text = f"Of {count(len(behind), 'partition')} that groups commit and whose end is known, none is further behind "
    text += f"than {printable(worst['topic'])}-{worst['partition']} of group {printable(worst['group_id'])}: "
    text += f"{count(worst['lag'], 'offset')} at its last commit ({moment(worst['commit_time'])})."
    yield Statement("Lag", "note" if worst["lag"] >= FAR_BEHIND else "good", text, "groups")


def _retries(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    if answers["retries"].rows:
        more = "more than " if answers["retries"].more else ""
        text = f"{more}{count(len(answers['retries'].rows), 'batch', 'batches')} came more than once from its producer."
        yield Statement("Retries", "look", text[0].upper() + text[1:], "topics")


def _checksums(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    if wrong := answers["produce_efficiency"].total("bad_checksums"):
        text = f"{count(wrong, 'batch', 'batches')} came with a wrong checksum."
        yield Statement("Checksums", "bad", text, "topics")


def _groups(answers: Mapping[str, Answer]) -> Iterator[Statement]:
    groups = answers["groups_seen"].dicts()
    moved = [group for group in groups if group["generations"] > 1]
    restless = [
        group for group in moved
        if group["generations"] - 1
        >= GENERATIONS_A_PERIOD * max(1, (group["last_time"] - group["first_time"]) / PERIOD)
    ]  # fmt: skip
    for group in restless[:CULPRITS]:
        text = f"Group {printable(group['group_id'])} changed its generation {group['generations'] - 1:,} times "
        text += f"between {moment(group['first_time'])} and {moment(group['last_time'])}, "
        text += f"with {count(group['members'], 'member')}."
        yield Statement("Groups", "look", text, "groups")
    if quiet := [group for group in moved if group not in restless]:
        named = ", ".join(printable(group["group_id"]) for group in quiet[:3])
        more = f" and {len(quiet) - 3} more" if len(quiet) > 3 else ""
        text = f"{count(len(quiet), 'group')} of {len(groups):,} changed generation (rebalanced): {named}{more}."
        yield Statement("Groups", "note", text, "groups")


def _upgrade(answers: Mapping[str, Answer], target: str | None) -> Iterator[Statement]:
    if target is None:
        return
    rows = [row for row in answers["upgrade_check"].dicts() if row["sender"] == "client"]
    if not rows:
        yield Statement("Upgrade", "good", f"Kafka {target} has every API version that clients use.", "clients")
        return
    gone = [row for row in rows if row["problem"] != "not there yet"]
    named = sorted({printable(row["client_id"] or "a client without id") for row in gone or rows})
    who = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    if gone:
        text = f"Kafka {target} has removed what {count(len(named), 'client')} {'uses' if len(named) == 1 else 'use'}:"
        yield Statement("Upgrade", "bad", f"{text} {who}.", "clients")
    else:
        text = f"Kafka {target} is older than what {count(len(named), 'client')} spoke: {who}."
        yield Statement("Upgrade", "note", text, "clients")


def _coverage(links: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Statement]:
    payload, missing = links["payload_bytes"] or 0, links["missing_bytes"] or 0
    if not payload:
        yield Statement("Coverage", "look", "No Kafka traffic was found in the capture.", "coverage")
        return
    understood = links["understood_bytes"]
    verdict: Verdict = "good" if understood >= UNDERSTOOD_SHARE * payload and not missing else "look"
    said = [f"{share(understood, payload)} of {size(payload)} of Kafka traffic was decoded"]
    if links["encrypted_bytes"]:
        said.append(f"{size(links['encrypted_bytes'])} is encrypted")
    if missing:
        said.append(f"{size(missing)} is missing from the capture")
    lost = answers["captured"].total("dropped_packets")
    if lost:
        said.append(f"the capture itself lost {count(lost, 'packet')}")
        verdict = "look"
    yield Statement("Coverage", verdict, "; ".join(said) + ".", "coverage")
