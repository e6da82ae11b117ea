"""The filter language: its documented examples, its errors, and three evaluators that agree.

The examples of `FILTER.md` are counted on the shipped samples. For random expressions a slow and obvious evaluator, the
full test, the columns of an Arrow table (plain and dictionary-encoded) and the rows of integers must agree.
"""

from __future__ import annotations

import datetime
import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kwire import analyzer
from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.bulk.fields import MAX_CODES
from kwire.analyzer.bulk.rows import Exchanges, Names, no_exchanges
from kwire.analyzer.dataset import tables
from kwire.analyzer.filter import evaluation as filtering
from kwire.analyzer.filter import names as filter_names
from kwire.analyzer.filter import values
from kwire.analyzer.filter.evaluation import Filter, FilterError, parse
from kwire.analyzer.protocol import schema
from kwire.captures.files import capture_points
from tests.analyzer.filter.table_columns import table_verdict
from tests.shared import ROOT, SAMPLES, capture_files, sample_folders

DOCUMENT = (ROOT / "analyzer" / "filter" / "FILTER.md").read_text("utf-8")

Body = dict[str, Any] | None
Seen = tuple[dict[str, Any], Body, Body]


@functools.cache
def seen(sample: str) -> tuple[Seen, ...]:
    """Get row, request and response of every exchange of a sample."""
    exchanges = analyzer.exchanges(str(capture_files(SAMPLES / sample)[0]))
    return tuple((exchange.row, exchange.request, exchange.response) for exchange in exchanges)


def count(filter: Filter, sample: str) -> int:
    return sum(filter.matches(*exchange) for exchange in seen(sample))


# --- the documentation ---


def documented() -> list[tuple[str, str, int]]:
    """List (sample, expression, number of matches) of every documented example."""
    examples = []
    for sample, lines in re.findall(r"^```filter (\S+)\n(.*?)\n```", DOCUMENT, re.S | re.M):
        for line in lines.splitlines():
            match = re.fullmatch(r" *(\d+)  (.+)", line)
            assert match is not None, line
            examples.append((sample, match[2], int(match[1])))
    return examples


def test_there_are_examples_of_everything() -> None:
    assert len(documented()) > 50
    expressions = " ".join(expression for _, expression, _ in documented())
    for sign in (
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "~",
        "!~",
        "in (",
        "not in (",
        "is null",
        "is not null",
        "and",
        "or",
        "not",
        "(",
        "'",
        '"',
    ):
        assert sign in expressions, sign
    for unit in [*values.DURATIONS, *values.SIZES]:
        if unit.isascii():
            assert re.search(rf"\d{unit}\b", expressions) or f"`{unit}`" in DOCUMENT, unit
    for name in filter_names.names():
        assert f"`{name}`" in DOCUMENT, f"{name} is not documented"


@pytest.mark.parametrize(("sample", "expression", "matches"), documented())
def test_the_documentations_examples_match_what_they_say(sample: str, expression: str, matches: int) -> None:
    assert count(parse(expression), sample) == matches


def test_the_documented_error_is_what_is_said() -> None:
    with pytest.raises(FilterError) as caught:
        parse("api == Produce and latencyy > 3")
    error = caught.value
    assert f"```text\n{error.message}\n{error.pointer}\nhint: {error.hint}\n```" in DOCUMENT


def test_the_filter_argument_gives_the_same_exchanges() -> None:
    sample = "txn-librdkafka-4.3"
    for expression in ("topic == tx-out", "request.committed == false", "error is not null or latency > 20ms"):
        chosen = analyzer.exchanges(str(capture_files(SAMPLES / sample)[0]), filter=expression)
        wanted = [row for row, request, response in seen(sample) if parse(expression).matches(row, request, response)]
        assert wanted
        assert [exchange.row for exchange in chosen] == wanted


# --- errors ---

