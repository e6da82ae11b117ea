"""Filters that test fields of decoded keys and values.

Proves: analyzer/filter, analyzer/messages/record_payloads.py, analyzer/payloads/field_paths.py
"""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.filter.evaluation import FilterError, parse
from kwire.analyzer.payloads.field_paths import DecodedFields
from kwire.analyzer.pipeline.selection import record_payloads
from tests.analyzer.cli.test_parser import kwire, printed, refused
from tests.analyzer.filter.test_evaluation import DOCUMENT
from tests.analyzer.payloads.golden_payloads import golden_capture, write_schemas
from tests.shared import SAMPLES, capture_files

PRODUCE = {"api_key": 0, "latency_us": 5000, "client_id": "app"}


def fields(value: Any, key: Any = None) -> DecodedFields:
    texts = {"value": value, "key": key}
    return DecodedFields(lambda side: None if texts[side] is None else json.dumps(texts[side]))


def passes(text: str, *records: DecodedFields, row: dict[str, Any] = PRODUCE) -> bool:
    return parse(text).matches(row, None, None, records)


ORDER = fields(
    {
        "order": {"id": 7, "amount": "150.10", "price": 0.1, "big": 2**70},
        "lines": [{"sku": "a"}, {"sku": "b", "tags": [["x", "y"], []]}],
        "ok": False,
        "at": "2026-11-21T12:03:20.500000Z",
        "day": "2026-11-21",
        "gone": None,
        "nothing": [],
    },
    "customer-7",
)


@pytest.mark.parametrize(
    "text",
    [
        "value.order.id == 7",
        "value.order.id in (1, 7.0)",
        "value.order.id != 8",
        "value.order.id > 6.5 and value.order.id <= 7",
        "value.order.id ~ '^7$'",
        "value.order.amount > 100",
        "value.order.amount == 150.1",
        "value.order.amount == 150.10",
        "value.order.amount ~ '^150'",
        "value.order.price == 0.1",
        "value.order.price < 0.1000000000000001",
        "value.order.big > 1180591620717411303423",
        "value.order is not null",
        "value.lines.sku == b",
        "value.lines[].tags[] == y",
        "value.lines.sku != a",
        "value.ok == FALSE",
        "value.ok != true",
        "value.at > 2026-11-21T12:03",
        "value.at == 2026-11-21",
        "value.at < 2026-11-21T14:03:21+02:00",
        "value.day >= 2026-11-21 and value.day < 2026-11-22",
        "value.gone is null and value.nothing is null and value.lacking is null",
        "key == customer-7",
        "key ~ '^customer' and not value.order.id == 8",
        "value.order.id == 8 or latency == 5ms",
        'client_id == "app" and (value.order.id == 8 or key == customer-7)',
    ],
)
def test_a_record_passes(text: str) -> None:
    assert passes(text, ORDER)
    assert str(parse(str(parse(text)))) == str(parse(text))
    assert pickle.loads(pickle.dumps(parse(text))) == parse(text)  # tasks of Spark get it


@pytest.mark.parametrize(
    "text",
    [
        "value.order.id == 8",
        "value.order.id > 7",
        "value.order.id == seven",
        "value.order.amount > 150.1",
        "value.order == 7",
        "value == 7",
        "value.order.id.deeper == 7",
        "value.lines.sku == c",
        "value.lines.sku > 1",
        "value.ok > 0",
        "value.ok == 0",
        "value.at > 2026-11-22",
        "value.gone == null_",
        "value.gone != 1",
        "value.lacking !~ x",
        "key.name == customer-7",
        "latency > 1s and value.order.id == 7",
    ],
)
def test_a_record_does_not_pass(text: str) -> None:
    assert not passes(text, ORDER)


def test_all_fields_are_of_one_record() -> None:
    first, second = fields({"id": 1, "to": "a"}), fields({"id": 2, "to": "b"})
    assert passes("value.id == 1 and value.to == a", first, second)
    assert not passes("value.id == 1 and value.to == b", first, second)
    assert passes("not value.id == 1", first, second)
    assert not passes("not value.id == 1", first, first)


def test_an_exchange_without_records_has_no_fields() -> None:
    assert not passes("value.id != 1")
    assert passes("not value.id == 1")
    assert passes("value is null")
    metadata = {**PRODUCE, "api_key": 3}
    assert not passes("value.id == 1", fields({"id": 1}), row=metadata)
    assert passes("latency == 5ms or value.id == 1", row=metadata)


def test_records_are_decoded_only_where_columns_do_not_decide() -> None:
    def explode(_: str) -> str:
        raise AssertionError

    assert passes("latency == 5ms or value.id == 1", DecodedFields(explode))
    assert not passes("latency == 6ms and value.id == 1", DecodedFields(explode))
    assert parse("value.id == 1").apis == frozenset({0, 1, 78})
    assert parse("value.id == 1 or api == Metadata").apis == frozenset({0, 1, 3, 78})
    assert parse("not value.id == 1").apis is None
    assert not parse("request.acks == 1").needs_payloads
    assert record_payloads(parse("latency > 1s"), None) is None


