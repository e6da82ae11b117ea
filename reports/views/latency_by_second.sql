-- How do latency and load change from second to second?
-- A second without an exchange has no row.
-- time: beginning of the second in which the requests began (for a response without request: it).
-- request_bytes: sizes of the requests together.
-- response_bytes: sizes of the responses together.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- timed: those with a latency, which the next four are about.
-- p50_us: half of the latencies are at most this, interpolated; exact up to two million exchanges.
-- p95_us: 95 of 100 are at most this.
-- p99_us: 99 of 100 are at most this.
-- max_us: the longest latency.
WITH counted AS (
  SELECT date_trunc('second', coalesce(request_time, response_time)) AS time, bucketed(latency_us) AS bucket,
    count(*) AS exchanges, count_if(error_code <> 0) AS errors, max(latency_us) AS max_us,
    sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes
  FROM exchanges
  GROUP BY ALL
), measured AS (
  SELECT time, sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes,
    sum(exchanges) AS exchanges, sum(errors) AS errors, sum(if(bucket IS NULL, 0, exchanges)) AS timed,
    percentile(bucket, array(0.5, 0.95, 0.99), exchanges) AS quantiles, max(max_us) AS max_us
  FROM counted
  GROUP BY time
)
SELECT time, request_bytes, response_bytes, exchanges, errors, timed, CAST(quantiles[0] AS BIGINT) AS p50_us,
  CAST(quantiles[1] AS BIGINT) AS p95_us, CAST(quantiles[2] AS BIGINT) AS p99_us, max_us
FROM measured
ORDER BY time
