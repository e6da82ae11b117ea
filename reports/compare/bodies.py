"""Settings that only the bodies of requests say: fetch sizes, assignors.

In: captures, read a second time as far as `MOST` exchanges. Out: how often each value was seen, by connection. Datasets
do not hold these, so of a dataset nothing is known.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kwire.analyzer import api
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys as apis

MOST: Final = 300_000
"""Exchanges that are looked at: settings stand in the first requests of a connection."""
_EACH: Final = 5
"""Requests of a connection and API that are decoded."""

Settings = dict[tuple[str, str], dict[str, Counter[str]]]
"""How often each value of a setting was seen, by capture and connection."""


def settings(captures: Sequence[str], how: ReadOptions, filter: str | None = None) -> Settings:
    """Read the settings of captures; of stdin, which cannot be read twice, nothing."""
    result: Settings = {}
    if "-" in captures:
        return result
    decoded: Counter[tuple[str, str, int]] = Counter()
    exchanges = api.raw_exchanges(
        captures, how, filter=filter, ordered=False, bodies=frozenset((apis.FETCH, apis.JOIN_GROUP))
    )
    with contextlib.closing(exchanges):  # type: ignore[type-var]  # a generator
        for number, exchange in enumerate(exchanges):
            row = exchange.row
            key = row["api_key"]
            if number >= MOST:
                break
            if key not in (apis.FETCH, apis.JOIN_GROUP) or exchange.request_message is None:
                continue
            name = row["capture"], row["connection"]
            if decoded[*name, key] >= _EACH:
                continue
            body = exchange.exchange().request
            if body is not None:
                decoded[*name, key] += 1
                facts = result.setdefault(name, {})
                for setting, value in _values(key, body):
                    facts.setdefault(setting, Counter())[value] += 1
    return result


def _values(key: int, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if key == apis.JOIN_GROUP:
        names = [protocol["name"] for protocol in body.get("protocols") or ()]
        if names:
            yield "assignors", ", ".join(names)
        return
    if isinstance(body.get("maxBytes"), int):
        yield "fetch_max_bytes", f"{body['maxBytes']:,}"
    sizes = {
        partition["partitionMaxBytes"]
        for topic in body.get("topics") or ()
        for partition in topic.get("partitions") or ()
        if isinstance(partition.get("partitionMaxBytes"), int)
    }
    for size in sizes:
        yield "fetch_partition_max_bytes", f"{size:,}"
