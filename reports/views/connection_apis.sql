-- What does each connection ask for, in which versions, and how does it fare?
-- The groundwork of questions that count exchanges and add up their sizes: one walk over all exchanges, instead of one each.
-- capture: name of the capture point.
-- connection: the connection.
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- broker_ip: address of the broker.
-- broker_port: its port.
-- api_key: Kafka's number of the API.
-- api: Kafka's name of the API.
-- api_version: its version.
-- status: what became of the exchanges.
-- asked: their requests were seen.
-- exchanges: how many.
-- errors: those whose response holds an error.
-- undecoded: those of which a message was not decoded.
-- unread: those that were answered, of which so little was captured or decoded that nobody knows whether with an error.
-- request_bytes: sizes of the requests together.
-- response_bytes: sizes of the responses together.
-- first_time: first request.
-- last_time: last request.
-- muted: those whose response says a throttle time, 0 among them.
-- delayed: those of which it is not 0.
-- max_throttle_us: the longest.
-- throttle_us: all together.
SELECT capture, connection, client_id, client_ip, broker_ip, broker_port, api_key, api, api_version, status,
  exchange IS NOT NULL AS asked, count(*) AS exchanges, count_if(error_code <> 0) AS errors,
  count_if(request_state <> 'decoded' OR response_state <> 'decoded') AS undecoded,
  count_if(status = 'answered' AND error_code IS NULL) AS unread,
  sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes,
  min(request_time) AS first_time, max(request_time) AS last_time, count(throttle_us) AS muted,
  count_if(throttle_us > 0) AS delayed, max(throttle_us) AS max_throttle_us, sum(throttle_us) AS throttle_us
FROM exchanges
GROUP BY ALL
