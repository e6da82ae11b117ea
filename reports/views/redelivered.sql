-- Which records did a reader get more than once?
-- Batches of which more than one answer brought the end to the same group, or to the same client without a group: after a
-- rebalance or a restart before their commit, a seek back, or an answer that its client gave up.
-- kind: `consumer` or `share`.
-- group_id: the group; null: a client without one.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- batches: batches that it fetched.
-- again: of these, batches that it got more than once.
-- records: records in those; null where only compressed content of the older formats says how many.
-- record_bytes: their size.
-- most: how often it got the most frequent of them.
-- first_offset: the first offset in them.
-- last_offset: the last.
-- uncommitted: of these batches, those that the group never committed while the capture ran.
WITH fetched AS (
  SELECT j.kind, j.group_id, if(j.group_id IS NULL, j.reader_client, NULL) AS client,
    coalesce(j.topic, n.topic, j.topic_id) AS topic, j.partition, j.base_offset, j.last_offset, j.records, j.record_bytes,
    j.fetches, j.committed
  FROM journeys AS j LEFT JOIN named_topics AS n ON n.topic_id = j.topic_id
  WHERE j.kind IN ('consumer', 'share') AND j.fetches IS NOT NULL
)
SELECT kind, group_id, topic, partition, count(*) AS batches, count_if(fetches > 1) AS again,
  sum(if(fetches > 1, records, NULL)) AS records, sum(if(fetches > 1, record_bytes, NULL)) AS record_bytes,
  max(fetches) AS most, min(if(fetches > 1, base_offset, NULL)) AS first_offset,
  max(if(fetches > 1, coalesce(last_offset, base_offset), NULL)) AS last_offset,
  count_if(fetches > 1 AND committed IS NULL) AS uncommitted
FROM fetched
GROUP BY kind, group_id, client, topic, partition
HAVING count_if(fetches > 1) > 0
ORDER BY again DESC, kind, group_id, topic, partition, batches, first_offset, client
