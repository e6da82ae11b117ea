-- How do latency and load change from minute to minute?
-- A minute without an exchange has no row.
-- time: beginning of the minute in which the requests began (for a response without request: it).
-- request_bytes: sizes of the requests together.
-- response_bytes: sizes of the responses together.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- timed: those with a latency, which the next four are about.
-- p50_us: half of the latencies are at most this, interpolated; exact up to two million exchanges.
-- p95_us: 95 of 100 are at most this.
-- p99_us: 99 of 100 are at most this.
-- max_us: the longest latency.
WITH measured AS (
  SELECT date_trunc('minute', coalesce(request_time, response_time)) AS time,
    sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes, count(*) AS exchanges, count_if(error_code <> 0) AS errors, count(latency_us) AS timed,
    percentile(bucketed(latency_us), array(0.5, 0.95, 0.99)) AS quantiles, max(latency_us) AS max_us
  FROM exchanges
  GROUP BY ALL
)
SELECT time, request_bytes, response_bytes, exchanges, errors, timed, CAST(quantiles[0] AS BIGINT) AS p50_us, CAST(quantiles[1] AS BIGINT) AS p95_us,
  CAST(quantiles[2] AS BIGINT) AS p99_us, max_us
FROM measured
ORDER BY time
