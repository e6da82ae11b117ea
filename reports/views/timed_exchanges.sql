-- How long did each exchange take, apart from what it waited behind others and on purpose?
-- The groundwork of the questions about latency. On purpose waits a Fetch until there is data, a JoinGroup for the other
-- members, the answer to a refused login 100 ms. How long is in `exchanges.hold_us`, where it can be told; else `held_us`
-- and `served_us` are null. Datasets without meaning (`--no-meaning`, those of earlier versions) are judged by what an
-- exchange says of itself: there it cannot be told of a Fetch that was answered before its time was up.
-- capture: name of the capture point.
-- connection: the exchange's connection.
-- exchange: ordinal of its request in the connection.
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- broker_ip: address of the broker.
-- broker_port: its TCP port.
-- broker: `ip:port` that the client connected to. To count by broker, count by the two before: text takes long to make.
-- api_key: Kafka's number of the API.
-- api: Kafka's name of the API.
-- api_version: its version.
-- time: first byte of the request; for a response without request, of it.
-- latency_us: from the request's last byte to the response's first.
-- queue_us: of it behind earlier requests of its connection, which the broker answers first.
-- muted_us: of it, waited because of a throttle.
-- taken_us: the rest of the latency.
-- waits: what it may have waited for on purpose: `data` (fetches, up to max_wait_ms), `members` (joining a group),
--   `replicas` (Produce with acks=all), `penalty` (a refused login).
-- held_us: of taken_us, what was waited for on purpose; null: that cannot be told.
-- served_us: the rest of it: what broker and network took; null: that cannot be told.
-- own_us: what percentiles are of: of what waits for data or members the time that was not held, `served_us`; of others,
--   and where nothing was worked out, `taken_us`.
-- network_us: transfers, and the way between the capture point and the broker.
-- broker_us: what the broker itself took; null: that cannot be told.
-- cause: the largest part of it all.
-- max_wait_ms: Fetch: how long the broker may wait for data.
-- error_code: first error of the response.
-- error: its name.
-- request_bytes: size of the request.
-- response_bytes: size of the response.
-- topics: topics that it names, ids among them.
WITH timed AS (
  SELECT capture, connection, exchange, client_id, client_ip, broker_ip, broker_port,
    concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker,
    api_key, api, api_version, coalesce(request_time, response_time) AS time, latency_us, queue_us,
    muted_us, hold_us, network_us, broker_us, cause,
    latency_us - coalesce(queue_us, 0) - coalesce(muted_us, 0) AS taken_us, max_wait_ms,
    CAST(max_wait_ms AS BIGINT) * 1000 AS max_wait_us,
    throttle_us, acks, error_code, error, request_bytes, response_bytes, topics
  FROM exchanges
), held AS (
  SELECT *,
    CASE
      WHEN taken_us IS NULL THEN NULL
      WHEN cause IS NOT NULL THEN hold_us
      WHEN api_key IN (1, 78) THEN
        CASE
          -- A millisecond for clocks and rounding; what is over is the broker's.
          WHEN max_wait_us > 0 AND taken_us >= max_wait_us - 1000 THEN least(max_wait_us, taken_us)
          WHEN error_code <> 0 OR throttle_us > 0 OR max_wait_us = 0 OR taken_us < 1500 THEN 0
        END
      -- Errors send members away at once.
      WHEN api_key = 11 THEN if(error_code <> 0 OR taken_us < 5000, 0, taken_us - 2000)
      WHEN api_key = 14 THEN if(error_code <> 0 OR taken_us < 5000, 0, NULL)
      WHEN api_key = 36 AND error_code = 58 THEN least(100000, taken_us)
      ELSE 0
    END AS held_us
  FROM timed
)
SELECT capture, connection, exchange, client_id, client_ip, broker_ip, broker_port, broker, api_key, api, api_version,
  time, latency_us, queue_us, muted_us, taken_us,
  CASE
    WHEN api_key IN (1, 78) THEN 'data' WHEN api_key IN (11, 14) THEN 'members'
    WHEN api_key = 0 AND acks = -1 THEN 'replicas' WHEN api_key = 36 AND error_code = 58 THEN 'penalty'
  END AS waits,
  held_us, taken_us - held_us AS served_us,
  if(api_key IN (1, 78, 11, 14) AND cause IS NOT NULL, taken_us - hold_us, taken_us) AS own_us, network_us, broker_us,
  cause, max_wait_ms, error_code, error, request_bytes, response_bytes, topics
FROM held
