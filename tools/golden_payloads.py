"""`python tools/golden_payloads.py`: the files in tests/analyzer/payloads/golden, written by real serializers.

Needs packages that kwire does not: `pip install 'confluent-kafka[avro,protobuf,json,schemaregistry]' grpcio-tools`.
In: the `.proto` files there. Out: `payloads.json` (what Confluent's serializers for Python made of values, with the
schemas that they registered), `descriptors.json` (what protoc makes of the `.proto` files).
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "analyzer" / "payloads" / "golden"
PROTOS = ("order.proto", "legacy.proto", "shop/money.proto")

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop.shared",
    "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "string"], "default": None}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "address", "type": "shop.shared.Address"},
        {"name": "delivery", "type": ["null", "shop.shared.Address"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
        {
            "name": "fixed_amount",
            "type": {
                "type": "fixed",
                "name": "Amount",
                "size": 8,
                "logicalType": "decimal",
                "precision": 18,
                "scale": 4,
            },
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at_millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "at_micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "time_millis", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "time_micros", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "either", "type": ["null", "int", "string", {"type": "array", "items": "double"}]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "long"]}},
        {"name": "raw", "type": "bytes"},
        {"name": "checksum", "type": {"type": "fixed", "name": "Checksum", "size": 4}},
        {"name": "ratio", "type": "float"},
        {"name": "score", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "nothing", "type": "null"},
        {"name": "parent", "type": ["null", "Order"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
    ],
}  # fmt: skip


def order(parent: Any = None) -> dict[str, Any]:
    """An Avro record with every type."""
    return {
        "id": -(1 << 63),
        "address": {"city": "Zürich 🏔", "zip": None},
        "delivery": {"city": "Bern", "zip": "3000"},
        "amount": decimal.Decimal("-12345678901234567890.05"),
        "fixed_amount": decimal.Decimal("1.5000"),
        "day": datetime.date(2026, 2, 28),
        "at_millis": datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, datetime.UTC),
        "at_micros": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        "time_millis": datetime.time(23, 59, 59, 999000),
        "time_micros": datetime.time(0, 0, 0, 1),
        "uuid": uuid.UUID("7f2d0d5c-8f2e-4a8e-9d2e-0c5f1d1a2b3c"),
        "either": [1.5, -0.25],
        "state": "PAID",
        "tags": {"a": 1, "b": None},
        "raw": bytes(range(256)),
        "checksum": b"\xde\xad\xbe\xef",
        "ratio": 0.25,
        "score": 1e300,
        "ok": True,
        "nothing": None,
        "parent": parent,
        "lines": [{"sku": "x"}, {"sku": ""}],
    }


def as_json(value: Any) -> Any:
    """A value as the documentation says that it becomes JSON."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text + ("Z" if value.tzinfo else "")
    if isinstance(value, datetime.time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, datetime.date | uuid.UUID | decimal.Decimal):
        return str(value)
    return value


