-- What happened when: who joined and left, which leaders changed, what failed, which transactions ended?
-- Errors of the protocol's course are left out. KIP-848 members join and leave by the epoch in their heartbeats.
-- capture: name of the capture point.
-- time: when it was answered, or seen.
-- kind: `join`, `leave`, `leader`, `error`, `transaction`, `login`, `reset`.
-- client_id: the client.
-- what: the group, topic-partition, transactional id or broker that it is about.
-- detail: more of it.
-- connection: connection of the exchange; null for what several said.
-- exchange: ordinal of the request in it.
WITH few AS (
  SELECT capture, connection, exchange, client_id, api_key, group_id, member_id, generation, transactional_id,
    response_time, error_code
  FROM exchanges
  WHERE api_key IN (11, 13, 22, 26, 36, 68, 76, 88) AND error_code = 0
    -- The newer protocols' heartbeats join with the epoch 0, and leave with one below.
    AND (api_key NOT IN (68, 76, 88) OR generation <= 0)
), members AS (
  SELECT capture, response_time AS time,
    CASE
      WHEN api_key = 11 THEN 'join' WHEN api_key = 13 THEN 'leave'
      WHEN api_key IN (68, 76, 88) AND generation = 0 THEN 'join'
      WHEN api_key IN (68, 76, 88) AND generation < 0 THEN 'leave'
      WHEN api_key = 36 THEN 'login'
      WHEN api_key IN (22, 26) AND transactional_id IS NOT NULL THEN 'transaction'
    END AS kind,
    client_id, coalesce(group_id, transactional_id) AS what,
    CASE
      WHEN api_key = 11 THEN concat('generation ', generation) WHEN api_key = 22 THEN 'begins (InitProducerId)'
      WHEN api_key = 26 THEN 'ends (EndTxn)'
    END AS detail,
    connection, exchange
  FROM few
)
SELECT capture, time, kind, client_id, what, detail, connection, exchange FROM members WHERE kind IS NOT NULL
UNION ALL
SELECT capture, from_time AS time, 'leader' AS kind, CAST(NULL AS STRING) AS client_id, concat(topic, '-', partition) AS what,
  concat(coalesce(CAST(previous_leader AS STRING), 'none'), ' to ', coalesce(CAST(leader AS STRING), 'none')) AS detail,
  CAST(NULL AS STRING) AS connection, CAST(NULL AS BIGINT) AS exchange
FROM leader_changes
WHERE previous_leader IS NOT NULL AND NOT (leader <=> previous_leader)
UNION ALL
SELECT capture, first_time AS time, 'error' AS kind, client_id,
  coalesce(group_id, transactional_id, if(partition IS NULL, topic, concat(topic, '-', partition))) AS what,
  concat(api, ': ', coalesce(error, CAST(error_code AS STRING)), if(answers > 1, concat(', ', answers, ' times'), '')) AS detail,
  CAST(NULL AS STRING) AS connection, CAST(NULL AS BIGINT) AS exchange
FROM error_runs
WHERE judgement <> 'normal' OR fault
UNION ALL
SELECT capture, last_time AS time, 'reset' AS kind, client_id,
  concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS what,
  'the connection ended with RST' AS detail, connection, CAST(NULL AS BIGINT) AS exchange
FROM connections
WHERE closed = 'rst'
ORDER BY time, kind, client_id, what, detail, connection, exchange