# fmt: off
WRONG = [
    # expression, where the caret starts, what is wrong, what to try
    ("", 1, "empty", "api == Produce"),
    ("   ", 1, "empty", ""),
    ("api ==", 7, "ends too early", "a value"),
    ("api", 4, "ends too early", "a comparison"),
    ("(api == Fetch", 14, "ends too early", "`)`"),
    ("api == Fetch or", 16, "ends too early", "a name to compare"),
    ("api == Fetch)", 13, "`)` closes nothing", "`(`"),
    ("api == Fetch latency > 1s", 14, "`latency` cannot stand here", "`and`, `or` or the end"),
    ("api = Fetch", 5, "`=` is not part of the language", "write `==`"),
    ("api == Fetch && acks == 0", 14, "`&&`", "write `and`"),
    ("! api == Fetch", 1, "`!`", "write `not`"),
    ("topic contains x", 7, "`contains`", "write `~`"),
    ("topic == 'abc", 10, "never closed", "twice"),
    ('"topic" == abc', 1, "cannot stand here", "a name"),
    ("group == and", 10, "`and` cannot stand here", "a value"),
    ("group == null", 10, "`null` cannot stand here", "a value"),
    ("api in ()", 9, "`)` cannot stand here", "a value"),
    ("api in (Fetch,)", 15, "`)` cannot stand here", "a value"),
    ("api is Fetch", 8, "`Fetch` cannot stand here", "`null`"),
    ("latencyy > 1s", 1, "no `latencyy`", "`latency`"),
    ("clientid == x", 1, "no `clientid`", "`client_id`"),
    ("highWatermark > 1", 1, "no `highWatermark`", "`response.responses.partitions.highWatermark`"),
    ("acks == 0 and qqqqqqqq == 1", 15, "no `qqqqqqqq`", "request."),
    ("request.ackz == 1", 1, "no API has a field `request.ackz`", "`request.acks`"),
    ("response.highWatermark > 1", 1, "no API", "`response.responses.partitions.highWatermark`"),
    ("response.acks == 1", 1, "no API", "`request.acks`"),
    ("request == 1", 1, "needs a field", "request."),
    ("request. == 1", 1, "no API", ""),
    ("latency > response_bytes", 11, "`latency` is a duration, `response_bytes` is a size", "in quotes"),
    ("time < latency", 8, "cannot be compared", ""),
    ("client_id < group_id", 11, "`<` does not go with text", "`==`"),
    ("topic == request.topics.name", 10, "`topic` is no single value", ""),
    ("request.acks[] == 1", 1, "`request.acks` is no list", "leave the `[]` out"),
    ("response.responses > 3", 20, "no single value", "`response.responses."),
    ("response.topics.partitions._tags == 1", 1, "no API", ""),
    ("api == Prodduce", 8, "no API `Prodduce`", "`Produce`"),
    ("api == 5000", 8, "no API 5000", "api_key == 5000"),
    ("api in (Fetch, Fetsch)", 16, "no API `Fetsch`", "`Fetch`"),
    ("api > Fetch", 5, "`>` does not go with an API", "`==`"),
    ("error == NOT_LEADER_OR_FOLOWER", 10, "no error", "`NOT_LEADER_OR_FOLLOWER`"),
    ("error == 70000", 10, "16 bits", ""),
    ("error == NONE", 10, "success", "error is null"),
    ("error == 0", 10, "success", "error_code == 0"),
    ("error_code == OOPS", 15, "no error `OOPS`", "names"),
    ("error > 3", 7, "does not go with an error", ""),
    ("status == answred", 11, "no status", "`answered`"),
    ("latency == abc", 12, "not a duration", "100ms"),
    ("latency > 100", 11, "no unit", "`100ms`"),
    ("latency > 10kB", 11, "`kB` is no unit of a duration", "ms"),
    ("latency > 10MS", 11, "`MS` is no unit", "`ms`"),
    ("latency > 1.5us", 11, "whole number", "microsecond"),
    ("latency ~ 1", 9, "`~` does not go with a duration", "`>`"),
    ("request_bytes > 10ms", 17, "`ms` is no unit of a size", "kB"),
    ("request_bytes > 10KB", 17, "`KB` is no unit", "`KiB` (1024)"),
    ("api_version == 1.5", 16, "whole number", ""),
    ("api_version == 3B", 16, "`B` is no unit", "leave the unit out"),
    ("api_version == 99999999999999999999", 16, "too large", "64 bits"),
    ("api_version == " + "9" * 6000, 16, "not a whole number", ""),
    ("api_version < x", 15, "not a whole number", "-1"),
    ("client_id < x", 11, "does not go with text", "`~`"),
    ("topic ~ '['", 9, "not a regular expression", "backslash"),
    ("topic ~ '(?P<a>x)(?P<a>y)'", 9, "not a regular expression", ""),
    ("topic ~ 'a{99999999999999999999}'", 9, "regular expression", ""),
    ("client == orders", 11, "not an address", "client_id"),
    ("client == 10.0.0.1:99999", 11, "not an address", "9092"),
    ("broker == 10.0.0.300", 11, "not an address", ""),
    ("time >= noon", 9, "not a time", "12:03:20"),
    ("time >= 25:00", 9, "not a time", ""),
    ("time >= 2026-02-30", 9, "no date", "2026-11-21"),
    ("time >= 2026-11-21T12:00:00+99:00", 9, "no offset", "+02:00"),
    ("time == 2026-11-21T12", 9, "not a time", ""),
    ("request.acks == x", 17, "not a whole number", ""),
    ("request.acks > 3ms", 16, "no unit of a whole number", ""),
    ("request.timeoutMs > 3kB", 21, "no unit of a duration", ""),
    ("response.topics.isInternal == maybe", 31, "neither true nor false", "`true`"),
    ("response.topics.isInternal > true", 28, "does not go with", ""),
    ("request.authBytes == x", 19, "secret", "is null"),
    ("request.assignments.assignment == x", 32, "no single value", "is null"),
]
# fmt: on


@pytest.mark.parametrize(("text", "column", "problem", "hint"), WRONG, ids=[text[:40] for text, *_ in WRONG])
def test_an_error_points_at_the_place_and_says_what_to_try(text: str, column: int, problem: str, hint: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    error = caught.value
    assert (problem in error.message, hint in error.hint) == (True, True), (error.message, error.hint)
    assert error.message.startswith(f"filter, column {column}: ")
    assert "\n" not in error.message
    assert "\n" not in error.hint
    shown, caret = error.pointer.split("\n")
    if 0 < column <= min(len(text), 60):
        assert shown[caret.index("^")] == text[column - 1]


def test_the_caret_is_below_the_word_in_a_long_filter() -> None:
    text = "api == Fetch and " * 30 + "nonsense == 1 or " + "api == Fetch"
    with pytest.raises(FilterError) as caught:
        parse(text)
    shown, caret = caught.value.pointer.split("\n")
    assert shown[caret.index("^") :].startswith("nonsense")
    assert caught.value.column == 1 + text.index("nonsense")


def attempt(text: str) -> tuple[Filter | None, FilterError | None]:
    """Parse an expression: (filter, None) or (None, error); any other exception fails the test."""
    try:
        return parse(text), None
    except FilterError as error:
        return None, error


@pytest.mark.parametrize(
    "text",
    [
        "(" * 500 + "acks == 0" + ")" * 500,
        "not " * 20_000 + "acks == 0",
        "(not " * 120 + "acks == 0" + ")" * 120,
        "(" * 60_000,
        "(acks == 0 or acks == 1 and " * 200 + "acks == 2" + ")" * 200,
    ],
)
def test_nesting_is_bounded_or_harmless(text: str) -> None:
    parsed, error = attempt(text)
    if error is None:
        assert parsed == parse("acks == 0")
    else:
        assert re.search("nested deeper|longer than|too early", str(error))


def test_a_filter_of_megabytes_is_refused() -> None:
    with pytest.raises(FilterError, match="longer than 65,536"):
        parse("acks == 0 or " * 10_000)


def test_many_parts_side_by_side_are_no_depth() -> None:
    parsed = parse(" or ".join(f"correlation_id == {i}" for i in range(2000)))
    verdict = table_verdict(parsed, pa.table({"correlation_id": pa.array([1999, 2000, None], pa.int32())}))
    assert [part.tolist() for part in verdict] == [[True, False, False], [False, True, True], [False] * 3]


# fmt: off
TOKENS = [
    "api", "==", "!=", "~", "!~", "<", ">=", "(", ")", ",", "in", "not", "and", "or", "is", "null", "Produce",
    "latency", "100ms", "10kB", '"', "'", "topic", "request.acks", "response.topics.name", "error", "time",
    "12:03:20", "2026-11-21", "client", "[::1]:9092", "10.0.0.0/8", "-1", "0", "9" * 40, "(?i)", "[", "*", "\\",
    "status", "request.", "=", "&&", "\x00", "é", "request", "response.", "true", "999999-99-99", "::", "%", "{",
    "1e9", "١",
]
# fmt: on


@settings(max_examples=1000)
@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join)
    | st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)
)
def test_whatever_is_typed_nothing_but_a_filter_error_is_raised(text: str) -> None:
    parsed, error = attempt(text)
    if error is None:
        assert parse(str(parsed)) == parsed
    else:
        assert error.hint
        assert 1 <= error.column <= len(text) + 1


