"""Personal data in keys and values: e-mail addresses, card numbers, phone numbers and IBANs, where it is looked for.

In: a capture point whose keys and values were decoded. Out: for each topic a finding with the fields that hold such
data, and how many. Rule: no value is ever told, nor kept beyond the look at it; a map's key that is personal data
itself is told as `*`.

- Card numbers: 12 to 19 digits with the prefix of a network (ISO/IEC 7812), and their check digit (Luhn)
- IBANs: ISO 13616, with their check digits (97)
- Phone numbers: E.164 with its `+`; other digits only in a field whose name says so
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.decoded_records import are_decoded
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, name

EMAIL, CARD, PHONE, IBAN = "e-mail address", "card number", "phone number", "IBAN"

_CANDIDATE: Final = r"@|[0-9][0-9 ()./-]{6,}[0-9]|[A-Z]{2}[0-9]{2} ?[A-Z0-9]"
"""Text without this holds none of them."""
_EMAIL: Final = re.compile(r"[\w.+%'-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,5}\.[A-Za-z]{2,24}(?![\w-])")
_CARD: Final = re.compile(r"(?<![\w.+-])\d(?:[ -]?\d){11,18}(?![\w.-]?\d)")
_NETWORK: Final = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|6(?:011|5\d\d|4[4-9]\d)\d{12}|35\d{14}|3(?:0[0-5]|[68]\d)\d{11}"
)
_IBAN: Final = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])")
_PHONE: Final = re.compile(r"(?<![\w+])\+[1-9](?:[ ()./-]{0,2}\d){7,14}(?!\d)")
_DIGITS: Final = re.compile(r"0?(?:[ ()./-]{0,2}\d){7,15}")
_PHONE_FIELD: Final = re.compile(r"(?i)(?:phone|mobile|msisdn|telefon|handy|^tel$|_tel$|^fax$|cell)")
_MOST_FIELDS: Final = 1_000
"""Fields of a topic that are told apart."""
_SHOWN_FIELDS: Final = 5
_COLUMNS: Final = (
    "connection", "exchange", "side", "topic", "topic_id", "partition", "key_json", "value_json",
)  # fmt: skip


@dataclass(slots=True)
class _Topic:
    """Personal data in keys or values of a topic, on one side. `fields`: how many of a kind by field; `connections`:
    how many records by connection."""

    records: int = 0
    fields: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    connections: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    first: tuple[str, int | None] = ("", None)
    last: tuple[str, int | None] = ("", None)


@rule(
    "security",
    "payload-personal-data",
    "warning",
    "Values of customers hold personal data: e-mail address in contact.mail (1,200), card number in payment.pan (40); "
    "svc-a (10.0.0.4) wrote 1,200 of them.",
    why="Whoever may read the topic, its replicas, backups and this capture reads it too. A card number counts with "
    "the prefix of a network and a right check digit; one number in ten has that by chance, so a field counts where "
    "half of its numbers have it.",
    suppressed_when="Nobody looks for it (--look-for pii); keys and values were not decoded.",
    advice="Encrypt or leave out these fields, or restrict who reads the topic; scrub captures before they are shared "
    "(kwire scrub).",
    evidence="forged: each kind, and its near miss: a wrong check digit, a domain without a dot",
    depends_on=("pii",),
    share=0.5,
)
def payload_personal_data(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if "pii" not in capture.query.look_for or not are_decoded(capture):
        return
    topics: dict[tuple[str, str, str], _Topic] = defaultdict(_Topic)
    numbers: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for row_group in capture.source.groups("records"):
        if capture.name in row_group.captures:
            _read(capture, capture.source.read_group("records", row_group, capture.name, _COLUMNS), topics, numbers)
    for (topic, part, side), holding in sorted(topics.items(), key=lambda item: item[0]):
        if side == "fetch" and (topic, part, "produce") in topics:
            continue  # the same records
        fields = {
            key: many
            for key, many in holding.fields.items()
            if key[0] != CARD or many >= at.share * numbers[topic, part, side, key[1]]
        }
        if fields:
            yield _match(capture, topic, part, side, holding, fields)


def _read(
    capture: CaptureFrame,
    table: pa.Table,
    topics: dict[tuple[str, str, str], _Topic],
    numbers: dict[tuple[str, str, str, str], int],
) -> None:
    """Look at some rows."""
    import pyarrow.compute as pc

    for part in ("key", "value"):
        text = table.column(f"{part}_json").cast(pa.string())
        rows = table.filter(pc.fill_null(pc.match_substring_regex(text, _CANDIDATE), False))
        for row in rows.to_pylist():
            topic = row["topic"] or capture.topic_names.get(row["topic_id"] or "", row["topic_id"]) or "?"
            by_field: dict[tuple[str, str], int] = defaultdict(int)
            for path, value in _leaves(row[f"{part}_json"]):
                for kind in kinds(value, path):
                    by_field[kind, path] += 1
                if _CARD.search(value):
                    numbers[topic, part, row["side"], path] += 1
            if not by_field:
                continue
            whole = topics[topic, part, row["side"]]
            whole.records += 1
            whole.connections[row["connection"]] += 1
            whole.last = row["connection"], row["exchange"]
            whole.first = whole.first if whole.records > 1 else whole.last
            for key, many in by_field.items():
                if key in whole.fields or len(whole.fields) < _MOST_FIELDS:
                    whole.fields[key] += many


def _leaves(text: str) -> Iterator[tuple[str, str]]:
    """Yield the texts and numbers of a value of JSON, with the path of each; a map's keys, too."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            for key, part in value.items():
                personal = any(kinds(key, ""))
                if personal:
                    yield f"{path}.*".lstrip("."), key
                stack.append((f"{path}.{'*' if personal else key[:60]}".lstrip("."), part))
        elif isinstance(value, list):
            stack += [(f"{path}[]", part) for part in value]
        elif isinstance(value, str):
            yield path, value
        elif isinstance(value, int) and not isinstance(value, bool):
            yield path, str(value)


