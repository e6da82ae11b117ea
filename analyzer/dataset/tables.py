"""The tables of a dataset: the contract in code.

Each column has its Arrow type and a sentence that says what it holds. Parquet files, Spark views, `--fields` and the
documentation follow this file. Rules: times are `timestamp[us, UTC]`, durations int64 microseconds named `..._us`,
sizes int64 bytes named `..._bytes`; absent is null, never -1.
"""

from __future__ import annotations

import functools

import pyarrow as pa

from kwire.analyzer.common import compute
from kwire.analyzer.dataset.analysis_tables import (
    CLIENTS,
    FINDINGS,
    GROUPS,
    JOURNEYS,
    OFFSETS,
    READERS,
    REBALANCES,
    TRANSACTIONS,
)
from kwire.analyzer.dataset.shared_columns import ERRORS, KEY, STRINGS, TIME, TOPIC_PARTITION, Column, columns

__all__ = [
    "ABOUT",
    "BATCHES",
    "CONNECTIONS",
    "ERRORS",
    "EXCHANGES",
    "FINDINGS",
    "FORMAT_VERSION",
    "HEADERS",
    "JOURNEYS",
    "LEADERS",
    "MEANING",
    "OFFSETS",
    "OPAQUE_REASONS",
    "OUTCOMES",
    "PARTITIONS",
    "READABLE_VERSIONS",
    "RECORDS",
    "REPLAYED",
    "RUN_TABLES",
    "STRINGS",
    "TABLES",
    "TIME",
    "Column",
    "described",
    "is_same_type",
    "schema",
]

FORMAT_VERSION = 2
"""Of datasets that are written: 2 has the tables of `MEANING` and the parts of latencies."""
READABLE_VERSIONS = (1, 2)
"""Of datasets that are read; what an older one lacks is null, and its tables of `MEANING` are empty."""

_END_POINTS = columns(
    ("client_ip", pa.string(), "Address of the side that sends requests."),
    ("client_port", pa.int32(), "Its TCP port."),
    ("broker_ip", pa.string(), "Address of the side that answers."),
    ("broker_port", pa.int32(), "Its TCP port."),
)

