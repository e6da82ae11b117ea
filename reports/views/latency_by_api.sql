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
WITH counted AS (
  SELECT api_key, api, bucketed(latency_us) AS bucket, count(*) AS exchanges,
    count_if(error_code <> 0) AS errors, max(latency_us) AS max_us
  FROM exchanges
  GROUP BY ALL
), measured AS (
  SELECT api_key, api, sum(exchanges) AS exchanges, sum(errors) AS errors,
    sum(if(bucket IS NULL, 0, exchanges)) AS timed, percentile(bucket, array(0.5, 0.95, 0.99), exchanges) AS quantiles,
    max(max_us) AS max_us
  FROM counted
  GROUP BY api_key, api
)
SELECT api, exchanges, errors, timed, CAST(quantiles[0] AS BIGINT) AS p50_us,
  CAST(quantiles[1] AS BIGINT) AS p95_us, CAST(quantiles[2] AS BIGINT) AS p99_us, max_us
FROM measured
ORDER BY exchanges DESC, api
