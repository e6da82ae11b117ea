"""Cases of keys and values: what does not decode, ids that are not known, formats side by side, new schemas."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic, link
from tests.reports.forging import at

CUT = "value: avro of schema 17: the value ends too early"
UNIDENTIFIED = "value: 9 bytes of no known format"
AVRO: dict[str, Any] = {"value_format": "avro", "value_schema_id": "17"}


def decoded(traffic: Traffic, *sources: str) -> None:
    """Keys and values of the capture were decoded, with schemas from these sources."""
    traffic.facts["schema_sources"] = [*sources]


def write(traffic: Traffic, second: float, offset: int, records: int = 1, on: int = 0, **columns: Any) -> None:
    """A request with a batch of records of `orders`, partition 1, each of them with these columns."""
    answer = {"offset": offset, "record_count": records}
    traffic.ask("Produce", second, on=on, place=("orders", 1), part=answer)
    for number in range(records):
        add(traffic, len(traffic.rows["exchanges"]) - 1, "produce", number, 0, on, **columns)


def fetch(traffic: Traffic, second: float, offset: int, on: int = 1, end: int | None = None, **columns: Any) -> None:
    """An answer with the record at an offset."""
    end = offset + 1 if end is None else end
    answer = {"offset": offset, "record_bytes": 50, "high_watermark": end, "lag": end - offset}
    traffic.ask("Fetch", second, on=on, place=("orders", 1), part=answer, client_id="reader")
    add(traffic, len(traffic.rows["exchanges"]) - 1, "fetch", offset, offset, on, **columns)


def add(traffic: Traffic, number: int, side: str, offset: int, batch: int, on: int, **columns: Any) -> None:
    """A row of `records`."""
    where = {"connection": link(on)["connection"], "exchange": number, "reply": number, "side": side}
    place = {"topic": "orders", "partition": 1, "batch": batch, "offset": offset}
    traffic.add("records", **{**where, **place, "value_bytes": 9, **columns})


@case("payload-undecodable")
def cut(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    write(traffic, 1, 40, 3, **AVRO)
    write(traffic, 2, 43, **AVRO, undecodable=CUT if wrong else None)


@case("payload-undecodable", "of what was fetched alone")
def fetched(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    fetch(traffic, 0, 42, **AVRO)
    fetch(traffic, 1, 43, **AVRO, undecodable=CUT if wrong else None)


@case("payload-undecodable", "of a key")
def of_key(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    key: dict[str, Any] = {"key_format": "avro", "key_schema_id": "3"}
    write(traffic, 1, 40, **AVRO, **key)
    write(traffic, 2, 41, **AVRO, **key, undecodable="key: avro of schema 3: bytes are left" if wrong else None)


@case("payload-undecodable", "of no known format, among ten that are known")
def unidentified(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic)
    write(traffic, 1, 40, 10 if wrong else 9, value_format="json", value_json="{}")
    write(traffic, 2, 50, undecodable=UNIDENTIFIED)


@case("payload-undecodable", "not of a topic of which much is of no known format")
def mostly_unidentified(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic)
    write(traffic, 1, 40, 27, value_format="json", value_json="{}")
    write(traffic, 2, 67, 3 if wrong else 4, undecodable=UNIDENTIFIED)


@case("payload-undecodable", "not of a batch that was refused")
def refused(traffic: Traffic, wrong: bool) -> None:
    cut(traffic, True)
    traffic.rows["partitions"][-1] |= {"error_code": 0 if wrong else 87}


@case("payload-undecodable", "not of keys and values that were not decoded")
def not_decoded(traffic: Traffic, wrong: bool) -> None:
    cut(traffic, True)
    if not wrong:
        del traffic.facts["schema_sources"]


@case("schema-unknown-id")
def unknown(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    write(traffic, 1, 40, **AVRO)
    reason: dict[str, Any] = {"value_schema_id": "99", "undecodable": "value: schema 99 is not known"}
    write(traffic, 2, 41, 3, **(reason if wrong else AVRO))


@case("schema-unknown-id", "not without a source of schemas")
def without_source(traffic: Traffic, wrong: bool) -> None:
    unknown(traffic, True)
    decoded(traffic, *(["registry"] if wrong else []))


@case("schema-unknown-id", "not of other bytes that begin so")
def other_bytes(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    for number in range(8 if wrong else 7):
        schema_id = str(1000 + number % 4)
        reason = f"value: schema {schema_id} is not known"
        write(traffic, number, 40 + number, value_schema_id=schema_id, undecodable=reason)


@case("mixed-formats")
def mixed(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    write(traffic, 1, 40, 12, **AVRO)
    more: dict[str, Any] = {"value_format": "json"}
    if not wrong:
        more = {"value_format": "json_schema", "value_schema_id": "18"}
    write(traffic, 2, 52, on=1, **more)


@case("mixed-formats", "not of tombstones")
def tombstones(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    write(traffic, 1, 40, 12, **AVRO)
    write(traffic, 2, 52, value_bytes=None, value_format="text" if wrong else None)


@case("schema-changed")
def changed(traffic: Traffic, wrong: bool) -> None:
    decoded(traffic, "folder")
    for second in range(5):
        write(traffic, second, 40 + second, **AVRO)
    write(traffic, 6, 45, 3, on=1, value_format="avro", value_schema_id="18" if wrong else "17")


@case("schema-changed", "not of types side by side")
def side_by_side(traffic: Traffic, wrong: bool) -> None:
    changed(traffic, True)
    write(traffic, 7, 48, on=1 if not wrong else 0, **AVRO)
    if not wrong:
        write(traffic, 8, 49, on=1, value_format="avro", value_schema_id="18")


def stuck(traffic: Traffic, wrong: bool) -> None:
    """A reader that asks for the record that does not decode for 100 s, or goes on after it."""
    cut(traffic, True)
    for number in range(20):
        offset = 43 if wrong else 43 + number
        bad: dict[str, Any] = {"undecodable": CUT} if offset == 43 else {}
        fetch(traffic, 10 + 5 * number, offset, end=100 + number, **AVRO, **bad)
        reads = {"offset": number, "record_bytes": 50, "high_watermark": 99, "lag": 99 - number}
        traffic.ask("Fetch", 11 + 5 * number, on=1, place=("orders", 2), part=reads, client_id="reader")
    traffic.rows["connections"][-1]["last_time"] = at(120)


def personal(traffic: Traffic, value: str, **columns: Any) -> None:
    """A batch whose value says this."""
    decoded(traffic)
    write(traffic, 1, 40, value_format="json", value_json=value, **columns)


@case("payload-personal-data")
def mail(traffic: Traffic, wrong: bool) -> None:
    personal(traffic, '{"contact": {"mail": "Zoe <zoe@example.%s>"}}' % ("com" if wrong else "c"))


@case("payload-personal-data", "a card's number")
def card(traffic: Traffic, wrong: bool) -> None:
    personal(traffic, '{"pan": "4111 1111 1111 1111"}' if wrong else '{"pan": "4111 1111 1111 1112"}')


@case("payload-personal-data", "numbers of which some pass by chance")
def cards(traffic: Traffic, wrong: bool) -> None:
    for last in (1, 2, 3) if not wrong else (1, 2):
        personal(traffic, f'{{"order": 411111111111111{last}}}')


@case("payload-personal-data", "an IBAN")
def iban(traffic: Traffic, wrong: bool) -> None:
    personal(traffic, '["GB82 WEST 1234 5698 7654 32"]' if wrong else '["GB82 WEST 1234 5698 7654 33"]')


@case("payload-personal-data", "a phone number")
def phone(traffic: Traffic, wrong: bool) -> None:
    personal(traffic, '{"call": "%s41 44 668 18 00"}' % ("+" if wrong else ""))


@case("payload-personal-data", "a phone number by its field")
def phone_field(traffic: Traffic, wrong: bool) -> None:
    personal(traffic, '{"%s": "044 668 18 00"}' % ("home_phone" if wrong else "serial"))


@case("payload-personal-data", "a map's key")
def personal_key(traffic: Traffic, wrong: bool) -> None:
    personal(traffic, '{"by_mail": {"%s": 1}}' % ("zoe@example.com" if wrong else "zoe"))
