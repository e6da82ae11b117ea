-- Whose requests never got an answer?
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- broker: `ip:port` that it asked.
-- api: Kafka's name of the API.
-- requests: requests without an answer, on a connection that closed or on which later ones were answered.
-- first_time: the first of them.
SELECT client_id, client_ip,
  concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker, api,
  count(*) AS requests, min(request_time) AS first_time
FROM exchanges
WHERE status = 'unanswered'
GROUP BY ALL
ORDER BY requests DESC, client_id, client_ip, broker, api
