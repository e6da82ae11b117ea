-- How long do records wait in their producers before they are sent?
-- From the first record's own time (`CreateTime`) to the first byte of the Produce request: `linger.ms` as it works, and
-- more where the producer waits for earlier requests. Two clocks: `ahead` counts batches whose time is after they were sent.
-- topic: name of the topic, or its id where no message said the name.
-- producer_client: client id of the producer.
-- batches: batches with such a time.
-- records: records in them.
-- records_per_batch: their average.
-- ahead: batches whose first record's time is after they were sent; the columns below leave them out.
-- p50_us: median wait: the smallest that at least half of them do not exceed.
-- p95_us: its 95th percentile.
-- p99_us: its 99th percentile.
-- max_us: the longest.
WITH produced AS (
  SELECT DISTINCT j.capture, j.produced.connection AS connection, j.produced.exchange AS exchange,
    coalesce(j.topic, n.topic, j.topic_id) AS topic, j.partition, j.producer_client, j.records,
    unix_micros(j.sent) - unix_micros(j.created) AS wait_us
  FROM journeys AS j LEFT JOIN named_topics AS n ON n.topic_id = j.topic_id
  WHERE j.created IS NOT NULL AND j.sent IS NOT NULL
), placed AS (
  SELECT *, count(wait) OVER (PARTITION BY topic, producer_client ORDER BY wait) AS upto,
    count(wait) OVER (PARTITION BY topic, producer_client) AS timed
  FROM (SELECT *, if(wait_us < 0, NULL, wait_us) AS wait FROM produced)
)
SELECT topic, producer_client, count(*) AS batches, sum(records) AS records,
  round(sum(records) / count(*), 1) AS records_per_batch, count_if(wait_us < 0) AS ahead,
  min(if(100 * upto >= 50 * timed, wait, NULL)) AS p50_us, min(if(100 * upto >= 95 * timed, wait, NULL)) AS p95_us,
  min(if(100 * upto >= 99 * timed, wait, NULL)) AS p99_us, max(wait) AS max_us
FROM placed
GROUP BY topic, producer_client
ORDER BY batches DESC, topic, producer_client
