"""Warns of what the target's topics will do to the records that are going to be written.

Retention, compaction and bounds of timestamps are compared with the records' times before anything is sent. In: a
`Target`, and when the records were made. Out: a line for each topic and setting that deletes or refuses records. Rule:
nothing is changed; settings that the target does not tell are mentioned too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.replay.plan.record_times import Times
from kwire.replay.send.target import Target

_RETENTION: Final = "retention.ms"
_BYTES: Final = "retention.bytes"
_POLICY: Final = "cleanup.policy"
_TYPE: Final = "message.timestamp.type"
_BEFORE: Final = "message.timestamp.before.max.ms"
_AFTER: Final = "message.timestamp.after.max.ms"
_EITHER: Final = "message.timestamp.difference.max.ms"
"""The setting for both directions before 3.6 (KIP-937)."""
_LAG: Final = "min.compaction.lag.ms"
_SETTINGS: Final = (_RETENTION, _BYTES, _POLICY, _TYPE, _BEFORE, _AFTER, _EITHER, _LAG)
_TIMEOUT: Final = 10.0
_SHIFT: Final = "--timestamps shift makes them as old as they were when captured"

Settings = Mapping[str, str]


async def warnings(target: Target, times: Mapping[str, Times], map_topic: Mapping[str, str], now_ms: int) -> list[str]:
    """List the warnings. `times`: by captured topic. Raises LinkError if the target goes away."""
    wanted = {map_topic.get(name, name): topic_times for name, topic_times in times.items() if topic_times.records}
    there = sorted(name for name in wanted if name in target.topology.partitions)
    if not there:
        return []
    if api_keys.DESCRIBE_CONFIGS not in target.offers:
        return ["the target does not tell its topics' settings: whether it keeps old records is not known"]
    lines: list[str] = []
    for name, settings in (await _settings(target, there)).items():
        lines += [f"{name}: {topic_times}" for topic_times in judged(settings, wanted[name], now_ms)]
    return lines


async def _settings(target: Target, topics: list[str]) -> dict[str, Settings]:
    """The settings of topics, as far as the target tells them."""
    version = target.version(api_keys.DESCRIBE_CONFIGS, 4)
    resources = [
        {"resourceType": api_keys.TOPIC_RESOURCE, "resourceName": name, "configurationKeys": list(_SETTINGS)}
        for name in topics
    ]
    body = {"resources": resources, "includeSynonyms": False, "includeDocumentation": False}
    answer = await target.ask(api_keys.DESCRIBE_CONFIGS, version, body, _TIMEOUT)
    return {
        result["resourceName"]: {config["name"]: config["value"] or "" for config in result["configs"]}
        for result in answer["results"]
        if result["errorCode"] == errors.NONE and result["resourceName"] in topics
    }


def judged(settings: Settings, times: Times, now_ms: int) -> list[str]:
    """Lines for what a topic with these settings does to records of these times."""
    lines = []
    policy = settings.get(_POLICY, "delete")
    own = settings.get(_TYPE) == "LogAppendTime"
    age, ahead = now_ms - times.oldest_ms, times.newest_ms - now_ms
    if times.oldest_ms >= 0 and not own:
        retention = _number(settings, _RETENTION)
        if "delete" in policy and 0 <= retention < age:
            which = "deletes all of these records" if retention < -ahead else "deletes records"
            lines.append(
                f"{which}, which are up to {span(age)} old, by its {_RETENTION} of {span(retention)}; {_SHIFT}"
            )
        before = _number(settings, _BEFORE if _BEFORE in settings else _EITHER)
        if 0 <= before < age:
            named = _BEFORE if _BEFORE in settings else _EITHER
            lines.append(
                f"refuses records, which are up to {span(age)} old, by its {named} of {span(before)}; {_SHIFT}"
            )
        after = _number(settings, _AFTER if _AFTER in settings else _EITHER)
        if 0 <= after < ahead:
            lines.append(f"refuses records, which are of up to {span(ahead)} from now, by its bound of {span(after)}")
    room = _number(settings, _BYTES)
    if "delete" in policy and 0 <= room < times.bytes:
        lines.append(f"may delete records: {times.bytes:,} bytes are sent, and its {_BYTES} is {room:,} a partition")
    if "compact" in policy and (own or times.oldest_ms < 0 or 0 <= _number(settings, _LAG) < age):
        lines.append("is compacted: of records with equal keys it keeps the last")
    return lines


def _number(settings: Settings, name: str) -> int:
    try:
        return int(settings.get(name, -1))
    except ValueError:
        return -1


def span(milliseconds: int) -> str:
    """Format a duration for people."""
    for size, unit in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if milliseconds >= size:
            count = milliseconds // size
            return f"{count:,} {unit}{'s' * (count != 1)}"
    return f"{milliseconds} ms"
