-- Who produces to which topic, and how?
-- Codecs, idempotence and transactions are known with `--records batches` or more.
-- topic: name of the topic, or its id where no message said the name.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- software_name: the client library, where it said so.
-- software_version: its version.
-- requests: Produce requests that name the topic.
-- errors: of these, answered with an error.
-- acks: what they ask for: `all` (every in-sync replica), `1` (the leader), `0` (no answer).
-- transactional_id: transactional ids, at most 5 of them.
-- partitions: different partitions.
-- record_bytes: sizes of the records fields together.
-- records: records that the batches' headers say.
-- codecs: codecs of the batches.
-- idempotent: share of the batches with a producer id, from 0 to 1.
-- p50_us: half of the latencies are at most this.
-- p99_us: 99 of 100 are at most this.
-- max_us: the longest latency.
WITH asked AS (
  SELECT capture, connection, topic, client_id, client_ip, acks, transactional_id, error_code, latency_us,
    bucketed(latency_us) AS bucket
  FROM exchange_topics
  WHERE api_key = 0
), asks AS (
  SELECT a.topic, a.client_id, a.client_ip, c.software_name, c.software_version, count(*) AS requests,
    count_if(a.error_code <> 0) AS errors, collect_set(if(a.acks = -1, 'all', CAST(a.acks AS STRING))) AS acks,
    array_join(slice(array_sort(collect_set(a.transactional_id)), 1, 5), ', ') AS transactional_id,
    percentile(a.bucket, array(0.5, 0.99)) AS quantiles, max(a.latency_us) AS max_us
  FROM asked AS a LEFT JOIN connections AS c ON c.capture = a.capture AND c.connection = a.connection
  GROUP BY a.topic, a.client_id, a.client_ip, c.software_name, c.software_version
), owners AS (
  -- Of a connection's owners only those matter that asked for the topic: the last join sees to it.
  SELECT x.capture, x.connection, x.client_id, x.client_ip, c.software_name, c.software_version
  FROM (SELECT DISTINCT capture, connection, client_id, client_ip FROM exchanges WHERE api_key = 0) AS x
    LEFT JOIN connections AS c ON c.capture = x.capture AND c.connection = x.connection
), sent AS (
  SELECT p.topic, o.client_id, o.client_ip, o.software_name, o.software_version,
    count(DISTINCT p.partition) AS partitions, sum(p.record_bytes) AS record_bytes, sum(p.records) AS records
  FROM owners AS o JOIN partition_bytes AS p ON p.capture = o.capture AND p.connection = o.connection
    AND p.side = 'produce'
  GROUP BY ALL
), packed AS (
  SELECT b.topic, o.client_id, o.client_ip, o.software_name, o.software_version,
    array_join(array_sort(collect_set(b.codec)), ', ') AS codecs,
    sum(if(b.idempotent, b.batches, 0)) / sum(b.batches) AS idempotent
  FROM owners AS o JOIN batch_use AS b ON b.capture = o.capture AND b.connection = o.connection
    AND b.side = 'produce'
  GROUP BY ALL
)
SELECT a.topic, a.client_id, a.client_ip, a.software_name, a.software_version, a.requests, a.errors,
  array_join(array_sort(a.acks), ', ') AS acks, nullif(a.transactional_id, '') AS transactional_id, s.partitions,
  s.record_bytes, s.records, p.codecs, p.idempotent, CAST(a.quantiles[0] AS BIGINT) AS p50_us,
  CAST(a.quantiles[1] AS BIGINT) AS p99_us, a.max_us
FROM asks AS a
  LEFT JOIN sent AS s ON s.topic = a.topic AND s.client_id <=> a.client_id AND s.client_ip <=> a.client_ip
    AND s.software_name <=> a.software_name AND s.software_version <=> a.software_version
  LEFT JOIN packed AS p ON p.topic = a.topic AND p.client_id <=> a.client_id AND p.client_ip <=> a.client_ip
    AND p.software_name <=> a.software_name AND p.software_version <=> a.software_version
ORDER BY a.requests DESC, a.topic, a.client_id, a.client_ip
