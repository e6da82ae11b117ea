-- How many seconds are groups behind over time, in their worst partition?
-- interval: number of the interval, each {width_us:,} us long, from the first packet on.
-- group_id: the group.
-- lag_us: age of the oldest batch that it had not fetched.
-- commit_lag_us: age of the oldest that it had not committed.
SELECT (unix_micros(time) - {begin}) DIV {width_us} AS interval, group_id, max(lag_us) AS lag_us,
  max(commit_lag_us) AS commit_lag_us
FROM lag_seconds
GROUP BY ALL
ORDER BY interval, group_id
