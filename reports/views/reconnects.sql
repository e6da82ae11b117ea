-- Which clients open connections again and again?
-- By minutes of the clock: a burst over a minute's end counts for less than it is.
-- client_id: first client id of the connections.
-- client_ip: address of the client.
-- broker: `ip:port` of the broker.
-- time: beginning of the minute in which it opened most.
-- opened: connections whose SYN was seen in that minute.
-- brief: of these, closed within five seconds.
-- connections: all that it opened.
WITH lives AS (
  SELECT capture, client_id, client_ip,
    concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker,
    date_trunc('minute', first_time) AS time,
    if(closed <> 'open' AND last_time < first_time + INTERVAL 5 SECOND, 1, 0) AS brief
  FROM connections
  WHERE opened
), minutes AS (
  SELECT capture, client_id, client_ip, broker, time, count(*) AS opened, sum(brief) AS brief
  FROM lives
  GROUP BY capture, client_id, client_ip, broker, time
), ranked AS (
  SELECT *, row_number() OVER (PARTITION BY client_id, client_ip, broker ORDER BY opened DESC, time, capture) AS place,
    sum(opened) OVER (PARTITION BY client_id, client_ip, broker) AS connections
  FROM minutes
)
SELECT client_id, client_ip, broker, time, opened, brief, connections
FROM ranked
WHERE place = 1
ORDER BY opened DESC, client_id, client_ip, broker
