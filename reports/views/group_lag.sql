-- How far behind is each group, by partition?
-- The last committed offset against the end of the partition as far as the capture knows it: the largest high watermark
-- that a fetch's answer said, the end that the last produce's answer gives, or what ListOffsets said, unless that may be
-- where the partition begins. A partition of which nobody asked while the capture ran has no known end. A lag
-- counts offsets, and not each is a record: markers and aborted transactions have some, compacted records keep theirs.
-- A client may fetch far ahead of what it processes: so the lag by commits and that by fetches stand side by side. Fetches
-- are those of clients that name no other group. For who reads committed data a partition ends at the last stable offset,
-- where an open transaction holds that at the last fetch.
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
-- fetch_offset: the offset after the last record that the group fetched; null where none of its fetches is known.
-- fetch_lag: offsets between that and the end.
-- isolation_level: of these fetches: 0 read uncommitted, 1 read committed.
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
), members AS (
  SELECT capture, client_id, client_ip, min(group_id) AS group_id
  FROM (SELECT DISTINCT capture, client_id, client_ip, group_id FROM exchanges WHERE group_id IS NOT NULL)
  GROUP BY capture, client_id, client_ip
  HAVING count(*) = 1
), fetched AS (
  SELECT m.group_id, coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition,
    max(p.high_watermark - p.lag) AS fetch_offset, max(x.isolation_level) AS isolation_level,
    -- where the last answer says that an open transaction holds it; -1: it does not
    max_by(if(p.last_stable_offset < p.high_watermark, p.last_stable_offset, -1),
      struct(x.response_time, x.connection, x.exchange)) AS held_at
  FROM partitions AS p
    JOIN exchanges AS x ON x.capture = p.capture AND x.connection = p.connection AND x.exchange = p.exchange
    JOIN members AS m ON m.capture = x.capture AND m.client_id <=> x.client_id AND m.client_ip <=> x.client_ip
    LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE x.api_key = 1 AND p.error_code = 0 AND p.lag IS NOT NULL
  GROUP BY ALL
), ends AS (
  SELECT coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition,
    greatest(
      max(if(p.error_code = 0, p.high_watermark, NULL)),
      max(if(p.offset_kind = 'base' AND p.error_code = 0, p.offset + p.record_count, NULL))
    ) AS end_offset,
    max(if(p.offset_kind = 'listed' AND p.error_code = 0, p.offset, NULL)) AS listed,
    least(
      min(if(p.offset_kind = 'listed' AND p.error_code = 0, p.offset, NULL)), min(p.log_start_offset)
    ) AS begins
  FROM partitions AS p LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE p.high_watermark IS NOT NULL OR p.offset_kind IN ('base', 'listed')
  GROUP BY ALL
), known AS (
  SELECT c.*, f.fetch_offset, f.isolation_level, CASE
      WHEN f.isolation_level = 1 AND f.held_at >= 0 THEN f.held_at
      WHEN e.listed > c.committed_offset OR e.listed = c.committed_offset AND e.listed > e.begins
      THEN greatest(e.end_offset, e.listed)
      ELSE e.end_offset
    END AS end_offset
  FROM committed AS c LEFT JOIN ends AS e ON e.topic = c.topic AND e.partition = c.partition
    LEFT JOIN fetched AS f ON f.group_id = c.group_id AND f.topic = c.topic AND f.partition = c.partition
)
SELECT group_id, topic, partition, commits, failed, committed_offset, commit_time, end_offset,
  if(end_offset < committed_offset, 0, end_offset - committed_offset) AS lag, client_id,
  fetch_offset, if(end_offset < fetch_offset, 0, end_offset - fetch_offset) AS fetch_lag, isolation_level
FROM known
ORDER BY lag DESC, group_id, topic, partition