# fmt: off
EXCHANGES = (
    *KEY,
    *columns(
        ("exchange", pa.int64(), "Ordinal, from 0, of the request frame in its direction; null for an orphan."),
        ("reply", pa.int64(), "Ordinal, from 0, of the response frame in its direction; null where none."),
    ),
    *_END_POINTS,
    *columns(
        ("api_key", pa.int16(), "Kafka's number of the API."),
        ("api", pa.string(), "Kafka's name of the API, as `Produce`; null where unknown."),
        ("api_version", pa.int16(), "Version that the request header says."),
        ("correlation_id", pa.int32(), "Number that pairs the response with its request."),
        ("client_id", pa.string(), "Client id of the request header."),
        ("request_time", TIME, "First byte of the request."),
        ("request_end", TIME, "Last byte of the request."),
        ("response_time", TIME, "First byte of the response."),
        ("response_end", TIME, "Last byte of the response."),
        ("latency_us", pa.int64(), "`response_time - request_end`; null where that is negative (reordered capture)."),
        ("total_us", pa.int64(), "`response_end - request_time`; null where that is negative, as `latency_us`."),
        ("queue_us", pa.int64(),
         "Of the latency, what the request waited behind earlier ones of its connection: a broker takes up one after "
         "the other. Null where the latency is, and in datasets of earlier versions."),
        ("muted_us", pa.int64(),
         "Of `total_us`, what it waited because of a throttle: for the end of the pause that an earlier answer on its "
         "connection ordered (KIP-219); with brokers before 2.0, inside this answer's latency."),
        ("network_us", pa.int64(),
         "Of `total_us`, what transfers, repair and the way between the capture point and the broker took."),
        ("hold_us", pa.int64(), "Of `total_us`, what the broker waited on purpose; null where that cannot be told."),
        ("broker_us", pa.int64(),
         "The rest of `total_us`: the broker at work. Queue, muted, network, hold and broker add up to it."),
        ("cause", pa.string(),
         "The largest part: `hold`, `broker`, `network`, `throttle` (muted), `client` (queue); `unknown` where what "
         "cannot be told may be the largest; null without an answer."),
        ("throttle_us", pa.int64(), "`throttleTimeMs` of the response."),
        ("request_bytes", pa.int64(), "Size of the request, its 4-byte length included."),
        ("response_bytes", pa.int64(), "Size of the response, its 4-byte length included."),
        ("status", pa.string(),
         "`answered`, `no_response_expected`, `unanswered` (the connection closed, or later responses came), "
         "`in_flight` (the capture ended first), `orphan_response`."),
        ("request_state", pa.string(), "`decoded`, `truncated` (bytes missing inside), `undecoded`; null: not seen."),
        ("response_state", pa.string(), "The same for the response."),
        ("reason", pa.string(), "Why something is not decoded, or what was odd."),
        ("error_code", pa.int16(), "First error in the response that is not 0; 0 on success."),
        ("error", pa.string(), "Its name; null on success."),
        ("errors", ERRORS, "All error codes of the response but 0, each with its name and how often."),
        ("acks", pa.int16(), "Produce: `acks`, as sent (-1: all in-sync replicas)."),
        ("max_wait_ms", pa.int32(), "Fetch: `maxWaitMs`."),
        ("min_bytes", pa.int32(), "Fetch: `minBytes`."),
        ("isolation_level", pa.int8(), "Fetch: `isolationLevel`: 0 read uncommitted, 1 read committed."),
        ("group_id", pa.string(), "First group that the request names."),
        ("member_id", pa.string(), "Member that the request names, or that the answer gives a new one."),
        ("generation", pa.int32(), "Generation of the group, or epoch of the member (KIP-848)."),
        ("transactional_id", pa.string(), "First transactional id that the request names."),
        ("topics", STRINGS, "Topics that request and response name, in that order; an id where only that was said."),
        ("request_file", pa.string(), "File with the request's first byte."),
        ("request_packet", pa.int64(), "Number, from 1, of the packet in that file."),
        ("response_file", pa.string(), "File with the response's first byte."),
        ("response_packet", pa.int64(), "Number, from 1, of the packet in that file."),
        ("request_offset", pa.int64(), "Byte offset of that packet's record in the file; null if compressed or stdin."),
        ("response_offset", pa.int64(), "The same for the response."),
        ("broker_low_us", pa.int64(),
         "The least that the broker itself took: `broker_us`, or, where that cannot be told, what is left after the "
         "longest wait that the request allows (`timeoutMs`, `maxWaitMs`)."),
        ("broker_high_us", pa.int64(),
         "The most that it may have taken: `broker_us`, or all of `total_us` but queue, muted and network."),
        ("rack_id", pa.string(), "Fetch 11 and later: the rack that the reader says it is in; null: none."),
        ("preferred_replica", pa.int32(),
         "Fetch 11 and later: the first replica that the answer names to read from instead (KIP-392); null: none."),
    ),
)
# fmt: on

OPAQUE_REASONS = (
    "encrypted",
    "sasl",
    "unknown_api",
    "unsupported_version",
    "malformed",
    "trailing",
    "limit",
    "prefix",
)

