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
), named AS (
  SELECT capture, connection, exchange, array_join(collect_set(coalesce(n.topic, t.said)), ', ') AS topics
  FROM (SELECT capture, connection, exchange, explode(topics) AS said FROM slowest) AS t
    LEFT JOIN named_topics AS n ON n.topic_id = t.said
  GROUP BY capture, connection, exchange
)
SELECT s.capture, s.connection, s.exchange, s.request_time, s.api, s.api_version, s.client_id, s.latency_us,
  CASE WHEN s.api_key IN (1, 78) THEN 'data' WHEN s.api_key IN (11, 14) THEN 'members' END AS waits,
  s.max_wait_ms, s.request_bytes, s.response_bytes, s.error, named.topics
FROM slowest AS s LEFT JOIN named
  ON named.capture = s.capture AND named.connection = s.connection AND named.exchange = s.exchange
ORDER BY s.latency_us DESC, s.capture, s.connection, s.exchange