@settings(max_examples=300)
@given(
    st.sampled_from(
        [
            *filter_names.names(),
            "request.acks",
            "response.topics.name",
            "response.topics.isInternal",
            "response.entries.values.value",
            "request.groups",
            "request.timeoutMs",
        ]
    ),
    st.sampled_from(["==", "<", ">=", "~", "!="]),
    st.text(max_size=25) | st.from_regex(r"[0-9:.TZ+/-]{1,30}"),
)
def test_whatever_the_value_nothing_but_a_filter_error_is_raised(name: str, sign: str, value: str) -> None:
    quoted = value.replace('"', '""')
    parsed, error = attempt(f'{name} {sign} "{quoted}"')
    assert error is None or error.hint
    assert parsed is None or parse(str(parsed)) == parsed


# --- what it means ---


def row(**values: Any) -> dict[str, Any]:
    """Make a row of exchanges; columns that are not given are null."""
    values_by_name: dict[str, Any] = dict.fromkeys(column.name for column in tables.EXCHANGES)
    return {
        **values_by_name,
        "capture": "c",
        "connection": "10.0.0.1:40000-10.0.0.2:9092#1",
        "client_ip": "10.0.0.1",
        "client_port": 40000,
        "broker_ip": "10.0.0.2",
        "broker_port": 9092,
        **values,
    }


def errors(*codes: int) -> list[dict[str, Any]]:
    from kwire.analyzer.protocol import errors as kafka

    return [{"code": code, "error": kafka.name(code), "count": 1} for code in codes]


NOON = datetime.datetime(2026, 11, 21, 12, 0, 0, 500_000, tzinfo=datetime.UTC)
V6 = {"client_ip": "::1", "broker_ip": "2001:db8::5"}

MEANING: list[tuple[dict[str, Any], str, str]] = [
    # a row (and bodies), expressions that match, expressions that do not
    (
        row(latency_us=100_000),
        "latency == 100ms; latency >= 0.1s; latency < 100001us; latency <= 1m; latency_us > 99999",
        "latency > 100ms; latency < 100ms; latency is null; latency in (1ms, 2ms); latency != 100ms",
    ),
    (
        row(),
        "latency is null; not latency > 1s; not latency != 1s; not latency in (1s); topic is null; error is null",
        "latency > 0; latency != 1s; latency not in (1s); topic != x; topic !~ x; client_id not in (a); api != Fetch",
    ),
    (
        row(request_bytes=2048),
        "request_bytes == 2KiB; request_bytes > 2kB; request_bytes == 2048B; request_bytes < 1GB",
        "request_bytes == 2kB; request_bytes >= 1MiB",
    ),
    (
        row(topics=["a", "b"]),
        "topic == a; topic == b; topic != a; topic in (x, b); topic ~ ^b; topic !~ b; topics == a",
        "topic == c; topic is null; not topic != a; topic ~ ab; topic not in (a, b); not topic == a",
    ),
    (row(topics=[]), "topic is null; not topic == a", "topic is not null; topic != a"),
    (
        row(errors=errors(6, 25), error_code=6, error="NOT_LEADER_OR_FOLLOWER"),
        "error == not_leader_or_follower; error == 25; error == UNKNOWN_MEMBER_ID; error != 6; error is not null; "
        "error ~ MEMBER; error_code == NOT_LEADER_OR_FOLLOWER; error_code ~ LEADER; error in (1, 6); errors == 6",
        "error == 3; error_code == 25; error is null; error !~ '_'; error_code == 0; error not in (6, 25)",
    ),
    (
        row(errors=errors(999), error_code=999),
        "error == 999; error == UNKNOWN_CODE_999; error ~ ^UNKNOWN_CODE",
        "error ~ LEADER",
    ),
    (
        row(errors=[], error_code=0),
        "error is null; error_code == NONE; error_code == 0",
        "error is not null; error != 6",
    ),
    (
        row(api="Fetch", api_key=1),
        "api == Fetch; api == fetch; api == 1; api != Produce; api ~ ^F; api in (Produce, FETCH)",
        "api == Produce; api is null; api !~ etch; api not in (1, 2)",
    ),
    (
        row(api=None, api_key=999),
        "api is null; api_key == 999; not api == Fetch",
        "api != Fetch; api ~ .; api is not null",
    ),
    (row(api="ListOffsets", api_key=2), "api == listoffsets; api == LISTOFFSETS", "api == ListGroups"),
    (
        row(),
        "client == 10.0.0.1; client == 10.0.0.1:40000; client == 10.0.0.0/8; broker == 10.0.0.2:9092; "
        "broker ~ ':9092$'; "
        "client != 10.0.0.2; client not in (10.0.0.1:1, 10.0.0.3); client_ip == 10.0.0.1; "
        "connection ~ '#1$'; capture == c",
        "client == 10.0.0.1:1; broker == 10.0.0.1; client == 11.0.0.0/8; client == ::1; client is null",
    ),
    (
        row(**V6),
        "client == ::1; client == [::1]; client == 0:0::1; client == [::1]:40000; broker == 2001:db8::/32; "
        "broker ~ '^.2001:db8::5.:9092$'",
        "client == [::1]:1; client == 0.0.0.0/0; client != ::1",
    ),
    (
        row(request_time=NOON),
        "time == 2026-11-21; time == 12:00; time == 12:00:00; time == 12:00:00.5; time > 12:00:00; time >= 12:00:00.5; "
        "time < 12:00:01; time == 2026-11-21T12:00:00.5Z; time == 2026-11-21T14:00:00.5+02:00; time > 2026-11-21; "
        'time <= "2026-11-21 12:00:00.500000"; time in (2020-01-01, 12:00); time != 12:01; request_time < 2026-11-22; '
        "time == 2026-11-21T10:30:00.5-01:30; time == 12:00:00.500000999",
        "time == 12:01; time < 12:00; time == 12:00:00.4; time <= 2026-11-21; time != 2026-11-21; time not in (12:00); "
        "time == 2026-11-21T12:00:00.5+02:00; response_time is not null; time == 2026-11-20",
    ),
    (
        row(request_packet=7, response_packet=9),
        "packet == 7; packet == 9; packet in (1, 9); packet != 7",
        "packet == 8",
    ),
    (row(response_packet=9), "packet is not null; packet == 9; not packet == 1", "packet is null; packet == 1"),
    (
        row(status="in_flight"),
        "status == in_flight; status == IN_FLIGHT; status ~ flight; status != answered",
        "status == answered; status in (answered, unanswered)",
    ),
    (
        row(max_wait_ms=500),
        "max_wait_ms == 500; max_wait_ms == 500ms; max_wait_ms < 0.5001s; request.maxWaitMs == 0.5s; "
        "max_wait_ms > 499.5ms; max_wait_ms != 499.5ms",
        "max_wait_ms == 499.5ms; max_wait_ms > 500; max_wait_ms < 499.5ms",
    ),
    (
        row(throttle_us=2000),
        "throttle == 2ms; response.throttleTimeMs == 2; response.throttleTimeMs == 2ms",
        "throttle == 2us",
    ),
    (
        row(group_id="and", client_id='x"y'),
        'group == \'and\'; group == "and"; client_id == \'x"y\'; client_id == "x""y"',
        "group == 'And'; client_id == x",
    ),
    (
        row(acks=-1, api="Produce", api_key=0),
        "acks == -1 and api == Produce; not (acks == 0 or api == Fetch); "
        "api == Fetch and api == Fetch or acks == -1; not api == Fetch and acks == -1; "
        "NOT acks == 0 AND api IS NOT NULL",
        "api == Fetch and (api == Fetch or acks == -1); not (api == Fetch or acks == -1)",
    ),
]


