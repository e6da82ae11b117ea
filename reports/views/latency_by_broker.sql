-- How long does each broker take for each API?
-- Of Fetch, ShareFetch, JoinGroup and SyncGroup it is the time that was not held on purpose (`timed_exchanges.own_us`).
-- broker: `ip:port` that the client connected to.
-- api: Kafka's name of the API.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- timed: those with a latency, which the next four are about.
-- p50_us: the smallest latency that at least half of them do not exceed; exact up to two million exchanges.
-- p95_us: the smallest that at least 95 of 100 do not exceed.
-- p99_us: the smallest that at least 99 of 100 do not exceed.
-- max_us: the longest latency.
WITH counted AS (
  SELECT broker_ip, broker_port, api,
    bucketed(own_us) AS bucket, count(*) AS exchanges, count_if(error_code <> 0) AS errors,
    max(own_us) AS max_us
  FROM timed_exchanges
  GROUP BY ALL
), placed AS (
  -- How many latencies are at most the one of each row, and how many there are.
  SELECT *,
    sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY broker_ip, broker_port, api ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY broker_ip, broker_port, api) AS timed
  FROM counted
)
SELECT concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker,
  api, sum(exchanges) AS exchanges, sum(errors) AS errors, max(timed) AS timed,
  min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
  min(if(100 * upto >= 95 * timed, bucket, NULL)) AS p95_us,
  min(if(100 * upto >= 99 * timed, bucket, NULL)) AS p99_us, max(max_us) AS max_us
FROM placed
GROUP BY broker_ip, broker_port, api
ORDER BY broker, exchanges DESC, api
