-- Which clients were throttled by their quota, and for how long?
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- api: Kafka's name of the API.
-- exchanges: its exchanges that say how long they are throttled, zero included.
-- throttled: those throttled for more than zero.
-- max_us: the longest throttling.
-- total_us: all of it together.
SELECT client_id, client_ip, api, count(throttle_us) AS exchanges, count_if(throttle_us > 0) AS throttled,
  max(throttle_us) AS max_us, sum(throttle_us) AS total_us
FROM exchanges
GROUP BY client_id, client_ip, api
HAVING max_us > 0
ORDER BY total_us DESC, client_id, client_ip, api