@pytest.mark.parametrize(("given_row", "yes", "no"), MEANING)
def test_what_columns_mean(given_row: dict[str, Any], yes: str, no: str) -> None:
    table = pa.Table.from_pylist([given_row], tables.schema("exchanges"))
    for expected, expressions in ((True, yes), (False, no)):
        for expression in expressions.split("; "):
            parsed = parse(expression)
            assert parsed.matches(given_row) is expected, expression
            true, false, open_ = table_verdict(parsed, table)
            assert (bool(true[0]), bool(false[0]), bool(open_[0])) == (expected, not expected, False), expression
            assert not parsed.needs_bodies


FETCH = row(api="Fetch", api_key=1, api_version=4)
FETCHED = {
    "responses": [
        {"topic": "a", "partitions": [{"highWatermark": 50, "errorCode": 0}, {"highWatermark": 150}]},
        {"topic": "b", "partitions": []},
    ],
    "nothing": None,
}
METADATA = row(api="Metadata", api_key=3, api_version=9)
BROKERS = {"topics": [{"isInternal": True, "name": "x", "topicId": "AAAAAAAAAAAAAAAAAAAAAA"}, {"isInternal": False}]}
QUOTAS = row(api="DescribeClientQuotas", api_key=48)

BODIES: list[tuple[dict[str, Any], Body, Body, str, str]] = [
    (
        FETCH,
        None,
        FETCHED,
        "response.responses.partitions.highWatermark > 100; response.responses.topic == b; "
        "response.responses.partitions.highWatermark in (50, 3); response.responses.partitions.highWatermark != 50; "
        "response.responses.partitions.highWatermark is not null; response.responses.partitions.errorCode == NONE; "
        "response.responses is not null; request.topics is null; not request.topics.partitions.fetchOffset > 0",
        "response.responses.partitions.highWatermark > 150; response.responses.topic == c; response.responses is null; "
        "response.responses.partitions.errorCode != NONE; request.topics.partitions.fetchOffset > 0; "
        "response.responses.partitions.errorCode == 6; response.responses.topic !~ .",
    ),
    (
        FETCH,
        None,
        None,
        "response.responses is null; not response.responses.topic == a",
        "response.responses is not null; response.responses.topic != a; response.responses.topic !~ a",
    ),
    (
        METADATA,
        None,
        BROKERS,
        "response.topics.isInternal == true; response.topics.isInternal != TRUE; "
        "response.topics.topicId ~ ^A; response.topics.isInternal in (true)",
        "response.topics.isInternal not in (true, false); response.topics.topicId == x",
    ),
    (
        METADATA,
        {"topics": []},
        {"topics": [{"isInternal": None}]},
        "request.topics is null; response.topics.isInternal is null",
        "response.topics.isInternal == false; request.topics is not null",
    ),
    (
        QUOTAS,
        None,
        {"entries": [{"values": [{"value": 0.5}, {"value": "NaN"}]}]},
        "response.entries.values.value == 0.5; response.entries.values.value < 1; response.entries.values.value != 7",
        "response.entries.values.value > 0.5; response.entries.values.value != 0.5",
    ),
    (
        row(api="Produce", api_key=0),
        {"topicData": [{"partitionData": [{"recordsSizeInBytes": 1000}, {"records": None}]}]},
        None,
        "request.topicData.partitionData.records == 1kB; request.topicData.partitionData.recordsSizeInBytes <= 1000B",
        "request.topicData.partitionData.records > 1kB",
    ),
    (
        row(api="SaslAuthenticate", api_key=36),
        {"authBytes": {"redactedBytes": 9}},
        None,
        "request.authBytes is not null",
        "request.authBytes is null",
    ),
    (
        row(api="DescribeConfigs", api_key=32),
        None,
        {"results": [{"configs": [{"value": {"redactedBytes": 6}}]}]},
        "response.results.configs.value is not null",
        "response.results.configs.value != x; response.results.configs.value ~ .",
    ),
    # `groups` has text in some APIs and structs in others: each by its own API
    (
        row(api="DescribeGroups", api_key=15),
        {"groups": ["g1", "g2"]},
        None,
        "request.groups == g2; request.groups != g2",
        "request.groups == g3",
    ),
]


