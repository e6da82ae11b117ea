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
-- record_bytes: sizes of the records fields together, each time that they were sent.
-- records: records that the batches' headers say, each time that they were sent.
-- delivered_bytes: of the bytes, those that the broker took.
-- delivered_records: of the records, the same.
-- refused_bytes: of the bytes, those that were answered with an error; a producer may have sent them again.
-- refused_records: of the records, the same.
-- unknown_bytes: of the bytes, those that no answer tells of: acks 0, or an answer that is missing.
-- unknown_records: of the records, the same.
-- codecs: codecs of the batches.
-- idempotent: share of the batches with a producer id, from 0 to 1.
-- p50_us: the smallest latency that at least half of them do not exceed, without what they waited behind earlier requests
--   of their connection and for throttles (`timed_exchanges.own_us`).
-- p99_us: the smallest that at least 99 of 100 do not exceed.
-- max_us: the longest latency.
WITH summed AS (
  SELECT capture, connection, topic, client_id, client_ip, acks, transactional_id, count(*) AS requests,
    count_if(error_code <> 0) AS errors
  FROM exchange_topics
  WHERE api_key = 0
  GROUP BY ALL
), owned AS (
  -- These are few: whose they are is looked up for them, not for each exchange.
  SELECT s.*, c.software_name, c.software_version
  FROM summed AS s LEFT JOIN connections AS c ON c.capture = s.capture AND c.connection = s.connection
), asks AS (
  SELECT topic, client_id, client_ip, software_name, software_version, sum(requests) AS requests,
    sum(errors) AS errors, collect_set(if(acks = -1, 'all', CAST(acks AS STRING))) AS acks,
    array_join(slice(array_sort(collect_set(transactional_id)), 1, 5), ', ') AS transactional_id
  FROM owned
  GROUP BY topic, client_id, client_ip, software_name, software_version
), counted AS (
  SELECT x.topic, x.client_id, x.client_ip, c.software_name, c.software_version, bucketed(x.own_us) AS bucket,
    count(*) AS exchanges, max(x.own_us) AS max_us
  FROM exchange_topics AS x LEFT JOIN connections AS c ON c.capture = x.capture AND c.connection = x.connection
  WHERE x.api_key = 0
  GROUP BY ALL
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, exchanges)) OVER (
      PARTITION BY topic, client_id, client_ip, software_name, software_version ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, exchanges)) OVER (
      PARTITION BY topic, client_id, client_ip, software_name, software_version) AS timed
  FROM counted
), waits AS (
  SELECT topic, client_id, client_ip, software_name, software_version,
    min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
    min(if(100 * upto >= 99 * timed, bucket, NULL)) AS p99_us, max(max_us) AS max_us
  FROM placed
  GROUP BY topic, client_id, client_ip, software_name, software_version
), owners AS (
  -- Of a connection's owners only those matter that asked for the topic: the last join sees to it.
  SELECT DISTINCT capture, connection, client_id, client_ip, software_name, software_version FROM owned
), sent AS (
  SELECT p.topic, o.client_id, o.client_ip, o.software_name, o.software_version,
    count(DISTINCT p.partition) AS partitions, sum(p.record_bytes) AS record_bytes, sum(p.records) AS records,
    sum(p.refused_bytes) AS refused_bytes, sum(p.refused_records) AS refused_records,
    sum(p.unanswered_bytes) AS unknown_bytes, sum(p.unanswered_records) AS unknown_records
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
  s.record_bytes, s.records, s.record_bytes - s.refused_bytes - s.unknown_bytes AS delivered_bytes,
  s.records - s.refused_records - s.unknown_records AS delivered_records, s.refused_bytes, s.refused_records,
  s.unknown_bytes, s.unknown_records, p.codecs, p.idempotent, w.p50_us, w.p99_us, w.max_us
FROM asks AS a
  LEFT JOIN waits AS w ON w.topic <=> a.topic AND w.client_id <=> a.client_id AND w.client_ip <=> a.client_ip
    AND w.software_name <=> a.software_name AND w.software_version <=> a.software_version
  LEFT JOIN sent AS s ON s.topic = a.topic AND s.client_id <=> a.client_id AND s.client_ip <=> a.client_ip
    AND s.software_name <=> a.software_name AND s.software_version <=> a.software_version
  LEFT JOIN packed AS p ON p.topic = a.topic AND p.client_id <=> a.client_id AND p.client_ip <=> a.client_ip
    AND p.software_name <=> a.software_name AND p.software_version <=> a.software_version
ORDER BY a.requests DESC, a.topic, a.client_id, a.client_ip