def compiled() -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """The `.proto` files, by protoc."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        include = Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{GOLDEN}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, *PROTOS]):
            sys.exit("protoc failed")
        descriptor_set = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
        (GOLDEN / "order.desc.base64").write_text(base64.b64encode(out.read_bytes()).decode())
    return {file.name: file for file in descriptor_set.file}


def main() -> None:
    """Write the files."""
    client = SchemaRegistryClient.new_client({"url": "mock://golden"})
    cases: list[dict[str, Any]] = []

    def case(name: str, data: bytes, expected: Any, format_: str, context: SerializationContext) -> None:
        headers = [[key, base64.b64encode(value).decode()] for key, value in context.headers or []]
        cases.append({"name": name, "topic": context.topic, "side": context.field, "headers": headers,
                      "format": format_, "data": base64.b64encode(data).decode(), "json": expected})  # fmt: skip

    client.register_schema("address", Schema(json.dumps(ADDRESS), "AVRO"))
    referring = Schema(json.dumps(ORDER), "AVRO", [SchemaReference("shop.shared.Address", "address", 1)])
    avro = AvroSerializer(client, referring)
    for name, value in (("avro", order()), ("avro-recursive", order(order(order())))):
        context = SerializationContext("orders", MessageField.VALUE, [])
        case(name, avro(value, context), as_json(value), "avro", context)
    key = AvroSerializer(client, '"string"')
    context = SerializationContext("orders", MessageField.KEY, [])
    case("avro-string-key", key("customer-7", context), "customer-7", "avro", context)

    json_schema = JSONSerializer(json.dumps({"title": "Payment", "type": "object"}), client)
    context = SerializationContext("payments", MessageField.VALUE, [])
    case("json-schema", json_schema({"cents": 5, "to": "Zoë"}, context), {"cents": 5, "to": "Zoë"}, "json_schema",
         context)  # fmt: skip

    files = compiled()
    pool = descriptor_pool.DescriptorPool()
    for file in files.values():
        pool.Add(file)
    values: dict[str, dict[str, Any]] = {
        "shop.orders.v1.Order": {
            "orderId": str(-(1 << 63)), "note": "", "lines": [{"sku": "a", "price": 1.5, "kind": "BOOK"}, {}],
            "bySku": {"k": {"sku": "q"}}, "flags": {"true": -4, "false": 0}, "card": {"number": "1"},
            "placedAt": "2026-01-02T03:04:05.678Z", "patience": "3.5s", "extra": {"a": [1, None, {"b": True}]},
            "nickname": "", "wrapped": "12", "total": {"currency": "CHF", "cents": "9007199254740993"},
            "state": "LOST", "parent": {"orderId": "1", "parent": {"voucher": "v"}}, "large": str((1 << 64) - 1),
            "signedFixed": "-5", "plainFixed": 4294967295, "ratio": 0.1, "score": 1e300, "blob": "AAH/",
            "isGift": True, "packed": [1, -1, 300], "unpacked": ["-1", "2"],
        },
        "shop.orders.v1.Cancellation.Reason": {"text": "late"},
        "shop.orders.v1.Order.Card": {"number": "4111"},
        "shop.legacy.Event": {"name": "n", "place": {"latitude": 1.5}, "numbers": ["1", "-1"]},
        "shop.Money": {"currency": "EUR", "cents": "1"},
    }  # fmt: skip
    numbers = {"orderId", "wrapped", "cents", "large", "signedFixed", "unpacked", "numbers"}

    def as_kwire(value: Any, name: str = "") -> Any:
        """ProtoJSON with the fields' own names, and integers of 64 bits as numbers."""
        if isinstance(value, dict):
            return {{"orderId": "id"}.get(key, "".join(f"_{c.lower()}" if c.isupper() else c for c in key))
                    : as_kwire(part, key) for key, part in value.items()}  # fmt: skip
        if isinstance(value, list):
            return [as_kwire(part, name) for part in value]
        return int(value) if name in numbers and isinstance(value, str) else value

    for full_name, value in values.items():
        message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))
        message = json_format.ParseDict(value, message_class())
        serializer = ProtobufSerializer(message_class, client, {"use.deprecated.format": False})
        topic = full_name.lower()
        context = SerializationContext(topic, MessageField.VALUE, [])
        case(f"protobuf-{full_name}", serializer(message, context), as_kwire(json_format.MessageToDict(message)),
             "protobuf", context)  # fmt: skip

    schemas = {}
    for schema_id in range(1, 100):
        try:
            schema = client.get_schema(schema_id)
        except Exception:
            continue
        references = {}
        for reference in schema.references or []:
            references[reference.name] = client.get_version(reference.subject, reference.version).schema.schema_str
        schemas[schema_id] = {"type": schema.schema_type, "schema": schema.schema_str, "references": references}

    buffer = io.BytesIO()
    plain = fastavro.parse_schema({"type": "record", "name": "Plain", "fields": [{"name": "n", "type": "int"}]})
    fastavro.schemaless_writer(buffer, plain, {"n": 7})
    context = SerializationContext("plain", MessageField.VALUE, [])
    case("fastavro", buffer.getvalue(), {"n": 7}, "avro", context)
    (GOLDEN / "payloads.json").write_text(json.dumps({"schemas": schemas, "cases": cases}, indent=1, sort_keys=True))
    described = {name: json_format.MessageToDict(files[name]) for name in PROTOS}
    (GOLDEN / "descriptors.json").write_text(json.dumps(described, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
