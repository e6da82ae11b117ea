-- Which record batches were sent and fetched, by the names of their topics?
-- The table `batches` has the name only where the message itself says it: newer versions say an id.
-- capture: Name of the capture point.
-- connection: `client_ip:port-broker_ip:port#n`; n counts the uses of that four-tuple.
-- exchange: Ordinal of the request frame, as in `exchanges`; null for an orphan.
-- reply: Ordinal of the response frame; null where none.
-- topic: its name; the id where no message of any capture says the name.
-- topic_id: The topic's id, where the message says one: Kafka's 22 characters of base64url.
-- partition: Partition.
-- side: `produce` (in a request) or `fetch` (in a response); null in a log segment.
-- base_offset: Offset of the first record; magic 0 and 1: the message's own, of a compressed one the last inside.
-- magic: Format: 2 since 0.11 (KIP-98), 1 since 0.10 (KIP-32), 0 before: a row a message then.
-- codec: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
-- timestamp_type: `CreateTime` or `LogAppendTime`; null for magic 0, which has no timestamps.
-- is_transactional: Part of a transaction.
-- is_control: Holds control records: markers, not data.
-- producer_id: Id of an idempotent or transactional producer.
-- producer_epoch: Its epoch.
-- base_sequence: Its number for the first record.
-- record_count: Records; null for compressed messages of magic 0 and 1 unless they are opened.
-- batch_bytes: Size that the batch says it has, offset and size fields included.
-- uncompressed_bytes: Bytes of the records alone, decompressed; null unless they were opened.
-- first_timestamp: Of the first record, as its producer said; null where only the last is known.
-- last_timestamp: The largest of its records; of all of them where the type is `LogAppendTime`.
-- delete_horizon: From then on compaction may take tombstones and markers away (KIP-534).
-- crc_ok: The checksum is right; null where bytes are missing.
-- partial: Cut off: at the end of a fetch, or (then `reason` says so) by the capture.
-- reason: What is wrong, or why records are missing from the table `records`.
-- crc: The checksum that it says: two batches of another checksum hold other records.
SELECT /*+ BROADCAST(named) */ b.capture, b.connection, b.exchange, b.reply, coalesce(b.topic, named.topic,
  b.topic_id) AS topic, b.topic_id, b.partition, b.side, b.base_offset, b.magic, b.codec, b.timestamp_type,
  b.is_transactional, b.is_control, b.producer_id, b.producer_epoch, b.base_sequence, b.record_count, b.batch_bytes,
  b.uncompressed_bytes, b.first_timestamp, b.last_timestamp, b.delete_horizon, b.crc_ok, b.partial, b.reason,
  b.crc
FROM batches AS b LEFT JOIN named_topics AS named ON named.topic_id = b.topic_id
