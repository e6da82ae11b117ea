-- How many seconds is each group behind, by partition, over time?
-- Exact, from the journeys of batches: at a moment a group is behind by the age (since it was sent) of the oldest batch that
-- it has not fetched yet, or not committed. In steps of ten seconds in which anything was produced or fetched, and at
-- the end of the capture. Batches from before the capture have no age: from the first that a group was seen to read on.
-- time: the end of the step.
-- group_id: the group.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- lag_us: age of the oldest batch that it had not fetched at that moment; 0: it had fetched all.
-- commit_lag_us: the same for what it had committed; null where it commits nothing of the partition.
WITH named AS (
  SELECT j.capture, coalesce(j.topic, n.topic, j.topic_id) AS topic, j.partition, j.base_offset, j.kind, j.group_id,
    unix_micros(j.sent) AS sent_at, unix_micros(j.received) AS received_at,
    unix_micros(j.fetched) AS fetched_at, unix_micros(j.committed) AS committed_at
  FROM journeys AS j LEFT JOIN named_topics AS n ON n.topic_id = j.topic_id
  WHERE j.base_offset IS NOT NULL AND j.received IS NOT NULL
), batch AS (
  SELECT capture, topic, partition, base_offset, min(sent_at) AS sent_at, min(received_at) AS received_at
  FROM named
  GROUP BY capture, topic, partition, base_offset
), fetched AS (
  SELECT capture, group_id, topic, partition, base_offset, min(fetched_at) AS fetched_at, min(committed_at) AS committed_at
  FROM named
  WHERE kind = 'consumer' AND group_id IS NOT NULL AND fetched_at IS NOT NULL
  GROUP BY capture, group_id, topic, partition, base_offset
), follows AS (
  SELECT capture, group_id, topic, partition, min(base_offset) AS first_offset, min(fetched_at) AS since,
    count(committed_at) > 0 AS commits
  FROM fetched
  GROUP BY capture, group_id, topic, partition
), every_batch AS (
  -- What lies before a batch that the group fetched (or committed) is behind it.
  SELECT w.capture, w.group_id, w.topic, w.partition, b.sent_at, b.received_at,
    min(f.fetched_at) OVER (PARTITION BY w.capture, w.group_id, w.topic, w.partition ORDER BY b.base_offset DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS fetched_at,
    min(f.committed_at) OVER (PARTITION BY w.capture, w.group_id, w.topic, w.partition ORDER BY b.base_offset DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS committed_at
  FROM follows AS w
    JOIN batch AS b ON b.capture = w.capture AND b.topic = w.topic AND b.partition = w.partition
      AND b.base_offset >= w.first_offset
    LEFT JOIN fetched AS f ON f.capture = w.capture AND f.group_id = w.group_id AND f.topic = w.topic
      AND f.partition = w.partition AND f.base_offset = b.base_offset
), moments AS (
  SELECT capture, (received_at DIV 10000000 + 1) * 10000000 AS at FROM named
  UNION
  SELECT capture, (fetched_at DIV 10000000 + 1) * 10000000 FROM named WHERE fetched_at IS NOT NULL
), ended AS (
  SELECT c.capture, unix_micros(c.last_time) AS at FROM captures AS c
), steps AS (
  SELECT m.capture, m.at FROM moments AS m JOIN ended AS e ON e.capture = m.capture AND m.at < e.at
  UNION
  SELECT capture, at FROM ended
), events AS (
  SELECT capture, group_id, topic, partition, fetched_at AS at, 0 AS is_step,
    sent_at, received_at FROM every_batch
  UNION ALL
  SELECT w.capture, w.group_id, w.topic, w.partition, s.at, 1, NULL, NULL
  FROM follows AS w JOIN steps AS s ON s.capture = w.capture AND s.at >= w.since
), commit_events AS (
  SELECT capture, group_id, topic, partition, committed_at AS at, 0 AS is_step,
    sent_at, received_at FROM every_batch
  UNION ALL
  SELECT w.capture, w.group_id, w.topic, w.partition, s.at, 1, NULL, NULL
  FROM follows AS w JOIN steps AS s ON s.capture = w.capture AND s.at >= w.since
  WHERE w.commits
), waiting AS (
  SELECT *, min(sent_at) OVER (PARTITION BY capture, group_id, topic, partition ORDER BY if(at IS NULL, 1, 0), at, is_step, received_at
      ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS oldest
  FROM events
), uncommitted AS (
  SELECT *, min(sent_at) OVER (PARTITION BY capture, group_id, topic, partition ORDER BY if(at IS NULL, 1, 0), at, is_step, received_at
      ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS oldest
  FROM commit_events
)
SELECT timestamp_micros(w.at) AS time, w.group_id, w.topic, w.partition,
  if(w.oldest IS NULL OR w.oldest > w.at, 0, w.at - w.oldest) AS lag_us,
  CASE WHEN u.at IS NULL THEN NULL WHEN u.oldest IS NULL OR u.oldest > u.at THEN 0 ELSE u.at - u.oldest END AS commit_lag_us
FROM waiting AS w LEFT JOIN uncommitted AS u ON u.capture = w.capture AND u.group_id = w.group_id AND u.topic = w.topic
  AND u.partition = w.partition AND u.at = w.at AND u.is_step = 1
WHERE w.is_step = 1
ORDER BY time, group_id, topic, partition, lag_us, commit_lag_us
