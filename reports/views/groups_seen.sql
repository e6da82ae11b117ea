-- What did each group do?
-- group_id: the group.
-- protocol: how its members join: `classic`, `consumer` (KIP-848), `share` (KIP-932), `streams` (KIP-1071); null where
--   none was seen joining.
-- members: different member ids.
-- clients: different client ids that name it.
-- generations: different generations, or member epochs; more than one: it rebalanced.
-- joins: JoinGroup requests; of the newer protocols heartbeats with the epoch 0.
-- syncs: SyncGroup requests.
-- heartbeats: heartbeats of all protocols.
-- leaves: LeaveGroup requests; of the newer protocols heartbeats with the epochs -1 and -2.
-- commits: OffsetCommit and TxnOffsetCommit requests.
-- errors: exchanges whose response holds an error.
-- first_time: first request that names it.
-- last_time: last request that names it.
WITH counted AS (
  SELECT group_id, api_key, member_id, client_id, generation, count(*) AS exchanges,
    count_if(error_code <> 0) AS errors, min(request_time) AS first_time, max(request_time) AS last_time
  FROM exchanges
  WHERE group_id IS NOT NULL
  GROUP BY ALL
)
SELECT group_id,
  CASE WHEN count_if(api_key = 88) > 0 THEN 'streams' WHEN count_if(api_key = 76) > 0 THEN 'share'
    WHEN count_if(api_key = 68) > 0 THEN 'consumer' WHEN count_if(api_key IN (11, 12, 14)) > 0 THEN 'classic'
  END AS protocol,
  count(DISTINCT nullif(member_id, '')) AS members, count(DISTINCT client_id) AS clients,
  count(DISTINCT if(generation > 0, generation, NULL)) AS generations,
  sum(if(api_key = 11 OR api_key IN (68, 76, 88) AND generation = 0, exchanges, 0)) AS joins,
  sum(if(api_key = 14, exchanges, 0)) AS syncs,
  sum(if(api_key IN (12, 68, 76, 88), exchanges, 0)) AS heartbeats,
  sum(if(api_key = 13 OR api_key IN (68, 76, 88) AND generation < 0, exchanges, 0)) AS leaves,
  sum(if(api_key IN (8, 28), exchanges, 0)) AS commits, sum(errors) AS errors,
  min(first_time) AS first_time, max(last_time) AS last_time
FROM counted
GROUP BY group_id
ORDER BY sum(exchanges) DESC, group_id
