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
), found AS (
  SELECT x.client_id, x.client_ip, count_if(b.record_bytes <> 0) AS filled,
    sum(b.record_bytes) AS record_bytes, sum(b.records) AS records
  FROM brought AS b JOIN exchanges AS x
    ON x.capture = b.capture AND x.connection = b.connection AND x.exchange = b.exchange
  WHERE x.api_key IN (1, 78) AND x.status = 'answered'
  GROUP BY x.client_id, x.client_ip
), counted AS (
  SELECT client_id, client_ip,
    bucketed(latency_us - coalesce(queue_us, 0) - coalesce(muted_us, 0) - if(cause IS NOT NULL, hold_us, 0)) AS bucket,
    count(*) AS fetches, count_if(error_code <> 0) AS errors, sum(response_bytes) AS response_bytes,
    max(max_wait_ms) AS max_wait_ms, min(min_bytes) AS min_bytes,
    max(latency_us - coalesce(queue_us, 0) - coalesce(muted_us, 0) - if(cause IS NOT NULL, hold_us, 0)) AS max_us
  FROM exchanges
  WHERE api_key IN (1, 78) AND status = 'answered'
  GROUP BY ALL
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, fetches)) OVER (PARTITION BY client_id, client_ip ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, fetches)) OVER (PARTITION BY client_id, client_ip) AS timed
  FROM counted
), summed AS (
  SELECT client_id, client_ip, sum(fetches) AS fetches, sum(errors) AS errors, sum(response_bytes) AS response_bytes,
    max(max_wait_ms) AS max_wait_ms, min(min_bytes) AS min_bytes,
    min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
    min(if(100 * upto >= 99 * timed, bucket, NULL)) AS p99_us, max(max_us) AS max_us
  FROM placed
  GROUP BY client_id, client_ip
)
SELECT s.client_id, s.client_ip, s.fetches, (s.fetches - f.filled) / s.fetches AS empty_share, s.errors, s.response_bytes,
  s.response_bytes DIV s.fetches AS bytes_per_answer, f.record_bytes, f.records, s.max_wait_ms, s.min_bytes, s.p50_us,
  s.p99_us, s.max_us
FROM summed AS s LEFT JOIN found AS f ON f.client_id <=> s.client_id AND f.client_ip <=> s.client_ip
ORDER BY s.fetches DESC, s.client_id, s.client_ip
