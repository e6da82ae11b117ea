-- How much did each connection produce to and fetch from each partition?
-- The groundwork of the questions about topics: one row for each connection, partition and way.
-- capture: name of the capture point.
-- connection: the connection.
-- side: `produce` or `fetch`.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- exchanges: exchanges that name it.
-- answers: of these, with an answer that tells of it: in a fetch session one without news leaves it out (KIP-227).
-- errors: of these, with an error for this partition.
-- record_bytes: sizes of the records fields together.
-- batches: whole record batches in them.
-- records: records that the batches' headers say.
-- refused_bytes: of the bytes, those that were answered with an error.
-- refused_records: of the records, the same.
-- unanswered_bytes: of the bytes, those that no answer tells of: Produce with acks 0, or an answer that is missing.
-- unanswered_records: of the records, the same.
-- empty: exchanges without an error that brought no records.
-- last_offset: Produce: the last base offset given; Fetch: the last offset asked for.
-- high_watermark: the largest high watermark that an answer said.
-- max_lag: the largest distance of a fetch from the high watermark.
WITH sided AS (
  SELECT capture, connection, topic, topic_id, partition, error_code, offset, high_watermark, record_bytes, batch_count,
    record_count, lag, if(offset_kind = 'base', 'produce', 'fetch') AS side
  FROM partitions
  WHERE offset_kind IN ('base', 'fetch')
  UNION ALL
  -- Without an offset only the exchange says what it is: a produce that failed or was not answered, a fetch's answer about
  -- a partition that the request does not name (KIP-227).
  SELECT p.capture, p.connection, p.topic, p.topic_id, p.partition, p.error_code, p.offset, p.high_watermark,
    p.record_bytes, p.batch_count, p.record_count, p.lag, if(x.api_key = 0, 'produce', 'fetch')
  FROM partitions AS p JOIN exchanges AS x
    ON x.capture = p.capture AND x.connection = p.connection AND x.exchange = p.exchange
  WHERE p.offset_kind IS NULL AND x.api_key IN (0, 1, 78)
)
SELECT /*+ BROADCAST(named) */ p.capture, p.connection, p.side, coalesce(p.topic, named.topic, p.topic_id) AS topic,
  p.partition, count(*) AS exchanges, count(p.error_code) AS answers, count_if(p.error_code <> 0) AS errors,
  sum(p.record_bytes) AS record_bytes,
  sum(p.batch_count) AS batches, sum(p.record_count) AS records,
  sum(if(p.error_code <> 0, p.record_bytes, 0)) AS refused_bytes,
  sum(if(p.error_code <> 0, p.record_count, 0)) AS refused_records,
  sum(if(p.error_code IS NULL, p.record_bytes, 0)) AS unanswered_bytes,
  sum(if(p.error_code IS NULL, p.record_count, 0)) AS unanswered_records,
  count_if(p.error_code = 0 AND coalesce(p.record_bytes, 0) = 0) AS empty, max(p.offset) AS last_offset,
  max(p.high_watermark) AS high_watermark, max(p.lag) AS max_lag
FROM sided AS p LEFT JOIN named_topics AS named ON named.topic_id = p.topic_id
GROUP BY ALL
