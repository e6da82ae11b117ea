"""The definitions: is our set all of Kafka's, and are the rules that the JSON lacks the right ones?"""

from __future__ import annotations

import json

import pytest

from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from tests.analyzer.protocol import golden


def test_the_union_has_736_layouts_of_95_apis() -> None:
    keys = {(api_key, version, direction) for api_key, version, direction, _ in schema.layouts()}
    assert len(keys) == 736
    assert sorted({api_key for api_key, _, _ in keys}) == list(range(95))
    assert {direction for _, _, direction in keys} == {REQUEST, RESPONSE}


def test_versions_start_at_0_without_holes_and_responses_have_those_of_requests() -> None:
    for api in schema.apis():
        assert api.min_version == 0
        for version in range(api.max_version + 1):
            assert schema.layout(api.api_key, version, REQUEST) is not None
            assert schema.layout(api.api_key, version, RESPONSE) is not None
        assert schema.layout(api.api_key, api.max_version + 1, REQUEST) is None


def test_the_union_is_what_kafka_itself_can_write() -> None:
    layouts = {(api_key, direction, version) for api_key, version, direction, _ in schema.layouts()}
    by_release = {
        release: {(message.api_key, message.direction, message.version) for message in golden.golden(release)}
        for release in golden.RELEASES
    }
    assert {release: len(keys) for release, keys in by_release.items()} == {"3.9.2": 646, "4.4.0": 618}
    assert layouts == by_release["3.9.2"] | by_release["4.4.0"]


def test_every_record_of_internal_topics_has_its_definitions() -> None:
    types = {topic: schema.record_types(topic) for topic in schema.TOPICS}
    assert {topic: sorted(definitions) for topic, definitions in types.items()} == {
        "__consumer_offsets": [*range(9), *range(10, 18), *range(19, 24)],  # 9 and 18 were never released
        "__transaction_state": [0],
        "__share_group_state": [0, 1],
        # 6, 13 and 16 were gone before the first release that was not a preview
        "__cluster_metadata": [*range(6), *range(7, 13), 14, 15, *range(17, 30)],
    }
    names = {name for definitions in types.values() for pair in definitions.values() for name in pair if name}
    assert len(names) == 44 + 2 + 4 + 27
    for name in names:
        assert schema.data_layout(name, 0) is not None, name


def test_definitions_by_artifact_are_as_many_as_published() -> None:
    counts = {
        file.removesuffix(f"-{schema.RELEASES[0]}"): len(json.loads((schema.FOLDER / f"{file}.json").read_bytes()))
        for file in schema.DATA_FILES
    }
    assert counts == {
        "kafka-group-coordinator": 44,
        "kafka-transaction-coordinator": 2,
        "kafka-share-coordinator": 4,
        "kafka-metadata": 27,
        "kafka-raft": 1,
        "embedded": 6,
    }
    versions: dict[str, list[int]] = {}
    for name, version, _ in schema.data_layouts():
        versions.setdefault(name, []).append(version)
    assert len(versions) == 13 + 44 + 2 + 4 + 27 + 1 + 6  # 13 in kafka-clients, headers included
    assert versions["RegisterBrokerRecord"] == [0, 1, 2, 3, 4]
    assert versions["BrokerRegistrationChangeRecord"] == [0, 1, 2, 3]
    assert versions["PartitionRecord"] == versions["PartitionChangeRecord"] == [0, 1, 2]
    assert versions["OffsetCommitValue"] == versions["GroupMetadataValue"] == [0, 1, 2, 3, 4]
    assert versions["LeaderChangeMessage"] == [0, 1]


def test_names_are_kafkas_newest_and_old_ones_are_found() -> None:
    assert [schema.api_name(api_key) for api_key in (0, 2, 18, 56, 68)] == [
        "Produce",
        "ListOffsets",
        "ApiVersions",
        "AlterPartition",
        "ConsumerGroupHeartbeat",
    ]
    assert schema.api_name(95) == "UNKNOWN_API_95"
    assert schema.api_name(-1) == "UNKNOWN_API_-1"
    assert schema.api_keys()["produce"] == 0
    assert schema.api_keys()["listclientmetricsresources"] == schema.api_keys()["listconfigresources"] == 74


def test_a_version_that_both_releases_have_is_the_newer_ones() -> None:
    layout = schema.layout(87, 0, RESPONSE)  # the one layout that changed without a new version
    assert layout is not None
    partitions = layout.fields[0].fields[1]
    assert "leaderEpoch" in [item.name for item in partitions.fields]


def test_defaults_are_read_as_kafka_reads_them() -> None:
    produce = schema.layout(0, 9, REQUEST)
    assert produce is not None
    assert {item.name: item.default for item in produce.fields} == {
        "transactionalId": None,
        "acks": 0,
        "timeoutMs": 0,
        "topicData": (),
    }
    fetch = schema.layout(1, 12, REQUEST)
    assert fetch is not None
    defaults = {item.name: item.default for item in fetch.fields}
    assert (defaults["maxBytes"], defaults["replicaId"], defaults["clusterId"]) == (0x7FFFFFFF, -1, None)


@pytest.mark.parametrize(
    ("api_key", "version", "header"),
    [(0, 8, 1), (0, 9, 2), (18, 0, 1), (18, 3, 2), (7, 0, 0), (7, 1, 1), (7, 3, 2), (17, 1, 1), (68, 0, 2)],
)
def test_request_header_versions(api_key: int, version: int, header: int) -> None:
    layout = schema.layout(api_key, version, REQUEST)
    assert layout is not None
    assert schema.request_header_version(api_key, version, layout.flexible) == header