def kinds(value: str, path: str) -> Iterator[str]:
    """Yield the kinds of personal data that a text holds. `path`: of its field, whose name may say what it is."""
    if "@" in value and _EMAIL.search(value):
        yield EMAIL
    if any(_is_card(match[0]) for match in _CARD.finditer(value)):
        yield CARD
    if any(_is_iban(match[0].replace(" ", "")) for match in _IBAN.finditer(value)):
        yield IBAN
    named = _PHONE_FIELD.search(path.rpartition(".")[2]) and _DIGITS.fullmatch(value)
    if named or _PHONE.search(value):
        yield PHONE


def _is_card(text: str) -> bool:
    digits = text.replace(" ", "").replace("-", "")
    if not _NETWORK.fullmatch(digits) or len(set(digits)) < 2:
        return False
    total = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        doubled = digit * (1 + place % 2)
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def _is_iban(text: str) -> bool:
    if not 15 <= len(text) <= 34:
        return False
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1


def _match(
    capture: CaptureFrame, topic: str, part: str, side: str, holding: _Topic, fields: dict[tuple[str, str], int]
) -> Match:
    ordered = sorted(fields.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{kind} in {name(path)} ({many:,})" if path else f"{kind} ({many:,})" for (kind, path), many in ordered]
    text = f"{part.capitalize()}s of {name(topic)} hold personal data: {', '.join(listed[:_SHOWN_FIELDS])}"
    if len(listed) > _SHOWN_FIELDS:
        text += f" and {count(len(listed) - _SHOWN_FIELDS, 'field')} more"
    links = {link: number for number, link in enumerate(capture.links)}
    most = max(holding.connections, key=lambda link: holding.connections[link])
    who = capture.who(int(capture.client_of[links[most]])) if most in links else {}
    if who:
        written = sum(
            many
            for link, many in holding.connections.items()
            if link in links and capture.client_of[links[link]] == capture.client_of[links[most]]
        )
        text += (
            f"; {client(who)} {'wrote' if side == 'produce' else 'fetched'} {written:,} of {holding.records:,} records"
        )
    ends = [row for end in (holding.first, holding.last) if (row := _row_of(capture, *end)) is not None]
    times = [int(capture.exchanges.request_time[row]) for row in ends]
    what = {"topic": topic, "part": part, "kinds": ", ".join(sorted({kind for kind, _ in fields}))}
    what["fields"] = ", ".join(path for (_, path), _ in ordered[:_SHOWN_FIELDS] if path)
    rows = (ends[0], ends[0], ends[-1]) if ends else ()
    since, until = (min(times), max(times)) if times else capture.span
    return Match(f"{text}.", holding.records, since, until, who, {**what}, rows)


def _row_of(capture: CaptureFrame, connection: str, exchange: int | None) -> int | None:
    return None if exchange is None else capture.row_of(connection, exchange)
