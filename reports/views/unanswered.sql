-- Which requests never got an answer?
-- capture: name of the capture point.
-- connection: the exchange's connection.
-- exchange: ordinal of its request in the connection.
-- request_time: first byte of the request.
-- api: Kafka's name of the API.
-- api_version: its version.
-- client_id: client id of the request header.
-- status: `unanswered` (the connection closed, or later responses came) or `in_flight` (the capture ended first).
-- closed: how its connection ended: `fin`, `rst` or `open`.
-- request_bytes: size of the request.
-- reason: what is known of why.
WITH few AS (
  SELECT capture, connection, exchange, request_time, api, api_version, client_id, status, request_bytes, reason
  FROM exchanges
  WHERE status IN ('unanswered', 'in_flight')
)
SELECT x.capture, x.connection, x.exchange, x.request_time, x.api, x.api_version, x.client_id, x.status, c.closed,
  x.request_bytes, x.reason
FROM few AS x LEFT JOIN connections AS c ON c.capture = x.capture AND c.connection = x.connection
ORDER BY x.status DESC, x.request_time, x.capture, x.connection, x.exchange