@pytest.mark.parametrize(
    ("api_key", "version", "header"), [(0, 8, 0), (0, 9, 1), (18, 0, 0), (18, 3, 0), (18, 4, 0), (7, 3, 1), (68, 0, 1)]
)
def test_response_header_versions(api_key: int, version: int, header: int) -> None:
    layout = schema.layout(api_key, version, RESPONSE)
    assert layout is not None
    assert schema.response_header_version(api_key, version, layout.flexible) == header


def _every_field() -> dict[tuple[int, int, str], schema.Field]:
    by_path: dict[tuple[int, int, str], schema.Field] = {}

    def walk(api_key: int, direction: int, fields: tuple[schema.Field, ...]) -> None:
        for item in fields:
            by_path.setdefault((api_key, direction, item.path), item)
            walk(api_key, direction, item.fields)

    for api_key, _, direction, layout in schema.layouts():
        walk(api_key, direction, layout.fields)
    return by_path


def _every_data_field() -> dict[str, schema.Field]:
    by_path: dict[str, schema.Field] = {}

    def walk(name: str, fields: tuple[schema.Field, ...]) -> None:
        for item in fields:
            by_path.setdefault(f"{name}.{item.path}", item)
            walk(name, item.fields)

    for name, _, layout in schema.data_layouts():
        walk(name, layout.fields)
    return by_path


def test_every_secret_field_exists_and_a_config_value_has_its_name_before_it() -> None:
    fields = _every_field()
    for (api_key, direction, path), secrecy in schema.SECRET_FIELDS.items():
        assert fields[api_key, direction, path].secret == secrecy, (api_key, direction, path)
        assert fields[api_key, direction, path].kind in ("bytes", "string")
        assert schema.has_secrets(api_key, direction)
        if secrecy == "by_name":
            parent = path.rpartition(".")[0]
            assert any((api_key, direction, f"{parent}.{name}") in fields for name in ("name", "key")), path


def test_every_secret_field_of_data_exists_and_a_config_value_has_its_name_before_it() -> None:
    fields = _every_data_field()
    for path, secrecy in schema.SECRET_DATA_FIELDS.items():
        assert fields[path].secret == secrecy, path
        assert schema.data_has_secrets(path.partition(".")[0])
        if secrecy == "by_name":
            parent = path.rpartition(".")[0]
            assert any(f"{parent}.{name}" in fields for name in ("name", "key")), path


# The token's id is its user name, and public; the HMAC is its password (KIP-48).
HARMLESS = {"tokens", "tokenId", "tokenRequesterPrincipalType", "tokenRequesterPrincipalName", "tokenAuthenticated"}
SECRET_WORDS = ("password", "secret", "salt", "hmac", "token", "authbytes", "credential", "private", "storedkey")


def test_no_field_of_data_that_sounds_secret_was_forgotten() -> None:
    for path, item in _every_data_field().items():
        if any(word in item.name.lower() for word in SECRET_WORDS) and item.kind in ("string", "bytes"):
            assert item.secret or item.name in HARMLESS, path
        parent, _, name = path.rpartition(".")
        if name == "value" and item.kind == "string":
            # Tags that a streams application gives its instances, as in StreamsGroupHeartbeat.
            assert item.secret == "by_name" or parent == "StreamsGroupMemberMetadataValue.clientTags", path


def test_no_field_that_sounds_secret_was_forgotten() -> None:
    # A new release with such a field fails here; it then goes into SECRET_FIELDS or into the list of known others.
    for (api_key, direction, path), item in _every_field().items():
        if any(word in item.name.lower() for word in SECRET_WORDS) and item.kind in ("string", "bytes"):
            assert item.secret or item.name in HARMLESS, (schema.api_name(api_key), direction, path)


def test_every_key_value_pair_of_strings_is_either_a_config_or_known_not_to_be() -> None:
    fields = _every_field()
    definitions = set()
    for (api_key, direction, path), item in fields.items():
        parent, _, name = path.rpartition(".")
        has_name = any((api_key, direction, f"{parent}.{other}") in fields for other in ("name", "key", "configName"))
        if name == "value" and item.kind == "string" and has_name and item.secret != "by_name":
            definitions.add((schema.api_name(api_key), direction, path))
    # The tags that a streams application gives its instances, for rack-aware assignment.
    assert definitions == {
        ("StreamsGroupHeartbeat", REQUEST, "clientTags.value"),
        ("StreamsGroupDescribe", RESPONSE, "groups.members.clientTags.value"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "ssl.keystore.password",
        "listener.name.sasl_ssl.plain.sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.certificates",
        "password.encoder.secret",
        "delegation.token.secret.key",
        "delegation.token.master.key",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "MY_API_KEY",
        "aws.access.key.id",
        "auth.token",
        "azure.servicebus.connection.string",
        "schema.registry.basic.auth.user.info",
        "basic.auth.user.info",
        "db.pwd",
        "mq.passcode",
        "connection.url",
        "source.connection.url",
        "mongodb.connection.uri",
    ],
)
def test_sensitive_configs(name: str) -> None:
    assert schema.is_sensitive_config(name)


@pytest.mark.parametrize(
    "name",
    [
        "retention.ms",
        "cleanup.policy",
        "compression.type",
        "delegation.token.max.lifetime.ms",
        "connections.max.idle.ms",
        "schema.registry.url",
        "",
        None,
    ],
)
def test_ordinary_configs(name: str | None) -> None:
    assert not schema.is_sensitive_config(name)


def test_licence_and_notice_lie_beside_the_definitions() -> None:
    assert "Apache License" in (schema.FOLDER / "LICENSE").read_text()
    assert "Apache Kafka" in (schema.FOLDER / "NOTICE").read_text()
    for release in schema.RELEASES:
        assert len(json.loads((schema.FOLDER / f"kafka-{release}.json").read_bytes())) > 150
