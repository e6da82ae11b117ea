-- How long does each API take, and how often is it asked for?
-- Latency is from a request's last byte to its response's first. A Fetch waits on purpose until there is data (long poll),
-- JoinGroup and SyncGroup wait for the other members: there, long is not slow.
-- api: Kafka's name of the API; null where unknown.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- timed: those with a latency, which the next four are about.
-- p50_us: half of the latencies are at most this, interpolated; exact up to two million exchanges.
-- p95_us: 95 of 100 are at most this.
-- p99_us: 99 of 100 are at most this.
-- max_us: the longest latency.
WITH measured AS (
  SELECT api_key, api, count(*) AS exchanges, count_if(error_code <> 0) AS errors, count(latency_us) AS timed,
    percentile(bucketed(latency_us), array(0.5, 0.95, 0.99)) AS quantiles, max(latency_us) AS max_us
  FROM exchanges
  GROUP BY ALL
)
SELECT api, exchanges, errors, timed, CAST(quantiles[0] AS BIGINT) AS p50_us, CAST(quantiles[1] AS BIGINT) AS p95_us,
  CAST(quantiles[2] AS BIGINT) AS p99_us, max_us
FROM measured
ORDER BY exchanges DESC, api
