-- Which exchanges took longest, apart from what they waited on purpose?
-- The first thousand. First those of which it can be told, then those of which it cannot: there `served_us` is null, and
-- `waits` says what they may have waited for.
-- capture: name of the capture point.
-- connection: the exchange's connection.
-- exchange: ordinal of its request in the connection.
-- request_time: first byte of the request.
-- api: Kafka's name of the API.
-- api_version: its version.
-- client_id: client id of the request header.
-- served_us: what broker and network took: the latency without the next two; null: that cannot be told.
-- queue_us: waited behind earlier requests of its connection.
-- held_us: waited on purpose; null: that cannot be told.
-- network_us: transfers, and the way between the capture point and the broker.
-- cause: the largest part of the whole time: `hold`, `broker`, `network`, `throttle`, `client` (behind its own requests).
-- waits: what it may have waited for on purpose: `data` (fetches, up to max_wait_ms), `members` (joining a group),
--   `replicas` (Produce with acks=all), `penalty` (a refused login).
-- latency_us: from the request's last byte to the response's first.
-- max_wait_ms: Fetch: how long the broker may wait for data.
-- request_bytes: size of the request.
-- response_bytes: size of the response.
-- error: first error of the response.
-- topics: topics that it names.
WITH slowest AS (
  SELECT capture, connection, exchange, time AS request_time, api, api_version, client_id, served_us, queue_us, held_us,
    network_us, cause, waits, latency_us, taken_us, max_wait_ms, request_bytes, response_bytes, error, topics
  FROM timed_exchanges
  WHERE latency_us IS NOT NULL
  ORDER BY served_us DESC NULLS LAST, taken_us DESC, capture, connection, exchange
  LIMIT 1000
), names AS (
  SELECT map_from_entries(collect_list(struct(topic_id, topic))) AS known FROM named_topics
)
SELECT capture, connection, exchange, request_time, api, api_version, client_id, served_us, queue_us, held_us, network_us, cause,
  waits, latency_us, max_wait_ms, request_bytes, response_bytes, error,
  -- One row of names for all: a join would read the exchanges a second time.
  nullif(array_join(array_distinct(transform(topics, said -> coalesce(known[said], said))), ', '), '') AS topics
FROM slowest CROSS JOIN names
ORDER BY served_us DESC NULLS LAST, taken_us DESC, capture, connection, exchange
