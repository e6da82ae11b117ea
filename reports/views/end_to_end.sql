-- How long do records take from their producer to each reader, and which leg makes them late?
-- By topic, producer and reader, from `journeys`. `late_leg` is where the slowest hundredth of the batches (one at least)
-- spent most of their time: `client` (waiting in the producer, as for `linger.ms`), `request` (being sent), `broker`
-- (until the acknowledgement, followers with acks=all included), `transaction` (until its end) or `reader` (until a fetch
-- brought it). `journey_legs` has each batch.
-- topic: name of the topic, or its id where no message said the name.
-- producer_client: client id of the producer.
-- kind: `consumer`, `replica` or `share`.
-- reader: the group, the client id of who is in none, or `broker N`.
-- batches: batches that it read, of which both ends were captured.
-- records: records in them.
-- p50_us: median (the smallest that at least half of them do not exceed) from the first byte of the request that brought a batch to the last byte of the answer that held it.
-- p95_us: its 95th percentile.
-- p99_us: its 99th percentile.
-- max_us: the longest.
-- created_p50_us: median from the first record's own time (by its producer's clock) to the same end.
-- created_p95_us: its 95th percentile.
-- created_p99_us: its 99th percentile.
-- created_max_us: the longest.
-- late_leg: where the slowest spent most of their time.
-- late_leg_us: how much of it, on average.
WITH ranked AS (
  SELECT *, coalesce(end_to_end_us, total_us) AS whole_us, row_number() OVER (
      PARTITION BY topic, producer_client, kind, reader
      ORDER BY coalesce(end_to_end_us, total_us) DESC, capture, partition, base_offset, sent) AS place,
    count(*) OVER (PARTITION BY topic, producer_client, kind, reader) AS batches
  FROM journey_legs
), slow AS (
  SELECT topic, producer_client, kind, reader,
    CAST(coalesce(avg(client_wait_us), 0) AS BIGINT) AS client_us, CAST(avg(request_us) AS BIGINT) AS request_us,
    CAST(coalesce(avg(broker_us), 0) AS BIGINT) AS broker_us,
    CAST(coalesce(sum(transaction_us), 0) / count(*) AS BIGINT) AS transaction_us, CAST(avg(reader_us) AS BIGINT) AS reader_us
  FROM ranked
  WHERE place <= greatest(batches DIV 100, 1)
  GROUP BY topic, producer_client, kind, reader
), worst AS (
  SELECT *, greatest(client_us, request_us, broker_us, transaction_us, reader_us) AS late_leg_us
  FROM slow
), placed AS (
  SELECT *, count(*) OVER (PARTITION BY topic, producer_client, kind, reader ORDER BY total_us) AS upto,
    count(*) OVER (PARTITION BY topic, producer_client, kind, reader) AS timed,
    count(end_to_end_us) OVER (PARTITION BY topic, producer_client, kind, reader ORDER BY end_to_end_us) AS created_upto,
    count(end_to_end_us) OVER (PARTITION BY topic, producer_client, kind, reader) AS created_timed
  FROM journey_legs
), timed AS (
  SELECT topic, producer_client, kind, reader, count(*) AS batches, sum(records) AS records,
    min(if(100 * upto >= 50 * timed, total_us, NULL)) AS p50_us,
    min(if(100 * upto >= 95 * timed, total_us, NULL)) AS p95_us,
    min(if(100 * upto >= 99 * timed, total_us, NULL)) AS p99_us, max(total_us) AS max_us,
    min(if(100 * created_upto >= 50 * created_timed, end_to_end_us, NULL)) AS created_p50_us,
    min(if(100 * created_upto >= 95 * created_timed, end_to_end_us, NULL)) AS created_p95_us,
    min(if(100 * created_upto >= 99 * created_timed, end_to_end_us, NULL)) AS created_p99_us,
    max(end_to_end_us) AS created_max_us
  FROM placed
  GROUP BY topic, producer_client, kind, reader
)
SELECT t.topic, t.producer_client, t.kind, t.reader, t.batches, t.records, t.p50_us, t.p95_us, t.p99_us, t.max_us,
  t.created_p50_us, t.created_p95_us, t.created_p99_us, t.created_max_us,
  CASE w.late_leg_us WHEN w.reader_us THEN 'reader' WHEN w.broker_us THEN 'broker' WHEN w.client_us THEN 'client'
    WHEN w.transaction_us THEN 'transaction' ELSE 'request' END AS late_leg, w.late_leg_us
FROM timed AS t JOIN worst AS w
  ON w.topic = t.topic AND w.producer_client <=> t.producer_client AND w.kind = t.kind AND w.reader = t.reader
ORDER BY coalesce(t.created_p99_us, t.p99_us) DESC, t.topic, t.producer_client, t.kind, t.reader
