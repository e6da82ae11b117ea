-- Which brokers does the cluster say it has?
-- From Metadata and DescribeCluster; what connections reach may be others (a load balancer, a proxy).
-- A node is listed once. Of its listeners the one that clients use comes first: that whose port was asked for Metadata or
-- sent Produce; a controller's comes last.
-- capture: name of the capture point.
-- node_id: id of the broker.
-- host: host that it advertises to clients.
-- port: port that it advertises to clients.
-- rack: its rack, where it has one.
-- other_addresses: `host:port` of its other listeners, as far as seen.
-- partitions_led: partitions that it was said to lead last.
WITH last AS (
  SELECT l.capture, coalesce(l.topic, n.topic, l.topic_id) AS topic, l.partition,
    max_by(l.leader, struct(l.time, l.leader_epoch)) AS leader
  FROM leaders AS l LEFT JOIN named_topics AS n ON n.topic_id = l.topic_id
  GROUP BY ALL
), led AS (
  SELECT capture, leader, count(*) AS partitions FROM last GROUP BY capture, leader
), spoken AS (
  -- Produce and Metadata are for brokers; Vote, BeginQuorumEpoch, FetchSnapshot, BrokerRegistration, BrokerHeartbeat are
  -- for controllers.
  SELECT capture, broker_port, sum(if(api_key IN (0, 3), exchanges, 0)) AS clients,
    sum(if(api_key IN (52, 53, 59, 62, 63), exchanges, 0)) AS nodes
  FROM connection_apis
  GROUP BY capture, broker_port
), addressed AS (
  SELECT capture, node_id, host, port, max(rack) AS rack FROM brokers GROUP BY capture, node_id, host, port
), placed AS (
  SELECT a.*, row_number() OVER (
      PARTITION BY a.capture, a.node_id
      ORDER BY coalesce(s.clients, 0) = 0, coalesce(s.nodes, 0) > 0, a.host, a.port
    ) AS place
  FROM addressed AS a LEFT JOIN spoken AS s ON s.capture = a.capture AND s.broker_port = a.port
)
SELECT p.capture, p.node_id, max(if(p.place = 1, p.host, NULL)) AS host, max(if(p.place = 1, p.port, NULL)) AS port,
  max(p.rack) AS rack,
  nullif(array_join(array_sort(collect_set(if(p.place > 1, concat(p.host, ':', p.port), NULL))), ', '), '')
    AS other_addresses,
  max(coalesce(l.partitions, 0)) AS partitions_led
FROM placed AS p LEFT JOIN led AS l ON l.capture = p.capture AND l.leader = p.node_id
GROUP BY p.capture, p.node_id
ORDER BY p.capture, p.node_id
