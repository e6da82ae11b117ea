-- Where did the time of each batch go on its way to each reader?
-- From `journeys`, for batches and readers of which both ends were captured. The legs from `request_us` on add up to
-- `total_us`. Where a reader had a batch before its acknowledgement, `broker_us` ends when it had it. For a batch of a
-- transaction that a reader had only after the transaction's end the wait until then is `transaction_us`.
-- capture: name of the capture point.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- base_offset: offset of its first record.
-- records: records in it.
-- record_bytes: its size.
-- producer_client: client id of its producer.
-- kind: `consumer`, `replica` or `share`.
-- reader: the group, the client id of who is in none, or `broker N`.
-- sent: first byte of the Produce request.
-- fetched: last byte of the answer that first held it.
-- client_wait_us: from the first record's own time to `sent`, by two clocks; null where the time is later, or not known.
-- request_us: from there to the request's last byte.
-- broker_us: from there to the acknowledgement, of which followers with acks=all are a part; null without one, and for
-- followers themselves.
-- transaction_us: from the acknowledgement to the end of the transaction; null where it did not matter.
-- reader_us: from there (or the acknowledgement, or the request's last byte) until the reader had it.
-- total_us: from `sent` to `fetched`.
-- end_to_end_us: from the first record's own time to `fetched`; null as `client_wait_us`.
WITH ends AS (
  SELECT x.capture, x.connection, x.exchange, t.ended, count(*) OVER (
    PARTITION BY x.capture, x.connection, x.exchange) AS candidates
  FROM exchanges AS x
    JOIN transactions AS t ON t.capture = x.capture AND t.transactional_id = x.transactional_id
      AND x.request_time >= t.began AND x.request_time <= t.ended
  WHERE x.api_key = 0 AND x.transactional_id IS NOT NULL
), timed AS (
  SELECT j.capture, coalesce(j.topic, n.topic, j.topic_id) AS topic, j.partition, j.base_offset, j.records, j.record_bytes,
    j.producer_client, j.kind, j.sent, j.fetched,
    CASE WHEN j.kind = 'replica' THEN concat('broker ', CAST(j.broker_id AS STRING))
      ELSE coalesce(j.group_id, j.reader_client, 'unknown') END AS reader,
    unix_micros(j.created) AS created_at, unix_micros(j.sent) AS sent_at, unix_micros(j.received) AS received_at,
    if(j.kind = 'replica', NULL, unix_micros(j.acked)) AS acked_at, unix_micros(j.fetched) AS fetched_at, unix_micros(e.ended) AS ended_at
  FROM journeys AS j
    LEFT JOIN ends AS e ON e.capture = j.capture AND e.connection = j.produced.connection
      AND e.exchange = j.produced.exchange AND e.candidates = 1
    LEFT JOIN named_topics AS n ON n.topic_id = j.topic_id
  WHERE j.fetched IS NOT NULL
), parted AS (
  SELECT *, if(acked_at IS NULL, received_at, least(acked_at, fetched_at)) AS there_at,
    if(acked_at <= ended_at AND ended_at <= fetched_at, ended_at - acked_at, NULL) AS transaction_us,
    if(created_at <= sent_at, sent_at - created_at, NULL) AS client_wait_us
  FROM timed
)
SELECT capture, topic, partition, base_offset, records, record_bytes, producer_client, kind, reader, sent, fetched,
  client_wait_us, received_at - sent_at AS request_us,
  if(acked_at IS NULL, NULL, there_at - received_at) AS broker_us, transaction_us,
  fetched_at - there_at - coalesce(transaction_us, 0) AS reader_us, fetched_at - sent_at AS total_us,
  client_wait_us + fetched_at - sent_at AS end_to_end_us
FROM parted
ORDER BY capture, topic, partition, base_offset, sent, kind, reader, fetched
