-- How many seconds was each group behind at the end, and at most?
-- group_id: the group.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- lag_us: age of the oldest batch that it had not fetched when the capture ended.
-- commit_lag_us: age of the oldest that it had not committed; null where it commits nothing of the partition.
-- most_lag_us: the largest age at the end of a step of ten seconds of what it had not fetched.
-- most_commit_lag_us: the same of what it had not committed.
SELECT *
FROM (
  SELECT group_id, topic, partition, max_by(lag_us, time) AS lag_us, max_by(commit_lag_us, time) AS commit_lag_us,
    max(lag_us) AS most_lag_us, max(commit_lag_us) AS most_commit_lag_us
  FROM lag_seconds
  GROUP BY group_id, topic, partition
)
ORDER BY coalesce(commit_lag_us, lag_us) DESC, group_id, topic, partition
