-- Which consumers fall behind what is written while the capture runs?
-- From the fetches of a partition, in steps of ten seconds, up to the high watermark, or to the last stable offset for who
-- reads committed data; where `rising` is most of `steps`, it never catches up.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- topic: name of the topic, or its id where no message said the name.
-- partition: partition index.
-- steps: steps of ten seconds with a fetch, beside the first.
-- rising: of these, with more lag at their end than the one before.
-- first_lag: offsets behind that end at the end of the first.
-- last_lag: the same at the end of the last.
-- first_time: the first of the fetches.
-- last_time: the last of them.
WITH behind AS (
  SELECT p.capture, x.client_id, x.client_ip, coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition,
    unix_micros(x.response_time) DIV 10000000 AS step,
    if(x.isolation_level = 1 AND p.last_stable_offset IS NOT NULL,
      greatest(p.lag - (p.high_watermark - p.last_stable_offset), 0), p.lag) AS lag, x.response_time AS time, x.connection, x.exchange
  FROM partitions AS p
    JOIN exchanges AS x ON x.capture = p.capture AND x.connection = p.connection AND x.exchange = p.exchange
    LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE p.lag IS NOT NULL AND p.error_code = 0
), steps AS (
  SELECT capture, client_id, client_ip, topic, partition, step, max_by(lag, struct(time, connection, exchange)) AS behind,
    min(time) AS first_time, max(time) AS last_time
  FROM behind
  GROUP BY capture, client_id, client_ip, topic, partition, step
), compared AS (
  SELECT *, lag(behind) OVER (
    PARTITION BY capture, client_id, client_ip, topic, partition ORDER BY step) AS before
  FROM steps
)
SELECT client_id, client_ip, topic, partition, count(before) AS steps, count_if(behind > before) AS rising,
  min_by(behind, step) AS first_lag, max_by(behind, step) AS last_lag,
  min(first_time) AS first_time, max(last_time) AS last_time
FROM compared
GROUP BY capture, client_id, client_ip, topic, partition
ORDER BY last_lag DESC, client_id, client_ip, topic, partition, first_time
