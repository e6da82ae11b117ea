"""What the target's topics will do to the records that are going to be written: retention, compaction, and bounds of
timestamps are compared with the records' times before anything is sent.

In: a `Target`, and when the records were made. Out: a sentence for each topic and setting that takes records away or
refuses them. Rule: nothing is changed; what the target does not tell is said too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from analyzer.protocol import api_keys, errors
from replay.plan.record_times import Times
from replay.send.target import Target

_RETENTION: Final = "retention.ms"
_BYTES: Final = "retention.bytes"
_POLICY: Final = "cleanup.policy"
_TYPE: Final = "message.timestamp.type"
_BEFORE: Final = "message.timestamp.before.max.ms"
_AFTER: Final = "message.timestamp.after.max.ms"
_EITHER: Final = "message.timestamp.difference.max.ms"
"""Before 3.6 the one setting for both directions (KIP-937)."""
_LAG: Final = "min.compaction.lag.ms"
_ASKED: Final = (_RETENTION, _BYTES, _POLICY, _TYPE, _BEFORE, _AFTER, _EITHER, _LAG)
_TIMEOUT: Final = 10.0
_SHIFT: Final = "--timestamps shift makes them as old as they were when captured"

Settings = Mapping[str, str]


async def warnings(target: Target, times: Mapping[str, Times], map_topic: Mapping[str, str], now_ms: int) -> list[str]:
    """The sentences. `times`: by captured topic. Raises LinkError where the target goes away."""
    wanted = {map_topic.get(name, name): one for name, one in times.items() if one.records}
    there = sorted(name for name in wanted if name in target.topology.partitions)
    if not there:
        return []
    if api_keys.DESCRIBE_CONFIGS not in target.offers:
        return ["the target does not tell its topics' settings: whether it keeps old records is not known"]
    said: list[str] = []
    for name, settings in (await _settings(target, there)).items():
        said += [f"{name}: {one}" for one in judged(settings, wanted[name], now_ms)]
    return said


async def _settings(target: Target, topics: list[str]) -> dict[str, Settings]:
    """The settings of topics, as far as the target tells them."""
    version = target.version(api_keys.DESCRIBE_CONFIGS, 4)
    asked = [
        {"resourceType": api_keys.TOPIC_RESOURCE, "resourceName": name, "configurationKeys": list(_ASKED)}
        for name in topics
    ]
    body = {"resources": asked, "includeSynonyms": False, "includeDocumentation": False}
    answer = await target.ask(api_keys.DESCRIBE_CONFIGS, version, body, _TIMEOUT)
    return {
        result["resourceName"]: {one["name"]: one["value"] or "" for one in result["configs"]}
        for result in answer["results"]
        if result["errorCode"] == errors.NONE and result["resourceName"] in topics
    }


def judged(settings: Settings, times: Times, now_ms: int) -> list[str]:
    """What a topic with these settings does to records of these times."""
    said = []
    policy = settings.get(_POLICY, "delete")
    own = settings.get(_TYPE) == "LogAppendTime"
    age, ahead = now_ms - times.oldest_ms, times.newest_ms - now_ms
    if times.oldest_ms >= 0 and not own:
        kept = _number(settings, _RETENTION)
        if "delete" in policy and 0 <= kept < age:
            which = "deletes all of these records" if kept < -ahead else "deletes records"
            said.append(f"{which}, which are up to {span(age)} old, by its {_RETENTION} of {span(kept)}; {_SHIFT}")
        before = _number(settings, _BEFORE if _BEFORE in settings else _EITHER)
        if 0 <= before < age:
            named = _BEFORE if _BEFORE in settings else _EITHER
            said.append(f"refuses records, which are up to {span(age)} old, by its {named} of {span(before)}; {_SHIFT}")
        after = _number(settings, _AFTER if _AFTER in settings else _EITHER)
        if 0 <= after < ahead:
            said.append(f"refuses records, which are of up to {span(ahead)} from now, by its bound of {span(after)}")
    room = _number(settings, _BYTES)
    if "delete" in policy and 0 <= room < times.bytes:
        said.append(f"may delete records: {times.bytes:,} bytes are sent, and its {_BYTES} is {room:,} a partition")
    if "compact" in policy and (own or times.oldest_ms < 0 or 0 <= _number(settings, _LAG) < age):
        said.append("is compacted: of records with equal keys it keeps the last")
    return said


def _number(settings: Settings, name: str) -> int:
    try:
        return int(settings.get(name, -1))
    except ValueError:
        return -1


def span(milliseconds: int) -> str:
    """A duration for people."""
    for size, unit in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if milliseconds >= size:
            count = milliseconds // size
            return f"{count:,} {unit}{'s' * (count != 1)}"
    return f"{milliseconds} ms"
