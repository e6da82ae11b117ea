-- How far is each follower behind its leader?
-- From the last byte of the request that brought a batch to the leader to the last byte of the answer that brought it to
-- the follower. With acks=all the acknowledgement waits for the followers that are in sync.
-- topic: name of the topic, or its id where no message said the name.
-- broker_id: node id of the follower.
-- batches: batches that it fetched.
-- record_bytes: their size.
-- p50_us: median delay: the smallest that at least half of them do not exceed.
-- p95_us: its 95th percentile.
-- p99_us: its 99th percentile.
-- max_us: the longest.
-- most_behind_bytes: the most bytes of one partition that the leader had and the follower had not.
-- after_ack: batches that it fetched after their acknowledgement.
WITH fetched AS (
  SELECT j.capture, coalesce(j.topic, n.topic, j.topic_id) AS topic, j.partition, j.broker_id, j.record_bytes,
    unix_micros(j.received) AS received_at, unix_micros(j.fetched) AS fetched_at, unix_micros(j.acked) AS acked_at
  FROM journeys AS j LEFT JOIN named_topics AS n ON n.topic_id = j.topic_id
  WHERE j.kind = 'replica' AND j.fetched IS NOT NULL AND j.received IS NOT NULL
), steps AS (
  SELECT capture, topic, partition, broker_id, received_at AS at, 1 AS kind, coalesce(record_bytes, 0) AS step FROM fetched
  UNION ALL
  SELECT capture, topic, partition, broker_id, fetched_at, 0, -coalesce(record_bytes, 0) FROM fetched
), behind AS (
  SELECT topic, broker_id, sum(step) OVER (
    PARTITION BY capture, topic, partition, broker_id ORDER BY at, kind, step
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS bytes
  FROM steps
), most AS (
  SELECT topic, broker_id, max(bytes) AS most_behind_bytes FROM behind GROUP BY topic, broker_id
), placed AS (
  SELECT *, count(*) OVER (PARTITION BY topic, broker_id ORDER BY fetched_at - received_at) AS upto,
    count(*) OVER (PARTITION BY topic, broker_id) AS timed, fetched_at - received_at AS delay_us
  FROM fetched
), timed AS (
  SELECT topic, broker_id, count(*) AS batches, sum(record_bytes) AS record_bytes,
    min(if(100 * upto >= 50 * timed, delay_us, NULL)) AS p50_us,
    min(if(100 * upto >= 95 * timed, delay_us, NULL)) AS p95_us,
    min(if(100 * upto >= 99 * timed, delay_us, NULL)) AS p99_us, max(delay_us) AS max_us,
    count_if(fetched_at > acked_at) AS after_ack
  FROM placed
  GROUP BY topic, broker_id
)
SELECT t.topic, t.broker_id, t.batches, t.record_bytes, t.p50_us, t.p95_us, t.p99_us, t.max_us, m.most_behind_bytes,
  t.after_ack
FROM timed AS t JOIN most AS m ON m.topic = t.topic AND m.broker_id = t.broker_id
ORDER BY p99_us DESC, topic, broker_id
