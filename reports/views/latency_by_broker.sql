-- How long does each broker take for each API?
-- broker: `ip:port` that the client connected to.
-- api: Kafka's name of the API.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- timed: those with a latency, which the next four are about.
-- p50_us: half of the latencies are at most this, interpolated; exact up to two million exchanges.
-- p95_us: 95 of 100 are at most this.
-- p99_us: 99 of 100 are at most this.
-- max_us: the longest latency.
WITH measured AS (
  SELECT concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker, api, count(*) AS exchanges, count_if(error_code <> 0) AS errors, count(latency_us) AS timed,
    percentile(bucketed(latency_us), array(0.5, 0.95, 0.99)) AS quantiles, max(latency_us) AS max_us
  FROM exchanges
  GROUP BY ALL
)
SELECT broker, api, exchanges, errors, timed, CAST(quantiles[0] AS BIGINT) AS p50_us, CAST(quantiles[1] AS BIGINT) AS p95_us,
  CAST(quantiles[2] AS BIGINT) AS p99_us, max_us
FROM measured
ORDER BY broker, exchanges DESC, api