def test_every_pair_of_conditions_is_as_python_has_it() -> None:
    """A reference implementation: the conditions' truth of each record, joined by Python."""
    records = [fields({"a": a, "b": b}) for a, b in itertools.product((1, 2, None), ("x", None))]
    leaves: dict[str, Callable[[Any, Any], bool]] = {
        "value.a == 1": lambda a, b: a == 1,
        "value.a > 1": lambda a, b: a is not None and a > 1,
        "value.b is null": lambda a, b: b is None,
        "latency == 5ms": lambda a, b: True,
        "latency > 5ms": lambda a, b: False,
    }
    values = list(itertools.product((1, 2, None), ("x", None)))
    for (left, says), (right, means) in itertools.product(leaves.items(), repeat=2):
        for sign, join in (("and", all), ("or", any)):
            for inverted in (False, True):
                text = f"{left} {sign} {'not ' if inverted else ''}{right}"
                for some in itertools.combinations(range(len(records)), 2):
                    wanted = any(join([says(*values[i]), means(*values[i]) != inverted]) for i in some)
                    assert passes(text, *(records[i] for i in some)) == wanted, (text, some)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value.id > abc", "neither a number nor a time"),
        ("value.id > 5ms", "neither a number nor a time"),
        ("value.id ~ '('", "not a regular expression"),
        ("value. == 1", "there is no `value.`"),
        ("key..a == 1", "there is no `key..a`"),
        ("valued == 1", "there is no `valued`"),
    ],
)
def test_mistakes_are_told_before_a_capture_is_opened(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(
    "hostile",
    [
        "1" * 5000,
        "[" * 900 + "]" * 900,
        "[" * 100_000 + "]" * 100_000,
        '{"a": 1e999999999}',
        '{"a": "' + "9" * 100_000 + '"}',
        '{"a": NaN}',
        '{"a": ' + '{"a": ' * 50_000,
        "\ud800",
    ],
    ids=len,
)
def test_hostile_values_raise_nothing(hostile: str) -> None:
    record = DecodedFields(lambda side: hostile)
    for text in ("value.a > 100", "value.a == 2026-11-21", "value ~ x", "value.a.a.a is null", "key != 1"):
        assert parse(text).matches(PRODUCE, None, None, [record]) in (True, False)


def test_numbers_of_any_size_compare_exactly() -> None:
    record = DecodedFields(lambda side: '{"a": 1e999999, "b": 0.30000000000000004, "c": 9007199254740993}')
    assert record("value", ("b",)) == [Decimal("0.30000000000000004")]
    assert parse("value.a > 100 and value.b != 0.3 and value.c == 9007199254740993").matches(
        PRODUCE, None, None, [record]
    )


# --- on captures ------------------------------------------------------------------------------------------------------


def documented() -> list[tuple[str, str, int]]:
    fences = re.findall(r"^```filter-records (\S+)\n(.*?)\n```", DOCUMENT, re.S | re.M)
    lines = [(sample, line.strip().partition(" ")) for sample, text in fences for line in text.splitlines()]
    return [(sample, expression.strip(), int(number)) for sample, (number, _, expression) in lines]


@pytest.mark.parametrize(("sample", "expression", "number"), documented())
def test_the_documentations_examples_match_what_they_say(sample: str, expression: str, number: int) -> None:
    capture = str(capture_files(SAMPLES / sample)[0])
    assert sum(1 for _ in analyzer.exchanges(capture, filter=expression, bodies=False)) == number
    assert len(analyzer.analyze(capture, filter=expression).exchanges) == number


def test_avro_is_tested_with_its_schema(tmp_path: Path) -> None:
    capture, schemas = golden_capture(tmp_path / "c.pcap"), write_schemas(tmp_path / "schemas")
    city = "value.address.city ~ '^Zürich' and value.amount < 0"
    assert printed("show", capture, "--filter", city, "--schemas", schemas).count("Produce") == 2
    assert kwire("show", capture, "--filter", city).stdout.count("\n") < 2
    shown = printed("show", capture, "--records", "--schemas", schemas, "--filter", "value.cents == 5", "--json")
    assert [json.loads(line)["value_format"] for line in shown.splitlines()] == ["json_schema"]
    printed("analyze", capture, "-o", tmp_path / "dataset", "--filter", city, "--schemas", schemas)
    assert len(analyzer.open_dataset(tmp_path / "dataset").exchanges.to_table()) == 2
    assert kwire("show", capture, "-w", tmp_path / "out.pcap", "--filter", city, "--schemas", schemas).returncode == 0
    assert len(list(analyzer.exchanges(str(tmp_path / "out.pcap")))) == 2
    assert "2" in printed("show", capture, "--count-by", "api", "--filter", city, "--schemas", schemas)
    refused(kwire("show", capture, "--fields", "value.cents"), "--filter has fields of keys and values")


def test_records_that_do_not_match_are_left_out_of_a_batch(tmp_path: Path) -> None:
    capture = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"
    lines = printed("show", capture, "--records", "--filter", "key == k10").splitlines()[1:]
    assert lines
    assert {line.split("\t")[4] for line in lines} == {"k10"}
    every = printed("show", capture, "--records", "--filter", "topic == js-gzip and (key == k10 or api == Fetch)")
    assert {line.split("\t")[4] for line in every.splitlines()[1:]} > {"k10", "null"}
