-- Which clients were throttled by their quota, and for how long?
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- api: Kafka's name of the API.
-- exchanges: its exchanges that say how long they are throttled, zero included.
-- throttled: those throttled for more than zero.
-- max_us: the longest throttling.
-- total_us: all of it together.
SELECT client_id, client_ip, api, sum(muted) AS exchanges, sum(delayed) AS throttled,
  max(max_throttle_us) AS max_us, sum(throttle_us) AS total_us
FROM connection_apis
GROUP BY client_id, client_ip, api
HAVING max_us > 0
ORDER BY total_us DESC, client_id, client_ip, api
