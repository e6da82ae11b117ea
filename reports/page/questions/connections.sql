-- Which connections were there?
-- The busiest first.
-- connection: client and broker; the number after `#` counts the uses of the same ports.
-- client_id: first client id on it.
-- software_name: the client library.
-- software_version: its version.
-- sasl_mechanism: how it logged in.
-- tls: it is encrypted.
-- first_time: first packet.
-- last_time: last packet.
-- rtt_us: handshake.
-- requests: requests on it.
-- errors: exchanges with an error.
-- client_bytes: payload that the client sent.
-- broker_bytes: payload that the broker sent.
-- retransmissions: packets whose bytes were sent again.
-- gaps: holes that were never filled.
-- closed: how it ended: `fin`, `rst` or `open`.
SELECT connection, client_id, software_name, software_version, sasl_mechanism, tls, first_time, last_time, rtt_us,
  requests, errors, client_bytes, broker_bytes, retransmissions, gaps, closed
FROM connections
ORDER BY requests DESC, first_time, connection