@pytest.mark.parametrize(("given_row", "request_body", "response", "yes", "no"), BODIES)
def test_what_paths_mean(given_row: dict[str, Any], request_body: Body, response: Body, yes: str, no: str) -> None:
    for expected, expressions in ((True, yes), (False, no)):
        for expression in expressions.split("; "):
            parsed = parse(expression)
            assert parsed.matches(given_row, request_body, response) is expected, expression
            assert parsed.needs_bodies
            assert (parsed.needs_request, parsed.needs_response) == (
                "request." in expression,
                "response." in expression,
            )


def test_a_path_of_another_api_never_matches_whatever_the_body_says() -> None:
    parsed = parse("response.responses.partitions.highWatermark > 0")
    assert not parsed.matches(METADATA, None, FETCHED)
    assert parsed.matches(FETCH, None, FETCHED)


def test_every_path_of_the_definitions_can_be_asked_for() -> None:
    for path in filter_names.paths():
        assert parse(f"{path} is not null").root != parse(f"{path} is null").root
    assert len(filter_names.paths()) > 900


def test_columns_stand_for_the_paths_they_repeat() -> None:
    """`request.acks` and the like are answered from columns: their values are those of the bodies."""
    compared = 0
    for folder in sample_folders():
        for exchange, request, response in seen(folder.name):
            for path, (column, scale) in filter_names.PATH_COLUMNS.items():
                side, name = path.split(".")
                body = request if side == "request" else response
                in_body = None if body is None else body.get(name)
                assert exchange[column] == (None if in_body is None else in_body * scale), (folder.name, path)
                compared += in_body is not None
    assert compared > 1000


def test_errors_and_topics_of_bodies_are_in_the_columns() -> None:
    """Deciding on columns, without bodies, relies on this."""
    compared = 0
    for folder in sample_folders():
        for exchange, request, response in seen(folder.name):
            for path, infos in filter_names.paths().items():
                listed = {info.listed for info in infos if info.api_key == exchange["api_key"]}
                body = request if path.startswith("request.") else response
                if "errors" in listed:
                    codes = {error["code"] for error in exchange["errors"] or ()}
                    values = slow_path(body, path.split(".")[1:])
                    assert {value for value in values if value} <= codes, (folder.name, path)
                    compared += len(values)
                elif "topics" in listed:
                    values = slow_path(body, path.split(".")[1:])
                    assert set(values) <= {*(exchange["topics"] or ())}, (folder.name, path)
                    compared += len(values)
    assert compared > 1000


# --- what it tells the engine ---


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("api == Produce", {"Produce"}),
        ("api in (Produce, Fetch) and not api == Fetch", {"Produce"}),
        ("api == Produce or latency > 1s", None),
        ("not api == Produce", None),
        ("request.topicData is not null", {"Produce"}),
        ("request.topicData is null", None),
        ("api == Fetch and request.topicData is not null", set()),
        ("api == Fetch or (api == Produce and topic == x)", {"Fetch", "Produce"}),
        ("api ~ ^Produce$", {"Produce"}),
        ("api_key < 2", None),
        ("api_key <= 1 and api_key >= 0", {"Produce", "Fetch"}),
        ("topic == x", None),
    ],
)
def test_which_apis_can_match(expression: str, names: set[str] | None) -> None:
    expected = None if names is None else frozenset(schema.api_keys()[name.lower()] for name in names)
    assert parse(expression).apis == expected


def test_old_names_of_apis_are_known() -> None:
    """AlterIsr (2.7) is AlterPartition now."""
    old = [name for name, key in schema.api_keys().items() if schema.api_name(key).lower() != name]
    assert old
    for name in old:
        assert parse(f"api == {name}") == parse(f"api == {schema.api_name(schema.api_keys()[name])}")


def test_equal_filters_are_equal() -> None:
    assert parse("api==Produce and(acks==0 and topic~^a)") == parse("api == produce AND acks == 0 and topic ~ '^a'")
    assert parse("acks == 0") != parse("acks == 1")
    assert len({parse("acks == 0"), parse(" acks==0 ")}) == 1


# --- three ways to one answer ---


@dataclass(frozen=True)
class Slow:
    """An expression and a plain function that evaluates it."""

    text: str
    matches: Callable[[Seen], bool]


def slow_path(value: Any, parts: list[str]) -> list[Any]:
    """Get values at a path by recursion."""
    if value is None:
        return []
    if isinstance(value, list):
        return [leaf for element in value for leaf in slow_path(element, parts)]
    if not parts:
        return [value]
    if not isinstance(value, dict):
        return []
    if parts[0] == "records":
        return slow_path(value.get("recordsSizeInBytes"), parts[1:])
    return slow_path(value.get(parts[0]), parts[1:])


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, pattern: re.search(pattern, value) is not None,
    "!~": lambda value, pattern: re.search(pattern, value) is None,
}
ORDERED = ("==", "!=", "<", "<=", ">", ">=")


def of_column(name: str) -> Callable[[Seen], list[Any]]:
    def values(exchange: Seen) -> list[Any]:
        value = exchange[0][name]
        return [] if value is None else value if isinstance(value, list) else [value]

    return values


def of_path(path: str) -> Callable[[Seen], list[Any]]:
    side, *parts = path.split(".")
    return lambda exchange: slow_path(exchange[1] if side == "request" else exchange[2], parts)


def address(side: str) -> Callable[[Seen], list[Any]]:
    return lambda exchange: [f"{exchange[0][side + '_ip']}:{exchange[0][side + '_port']}"]


