-- Which client uses an API version that a Kafka release does not have?
-- One row for each release: ask `WHERE release = '4.0'`. A client that negotiates versions (all since Kafka 0.10) may
-- have an older or newer version to fall back on; one that does not breaks. Versions that a release calls unstable
-- do not count. ApiVersions itself is left out where it is too new: brokers answer that in a form all clients know.
-- release: the Kafka release.
-- client_id: client id of the request header.
-- software_name: the client library, where it said so.
-- software_version: its version.
-- addresses: addresses it came from, at most 20 of them.
-- api: Kafka's name of the API.
-- api_version: the version it uses.
-- min: lowest version that the release has; null: it does not have the API.
-- max: highest version that the release has.
-- problem: `API is gone`, `version is gone`, `not there yet` (the release is older than what is used).
-- sender: `broker` for APIs that only brokers send each other: they go with their broker's own upgrade.
-- exchanges: how many requests of it.
WITH targets AS (
  SELECT release, min(position) AS position FROM kafka_releases GROUP BY release
), first_releases AS (
  SELECT api_key, min(position) AS first_position FROM kafka_releases GROUP BY api_key
), used AS (
  SELECT client_id, software_name, software_version, api_key, api, api_version,
    array_join(slice(array_sort(collect_set(client_ip)), 1, 20), ', ') AS addresses, sum(exchanges) AS exchanges
  FROM api_versions_used
  GROUP BY ALL
)
SELECT t.release, u.client_id, u.software_name, u.software_version, u.addresses, u.api, u.api_version, r.min, r.max,
  CASE
    WHEN r.api_key IS NULL AND t.position > f.first_position THEN 'API is gone'
    WHEN u.api_version < r.min THEN 'version is gone'
    ELSE 'not there yet'
  END AS problem,
  -- LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, WriteTxnMarkers, AlterPartition, Envelope,
  -- BrokerRegistration, BrokerHeartbeat, AllocateProducerIds, and Raft's votes, epochs and snapshots
  if(u.api_key IN (4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82), 'broker', 'client') AS sender,
  u.exchanges
FROM used AS u CROSS JOIN targets AS t
  LEFT JOIN kafka_releases AS r ON r.release = t.release AND r.api_key = u.api_key
  LEFT JOIN first_releases AS f ON f.api_key = u.api_key
WHERE (r.api_key IS NULL OR u.api_version NOT BETWEEN r.min AND r.max)
  AND NOT (u.api_key = 18 AND u.api_version > coalesce(r.max, -1))
ORDER BY t.position DESC, u.exchanges DESC, u.client_id, u.api_key, u.api_version, u.software_name, u.software_version
