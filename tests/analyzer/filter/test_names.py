"""Names mean the same in filters and in `--fields`, `--sort` and `--count-by`.

proves: kwire.analyzer.filter.names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli.text import cell
from kwire.analyzer.common import address_names
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset import tables
from kwire.analyzer.filter import names
from kwire.analyzer.filter.evaluation import parse
from kwire.analyzer.filter.tokens import Word, WordError
from tests.shared import SAMPLES, capture_files


@pytest.fixture(autouse=True)
def address_names_of_samples(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 here\n")
    with address_names.opened([path]):
        yield


PATHS = [
    "request.acks",
    "request.topics[].name",
    "request.topics.name",
    "response.throttleTimeMs",
    "response.errorCode",
    "response.responses[].partitions[].highWatermark",
    "response.topics[].errorCode",
    "request.maxWaitMs",
    "response.topics[].isInternal",
    "request.topicData[].partitionData[].records",
    "request.committed",
]


def printed(word: str) -> names.Operand:
    return names.resolve_printed(Word(word, 0, len(word)), "to show")


@functools.cache
def seen(sample: str) -> tuple[tuple[dict[str, Any], Any, Any], ...]:
    exchanges = analyzer.exchanges(str(capture_files(SAMPLES / sample)[0]))
    return tuple((exchange.row, exchange.request, exchange.response) for exchange in exchanges)


def written(value: Any, kind: str) -> str:
    """Write a value in a filter's syntax."""
    if kind == "time":
        return rfc3339(value)
    if kind == "duration" and not isinstance(value, bool):
        return f"{value}"
    return '"' + str(value).replace('"', '""') + '"'


@pytest.mark.parametrize("word", [*names.names(), *PATHS])
def test_a_filter_for_what_is_shown_finds_it(word: str) -> None:
    """A filter that compares a name with its printed value matches; a name without a value `is null`."""
    operand = printed(word)
    values_found = nulls = 0
    for sample in ("txn-librdkafka-4.3", "group-kip848-librdkafka-4.3"):
        for row, request, response in seen(sample)[:150]:
            parts = operand.parts(row, request, response)
            if parts == [None]:
                nulls += 1
                if word != "error":  # the first error is there where any is
                    assert parse(f"{word} is null").matches(row, request, response), (word, row)
                continue
            values_found += 1
            unit = "us" if word in ("latency", "total", "throttle", "queue", "network", "hold") else ""
            unit = "ms" if word == "max_wait" else unit
            for part in parts:
                expression = f"{word} == {written(part, operand.kind)}{unit}"
                assert parse(expression).matches(row, request, response), expression
    assert values_found + nulls > 200


def test_every_name_can_be_shown_and_its_values_are_of_its_kind() -> None:
    for word in names.names():
        operand = printed(word)
        for row, request, response in seen("txn-librdkafka-4.3")[:60]:
            assert isinstance(cell(operand.shown(row, request, response)), str)
            assert all(type(value) in names.TYPES[operand.kind] for value in operand.values(row)), word


def test_a_column_is_shown_as_the_table_has_it() -> None:
    for column in tables.EXCHANGES:
        operand = printed(column.name)
        for row, _, _ in seen("txn-librdkafka-4.3"):
            assert operand.shown(row) == row[column.name]


def test_a_path_through_a_list_has_all_its_values_and_one_without_has_one() -> None:
    bodies = {"topics": [{"name": "a"}, {"name": "b"}], "acks": 1}
    row = dict.fromkeys((column.name for column in tables.EXCHANGES), None) | {"api_key": 8}
    assert printed("request.topics[].name").shown(row, bodies) == ["a", "b"]
    assert printed("request.topics[].name").shown({**row, "api_key": 18}, bodies) is None  # its API has no topics
    assert printed("request.committed").shown({**row, "api_key": 26}, {"committed": False}) is False


def test_secrets_are_shown_as_their_lengths() -> None:
    sasl = [exchange for exchange in seen("sasl-librdkafka-4.3") if exchange[0]["api"] == "SaslAuthenticate"]
    assert sasl
    for row, request, response in sasl:
        assert list(printed("request.authBytes").shown(row, request, response)) == ["redactedBytes"]
        assert printed("request.authBytes").values(row, request, response) == []


@pytest.mark.parametrize(
    ("word", "hint"), [("latencyy", "`latency`"), ("request.ackz", "`request.acks`"), ("", "column")]
)
def test_what_is_no_name_says_what_was_meant(word: str, hint: str) -> None:
    with pytest.raises(WordError) as caught:
        printed(word)
    assert hint in caught.value.hint
