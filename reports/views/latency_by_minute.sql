-- How do latency and load change from minute to minute?
-- A minute without an exchange has no row.
-- Of Fetch, ShareFetch, JoinGroup and SyncGroup it is the time that was not held on purpose (`timed_exchanges.own_us`).
-- time: beginning of the minute in which the requests began (for a response without request: it).
-- request_bytes: sizes of the requests together.
-- response_bytes: sizes of the responses together.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- timed: those with a latency, which the next four are about.
-- p50_us: the smallest latency that at least half of them do not exceed; exact up to two million exchanges.
-- p95_us: the smallest that at least 95 of 100 do not exceed.
-- p99_us: the smallest that at least 99 of 100 do not exceed.
-- max_us: the longest latency.
WITH counted AS (
  SELECT date_trunc('minute', time) AS time, bucketed(own_us) AS bucket,
    count(*) AS exchanges, count_if(error_code <> 0) AS errors, max(own_us) AS max_us,
    sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes
  FROM timed_exchanges
  GROUP BY ALL
), placed AS (
  -- How many latencies are at most the one of each row, and how many there are.
  SELECT *, sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY time ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY time) AS timed
  FROM counted
)
SELECT time, sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes,
  sum(exchanges) AS exchanges, sum(errors) AS errors, max(timed) AS timed,
  min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
  min(if(100 * upto >= 95 * timed, bucket, NULL)) AS p95_us,
  min(if(100 * upto >= 99 * timed, bucket, NULL)) AS p99_us, max(max_us) AS max_us
FROM placed
GROUP BY time
ORDER BY time
