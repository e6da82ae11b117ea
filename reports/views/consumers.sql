-- Who consumes from which topic, and in which group?
-- A fetch does not say its group: it is that which the same client names elsewhere. After its first, a fetch names only
-- what changed (KIP-227), so that a consumer that began before the capture shows only topics that brought something.
-- topic: name of the topic, or its id where no message said the name.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- software_name: the client library, where it said so.
-- software_version: its version.
-- groups: groups that the client names, at most 5 of them.
-- partitions: different partitions that it asked for or got.
-- fetches: answers about a partition of the topic.
-- empty_share: of these, without records, from 0 to 1.
-- errors: of these, with an error.
-- record_bytes: sizes of the records fields together.
-- records: records that the batches' headers say.
-- max_lag: the largest distance of a fetch from the high watermark, in offsets.
WITH speakers AS (
  SELECT capture, connection, client_id, client_ip, sum(exchanges) AS said
  FROM connection_apis
  WHERE api_key IN (1, 78)
  GROUP BY capture, connection, client_id, client_ip
), used AS (
  SELECT client_id, client_ip, group_id, count(*) AS exchanges
  FROM exchanges
  WHERE group_id IS NOT NULL
  GROUP BY ALL
), named AS (
  SELECT client_id, client_ip, array_join(slice(array_sort(collect_set(group_id)), 1, 5), ', ') AS groups
  FROM used
  GROUP BY client_id, client_ip
), fetched AS (
  SELECT p.topic, s.client_id, s.client_ip, c.software_name, c.software_version,
    count(DISTINCT p.partition) AS partitions, sum(p.answers) AS fetches, sum(p.empty) AS empty,
    sum(p.errors) AS errors, sum(p.record_bytes) AS record_bytes, sum(p.records) AS records, max(p.max_lag) AS max_lag
  FROM partition_bytes AS p
    JOIN speakers AS s ON s.capture = p.capture AND s.connection = p.connection
    LEFT JOIN connections AS c ON c.capture = p.capture AND c.connection = p.connection
  WHERE p.side = 'fetch'
  GROUP BY ALL
)
SELECT f.topic, f.client_id, f.client_ip, f.software_name, f.software_version, n.groups, f.partitions, f.fetches,
  try_divide(f.empty, f.fetches) AS empty_share, f.errors, f.record_bytes, f.records, f.max_lag
FROM fetched AS f LEFT JOIN named AS n ON n.client_id <=> f.client_id AND n.client_ip <=> f.client_ip
ORDER BY f.record_bytes DESC, f.topic, f.client_id, f.client_ip
