-- How long after it had fetched them does each group commit records?
-- From the answer that first held a batch to the end of the first commit behind it: processing, and the interval of
-- automatic commits. A consumer that dies has its group read again what was not committed.
-- group_id: the group.
-- topic: name of the topic, or its id where no message said the name.
-- batches: batches that the group fetched.
-- committed: of these, committed while the capture ran.
-- p50_us: median time from fetch to commit: the smallest that at least half of them do not exceed.
-- p95_us: its 95th percentile.
-- p99_us: its 99th percentile.
-- max_us: the longest.
WITH fetched AS (
  SELECT j.group_id, coalesce(j.topic, n.topic, j.topic_id) AS topic,
    unix_micros(j.committed) - unix_micros(j.fetched) AS commit_us
  FROM journeys AS j LEFT JOIN named_topics AS n ON n.topic_id = j.topic_id
  WHERE j.kind = 'consumer' AND j.group_id IS NOT NULL AND j.fetched IS NOT NULL
), placed AS (
  SELECT *, count(commit_us) OVER (PARTITION BY group_id, topic ORDER BY commit_us) AS upto,
    count(commit_us) OVER (PARTITION BY group_id, topic) AS timed
  FROM fetched
)
SELECT group_id, topic, count(*) AS batches, count(commit_us) AS committed,
  min(if(100 * upto >= 50 * timed, commit_us, NULL)) AS p50_us,
  min(if(100 * upto >= 95 * timed, commit_us, NULL)) AS p95_us,
  min(if(100 * upto >= 99 * timed, commit_us, NULL)) AS p99_us, max(commit_us) AS max_us
FROM placed
GROUP BY group_id, topic
ORDER BY batches DESC, group_id, topic
