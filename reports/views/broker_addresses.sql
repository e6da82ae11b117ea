-- Which brokers does the cluster say it has?
-- From Metadata and DescribeCluster; what connections reach may be others (a load balancer, a proxy).
-- capture: name of the capture point.
-- node_id: broker's id.
-- host: host that it advertises.
-- port: port that it advertises.
-- rack: its rack.
-- partitions_led: partitions that it was said to lead last.
WITH last AS (
  SELECT capture, coalesce(topic_id, topic) AS topic, partition, max_by(leader, struct(time, leader_epoch)) AS leader
  FROM leaders
  GROUP BY ALL
), led AS (
  SELECT capture, leader, count(*) AS partitions FROM last GROUP BY capture, leader
)
SELECT b.capture, b.node_id, b.host, b.port, b.rack, coalesce(l.partitions, 0) AS partitions_led
FROM brokers AS b LEFT JOIN led AS l ON l.capture = b.capture AND l.leader = b.node_id
ORDER BY b.capture, b.node_id
