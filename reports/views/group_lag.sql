-- How far behind is each group, by partition?
-- The last committed offset against the end of the partition as far as the capture knows it: the largest high watermark
-- that a fetch's answer said, or the end that the last produce's answer gives. A partition that nobody read or wrote
-- while the capture ran has no known end.
-- group_id: the group.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- commits: commits without an error.
-- failed: commits with an error.
-- committed_offset: the last committed offset.
-- commit_time: when it was committed.
-- end_offset: the end of the partition as far as known.
-- lag: offsets between the two; null where the end is not known.
-- client_id: who committed it.
WITH committed AS (
  SELECT x.group_id, coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition,
    count_if(p.error_code = 0) AS commits, count_if(p.error_code <> 0) AS failed,
    max_by(p.offset, struct(x.request_time, x.exchange)) FILTER (WHERE p.error_code = 0) AS committed_offset,
    max(x.request_time) FILTER (WHERE p.error_code = 0) AS commit_time,
    max_by(x.client_id, struct(x.request_time, x.exchange)) AS client_id
  FROM partitions AS p
    JOIN exchanges AS x ON x.capture = p.capture AND x.connection = p.connection AND x.exchange = p.exchange
    LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  -- OffsetCommit, and TxnOffsetCommit of a transactional producer; not OffsetFetch, which reads them
  WHERE p.offset_kind = 'committed' AND x.api_key IN (8, 28) AND x.group_id IS NOT NULL
  GROUP BY ALL
), ends AS (
  SELECT coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition,
    greatest(
      max(if(p.error_code = 0, p.high_watermark, NULL)),
      max(if(p.offset_kind = 'base' AND p.error_code = 0, p.offset + p.record_count, NULL))
    ) AS end_offset
  FROM partitions AS p LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE p.high_watermark IS NOT NULL OR p.offset_kind = 'base'
  GROUP BY ALL
)
SELECT c.group_id, c.topic, c.partition, c.commits, c.failed, c.committed_offset, c.commit_time, e.end_offset,
  greatest(e.end_offset - c.committed_offset, 0) AS lag, c.client_id
FROM committed AS c LEFT JOIN ends AS e ON e.topic = c.topic AND e.partition = c.partition
ORDER BY lag DESC, c.group_id, c.topic, c.partition
