-- How well do clients and brokers reach each other?
-- client_id: first client id of the connections.
-- client_ip: address of the client.
-- broker: `ip:port` of the broker.
-- connections: how many connections.
-- handshakes: those whose handshake was captured.
-- rtt_p50_us: the smallest time that at least half of the handshakes did not exceed.
-- rtt_max_us: the longest handshake.
-- requests: how many requests.
-- retransmissions: packets whose bytes were sent again.
-- out_of_order: packets that came after later ones.
-- zero_windows: packets that say that the receiver has no room.
-- gaps: holes in the byte streams that were never filled.
-- resets: connections that ended with RST.
-- short: connections that opened and closed within a second.
-- client_bytes: payload that the client sent, every copy counted.
-- broker_bytes: payload that the broker sent, every copy counted.
WITH placed AS (
  SELECT *, concat(if(contains(broker_ip, ':'), concat('[', broker_ip, ']'), broker_ip), ':', broker_port) AS broker,
    count(rtt_us) OVER (PARTITION BY client_id, client_ip, broker_ip, broker_port ORDER BY rtt_us) AS upto,
    count(rtt_us) OVER (PARTITION BY client_id, client_ip, broker_ip, broker_port) AS timed
  FROM connections
)
SELECT client_id, client_ip, broker, count(*) AS connections, count(rtt_us) AS handshakes,
  min(if(2 * upto >= timed, rtt_us, NULL)) AS rtt_p50_us, max(rtt_us) AS rtt_max_us, sum(requests) AS requests,
  sum(retransmissions) AS retransmissions,
  sum(out_of_order) AS out_of_order, sum(zero_windows) AS zero_windows, sum(gaps) AS gaps,
  count_if(closed = 'rst') AS resets,
  count_if(opened AND closed <> 'open' AND last_time < first_time + INTERVAL 1 SECOND) AS short,
  sum(client_bytes) AS client_bytes, sum(broker_bytes) AS broker_bytes
FROM placed
GROUP BY client_id, client_ip, broker
ORDER BY requests DESC, client_id, client_ip, broker
