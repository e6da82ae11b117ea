-- Which exchanges took longest?
-- The first thousand. Those that wait on purpose are among them: see `waits`.
-- capture: name of the capture point.
-- connection: the exchange's connection.
-- exchange: ordinal of its request in the connection.
-- request_time: first byte of the request.
-- api: Kafka's name of the API.
-- api_version: its version.
-- client_id: client id of the request header.
-- latency_us: from the request's last byte to the response's first.
-- waits: what it may have waited for on purpose: `data` (fetches, up to max_wait_ms), `members` (joining a group).
-- max_wait_ms: Fetch: how long the broker may wait for data.
-- request_bytes: size of the request.
-- response_bytes: size of the response.
-- error: first error of the response.
-- topics: topics that it names.
WITH slowest AS (
  SELECT capture, connection, exchange, request_time, api_key, api, api_version, client_id, latency_us, max_wait_ms,
    request_bytes, response_bytes, error, topics
  FROM exchanges
  WHERE latency_us IS NOT NULL
  ORDER BY latency_us DESC, capture, connection, exchange
  LIMIT 1000
), names AS (
  SELECT map_from_entries(collect_list(struct(topic_id, topic))) AS known FROM named_topics
)
SELECT capture, connection, exchange, request_time, api, api_version, client_id, latency_us,
  CASE WHEN api_key IN (1, 78) THEN 'data' WHEN api_key IN (11, 14) THEN 'members' END AS waits,
  max_wait_ms, request_bytes, response_bytes, error,
  -- One row of names for all: a join would read the exchanges a second time.
  nullif(array_join(array_distinct(transform(topics, said -> coalesce(known[said], said))), ', '), '') AS topics
FROM slowest CROSS JOIN names
ORDER BY latency_us DESC, capture, connection, exchange
