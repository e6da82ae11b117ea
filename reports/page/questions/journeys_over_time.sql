-- How long do records take to their readers over time?
-- interval: number of the interval, each {width_us:,} us long, from the first packet on.
-- reader: the group, the client id of who is in none, or `broker N`.
-- batches: batches that it fetched in it for the first time.
-- p50_us: the smallest time from the request's first byte until it had them that at least half do not exceed.
-- p95_us: the smallest that at least 95 of 100 do not exceed.
-- max_us: the longest.
WITH counted AS (
  SELECT (unix_micros(fetched) - {begin}) DIV {width_us} AS interval, reader, bucketed(total_us) AS bucket,
    count(*) AS batches, max(total_us) AS max_us
  FROM journey_legs
  GROUP BY ALL
), placed AS (
  SELECT *, sum(batches) OVER (PARTITION BY interval, reader ORDER BY bucket) AS upto,
    sum(batches) OVER (PARTITION BY interval, reader) AS timed
  FROM counted
)
SELECT interval, reader, sum(batches) AS batches,
  min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
  min(if(100 * upto >= 95 * timed, bucket, NULL)) AS p95_us, max(max_us) AS max_us
FROM placed
GROUP BY interval, reader
ORDER BY interval, reader
