-- Who waits behind earlier requests of its own connection?
-- A broker takes up one request of a connection after the other: what waits there is the client's to mend.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- broker: `ip:port` of the broker.
-- api: Kafka's name of the API.
-- exchanges: how many.
-- queued: of these, those that waited.
-- queue_us: what they waited, together.
-- latency_us: latencies together, the waiting among it.
WITH counted AS (
  SELECT client_id, client_ip, broker_ip, broker_port, api, count(*) AS exchanges, count_if(queue_us > 0) AS queued,
    sum(queue_us) AS queue_us, sum(latency_us) AS latency_us
  FROM timed_exchanges
  WHERE queue_us IS NOT NULL
  GROUP BY ALL
)
SELECT client_id, client_ip,
  concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker, api,
  exchanges, queued, queue_us, latency_us
FROM counted
WHERE queue_us > 0
ORDER BY queue_us DESC, client_id, client_ip, broker, api