def literal(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def plain(value: Any) -> str:
    return str(value)


def scaled(unit: str, scale: int) -> Callable[[Any], str]:
    """Make a function that writes the slow evaluator's numbers with a unit, exactly."""
    return lambda value: f"{value // scale}.{value % scale:0{len(str(scale)) - 1}d}{unit}"


@dataclass(frozen=True)
class Thing:
    """An operand: its name, its values in a row, values to compare with, and how they are written."""

    name: str
    values: Callable[[Seen], list[Any]]
    with_: tuple[Any, ...]
    write: Callable[[Any], str]
    signs: tuple[str, ...]


TEXT = ("==", "!=", "~", "!~")
THINGS = [
    Thing("latency", of_column("latency_us"), (0, 700, 1500, 3000, 20_000, 400_000), scaled("ms", 1000), ORDERED),
    Thing("latency", of_column("latency_us"), (0, 1500, 3_000_000), scaled("s", 1_000_000), ORDERED),
    Thing("total_us", of_column("total_us"), (2000, 10_000), plain, ORDERED),
    Thing("request_bytes", of_column("request_bytes"), (0, 50, 90, 1000), scaled("kB", 1000), ORDERED),
    Thing("api_version", of_column("api_version"), (-1, 0, 3, 4, 11), plain, ORDERED),
    Thing("api_key", of_column("api_key"), (0, 1, 18, 999), plain, ORDERED),
    Thing("correlation_id", of_column("correlation_id"), (0, 3, 7), plain, ORDERED),
    Thing("acks", of_column("acks"), (-1, 0, 1), plain, ORDERED),
    Thing("request.acks", of_column("acks"), (-1, 0), plain, ORDERED),
    Thing("throttle_us", of_column("throttle_us"), (0, 1), plain, ORDERED),
    Thing("error_code", of_column("error_code"), (0, 3, 79, -1), plain, ORDERED),
    Thing("api", of_column("api"), ("Produce", "Fetch", "Metadata", "JoinGroup"), literal, ("==", "!=", "~", "!~")),
    Thing("client_id", of_column("client_id"), ("kafkajs", "kafka", "js$", ""), literal, TEXT),
    Thing("group", of_column("group_id"), ("js-group", "group", "x"), literal, TEXT),
    Thing("connection", of_column("connection"), ("#1$", "9092"), literal, TEXT),
    Thing("status", of_column("status"), ("answered", "unanswered", "in_flight"), literal, TEXT),
    Thing("topic", of_column("topics"), ("js-topic", "js", "-", "none"), literal, TEXT),
    Thing(
        "error",
        lambda exchange: [error["error"] for error in exchange[0]["errors"] or ()],
        ("UNKNOWN_TOPIC_OR_PARTITION", "MEMBER_ID_REQUIRED", "NOT_COORDINATOR"),
        literal,
        TEXT,
    ),
    Thing("client", address("client"), ("127.0.0.1:29092", "10.0.0.1:40000"), literal, TEXT),
    Thing("request.topics.name", of_path("request.topics.name"), ("js-topic", "js", "none"), literal, TEXT),
    Thing("response.topics.name", of_path("response.topics.name"), ("js-topic", "js"), literal, TEXT),
    Thing(
        "response.responses.partitions.highWatermark",
        of_path("response.responses.partitions.highWatermark"),
        (0, 1, 10, 100),
        plain,
        ORDERED,
    ),
    Thing("response.errorCode", of_path("response.errorCode"), (0, 79, 15), plain, ORDERED),
    Thing(
        "response.topics.partitions.errorCode", of_path("response.topics.partitions.errorCode"), (0, 3), plain, ORDERED
    ),
    Thing(
        "request.topicData.partitionData.records",
        of_path("request.topicData.partitionData.records"),
        (0, 100, 1000),
        scaled("kB", 1000),
        ORDERED,
    ),
    Thing(
        "response.topics.isInternal",
        of_path("response.topics.isInternal"),
        (True, False),
        lambda v: str(v).lower(),
        ("==", "!="),
    ),
]


def comparison(thing: Thing, sign: str, first: Any, several: tuple[Any, ...], form: int) -> Slow:
    if form == 1:
        return Slow(f"{thing.name} is null", lambda exchange: not thing.values(exchange))
    if form == 2:
        return Slow(f"{thing.name} is not null", lambda exchange: bool(thing.values(exchange)))
    if form in (3, 4):
        listed = ", ".join(map(thing.write, several))
        if form == 3:
            return Slow(
                f"{thing.name} in ({listed})", lambda exchange: any(v in several for v in thing.values(exchange))
            )
        return Slow(
            f"{thing.name} not in ({listed})", lambda exchange: any(v not in several for v in thing.values(exchange))
        )
    test = COMPARE[sign]
    return Slow(
        f"{thing.name} {sign} {thing.write(first)}",
        lambda exchange: any(test(v, first) for v in thing.values(exchange)),
    )


@st.composite
def comparisons(draw: st.DrawFn) -> Slow:
    thing = draw(st.sampled_from(THINGS))
    form = draw(st.sampled_from((0, 0, 0, 1, 2, 3, 4)))
    exact = thing.name in ("api", "status", "error", "client")
    sign = draw(st.sampled_from(thing.signs))
    values = thing.with_
    several = tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    if exact and sign in ("~", "!~"):
        return comparison(thing, sign, draw(st.sampled_from(("^P", "e", "[0-9]$", "_", "zzz"))), several, form)
    return comparison(thing, sign, draw(st.sampled_from(values)), several, form)


def both(left: Slow, right: Slow) -> Slow:
    return Slow(
        f"({left.text}) and ({right.text})", lambda exchange: left.matches(exchange) and right.matches(exchange)
    )


def either(left: Slow, right: Slow) -> Slow:
    return Slow(f"({left.text}) or ({right.text})", lambda exchange: left.matches(exchange) or right.matches(exchange))


def neither(part: Slow) -> Slow:
    return Slow(f"not ({part.text})", lambda exchange: not part.matches(exchange))


def relation(left: Thing, sign: str, right: Thing, scales: tuple[int, int]) -> Slow:
    """Compare two names; `scales` convert their values to a common unit."""
    return Slow(
        f"{left.name} {sign} {right.name}",
        lambda exchange: any(
            COMPARE[sign](a * scales[0] if scales[0] != 1 else a, b * scales[1] if scales[1] != 1 else b)
            for a in left.values(exchange)
            for b in right.values(exchange)
        ),
    )


def bare(name: str, values: Callable[[Seen], list[Any]]) -> Thing:
    return Thing(name, values, (), plain, ())


# fmt: off
RELATIONS = [
    (bare("latency", of_column("latency_us")), ORDERED, bare("max_wait", of_column("max_wait_ms")), (1, 1000)),
    (bare("max_wait_ms", of_column("max_wait_ms")), ORDERED, bare("total", of_column("total_us")), (1000, 1)),
    (bare("total", of_column("total_us")), ORDERED, bare("latency_us", of_column("latency_us")), (1, 1)),
    (bare("request.maxWaitMs", of_path("request.maxWaitMs")), ORDERED, bare("latency", of_column("latency_us")),
     (1000, 1)),
    (bare("response.throttleTimeMs", of_column("throttle_us")), ORDERED, bare("queue", of_column("queue_us")), (1, 1)),
    (bare("request_bytes", of_column("request_bytes")), ORDERED, bare("response_bytes", of_column("response_bytes")),
     (1, 1)),
    (bare("api_version", of_column("api_version")), ORDERED, bare("api_key", of_column("api_key")), (1, 1)),
    (bare("request_packet", of_column("request_packet")), ORDERED, bare("reply", of_column("reply")), (1, 1)),
    (bare("client_id", of_column("client_id")), ("==", "!="), bare("group_id", of_column("group_id")), (1, 1)),
    (bare("client_ip", of_column("client_ip")), ("==", "!="), bare("broker_ip", of_column("broker_ip")), (1, 1)),
    (bare("request.groupId", of_path("request.groupId")), ("==", "!="), bare("group_id", of_column("group_id")),
     (1, 1)),
    (bare("response.errorCode", of_path("response.errorCode")), ORDERED, bare("error_code", of_column("error_code")),
     (1, 1)),
    (bare("request.maxBytes", of_path("request.maxBytes")), ORDERED,
     bare("response_bytes", of_column("response_bytes")), (1, 1)),
]
# fmt: on


@st.composite
def relations(draw: st.DrawFn) -> Slow:
    left, signs, right, scales = draw(st.sampled_from(RELATIONS))
    return relation(left, draw(st.sampled_from(signs)), right, scales)


expressions: st.SearchStrategy[Slow] = st.recursive(
    comparisons() | relations(),
    lambda inner: st.builds(both, inner, inner) | st.builds(either, inner, inner) | st.builds(neither, inner),
    max_leaves=6,
)


@functools.cache
def examples() -> tuple[tuple[Seen, ...], tuple[pa.Table, ...]]:
    """Get exchanges of a sample, some with columns set to null, and the same as tables."""
    exchanges = list(seen("client-kafkajs-3.9"))
    for row, request, _ in exchanges[:20]:
        keep = ("capture", "connection", "client_ip", "client_port", "broker_ip", "broker_port", "status")
        blank = {name: value if name in keep else None for name, value in row.items()}
        exchanges.append((blank, None, None))
        exchanges.append(
            ({**row, "api": None, "api_key": 999, "acks": None, "errors": None, "topics": None}, None, None)
        )
        exchanges.append(
            (
                {
                    **row,
                    "status": "in_flight",
                    "response_state": None,
                    "errors": None,
                    "error": None,
                    "error_code": None,
                    "latency_us": None,
                    "throttle_us": None,
                },
                request,
                None,
            )
        )
    table = pa.Table.from_pylist([exchange[0] for exchange in exchanges], tables.schema("exchanges"))
    halves = []
    for part in (table[:50], table[50:]):
        for name in part.column_names:
            if pa.types.is_string(part.schema.field(name).type):
                column = part.column(name).combine_chunks().dictionary_encode()
                part = part.set_column(part.schema.get_field_index(name), name, column)
        halves.append(part)
    return tuple(exchanges), (table, pa.concat_tables(halves), table.slice(3, 0))


def agree(slow: Slow) -> None:
    parsed = parse(slow.text)
    exchanges, (table, encoded, empty) = examples()
    expected = np.array([slow.matches(exchange) for exchange in exchanges])
    full = np.array([parsed.matches(*exchange) for exchange in exchanges])
    assert (full == expected).all(), (slow.text, np.flatnonzero(full != expected))
    for form in (table, encoded):
        true, false, open_ = table_verdict(parsed, form)
        assert (true.astype(int) + false + open_ == 1).all()
        assert expected[true].all(), slow.text
        assert not expected[false].any(), slow.text
        assert parsed.needs_bodies or not open_.any(), slow.text
    assert [len(part) for part in table_verdict(parsed, empty)] == [0, 0, 0]
    assert parse(str(parsed)) == parsed
    if parsed.apis is not None:
        assert {
            exchange[0]["api_key"] for exchange, right in zip(exchanges, expected, strict=True) if right
        } <= parsed.apis


@settings(max_examples=250)
@given(expressions)
@example(comparison(THINGS[-3], "!=", 0, (0,), 0))
@example(neither(comparison(THINGS[-3], "==", 3, (3,), 0)))
def test_the_full_test_the_columns_and_a_slow_evaluator_agree(slow: Slow) -> None:
    agree(slow)


@pytest.mark.parametrize("thing", THINGS, ids=[f"{i}-{thing.name}" for i, thing in enumerate(THINGS)])
def test_each_thing_with_each_sign(thing: Thing) -> None:
    for first in thing.with_:
        for sign in thing.signs:
            if sign in ("~", "!~") or thing.signs != TEXT or thing.name not in ("api",):
                agree(comparison(thing, sign, first, thing.with_, 0))
    for form in (1, 2, 3, 4):
        agree(comparison(thing, "==", thing.with_[0], thing.with_, form))


@pytest.mark.parametrize("case", RELATIONS, ids=[f"{left.name}-{right.name}" for left, _, right, _ in RELATIONS])
def test_two_names_beside_each_other(case: tuple[Thing, tuple[str, ...], Thing, tuple[int, int]]) -> None:
    left, signs, right, scales = case
    for sign in signs:
        agree(relation(left, sign, right, scales))


PARTITIONS = {
    "responses": [
        {"partitions": [{"highWatermark": 5, "logStartOffset": 9}]},
        {"partitions": [{"highWatermark": 10, "logStartOffset": 10}, {"highWatermark": 2}]},
    ]
}


def test_paths_into_one_list_are_compared_element_by_element() -> None:
    both = "response.responses[].partitions[].{} {} response.responses[].partitions[].{}"
    for sign, expected in (("<", True), ("==", True), (">", False)):
        parsed = parse(both.format("highWatermark", sign, "logStartOffset"))
        assert parsed.matches({**FETCH, "api_version": 12}, None, PARTITIONS) is expected
        assert not parsed.matches(METADATA, None, PARTITIONS)  # an API that has neither
        assert not parsed.matches(FETCH, None, None)
    crossed = parse("response.sessionId < response.responses.partitions.highWatermark")
    assert (crossed.needs_request, crossed.needs_response) == (False, True)


def test_a_word_beside_text_is_text_unless_it_cannot_be() -> None:
    exchange = row(client_id="group_id", group_id="topic", topics=["errors"], api_key=3)
    for expression, expected in (
        ("client_id == group_id", False),
        ("client_id == 'group_id'", True),
        ("client_id != group_id", True),
        ("group == topic", True),
        ("topic == errors", True),
        ("group_id == group_id", True),
        ("group == group", False),
    ):
        assert parse(expression).matches(exchange) is expected, expression


# --- rows of integers ---


@functools.cache
def integer_rows(sample: str) -> tuple[Exchanges, pa.Table]:
    """Get a sample's rows of integers from the engine, and the same rows as a table."""
    point = capture_points([str(capture_files(SAMPLES / sample)[0])], False)[0]
    engine = Engine(point, Settings(threads=1))
    windows = [window.exchanges for window in engine.windows()]
    names = engine.merging.names
    together = Exchanges(
        np.concatenate([rows.columns for rows in windows], axis=1),
        np.concatenate([rows.connection for rows in windows]),
        no_exchanges(names).partitions,
        names,
    )
    return together, exchange_tables.exchanges(names, windows)


# fmt: off
COLUMNS_ONLY = [
    "api == Produce", "api is null", "not api in (Produce, Fetch)", "latency > 1ms", "latency is null",
    "total < 5ms", "throttle >= 0", "error is not null", "error ~ GROUP", "error == MEMBER_ID_REQUIRED",
    "error_code == 0", "packet < 40", "topic == tx-out", "topic ~ '-'", "topic is null", "client_id ~ '^lab-tx'",
    "group is not null", "member_id is null", "transactional_id == lab-tx-1", "client == 127.0.0.1",
    "broker ~ ':9092$'", "client_port > 40000", "broker_port == 9092", "client_ip != 127.0.0.1",
    "broker_ip == 127.0.0.1", "connection ~ '#1$'", "capture ~ capture", "status == answered",
    "response_state is null", "time >= 01:49:20", "response_end < 2026-11-21T01:49:16Z", "generation > 1",
    "acks == -1", "request.maxWaitMs >= 500ms", "response.throttleTimeMs == 0",
    "correlation_id < 9 and reply is not null", "request_bytes > 100B or response_bytes > 1kB",
    "reason is not null", "request_offset > 500", "exchange == 0", "cause is null", "request_file ~ capture",
    "response.topics.partitions.errorCode == 3", "min_bytes == 1",
]
# fmt: on


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "client-kafkajs-3.9", "sasl-librdkafka-4.3"])
def test_rows_of_integers_say_what_the_table_says(sample: str) -> None:
    rows, table = integer_rows(sample)
    decided = 0
    for expression in COLUMNS_ONLY:
        parsed = parse(expression)
        true = table_verdict(parsed, table)[0]
        verdict = parsed.rows_verdict(rows)
        assert not (verdict[0] & ~true).any(), expression
        # What is open in the table (a body is needed) is open or decided the same way here.
        assert not (verdict[1] & true).any(), expression
        if not parsed.needs_bodies:
            decided += bool((verdict[0] | verdict[1]).all())
    assert decided >= len(COLUMNS_ONLY) - 9


