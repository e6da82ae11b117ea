-- Who leads which partition, from when to when?
-- From Metadata and from answers that send a client elsewhere; a row for each change that the capture point saw.
-- capture: name of the capture point.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- leader: node id of the leader; null: there was none.
-- broker: its host and port for clients, where known.
-- leader_epoch: its epoch.
-- isr: node ids of the in-sync replicas, where said.
-- from_time: when it was first said.
-- to_time: when another was said; null: until the end.
-- previous_leader: who led before; null: nobody is known.
WITH named AS (
  SELECT l.capture, coalesce(l.topic, n.topic, l.topic_id) AS topic, l.partition, l.leader, l.leader_epoch, l.isr,
    l.time
  FROM leaders AS l LEFT JOIN named_topics AS n ON n.topic_id = l.topic_id
), known AS (
  SELECT capture, node_id, concat(host, ':', port) AS broker FROM broker_addresses
)
SELECT l.capture, l.topic, l.partition, l.leader, k.broker, l.leader_epoch, array_join(l.isr, ', ') AS isr,
  l.time AS from_time, lead(l.time) OVER seen AS to_time, lag(l.leader) OVER seen AS previous_leader
FROM named AS l LEFT JOIN known AS k ON k.capture = l.capture AND k.node_id = l.leader
WINDOW seen AS (PARTITION BY l.capture, l.topic, l.partition ORDER BY l.time, l.leader_epoch)
ORDER BY l.capture, l.topic, l.partition, from_time
