-- Which kinds of record batches does each connection send and get, by topic?
-- The groundwork of the questions about batches; needs `--records batches` or more.
-- capture: name of the capture point.
-- connection: the connection.
-- side: `produce` or `fetch`.
-- topic: name of the topic, or its id where no message said the name.
-- codec: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
-- magic: format of the batch.
-- idempotent: it has a producer id.
-- transactional: it is part of a transaction.
-- batches: how many, control batches (markers of transactions) left out.
-- requests: exchanges that hold them.
-- records: records in them.
-- batch_bytes: their sizes.
-- opened_bytes: of those that were decompressed, the records as they were sent, without the batches' headers.
-- uncompressed_bytes: the same records, decompressed.
-- bad_checksums: batches whose checksum is wrong.
WITH measured AS (
  -- What stands before the records in a batch: 61 bytes since 0.11; in the older formats 18, or 26 with a timestamp, and 8
  -- more for the sizes of key and value of the message that holds compressed ones.
  SELECT *, batch_bytes
    - CASE magic WHEN 2 THEN 61 WHEN 1 THEN if(codec = 'none', 26, 34) ELSE if(codec = 'none', 18, 26) END AS packed_bytes
  FROM batches
)
SELECT /*+ BROADCAST(named) */ b.capture, b.connection, b.side, coalesce(b.topic, named.topic, b.topic_id) AS topic,
  b.codec, b.magic, coalesce(b.producer_id, -1) >= 0 AS idempotent, coalesce(b.is_transactional, false) AS transactional,
  count(*) AS batches, count(DISTINCT b.exchange) AS requests, sum(b.record_count) AS records,
  sum(b.batch_bytes) AS batch_bytes, sum(if(b.uncompressed_bytes IS NULL, NULL, b.packed_bytes)) AS opened_bytes,
  sum(b.uncompressed_bytes) AS uncompressed_bytes, count_if(NOT b.crc_ok) AS bad_checksums
FROM measured AS b LEFT JOIN named_topics AS named ON named.topic_id = b.topic_id
WHERE NOT coalesce(b.is_control, false)
GROUP BY ALL
