-- Which errors does each topic get?
-- Where a response says an error for each partition, the error counts for its topic; else for all topics of the exchange.
-- topic: name of the topic, or its id where no message said the name.
-- api: Kafka's name of the API.
-- error_code: Kafka's number of the error.
-- error: its name.
-- retriable: Kafka's clients send the same request again after this error, and may succeed.
-- exchanges: exchanges whose response holds it.
-- partitions: different partitions that it was said for; 0 where it was not said by partition.
-- first_time: first request that got it.
-- last_time: last request that got it.
WITH said AS (
  SELECT *, explode(topics) AS said FROM failed_exchanges
), failed AS (
  -- As `exchange_topics` has it: a topic that an exchange names by name and by id counts once.
  SELECT s.capture, s.connection, s.exchange, s.api, s.error_code, s.error, s.request_time, coalesce(n.topic, s.said) AS topic
  FROM said AS s LEFT JOIN named_topics AS n ON n.topic_id = s.said
  WHERE n.topic IS NULL OR NOT array_contains(s.topics, n.topic)
), by_partition AS (
  SELECT p.capture, p.connection, p.exchange, coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition,
    p.error_code, p.error
  FROM partitions AS p LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE p.error_code <> 0
), told AS (
  SELECT f.capture, f.connection, f.exchange, f.topic, f.api, f.error_code, f.error, f.request_time,
    CAST(NULL AS INT) AS partition
  FROM failed AS f LEFT ANTI JOIN by_partition AS b
    ON b.capture = f.capture AND b.connection = f.connection AND b.exchange = f.exchange
  UNION ALL
  SELECT b.capture, b.connection, b.exchange, b.topic, x.api, b.error_code, b.error, x.request_time, b.partition
  FROM by_partition AS b JOIN failed_exchanges AS x  -- an exchange of which a partition failed has failed
    ON x.capture = b.capture AND x.connection = b.connection AND x.exchange = b.exchange
)
SELECT t.topic, t.api, t.error_code, t.error, coalesce(k.retriable, false) AS retriable,
  count(DISTINCT t.capture, t.connection, t.exchange) AS exchanges, count(DISTINCT t.partition) AS partitions,
  min(t.request_time) AS first_time, max(t.request_time) AS last_time
FROM told AS t LEFT JOIN kafka_errors AS k ON k.error_code = t.error_code
GROUP BY ALL
ORDER BY exchanges DESC, t.topic, t.api, t.error_code
