-- What was captured?
-- capture: name of the capture point.
-- files: files it is made of.
-- file_bytes: their sizes together.
-- packets: packets in them.
-- tcp_packets: of these TCP.
-- dropped_packets: packets that the capture itself lost, where its files say so.
-- first_time: first packet.
-- last_time: last packet.
-- meaning: what its traffic means was worked out; without that it has no findings here.
SELECT capture, files, file_bytes, packets, tcp_packets, dropped_packets, first_time, last_time, meaning
FROM captures
ORDER BY first_time, capture
