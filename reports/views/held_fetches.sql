-- What ended the wait of each Fetch that the broker held?
-- Those whose `hold_us` is known and above 0. A reader at the end of a partition is let go by the next record there: the
-- Produce that was given the offset it had asked for. Of several partitions the one whose Produce was
-- acknowledged first is told. Replicas are among the readers.
-- capture: name of the capture point.
-- connection: the Fetch's connection.
-- exchange: ordinal of its request in the connection.
-- client_id: its client id.
-- time: first byte of its request.
-- hold_us: how long it was held, microseconds.
-- ended_by: `time` (its longest wait was over, and it brought nothing, or less than its `fetch.min.bytes`), `records`
--   (the columns below), `unseen` (it brought records, and their Produce was not captured), `other` (an error, or
--   partitions that moved).
-- topic: of the partition whose record ended the wait.
-- partition: that partition.
-- offset: the record's offset.
-- producer: client id of the Produce that wrote it.
-- produce_connection: its connection.
-- produce_exchange: ordinal of its request there.
-- produce_time: last byte of its request.
WITH held AS (
  SELECT capture, connection, exchange, client_id, request_time, response_end, hold_us, max_wait_ms, min_bytes,
    error_code
  FROM exchanges
  WHERE api_key = 1 AND hold_us > 0
), brought AS (
  SELECT h.capture, h.connection, h.exchange, h.response_end, coalesce(p.topic, n.topic, p.topic_id) AS topic,
    p.partition, p.offset, p.record_bytes
  FROM held AS h JOIN partitions AS p
      ON p.capture = h.capture AND p.connection = h.connection AND p.exchange = h.exchange
    LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE p.record_bytes > 0
), written AS (
  SELECT x.capture, x.connection, x.exchange, x.client_id, x.request_end, x.response_time,
    coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition, p.offset
  FROM exchanges AS x JOIN partitions AS p
      ON p.capture = x.capture AND p.connection = x.connection AND p.exchange = x.exchange
    LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE x.api_key = 0 AND p.offset_kind = 'base' AND p.error_code = 0
), released AS (
  SELECT b.capture, b.connection, b.exchange, b.topic, b.partition, b.offset, w.client_id AS producer,
    w.connection AS produce_connection, w.exchange AS produce_exchange, w.request_end AS produce_time,
    row_number() OVER (PARTITION BY b.capture, b.connection, b.exchange
      ORDER BY w.response_time, w.request_end, b.topic, b.partition, w.connection, w.exchange) AS place
  FROM brought AS b JOIN written AS w
    ON w.capture = b.capture AND w.topic = b.topic AND w.partition = b.partition AND w.offset = b.offset
  WHERE w.request_end <= b.response_end
), sized AS (
  SELECT capture, connection, exchange, count(*) AS partitions, sum(record_bytes) AS record_bytes
  FROM brought
  GROUP BY capture, connection, exchange
), ended AS (
  SELECT h.*, s.partitions,
    -- Two milliseconds for the broker's clock and rounding.
    h.error_code = 0 AND h.hold_us >= CAST(h.max_wait_ms AS BIGINT) * 1000 - 2000
      AND coalesce(s.record_bytes, 0) < greatest(coalesce(h.min_bytes, 1), 1) AS by_time
  FROM held AS h
    LEFT JOIN sized AS s ON s.capture = h.capture AND s.connection = h.connection AND s.exchange = h.exchange
)
SELECT h.capture, h.connection, h.exchange, h.client_id, h.request_time AS time, h.hold_us,
  CASE
    WHEN h.by_time THEN 'time'
    WHEN r.producer IS NOT NULL OR r.produce_exchange IS NOT NULL THEN 'records'
    WHEN h.partitions > 0 THEN 'unseen'
    ELSE 'other'
  END AS ended_by,
  r.topic, r.partition, r.offset, r.producer, r.produce_connection, r.produce_exchange, r.produce_time
FROM ended AS h
  LEFT JOIN (SELECT * FROM released WHERE place = 1) AS r
    ON r.capture = h.capture AND r.connection = h.connection AND r.exchange = h.exchange AND NOT h.by_time
ORDER BY time, h.connection, h.exchange
