-- Which records were sent and fetched, by the names of their topics?
-- The table `records` has the name only where the message itself says it: newer versions say an id.
-- capture: Name of the capture point.
-- connection: `client_ip:port-broker_ip:port#n`; n counts the uses of that four-tuple.
-- exchange: Ordinal of the request frame, as in `exchanges`; null for an orphan.
-- reply: Ordinal of the response frame; null where none.
-- topic: its name; the id where no message of any capture says the name.
-- topic_id: The topic's id, where the message says one: Kafka's 22 characters of base64url.
-- partition: Partition.
-- side: `produce` (in a request) or `fetch` (in a response); null in a log segment.
-- batch: `base_offset` of its batch.
-- offset: Offset; in a request as the producer counts, mostly from 0.
-- timestamp: Timestamp; null where it has none (-1, magic 0) or one outside the years 1 to 9999.
-- key: Key (`--records full`).
-- value: Value (`--records full`), secrets of internal topics overwritten with `*`.
-- headers: Headers (`--records full`), in order; a key may come twice, a value may be null.
-- key_bytes: Size of the key; null: the key is null.
-- value_bytes: Size of the value; null: a tombstone.
-- control_type: Of a control record: `abort`, `commit`, `LeaderChange`, `SnapshotHeader`, `SnapshotFooter`,
-- `KRaftVersion`, `KRaftVoters`, or its number.
-- decoded: JSON of what control records and those of internal topics mean (`--records full`); null for others.
-- key_format: format of the key, where it was decoded or its schema is known.
-- value_format: the same of the value.
-- key_schema_id: schema that the key names.
-- value_schema_id: schema that the value names.
-- key_json: the key as JSON, where it was decoded.
-- value_json: the value as JSON, where it was decoded.
-- undecodable: why one of them is not what its schema says, or not decoded.
SELECT /*+ BROADCAST(named) */ b.capture, b.connection, b.exchange, b.reply, coalesce(b.topic, named.topic,
  b.topic_id) AS topic, b.topic_id, b.partition, b.side, b.batch, b.offset, b.timestamp, b.key, b.value, b.headers,
  b.key_bytes, b.value_bytes, b.control_type, b.decoded, b.key_format, b.value_format,
  b.key_schema_id, b.value_schema_id, b.key_json, b.value_json, b.undecodable
FROM records AS b LEFT JOIN named_topics AS named ON named.topic_id = b.topic_id