def test_a_topic_known_by_its_id_alone_stays_open() -> None:
    """A later message may tell its name: only the full test, on resolved names, can decide."""
    rows, table = integer_rows("txn-librdkafka-4.3")
    by_id = np.array([any(len(topic) == 22 for topic in topics or ()) for topics in table["topics"].to_pylist()])
    assert by_id.any()
    parsed = parse("topic == tx-out")
    false = parsed.rows_verdict(rows)[1]
    assert not (false & by_id).any()
    assert false[~by_id].any()
    known = dict.fromkeys((topic for topics in table["topics"].to_pylist() for topic in topics or ()), "tx-out")

    def name(topic: str) -> str:
        return known[topic] if len(topic) == 22 else topic

    verdict = parsed.rows_verdict(rows, name)
    assert (verdict[0] ^ verdict[1]).all()
    assert verdict[0][by_id].all()
    assert (table_verdict(parsed, table, name)[0] == verdict[0]).all()
    assert not table_verdict(parsed, table)[0][by_id].all()


def test_no_rows() -> None:
    for expression in COLUMNS_ONLY:
        assert [part.shape for part in parse(expression).rows_verdict(no_exchanges(Names("c")))] == [(0,), (0,)]


def test_the_module_offers_what_it_says() -> None:
    assert set(filtering.__all__) == {"Filter", "FilterError", "parse"}


