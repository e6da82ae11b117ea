-- Which topics does each exchange name?
-- One row for each exchange and topic; ids become names where some message said which.
-- capture: name of the capture point.
-- connection: the exchange's connection.
-- exchange: ordinal of its request in the connection.
-- api_key: Kafka's number of the API.
-- api: Kafka's name of the API.
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- request_time: first byte of the request.
-- latency_us: from the request's last byte to the response's first.
-- queue_us: of it behind earlier requests of its connection.
-- own_us: of it what percentiles are of, as in `timed_exchanges`.
-- error_code: first error of the response; it may belong to another topic of the exchange.
-- error: its name.
-- acks: Produce: `acks`, as sent.
-- group_id: first group that the request names.
-- transactional_id: first transactional id that the request names.
-- request_bytes: size of the request.
-- response_bytes: size of the response.
-- topic: name of the topic, or its id where no message said the name.
WITH said AS (
  SELECT capture, connection, exchange, api_key, api, client_id, client_ip, request_time, latency_us, queue_us,
    latency_us - coalesce(queue_us, 0) - coalesce(muted_us, 0)
      - if(api_key IN (1, 78, 11, 14) AND cause IS NOT NULL, hold_us, 0) AS own_us,
    error_code, error, acks, group_id, transactional_id, request_bytes, response_bytes, topics, explode(topics) AS said
  FROM exchanges
)
SELECT /*+ BROADCAST(named) */
  capture, connection, exchange, api_key, api, client_id, client_ip, request_time, latency_us, queue_us, own_us, error_code,
  error, acks, group_id, transactional_id, request_bytes, response_bytes, coalesce(named.topic, said.said) AS topic
FROM said LEFT JOIN named_topics AS named ON named.topic_id = said.said
-- A topic that an exchange names by name and by id counts once.
WHERE named.topic IS NULL OR NOT array_contains(said.topics, named.topic)
