-- In which connections was no Kafka found?
-- capture: name of the capture point.
-- connection: the two ends.
-- payload_bytes: captured payload.
-- looks_like: what its first bytes look like.
SELECT capture, connection, payload_bytes, looks_like
FROM unrecognised
ORDER BY payload_bytes DESC, capture, connection
