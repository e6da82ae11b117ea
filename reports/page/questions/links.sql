-- How did the connections fare, in numbers?
-- connections: how many.
-- clients: different addresses of clients.
-- brokers: different addresses of brokers.
-- packets: TCP packets of both sides.
-- retransmissions: packets whose bytes were sent again.
-- out_of_order: packets that came after later ones.
-- zero_windows: packets that say that the receiver has no room.
-- resets: connections that ended with RST.
-- payload_bytes: captured payload.
-- understood_bytes: of it decoded, or a copy.
-- encrypted_bytes: of it encrypted.
-- missing_bytes: not captured.
SELECT count(*) AS connections, count(DISTINCT client_ip) AS clients, count(DISTINCT broker_ip, broker_port) AS brokers,
  sum(client_packets + broker_packets) AS packets, sum(retransmissions) AS retransmissions,
  sum(out_of_order) AS out_of_order, sum(zero_windows) AS zero_windows, count_if(closed = 'rst') AS resets,
  sum(payload_bytes) AS payload_bytes, sum(decoded_bytes + duplicate_bytes) AS understood_bytes,
  sum(CASE WHEN decrypted THEN 0 ELSE opaque_encrypted_bytes END) AS encrypted_bytes,
  sum(gap_bytes + snaplen_bytes) AS missing_bytes
FROM connections
