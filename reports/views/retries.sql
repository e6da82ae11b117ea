-- Which batches did a producer send again?
-- The same producer id, epoch and sequence to the same partition: the first answer did not come, or was an error. Needs
-- `--records batches` or more, and an idempotent producer: others leave no trace of a retry.
-- capture: name of the capture point.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- producer_id: id of the producer.
-- producer_epoch: its epoch.
-- base_sequence: its number for the batch's first record.
-- client_id: its client id.
-- times: how often the batch was sent.
-- connections: over how many connections.
-- records: records in it.
-- batch_bytes: its size.
-- first_time: the first time.
-- last_time: the last time.
-- results: how each was answered, in order of sending: an error, `ok`, or `no answer`.
WITH named AS (
  SELECT b.capture, b.connection, b.exchange, coalesce(b.topic, n.topic, b.topic_id) AS topic, b.topic AS said_topic,
    b.topic_id, b.partition, b.producer_id, b.producer_epoch, b.base_sequence, b.record_count, b.batch_bytes
  FROM batches AS b LEFT JOIN named_topics AS n ON n.topic_id = b.topic_id
  WHERE b.side = 'produce' AND b.producer_id >= 0 AND b.base_sequence >= 0 AND NOT coalesce(b.is_control, false)
), again AS (
  SELECT capture, topic, partition, producer_id, producer_epoch, base_sequence
  FROM named
  GROUP BY ALL
  HAVING count(*) > 1
), sent AS (
  SELECT n.* FROM named AS n LEFT SEMI JOIN again AS a ON a.capture = n.capture AND a.topic = n.topic
    AND a.partition = n.partition AND a.producer_id = n.producer_id AND a.producer_epoch = n.producer_epoch
    AND a.base_sequence = n.base_sequence
), answered AS (
  SELECT s.*, x.client_id, x.request_time,
    coalesce(p.error, if(p.error_code = 0, 'ok', if(x.status = 'answered', coalesce(x.error, 'ok'), 'no answer')))
      AS result
  FROM sent AS s
    JOIN exchanges AS x ON x.capture = s.capture AND x.connection = s.connection AND x.exchange = s.exchange
    LEFT JOIN partitions AS p ON p.capture = s.capture AND p.connection = s.connection AND p.exchange = s.exchange
      AND p.partition = s.partition AND p.topic <=> s.said_topic AND p.topic_id <=> s.topic_id
)
SELECT capture, topic, partition, producer_id, producer_epoch, base_sequence, max(client_id) AS client_id,
  count(*) AS times, count(DISTINCT connection) AS connections, max(record_count) AS records,
  max(batch_bytes) AS batch_bytes, min(request_time) AS first_time, max(request_time) AS last_time,
  array_join(transform(array_sort(collect_list(struct(request_time, connection, result))), r -> r.result), ', ')
    AS results
FROM answered
GROUP BY capture, topic, partition, producer_id, producer_epoch, base_sequence
ORDER BY times DESC, first_time, topic, partition
