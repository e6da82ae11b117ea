-- How much do fetches bring, by client?
-- An empty answer is the price of waiting for data; many a second mean a small `fetch.max.wait.ms`, or a fetch session
-- that was lost.
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- fetches: answered Fetch and ShareFetch requests.
-- empty_share: of these, without a record, from 0 to 1; null where nothing is known of partitions.
-- errors: answers with an error.
-- response_bytes: sizes of the answers together.
-- bytes_per_answer: on average.
-- record_bytes: of it records.
-- records: records that the batches' headers say.
-- max_wait_ms: the longest wait that it asks for.
-- min_bytes: the least that it asks to wait for.
-- p50_us: the smallest latency that at least half of them do not exceed, without the time that they were held for data
--   (where nothing was worked out, with it).
-- p99_us: the smallest that at least 99 of 100 do not exceed.
-- max_us: the longest latency.
WITH brought AS (
  SELECT capture, connection, exchange, sum(record_bytes) AS record_bytes, sum(record_count) AS records
  FROM partitions
  WHERE offset_kind = 'fetch' OR offset_kind IS NULL
  GROUP BY capture, connection, exchange
), answered AS (
  SELECT *, latency_us - coalesce(queue_us, 0) - coalesce(muted_us, 0) - if(cause IS NOT NULL, hold_us, 0) AS own_us
  FROM exchanges
  WHERE api_key IN (1, 78) AND status = 'answered'
), fetched AS (
  SELECT x.client_id, x.client_ip, x.error_code, x.response_bytes, x.max_wait_ms, x.min_bytes,
    x.own_us, bucketed(x.own_us) AS bucket, b.record_bytes, b.records, b.exchange IS NOT NULL AS known
  FROM answered AS x LEFT JOIN brought AS b
    ON b.capture = x.capture AND b.connection = x.connection AND b.exchange = x.exchange
), counted AS (
  SELECT client_id, client_ip, bucket, count(*) AS fetches, count_if(coalesce(record_bytes, 0) = 0) AS empty,
    count_if(known) AS known, count_if(error_code <> 0) AS errors, sum(response_bytes) AS response_bytes,
    sum(record_bytes) AS record_bytes, sum(records) AS records, max(max_wait_ms) AS max_wait_ms,
    min(min_bytes) AS min_bytes, max(own_us) AS max_us
  FROM fetched
  GROUP BY client_id, client_ip, bucket
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, fetches)) OVER (PARTITION BY client_id, client_ip ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, fetches)) OVER (PARTITION BY client_id, client_ip) AS timed
  FROM counted
)
SELECT client_id, client_ip, sum(fetches) AS fetches, if(sum(known) = 0, NULL, sum(empty) / sum(fetches)) AS empty_share,
  sum(errors) AS errors, sum(response_bytes) AS response_bytes,
  sum(response_bytes) DIV sum(fetches) AS bytes_per_answer, sum(record_bytes) AS record_bytes, sum(records) AS records,
  max(max_wait_ms) AS max_wait_ms, min(min_bytes) AS min_bytes,
  min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
  min(if(100 * upto >= 99 * timed, bucket, NULL)) AS p99_us, max(max_us) AS max_us
FROM placed
GROUP BY client_id, client_ip
ORDER BY fetches DESC, client_id, client_ip
