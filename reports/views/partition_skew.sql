-- How evenly are the partitions of each topic used?
-- topic: name of the topic, or its id where no message said the name.
-- side: `produce` or `fetch`.
-- partitions: partitions that were used.
-- record_bytes: sizes of the records fields of all.
-- largest_partition: the partition with the most bytes, the lowest of several.
-- largest_bytes: how many.
-- largest_share: of all bytes, from 0 to 1.
-- skew: how many times the mean; 1 is even.
-- smallest_partition: the partition with the fewest bytes, the lowest of several.
-- smallest_bytes: how many.
WITH sums AS (
  SELECT topic, side, partition, sum(coalesce(record_bytes, 0)) AS held
  FROM partition_bytes
  GROUP BY topic, side, partition
)
SELECT topic, side, count(*) AS partitions, sum(held) AS record_bytes,
  max_by(partition, struct(held, -partition)) AS largest_partition,
  max(held) AS largest_bytes, try_divide(max(held), sum(held)) AS largest_share,
  try_divide(max(held) * count(*), sum(held)) AS skew,
  min_by(partition, struct(held, partition)) AS smallest_partition,
  min(held) AS smallest_bytes
FROM sums
GROUP BY topic, side
HAVING sum(held) > 0
ORDER BY sum(held) DESC, topic, side