def test_columns_spare_most_bodies_and_never_one_too_many() -> None:
    """An error that is not in `errors` is not in the body, unless there were too many to list; likewise a topic, unless
    its bytes are not UTF-8, which tables and bodies show differently."""
    many = errors(*range(1, MAX_CODES + 1))
    rows = [
        row(api="Fetch", api_key=1, errors=errors(6), topics=["a"]),
        row(api="Fetch", api_key=1, errors=errors(3), topics=["b"]),
        row(api="Fetch", api_key=1, errors=None, topics=None),
        row(api="Fetch", api_key=1, errors=many, topics=["b\\xff"]),
        row(api="Produce", api_key=0, errors=errors(6), topics=["a"]),
    ]
    table = pa.Table.from_pylist(rows, tables.schema("exchanges"))
    for expression in (
        "response.responses.partitions.errorCode == 6",
        "response.responses.partitions.errorCode > 99 or response.responses.partitions.errorCode == 6",
        "response.responses.topic == a",
    ):
        true, false, unsure = table_verdict(parse(expression), table)
        assert not true.any()
        assert unsure.tolist() == [True, False, False, True, False]
        assert false.tolist() == [False, True, True, False, True]
    for expression in ("response.responses.partitions.errorCode >= 0", "response.responses.partitions is not null"):
        assert table_verdict(parse(expression), table)[2].tolist() == [True, True, True, True, False]


def test_a_latency_below_nothing_is_none() -> None:
    """As in the table: a response captured before the end of its request has no latency."""
    x = np.full((s.X_COLUMNS, 2), s.NULL, np.int64)
    x[s.X_REQUEST_LAST_NS] = 5_000_000
    x[s.X_RESPONSE_FIRST_NS] = (4_000_000, 6_000_999)
    names = Names("c")
    rows = Exchanges(x, np.zeros(2, np.int64), no_exchanges(names).partitions, names)
    assert parse("latency is null").rows_verdict(rows)[0].tolist() == [True, False]
    assert parse("latency < 1s").rows_verdict(rows)[0].tolist() == [False, True]
    assert parse("latency == 1ms").rows_verdict(rows)[0].tolist() == [False, True]
