"""Kafka's message definitions as layouts: what the bytes of one message version mean, field by field.

In: `definitions/kafka-RELEASE.json`, Apache Kafka's own definitions of two releases, made by
`tools/refresh_definitions.py`, and those of the records that brokers keep in internal topics. Out: a frozen `Layout`
per (API, version, direction), built when asked for. Where both releases have a version, the newer one's definition is
used; the older release has the versions that KIP-896 removed in Kafka 4.0.

What the definitions do not say is here by hand, with the KIP beside it: header versions and which fields are secret.
`definitions/embedded.json` is by hand too, in the same form: formats that Kafka has in Java code only (`source` says
where).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from kwire.captures.cache import cached, python_files

FOLDER: Final = Path(__file__).resolve().parent.parent / "definitions"
RELEASES: Final = ("4.4.0", "3.9.2")
"""In order of preference."""

TOPICS: Final = {
    "__consumer_offsets": "kafka-group-coordinator",
    "__transaction_state": "kafka-transaction-coordinator",
    "__share_group_state": "kafka-share-coordinator",
    "__cluster_metadata": "kafka-metadata",
}
"""Internal topics, and the artifact whose definitions their records have (`definitions/ARTIFACT-RELEASE.json`, of the
newest release)."""

DATA_FILES: Final = (*(f"{artifact}-{RELEASES[0]}" for artifact in (*TOPICS.values(), "kafka-raft")), "embedded")

REQUEST: Final = 0
RESPONSE: Final = 1
NEITHER: Final = 2
"""Direction of headers and of data that lies inside records or `bytes` fields (consumer protocol, control records)."""

NO_API: Final = -1
"""The api_key of layouts that belong to no API: headers and data."""

API_VERSIONS: Final = 18
CONTROLLED_SHUTDOWN: Final = 7
UNSUPPORTED_VERSION: Final = 35

Kind = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "float64",
    "uuid",
    "string",
    "bytes",
    "records",
    "struct",
    "array",
]
Secrecy = Literal["", "always", "by_name", "envelope"]

PRIMITIVES: Final = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64", "uuid", "string", "bytes", "records")
)
FIXED_SIZE: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "float64": 8,
    "uuid": 16,
}
ZERO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"

SECRET_FIELDS: Final[dict[tuple[int, int, str], Secrecy]] = {
    # (api_key, direction, path): never shown, stored or logged; only the length is.
    (36, REQUEST, "authBytes"): "always",  # SaslAuthenticate: the password itself with PLAIN
    (36, RESPONSE, "authBytes"): "always",  # SCRAM server messages carry salt and proof
    (38, RESPONSE, "hmac"): "always",  # CreateDelegationToken: the HMAC is the token's password (KIP-48)
    (39, REQUEST, "hmac"): "always",  # RenewDelegationToken
    (40, REQUEST, "hmac"): "always",  # ExpireDelegationToken
    (41, RESPONSE, "tokens.hmac"): "always",  # DescribeDelegationToken
    (51, REQUEST, "upsertions.salt"): "always",  # AlterUserScramCredentials (KIP-554)
    (51, REQUEST, "upsertions.saltedPassword"): "always",
    # Values of configurations, secret when the name beside them says so (`is_sensitive_config`).
    (19, REQUEST, "topics.configs.value"): "by_name",  # CreateTopics
    (19, RESPONSE, "topics.configs.value"): "by_name",
    (32, RESPONSE, "results.configs.value"): "by_name",  # DescribeConfigs: new brokers send null, old ones the value
    (32, RESPONSE, "results.configs.synonyms.value"): "by_name",
    (33, REQUEST, "resources.configs.value"): "by_name",  # AlterConfigs
    (44, REQUEST, "resources.configs.value"): "by_name",  # IncrementalAlterConfigs
    # StreamsGroupHeartbeat and StreamsGroupDescribe: configurations of internal topics (KIP-1071)
    (88, REQUEST, "topology.subtopologies.repartitionSourceTopics.topicConfigs.value"): "by_name",
    (88, REQUEST, "topology.subtopologies.stateChangelogTopics.topicConfigs.value"): "by_name",
    (89, RESPONSE, "groups.topology.subtopologies.repartitionSourceTopics.topicConfigs.value"): "by_name",
    (89, RESPONSE, "groups.topology.subtopologies.stateChangelogTopics.topicConfigs.value"): "by_name",
    # A whole request or response inside (KIP-590): hidden unless what it holds is known to have no secrets.
    (58, REQUEST, "requestData"): "envelope",
    (58, RESPONSE, "responseData"): "envelope",
}

SECRET_DATA_FIELDS: Final[dict[str, Secrecy]] = {
    # The same for data, by definition and path.
    "UserScramCredentialRecord.salt": "always",  # (KIP-900)
    "UserScramCredentialRecord.storedKey": "always",
    "UserScramCredentialRecord.serverKey": "always",
    "ConfigRecord.value": "by_name",
    "StreamsGroupMetadataValue.lastAssignmentConfigs.value": "by_name",
    "StreamsGroupTopologyValue.subtopologies.repartitionSourceTopics.topicConfigs.value": "by_name",
    "StreamsGroupTopologyValue.subtopologies.stateChangelogTopics.topicConfigs.value": "by_name",
}

_SENSITIVE: Final = re.compile(
    # Kafka's configurations of type PASSWORD (ssl.*.password, ssl.keystore.key, sasl.jaas.config,
    # delegation.token.secret.key, ...client.secret, ...passphrase) and what plug-ins commonly call theirs.
    r"password|passwd|passphrase|secret|credential|jaas|(^|[._-])token$|keystore\.certificate\.chain"
    r"|truststore\.certificates|(^|[._-])key$|private[._-]?key|access[._-]?key|api[._-]?key"
    # Addresses and users that carry the password with them, as connectors and schema registries' clients have them.
    r"|connection[._-]?string|auth[._-]user[._-]info|(^|[._-])(pwd|passcode)$|(^|[._-])connection[._-]ur[il]$",
    re.IGNORECASE,
)


def is_sensitive_config(name: str | None) -> bool:
    """Does a configuration of this name hold a secret? Errs on the side of yes."""
    return name is not None and _SENSITIVE.search(name) is not None


class Field(NamedTuple):
    """One field of a layout.

    `name` is the JSON name (first letter lowered, as Kafka's generator does); `element` is the kind of an array's
    elements and `fields` the fields of a struct or of an array's structs; `flexible` says that lengths are compact
    (KIP-482); `default` is what Kafka takes for an absent field.
    """

    name: str
    path: str
    kind: Kind
    element: Kind | None
    fields: tuple[Field, ...]
    flexible: bool
    nullable: bool
    tag: int | None
    default: Any
    entity_type: str
    secret: Secrecy

    @property
    def plain_fields(self) -> tuple[Field, ...]:
        return tuple(item for item in self.fields if item.tag is None)


class Layout(NamedTuple):
    """The fields of one message version. Versions with the same layout share one (`versions`: first, last)."""

    name: str
    api_key: int
    direction: int
    versions: tuple[int, int]
    flexible: bool
    fields: tuple[Field, ...]


class Api(NamedTuple):
    """An API: `name` as Kafka calls it now, and the versions that have a layout."""

    api_key: int
    name: str
    min_version: int
    max_version: int


_FOREVER: Final = 1 << 15


@functools.cache
def _span(versions: str | None) -> tuple[int, int]:
    """`3+`, `0-4`, `7` or `none` as first and last version."""
    if versions is None or versions == "none":
        return 1, 0
    if versions.endswith("+"):
        return int(versions[:-1]), _FOREVER
    first, _, last = versions.partition("-")
    return int(first), int(last or first)


def _within(version: int, versions: str | None) -> bool:
    first, last = _span(versions)
    return first <= version <= last


def lower_first(name: str) -> str:
    """A definition's name as its JSON name."""
    return name[:1].lower() + name[1:]


@dataclass(frozen=True, slots=True)
class _Definition:
    """One message of one release: `raw` as in the file; `breaks` are the versions where something changes."""

    raw: dict[str, Any]
    api_key: int
    direction: int
    first: int
    last: int
    breaks: tuple[int, ...]
    structs: dict[str, list[dict[str, Any]]] = field(compare=False, repr=False)


def _versions_of(raw: dict[str, Any]) -> str:
    """The versions of a field; a tagged one may leave them out, it then has those of its tag."""
    versions: str = raw["versions"] if "versions" in raw else raw["taggedVersions"]
    return versions


def _define(raw: dict[str, Any]) -> _Definition:
    first, last = _span(raw["validVersions"])
    breaks = {first}
    structs: dict[str, list[dict[str, Any]]] = {}

    def note(versions: str | None) -> None:
        low, high = _span(versions)
        if low <= high:
            breaks.add(low)
            breaks.add(high + 1)

    def walk(items: list[dict[str, Any]]) -> None:
        for item in items:
            note(_versions_of(item))
            for key in ("nullableVersions", "taggedVersions", "flexibleVersions"):
                if key in item:
                    note(item[key])
            inner = item.get("fields")
            if inner is not None:
                # A struct written out in one field may be used by name in another.
                structs.setdefault(item["type"].removeprefix("[]"), inner)
                walk(inner)

    note(raw.get("flexibleVersions"))
    for common in raw.get("commonStructs", ()):
        structs[common["name"]] = common["fields"]
        walk(common["fields"])
    walk(raw.get("fields", []))
    direction = {"request": REQUEST, "response": RESPONSE}.get(raw["type"], NEITHER)
    return _Definition(
        raw,
        raw.get("apiKey", NO_API) if direction != NEITHER else NO_API,
        direction,
        first,
        last,
        tuple(sorted(at for at in breaks if first <= at <= last)),
        structs,
    )


@functools.cache
def _definitions() -> dict[tuple[int, int, str], list[_Definition]]:
    """All definitions by (api_key, direction, name); name is empty for requests and responses, because it changed
    over time (AlterIsr, AlterPartition). Each list is in order of preference."""
    definitions: dict[tuple[int, int, str], list[_Definition]] = {}
    for release in RELEASES:
        for raw in _file(f"kafka-{release}"):
            definition = _define(raw)
            name = raw["name"] if definition.direction == NEITHER else ""
            definitions.setdefault((definition.api_key, definition.direction, name), []).append(definition)
    return definitions


@functools.cache
def _record_definitions() -> dict[tuple[int, int, str], list[_Definition]]:
    """The definitions of `DATA_FILES`, in the same form; apart, because most runs do without them."""
    return {(NO_API, NEITHER, raw["name"]): [_define(raw)] for file in DATA_FILES for raw in _file(file)}


def _definitions_of(key: tuple[int, int, str]) -> list[_Definition]:
    definitions = _definitions().get(key)
    if definitions is None:
        definitions = _record_definitions().get(key, []) if key[1] == NEITHER else []
    return definitions


def _file(name: str) -> list[dict[str, Any]]:
    definitions: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return definitions


@functools.cache
def record_types(topic: str) -> dict[int, tuple[str, str]]:
    """Return the types of records in an internal topic: the definitions of key and value (key: "" in
    `__cluster_metadata`, whose records have none) by the number that a key, or in `__cluster_metadata` a value, begins
    with."""
    types: dict[int, tuple[str, str]] = {}
    for raw in _file(f"{TOPICS[topic]}-{RELEASES[0]}"):
        if raw["type"] == "metadata":
            types[raw["apiKey"]] = ("", raw["name"])
        elif raw["type"] == "coordinator-key":
            types[raw["apiKey"]] = (raw["name"], raw["name"].removesuffix("Key") + "Value")
    return types


def _default(raw: dict[str, Any], kind: str, nullable: bool) -> Any:
    """Return the value that Kafka's generated code takes where a message does not have the field."""
    text = raw.get("default")
    if text == "null":
        return None
    if text is None or text == "":
        return {"string": "", "bytes": b"", "records": None, "uuid": ZERO_UUID, "bool": False, "float64": 0.0}.get(
            kind, 0
        )
    if kind == "bool":
        return text in (True, "true")
    if kind == "float64":
        return float(text)
    if kind in ("string", "uuid"):
        return text
    return int(str(text), 0)


def _secrecy(definition: _Definition, path: str) -> Secrecy:
    if definition.direction == NEITHER:
        return SECRET_DATA_FIELDS.get(f"{definition.raw['name']}.{path}", "")
    return SECRET_FIELDS.get((definition.api_key, definition.direction, path), "")


def _fields(
    definition: _Definition, items: list[dict[str, Any]], version: int, flexible: bool, prefix: str
) -> tuple[Field, ...]:
    out = []
    for raw in items:
        if not _within(version, _versions_of(raw)):
            continue
        name = lower_first(raw["name"])
        path = prefix + name
        type_name = raw["type"]
        element: Any = None
        kind: Any = type_name
        inner: tuple[Field, ...] = ()
        struct_name = type_name
        if type_name.startswith("[]"):
            kind, struct_name = "array", type_name[2:]
            element = struct_name if struct_name in PRIMITIVES else "struct"
        elif type_name not in PRIMITIVES:
            kind = "struct"
        nullable = _within(version, raw.get("nullableVersions"))
        default: Any
        if struct_name not in PRIMITIVES:
            struct_fields = raw.get("fields")
            if struct_fields is None:
                struct_fields = definition.structs[struct_name]
            inner = _fields(definition, struct_fields, version, flexible, path + ".")
        if kind == "array":
            default = None if raw.get("default") == "null" else ()
        elif kind == "struct":
            default = None if raw.get("default") == "null" else {item.name: item.default for item in inner}
        else:
            default = _default(raw, kind, nullable)
        tagged = "tag" in raw and _within(version, raw["taggedVersions"])
        out.append(
            Field(
                name,
                path,
                kind,
                element,
                inner,
                flexible and ("flexibleVersions" not in raw or _within(version, raw["flexibleVersions"])),
                nullable,
                int(raw["tag"]) if tagged else None,  # some releases write it as text
                default,
                raw.get("entityType", ""),
                _secrecy(definition, path),
            )
        )
    return tuple(out)


@functools.cache
def _layout(key: tuple[int, int, str], index: int, first: int) -> Layout:
    """The layout that starts to hold at version `first` of the definition at `index`."""
    definition = _definitions_of(key)[index]
    later = [at for at in definition.breaks if at > first]
    flexible = _within(first, definition.raw.get("flexibleVersions"))
    return Layout(
        definition.raw["name"],
        definition.api_key,
        definition.direction,
        (first, later[0] - 1 if later else definition.last),
        flexible,
        _fields(definition, definition.raw["fields"], first, flexible, ""),
    )


def _find(key: tuple[int, int, str], version: int) -> Layout | None:
    for index, definition in enumerate(_definitions_of(key)):
        if definition.first <= version <= definition.last:
            return _layout(key, index, max(at for at in definition.breaks if at <= version))
    return None


def layout(api_key: int, version: int, direction: int) -> Layout | None:
    """The layout of a request (`REQUEST`) or response (`RESPONSE`) body; None where Kafka never had one."""
    return _find((api_key, direction, ""), version)


def data_layout(name: str, version: int) -> Layout | None:
    """The layout of a header or of data kept in records and `bytes` fields, by its definition's name."""
    return _find((NO_API, NEITHER, name), version)


def _versions(key: tuple[int, int, str]) -> list[int]:
    versions: set[int] = set()
    for definition in _definitions_of(key):
        versions.update(range(definition.first, definition.last + 1))
    return sorted(versions)


def layouts() -> Iterator[tuple[int, int, int, Layout]]:
    """(api_key, version, direction, layout) of every request and response, in that order."""
    for api_key, direction, name in sorted(_definitions()):
        if direction != NEITHER:
            for version in _versions((api_key, direction, name)):
                version_layout = layout(api_key, version, direction)
                assert version_layout is not None
                yield api_key, version, direction, version_layout


def data_versions(name: str) -> Iterator[tuple[int, Layout]]:
    """(version, layout) of a header or data definition."""
    for version in _versions((NO_API, NEITHER, name)):
        versions = data_layout(name, version)
        assert versions is not None
        yield version, versions


def data_layouts() -> Iterator[tuple[str, int, Layout]]:
    """(name, version, layout) of every header and data definition."""
    for _, direction, name in sorted([*_definitions(), *_record_definitions()]):
        if direction == NEITHER:
            for version, version_layout in data_versions(name):
                yield name, version, version_layout


def sources() -> list[Path]:
    """The definitions, and all that compiles them, up to what kernels take: what is made of layouts is kept as long as
    none of it changes."""
    analyzer = FOLDER.parent
    kernels = analyzer.parent / "captures" / "kernels.py"  # constants that state.py takes
    return [*sorted(FOLDER.glob("*.json")), *python_files(analyzer / "protocol", analyzer / "bulk"), kernels]


@functools.cache
def apis() -> tuple[Api, ...]:
    """Every API, in order of api_key."""
    return tuple(Api(*row) for row in cached("apis", sources(), lambda: [tuple(api) for api in _apis()]))


def _apis() -> tuple[Api, ...]:
    apis = []
    for (api_key, direction, _), definitions in sorted(_definitions().items()):
        if direction == REQUEST:
            versions = _versions((api_key, REQUEST, ""))
            name = definitions[0].raw["name"].removesuffix("Request")
            apis.append(Api(api_key, name, versions[0], versions[-1]))
    return tuple(apis)


def has_api(api_key: int) -> bool:
    return 0 <= api_key < len(apis())


def has_secrets(api_key: int, direction: int) -> bool:
    """May a message of this API and direction hold secrets?"""
    return (api_key, direction) in _WITH_SECRETS


def data_has_secrets(name: str) -> bool:
    """May data of this definition hold secrets?"""
    return name in _DATA_WITH_SECRETS


_DATA_WITH_SECRETS: Final = frozenset(path.partition(".")[0] for path in SECRET_DATA_FIELDS)
_WITH_SECRETS: Final = frozenset((api_key, direction) for api_key, direction, _ in SECRET_FIELDS)


def api_name(api_key: int) -> str:
    """`Produce` for 0; `UNKNOWN_API_n` for what no definition has."""
    if has_api(api_key):
        return apis()[api_key].name
    return f"UNKNOWN_API_{api_key}"


@functools.cache
def api_keys() -> dict[str, int]:
    """api_key by name, old names included, in lower case."""
    names: dict[str, int] = {}
    for (api_key, direction, _), definitions in _definitions().items():
        if direction == REQUEST:
            for definition in definitions:
                names[definition.raw["name"].removesuffix("Request").lower()] = api_key
    return names


def request_header_version(api_key: int, version: int, flexible: bool) -> int:
    """Header v2 has tagged fields and goes with flexible requests (KIP-482); v1 added the client id, which
    ControlledShutdown v0 never had (its header is v0, see the definition's comment)."""
    if api_key == CONTROLLED_SHUTDOWN and version == 0:
        return 0
    return 2 if flexible else 1


def response_header_version(api_key: int, version: int, flexible: bool) -> int:
    """Header v1 has tagged fields and goes with flexible responses (KIP-482), but an ApiVersions response always has
    v0, because a client must be able to read it before it knows the broker's versions (KIP-511)."""
    if api_key == API_VERSIONS:
        return 0
    return 1 if flexible else 0
