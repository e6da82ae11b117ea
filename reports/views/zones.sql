-- How many bytes of records go from one zone to another, and whose are they?
-- A broker's zone is its rack, as Metadata says it; a client's is the rack that its fetches say (`client.rack`), or that of
-- the brokers at its address. `--zones FILE` says the zone of addresses, and goes before racks. Bytes are those of records
-- fields, as they were sent: compressed.
-- from_zone: zone of who sent them; null where nobody says it.
-- to_zone: zone of who got them.
-- crosses: the two are known and differ.
-- api: `Produce`, `Fetch` or `ShareFetch`; of followers too.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- topic: name of the topic, or its id where no message said the name.
-- record_bytes: bytes of its records.
-- exchanges: exchanges that carried them.
WITH said AS (
  SELECT capture, client_id, client_ip, max(rack_id) AS rack
  FROM exchanges
  WHERE rack_id IS NOT NULL AND rack_id <> ''
  GROUP BY capture, client_id, client_ip
), nodes AS (
  SELECT host, port, max(rack) AS rack FROM brokers WHERE rack IS NOT NULL GROUP BY host, port
), hosts AS (
  SELECT host, max(rack) AS rack FROM nodes GROUP BY host HAVING min(rack) = max(rack)
), carried AS (
  SELECT x.capture, x.client_id, x.client_ip, x.broker_ip, x.broker_port, x.api, x.api_key,
    coalesce(p.topic, n.topic, p.topic_id) AS topic, sum(p.record_bytes) AS record_bytes, count(*) AS exchanges
  FROM partitions AS p
    JOIN exchanges AS x ON x.capture = p.capture AND x.connection = p.connection AND x.exchange = p.exchange
    LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE x.api_key IN (0, 1, 78) AND p.record_bytes > 0
  GROUP BY ALL
), placed AS (
  SELECT c.client_id, c.client_ip, c.api, c.api_key, c.topic, c.record_bytes, c.exchanges,
    coalesce(cz.zone, s.rack, h.rack) AS client_zone, coalesce(bz.zone, n.rack) AS broker_zone
  FROM carried AS c
    LEFT JOIN address_zones AS cz ON cz.address = c.client_ip
    LEFT JOIN address_zones AS bz ON bz.address = c.broker_ip
    LEFT JOIN said AS s ON s.capture = c.capture AND s.client_id <=> c.client_id AND s.client_ip = c.client_ip
    LEFT JOIN hosts AS h ON h.host = c.client_ip
    LEFT JOIN nodes AS n ON n.host = c.broker_ip AND n.port = c.broker_port
)
SELECT if(api_key = 0, client_zone, broker_zone) AS from_zone, if(api_key = 0, broker_zone, client_zone) AS to_zone,
  client_zone IS NOT NULL AND broker_zone IS NOT NULL AND client_zone <> broker_zone AS crosses,
  api, client_id, client_ip, topic, sum(record_bytes) AS record_bytes, sum(exchanges) AS exchanges
FROM placed
GROUP BY ALL
ORDER BY record_bytes DESC, api, client_id, client_ip, topic, from_zone, to_zone