_MESSAGE = (
    *KEY,
    *columns(
        ("exchange", pa.int64(), "Ordinal of the request frame, as in `exchanges`; null for an orphan."),
        ("reply", pa.int64(), "Ordinal of the response frame; null where none."),
    ),
)
_RECORD_SET = (
    *_MESSAGE,
    *columns(
        ("topic", pa.string(), "The topic, as the message or the folder says it; null where it says an id."),
        ("topic_id", pa.string(), "The topic's id, where the message says one: Kafka's 22 characters of base64url."),
        ("partition", pa.int32(), "Partition."),
        ("side", pa.string(), "`produce` (in a request) or `fetch` (in a response); null in a log segment."),
    ),
)
DISCARDED = pa.list_(
    pa.struct(
        [
            ("rule", pa.string()),
            ("code", pa.int16()),
            ("error", pa.string()),
            ("count", pa.int64()),
            ("early", pa.int64()),
        ]
    )
)
WRONG_TRANSACTIONS = pa.list_(
    pa.struct(
        [
            ("capture", pa.string()),
            ("connection", pa.string()),
            ("exchange", pa.int64()),
            ("transactional_id", pa.string()),
            ("committed", pa.bool_()),
            ("found", pa.string()),
            ("records", pa.int64()),
        ]
    )
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# fmt: off
BATCHES = (
    *_RECORD_SET,
    *columns(
        ("base_offset", pa.int64(),
         "Offset of the first record; magic 0 and 1: the message's own, of a compressed one the last inside."),
        ("magic", pa.int8(), "Format: 2 since 0.11 (KIP-98), 1 since 0.10 (KIP-32), 0 before: a row a message then."),
        ("codec", pa.string(), "`none`, `gzip`, `snappy`, `lz4`, `zstd`."),
        ("timestamp_type", pa.string(), "`CreateTime` or `LogAppendTime`; null for magic 0, which has no timestamps."),
        ("is_transactional", pa.bool_(), "Part of a transaction."),
        ("is_control", pa.bool_(), "Holds control records: markers, not data."),
        ("producer_id", pa.int64(), "Id of an idempotent or transactional producer."),
        ("producer_epoch", pa.int16(), "Its epoch."),
        ("base_sequence", pa.int32(), "Its number for the first record."),
        ("record_count", pa.int32(), "Records; null for compressed messages of magic 0 and 1 unless they are opened."),
        ("batch_bytes", pa.int64(), "Size that the batch says it has, offset and size fields included."),
        ("uncompressed_bytes", pa.int64(), "Bytes of the records alone, decompressed; null unless they were opened."),
        ("first_timestamp", TIME, "Of the first record, as its producer said; null where only the last is known."),
        ("last_timestamp", TIME, "The largest of its records; of all of them where the type is `LogAppendTime`."),
        ("delete_horizon", TIME, "From then on compaction may take tombstones and markers away (KIP-534)."),
        ("crc_ok", pa.bool_(), "The checksum is right; null where bytes are missing."),
        ("partial", pa.bool_(), "Cut off: at the end of a fetch, or (then `reason` says so) by the capture."),
        ("reason", pa.string(), "What is wrong, or why records are missing from the table `records`."),
        ("crc", pa.int64(), "The checksum that it says: two batches of another checksum hold other records."),
    ),
)
# fmt: on

# fmt: off
RECORDS = (
    *_RECORD_SET,
    *columns(
        ("batch", pa.int64(), "`base_offset` of its batch."),
        ("offset", pa.int64(), "Offset; in a request as the producer counts, mostly from 0."),
        ("timestamp", TIME, "Timestamp; null where it has none (-1, magic 0) or one outside the years 1 to 9999."),
        ("key", pa.binary(), "Key (`--records full`)."),
        ("value", pa.binary(), "Value (`--records full`), secrets of internal topics overwritten with `*`."),
        ("headers", HEADERS, "Headers (`--records full`), in order; a key may come twice, a value may be null."),
        ("key_bytes", pa.int64(), "Size of the key; null: the key is null."),
        ("value_bytes", pa.int64(), "Size of the value; null: a tombstone."),
        ("control_type", pa.string(),
         "Of a control record: `abort`, `commit`, `LeaderChange`, `SnapshotHeader`, `SnapshotFooter`, `KRaftVersion`, "
         "`KRaftVoters`, or its number."),
        ("decoded", pa.string(),
         "JSON of what control records and those of internal topics mean (`--records full`); null for others. Where a "
         "batch holds more than its size allows: `left_out` and why, in the first row that is not decoded."),
        ("key_format", pa.string(),
         "Of the key: `avro`, `protobuf`, `json_schema`, `json`, `text`, `messagepack`, or of Kafka's own tools "
         "`mirrormaker` and `streams`; null: not known, or not "
         "decoded. This and the columns below are filled with `--records full` and an option about payloads "
         "(`--schemas`, `--registry`, `--payloads`)."),
        ("value_format", pa.string(), "The same of the value."),
        ("key_schema_id", pa.string(),
         "Schema that the key names: a number, or a UUID (AWS Glue, Confluent's header); null: none."),
        ("value_schema_id", pa.string(), "The same of the value."),
        ("key_json", pa.string(), "The key as JSON; null: not decoded, or a null key."),
        ("value_json", pa.string(), "The value as JSON; null: not decoded, or a tombstone."),
        ("undecodable", pa.string(), "Why the key or the value is not what its schema says, or not decoded at all."),
    ),
)
# fmt: on

SCHEMAS = (
    KEY[0],
    *columns(
        ("schema_id", pa.string(), "Id in the registry, a number or a UUID; null: known by its subject alone."),
        ("format", pa.string(), "`avro`, `protobuf` or `json_schema`."),
        ("subject", pa.string(), "What it is registered for, as `orders-value`; null: not known."),
        ("source", pa.string(), "`folder` (`--schemas`), `registry`, or `capture`: its own registry traffic."),
        ("text", pa.string(), "The schema as registered; a Protobuf descriptor as base64."),
        ("uses", pa.string(), "Texts of the schemas that it refers to by their names, as a JSON object; null: none."),
    ),
)

ADDRESSES = pa.list_(pa.string())
# fmt: off
CONNECTIONS = (
    *KEY,
    *_END_POINTS,
    *columns(
        ("first_time", TIME, "First packet."),
        ("last_time", TIME, "Last packet."),
        ("client_packets", pa.int64(), "TCP packets that the client sent."),
        ("broker_packets", pa.int64(), "TCP packets that the broker sent."),
        ("client_bytes", pa.int64(), "Captured payload bytes that the client sent, every copy counted."),
        ("broker_bytes", pa.int64(), "The same for the broker."),
        ("rtt_us", pa.int64(), "Handshake: from the SYN to the client's ACK of the SYN-ACK."),
        ("retransmissions", pa.int64(), "Packets whose bytes were sent again."),
        ("duplicates", pa.int64(), "Packets that the capture holds twice."),
        ("out_of_order", pa.int64(), "Packets that came after later ones."),
        ("overlap_conflicts", pa.int64(), "Bytes whose copies differ."),
        ("zero_windows", pa.int64(), "Packets that say that the receiver has no room."),
        ("gaps", pa.int64(), "Holes in the byte streams: the receiver had these bytes, the capture lacks them."),
        ("payload_bytes", pa.int64(), "Captured payload: the sum of duplicate, decoded, opaque, skipped, incomplete."),
        ("duplicate_bytes", pa.int64(), "Retransmission, overlap, second sighting."),
        ("decoded_bytes", pa.int64(), "Messages that were decoded, records included."),
        ("opaque_bytes", pa.int64(), "Bytes that were not decoded: the sum of the next eight."),
        *((f"opaque_{reason}_bytes", pa.int64(), f"Opaque for the reason `{reason}`.") for reason in OPAQUE_REASONS),
        ("skipped_bytes", pa.int64(), "Passed over while looking for the next message."),
        ("incomplete_bytes", pa.int64(), "Of messages of which bytes are missing."),
        ("gap_bytes", pa.int64(), "Missing: not captured."),
        ("snaplen_bytes", pa.int64(), "Missing: cut off by the capture's snap length."),
        ("snaplen_record_bytes", pa.int64(), "Of these, content of record batches: all else of the messages is there."),
        ("opened", pa.bool_(), "A SYN was seen."),
        ("closed", pa.string(), "`fin`, `rst` or `open`."),
        ("client_id", pa.string(), "First client id that was not null."),
        ("software_name", pa.string(), "Client's software, from ApiVersions v3 and newer (KIP-511)."),
        ("software_version", pa.string(), "Its version."),
        ("sasl_mechanism", pa.string(), "Mechanism asked for in SaslHandshake."),
        ("tls", pa.bool_(), "The first bytes are a TLS record."),
        ("tls_version", pa.string(),
         "`1.2`, `1.3`: as the broker's hello says, with or without keys; so do the next six."),
        ("tls_cipher", pa.string(), "Cipher suite, as IANA names it; its number where kwire does not know it."),
        ("tls_sni", pa.string(), "Host that the client asked for (server name indication)."),
        ("tls_alpn", pa.string(), "Protocol that the broker chose of those offered."),
        ("tls_subject", pa.string(), "Subject of the broker's certificate; TLS 1.3 shows it to who has the keys."),
        ("tls_not_after", TIME, "Until when that certificate is valid."),
        ("tls_failure", pa.string(),
         "Who broke TLS off, and why: `client: unknown_ca`, `broker: no answer`; `sealed` where only keys tell."),
        ("decrypted", pa.bool_(), "Keys opened it: `opaque_encrypted_bytes` is what TLS itself takes."),
        ("proxied_from", pa.string(), "Client's `ip:port`, as a PROXY header before Kafka says it; null: not said."),
        ("proxied_to", pa.string(), "Where it was meant to go, as a PROXY header, SOCKS5 or HTTP CONNECT says it."),
        ("other_addresses", ADDRESSES,
         "Addresses (`ip:port`) under which the same connection was captured too (a NAT, a redirect); copies are "
         "`duplicates`. Null: none."),
        ("capture_point", pa.string(),
         "Where it was captured, as the handshake's two halves say: `client`, `broker`, `between`, `unknown`."),
        ("requests", pa.int64(), "Request frames."),
        ("errors", pa.int64(), "Exchanges with an error."),
        ("unacknowledged_bytes_to_broker", pa.int64(),
         "Sent to the broker and never acknowledged by its TCP, SACK included: they did not arrive, as far as the "
         "capture shows. Null where nobody acknowledges, unless TCP sends the same again and again."),
        ("unacknowledged_bytes_to_client", pa.int64(), "The same to the client."),
        ("unacknowledged_since_to_broker", TIME,
         "When TCP first sent the first of them again, or when bytes behind them came that the capture lacks."),
        ("unacknowledged_since_to_client", TIME, "The same to the client."),
        ("unacknowledged_sends_to_broker", pa.int64(),
         "How often the segment of the first of them was captured; 0: it was lost before it came here."),
        ("unacknowledged_sends_to_client", pa.int64(), "The same to the client."),
        ("unacknowledged_segment_to_broker", pa.int64(), "Payload bytes of that segment, where it was sent again."),
        ("unacknowledged_segment_to_client", pa.int64(), "The same to the client."),
        ("sacked_bytes_to_broker", pa.int64(), "Bytes behind them that the broker's TCP holds (SACK)."),
        ("sacked_bytes_to_client", pa.int64(), "The same for the client's."),
        ("sacked_segment_to_broker", pa.int64(),
         "Payload bytes of the longest segment that came to the broker behind a hole, as its SACK says."),
        ("sacked_segment_to_client", pa.int64(), "The same to the client."),
        ("longest_silence_us", pa.int64(), "The longest time between two packets."),
        ("longest_silence_end", TIME, "When it ended."),
        ("closed_by", pa.string(), "Whose FIN or RST came first: `client`, `broker`; null: neither's."),
        ("closed_after", pa.string(),
         "What had come last before that: `request` (bytes of the client), `answer` (of the broker); null: nothing."),
        ("closed_after_us", pa.int64(), "How long before."),
        ("delayed_sends", pa.int64(),
         "Segments of the client that waited for a delayed acknowledgement of the one before (Nagle)."),
    ),
)
# fmt: on

NODES = pa.list_(pa.int32())
# fmt: off
PARTITIONS = (
    *KEY,
    *EXCHANGES[2:4],
    *TOPIC_PARTITION,
    *columns(
        ("error_code", pa.int16(), "Error of this topic-partition in the response; 0 on success, null: not answered."),
        ("error", pa.string(), "Its name; null on success."),
        ("offset", pa.int64(), "The offset that the exchange is about: see `offset_kind`."),
        ("offset_kind", pa.string(),
         "`fetch` (asked for), `base` (given to the first record produced), `committed`, `listed`, `delete` (records "
         "before it are deleted), `end` (of the leader epoch asked about), `start` (of a share group)."),
        ("high_watermark", pa.int64(), "High watermark that the response says."),
        ("last_stable_offset", pa.int64(), "Last stable offset that the response says."),
        ("log_start_offset", pa.int64(), "Log start offset (DeleteRecords: low watermark) that the response says."),
        ("leader_epoch", pa.int32(), "Leader epoch in the response, else in the request."),
        ("record_bytes", pa.int64(), "Size of the records field; null where there is none."),
        ("batch_count", pa.int64(), "Whole record batches, or outermost messages of the older formats, in it."),
        ("record_count", pa.int64(),
         "Records that their headers say, markers of transactions not among them; null where only compressed content "
         "would say."),
        ("lag", pa.int64(), "Fetch: high watermark minus the offset after the data returned."),
        ("diverging_offset", pa.int64(),
         "Fetch 12 and later: end of the log for the epoch last read, where what was read beyond is not there "
         "(`divergingEpoch`, KIP-595)."),
        ("acquired", pa.int64(),
         "ShareFetch: records given out: of its batches, which come whole, only these; null where none is given."),
        ("redelivered", pa.int64(), "ShareFetch: records given out a second time or more; null where none is given."),
        ("delivery_count", pa.int16(), "ShareFetch: how often the most frequent of its records has been given out."),
    ),
)
# fmt: on

LEADERS = (
    KEY[0],
    Column("time", TIME, "Last byte of the response that said so."),
    *TOPIC_PARTITION,
    *columns(
        ("leader", pa.int32(), "Node id of the leader; null: there is none."),
        ("leader_epoch", pa.int32(), "Its epoch; null where the version does not say it."),
        ("isr", NODES, "Node ids of the in-sync replicas; null in a redirect, which does not say them."),
    ),
)

BROKERS = (
    KEY[0],
    *columns(
        ("node_id", pa.int32(), "Broker's id."),
        ("host", pa.string(), "Host that it advertises."),
        ("port", pa.int32(), "Port that it advertises."),
        ("rack", pa.string(), "Its rack; null where none."),
    ),
)

TOPIC_IDS = (
    KEY[0],
    *columns(
        ("topic_id", pa.string(), "Kafka's 22 characters of base64url."),
        ("topic", pa.string(), "The topic's name, as some message of this capture point said beside the id."),
    ),
)

API_VERSIONS = (
    *KEY,
    *columns(
        ("broker", pa.string(), "`ip:port` of the broker that answered."),
        ("api_key", pa.int16(), "Kafka's number of the API."),
        ("min", pa.int16(), "Lowest version that it offers."),
        ("max", pa.int16(), "Highest version that it offers."),
    ),
)

MESSAGES = (
    *KEY,
    *columns(
        ("exchange", pa.int64(), "Ordinal of the request frame; null for a response."),
        ("reply", pa.int64(), "Ordinal of the response frame; null for a request."),
        ("direction", pa.string(), "`request` or `response`."),
        ("first_time", TIME, "First byte."),
        ("last_time", TIME, "Last byte; null where it was not seen."),
        ("complete", pa.bool_(), "No byte is missing."),
        ("bytes", pa.binary(), "The message, its 4-byte length included; secrets are overwritten with `*`."),
    ),
)

REPLAYED = "replay:"
"""What the capture name of replayed rows begins with, in the `exchanges` and `messages` of a RUN."""

# fmt: off
OUTCOMES = (
    *KEY,
    *columns(
        ("exchange", pa.int64(), "Ordinal of the captured request; null for a response without one."),
        ("reply", pa.int64(), "Ordinal of the captured response; null where none."),
        ("step", pa.int64(), "Number of the step in the plan; null where there is none."),
        ("api_key", pa.int16(), "Kafka's number of the API."),
        ("api", pa.string(), "Kafka's name of the API."),
        ("api_version", pa.int16(), "Version that was captured."),
        ("sent_version", pa.int16(), "Version that was sent; null if nothing was."),
        ("action", pa.string(),
         "`sent` (same version; what the target assigns was replaced), `converted` (another version or form), "
         "`skipped` (by `rule`), `not_sent` (the run ended first, or the target could not be reached), "
         "`unknown` (the worker that was to send it died)."),
        ("verdict", pa.string(),
         "`answered` (both sides were, so they can be compared), `not_comparable` (sent, and one side has no answer by "
         "nature or in the capture: `rule`), `unanswered` (the target owed an answer), `skipped`, `not_sent`."),
        ("rule", pa.string(), "The rule of docs/reference/replay.md that explains it; null where none was needed."),
        ("reason", pa.string(), "What the rule found, in words; null where the rule says it all."),
        ("retries", STRINGS, "Rules by which it was sent again, split, or something was asked for first; empty: none."),
        ("discarded", DISCARDED,
         "Answers in place of which it was sent again, by rule: the error (`code` null: its connection ended first), "
         "how many, and how many `early`: within 5 s after the topic, group or transactional id was first used."),
        ("scheduled", TIME, "When it was due."),
        ("sent", TIME, "When it was handed to the connection, the last time."),
        ("answered", TIME, "When its answer (the last part of it) was read."),
        ("lag_us", pa.int64(), "The replayer's own delay: from the moment it was due and nothing held it, to `sent`."),
        ("queue_us", pa.int64(), "From `scheduled` until what it waits for (answers, a connection) was there."),
        ("latency_us", pa.int64(), "`answered - sent`: the target and the network."),
        ("captured_error", pa.string(), "First error in the captured answer; null if none, or no answer."),
        ("replayed_error", pa.string(), "First error in the replayed answer; null if none, or no answer."),
        ("targets", STRINGS, "`host:port` of the brokers it was sent to; several where it was split."),
    ),
)
# fmt: on

# fmt: off
REMAPS = (
    *columns(
        ("capture", pa.string(), "Name of the capture point."),
        ("kind", pa.string(),
         "`producer` (id/epoch), `member`, `generation`, `topic_id`, `fetch_session`, `offset`, `node`."),
        ("scope", pa.string(), "What it holds for: a group, `topic-partition`, a transactional id; null: everything."),
        ("captured", pa.string(), "The value in the capture; for `offset` the base offset of a batch."),
        ("replayed", pa.string(), "What the target has in its place."),
        ("records", pa.int64(), "`offset`: for how many offsets from there the pair holds; otherwise null."),
    ),
)
# fmt: on

# fmt: off
AUDIT = (
    *columns(
        ("topic", pa.string(), "The topic, as the target calls it."),
        ("partition", pa.int32(), "Its partition."),
        ("acknowledged", pa.int64(), "Records that the target acknowledged in the replay."),
        ("readable", pa.int64(),
         "Those of them that are there, each at the offset that the target gave it; null: it could not be read."),
        ("missing", pa.int64(), "Those that are nowhere in what was read; null: it could not be read."),
        ("displaced", pa.int64(), "Those that lie at another offset than the target gave; null: as of `missing`."),
        ("alignment", pa.string(),
         "How the log differs from what was acknowledged, by content, as in `1 missing at 19, 92 after it one lower`; "
         "null: it does not, or as of `missing`."),
        ("out_of_order", pa.int64(),
         "Records that the target has in another order than their producer (without a producer id: their client) had "
         "them stored in when captured."),
        ("first_missing_offset", pa.int64(), "The target's offset of the first that is missing; null: none is."),
        ("stored_otherwise", pa.int64(),
         "Those that are there with another codec or timestamp type than they were sent with; null: as of `missing`."),
        ("stored_as", pa.string(), "How most of these are stored; null: there are none."),
        ("unclaimed", pa.int64(),
         "Records before the last of these, at offsets that no answer gave, as of a batch that was stored twice; null: "
         "as of `missing`, or the topic may have had records before, or an answer to what was produced is lacking."),
        ("hidden", pa.int64(),
         "Records of committed transactions that readers at `read_committed` do not get; null: as of `missing`, or "
         "there are no transactions whose end was captured and acknowledged."),
        ("visible", pa.int64(), "Records of aborted transactions that they get; null: as of `hidden`."),
        ("left_open", pa.int64(),
         "Records of transactions whose end the target acknowledged and which it left open; null: as of `hidden`."),
        ("transactions", WRONG_TRANSACTIONS,
         "The EndTxn requests whose records these are (at most 1,000): the captured exchange, whether it committed, "
         "how the target has the records (`hidden`, `visible`, `open`), and how many."),
    ),
)
# fmt: on

TABLES: dict[str, tuple[Column, ...]] = {
    "exchanges": EXCHANGES,
    "partitions": PARTITIONS,
    "batches": BATCHES,
    "records": RECORDS,
    "connections": CONNECTIONS,
    "leaders": LEADERS,
    "brokers": BROKERS,
    "topic_ids": TOPIC_IDS,
    "api_versions": API_VERSIONS,
    "messages": MESSAGES,
    "clients": CLIENTS,
    "readers": READERS,
    "groups": GROUPS,
    "rebalances": REBALANCES,
    "offsets": OFFSETS,
    "transactions": TRANSACTIONS,
    "journeys": JOURNEYS,
    "findings": FINDINGS,
    "schemas": SCHEMAS,
    "outcomes": OUTCOMES,
    "remaps": REMAPS,
    "audit": AUDIT,
}

ABOUT: dict[str, str] = {
    "exchanges": "a request and its response: times, latency, sizes, errors, topics, group, where in which file.",
    "partitions": "a topic-partition of an exchange: error, offsets, high watermark, lag.",
    "batches": "a record batch (with `--records batches` or more).",
    "records": "a record (with `--records meta`: sizes; with `full`: key, value and headers).",
    "connections": "a TCP connection: both ends, handshake, retransmissions, gaps, client, where its bytes went.",
    "leaders": "a change of who leads a partition, as Metadata and redirects said it.",
    "brokers": "a broker's id and address, as Metadata said it.",
    "topic_ids": "a topic id with its name.",
    "api_versions": "a range of versions that a broker offered on a connection.",
    "messages": "a raw message (with `--keep-bytes`), its secrets overwritten.",
    "clients": "a client, by client id and address: software, name, groups, topics, APIs with their versions.",
    "readers": "who followed a partition in a fetch session: from which offset to which, from when to when.",
    "groups": "an event of a group: join, sync, failed heartbeat, leave, expiry, failed commit, moved coordinator.",
    "rebalances": "a rebalance: what set it off, members and assignment before and after, how long each stood still.",
    "offsets": "an offset committed, or gone to by a reset.",
    "transactions": "a transaction: partitions, offsets, outcome, duration, who fenced it.",
    "journeys": "a produced batch and one who read it: when it was created, sent, acknowledged, fetched, committed.",
    "findings": "something wrong or worth knowing, whom it concerns, why, and what to do.",
    "schemas": "a schema that keys or values were decoded with, or that the capture holds (options about payloads).",
    "outcomes": "of a replay: a captured exchange, and what became of it.",
    "remaps": "of a replay: a value of the capture, and what the target has in its place.",
    "audit": "of a replay: a partition, and whether what the target acknowledged can be read there.",
}
"""What one row of each table is."""

MEANING = ("clients", "readers", "groups", "rebalances", "offsets", "transactions", "journeys", "findings")
"""Tables of what traffic means; empty without it (`--no-analysis`, `--filter`), and in datasets of format 1."""

RUN_TABLES = ("outcomes", "remaps", "audit")
"""Tables that only a replay writes."""


@functools.cache
def schema(table: str) -> pa.Schema:
    """The Arrow schema of a table, plain types only."""
    return pa.schema([(column.name, column.type) for column in TABLES[table]])


@functools.cache
def described(table: str) -> pa.Schema:
    """Its schema with each column's sentence as metadata, under `comment`, which is Spark's name for it."""
    return pa.schema(
        [pa.field(column.name, column.type, metadata={"comment": column.about}) for column in TABLES[table]]
    )


def is_same_type(stored: pa.DataType, contract: pa.DataType) -> bool:
    """Tell whether a column of a file has the type of the contract, however it is encoded, and whatever the file calls
    the elements of a list."""
    types = pa.types
    if types.is_dictionary(stored):
        return is_same_type(stored.value_type, contract)
    if types.is_map(contract):
        return (
            types.is_map(stored)
            and is_same_type(stored.key_type, contract.key_type)
            and is_same_type(stored.item_type, contract.item_type)
        )
    if types.is_list(contract):
        is_list = types.is_list(stored) or types.is_large_list(stored)
        return is_list and is_same_type(stored.value_type, contract.value_type)
    if types.is_struct(contract):
        if not types.is_struct(stored) or stored.num_fields != contract.num_fields:
            return False
        return all(
            left.name == right.name and is_same_type(left.type, right.type)
            for left, right in zip(stored, contract, strict=True)
        )
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(plain.get(stored, stored) == contract)


def cast(table: compute.Rows, wanted: pa.Schema) -> compute.Rows:
    """Cast the columns of a table or a batch, in their order, to the types of a schema."""
    columns = [compute.cast(column, field.type) for column, field in zip(table.columns, wanted, strict=True)]
    rows: compute.Rows = type(table).from_arrays(columns, schema=wanted)
    return rows


@functools.cache
def empty(table: str) -> pa.Table:
    """A table without rows. (To make one of sixty columns takes a millisecond, and every window gives some.)"""
    return schema(table).empty_table()
