-- How do load and latency change over time, by API?
-- interval: number of the interval, each {width_us:,} us long, from the first packet on.
-- api: Kafka's name of the API.
-- exchanges: exchanges that began in it.
-- bytes: sizes of requests and responses.
-- p50_us: the smallest latency, without time held on purpose, that at least half of them do not exceed.
-- p95_us: the smallest that at least 95 of 100 do not exceed.
-- max_us: the longest.
WITH counted AS (
  SELECT (unix_micros(time) - {begin}) DIV {width_us} AS interval, api,
    bucketed(own_us) AS bucket, count(*) AS exchanges,
    sum(coalesce(request_bytes, 0) + coalesce(response_bytes, 0)) AS bytes, max(own_us) AS max_us
  FROM timed_exchanges
  GROUP BY ALL
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY interval, api ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY interval, api) AS timed
  FROM counted
)
SELECT interval, api, sum(exchanges) AS exchanges, sum(bytes) AS bytes,
  min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
  min(if(100 * upto >= 95 * timed, bucket, NULL)) AS p95_us, max(max_us) AS max_us
FROM placed
GROUP BY interval, api
ORDER BY interval, api
