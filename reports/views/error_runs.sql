-- Which errors come again and again, to whom, until when, and are they faults?
-- A row is what a client was answered about one thing, time after time, until a good answer or the end. An error may belong
-- to the protocol's course, or pass by itself: such a run is a fault only if it lasts and no good answer ends it.
-- capture: name of the capture point.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- api: Kafka's name of the API.
-- group_id: the group that it is about.
-- transactional_id: the transactional id that it is about.
-- topic: the topic that it is about; where a response does not say which, the first that the request names.
-- partition: the partition that it is about; null where the response does not say it by partition.
-- error_code: Kafka's number of the error.
-- error: its name.
-- judgement: `normal` (part of the protocol's course), `transient` (passes by itself), `bad` (a fault at first sight),
--   `admin` (answer to what somebody asked): `error_judgements`.
-- fault: it is one: bad; or no good answer ends it, and it goes on for longer than such an error takes to pass.
-- answers: answers with the error in the run.
-- first_time: the first of them.
-- last_time: the last of them.
-- cleared: a good answer about the same came later.
-- why: what the error means.
WITH broken AS (
  SELECT p.capture, p.connection, p.exchange, coalesce(p.topic, n.topic, p.topic_id) AS topic, p.partition, p.error_code,
    p.error
  FROM partitions AS p LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
  WHERE p.error_code <> 0
), failures AS (
  SELECT x.capture, x.connection, x.exchange, x.client_id, x.client_ip, x.api, x.group_id, x.transactional_id, b.topic,
    b.partition, x.response_time AS time, b.error_code, b.error
  FROM broken AS b JOIN failed_exchanges AS x  -- an exchange of which a partition failed has failed
    ON x.capture = b.capture AND x.connection = b.connection AND x.exchange = b.exchange
  UNION ALL
  SELECT capture, connection, exchange, client_id, client_ip, api, group_id, transactional_id, topic,
    CAST(NULL AS INT) AS partition, time, held.code AS error_code, held.error AS error
  FROM (
    SELECT x.capture, x.connection, x.exchange, x.client_id, x.client_ip, x.api, x.group_id, x.transactional_id,
      nullif(get(x.topics, 0), '') AS topic, x.response_time AS time, explode(x.errors) AS held
    FROM failed_exchanges AS x LEFT ANTI JOIN broken AS b
      ON b.capture = x.capture AND b.connection = x.connection AND b.exchange = x.exchange
  )
), things AS (
  -- A number each, for sorting and counting by eight texts takes long.
  SELECT *, row_number() OVER (
      ORDER BY capture, client_id, client_ip, api, group_id, transactional_id, topic, partition) AS thing
  FROM (
    SELECT capture, client_id, client_ip, api, group_id, transactional_id, topic, partition, count(*) > 1 AS several,
      min(time) AS first_failure, max(time) AS last_failure
    FROM failures
    GROUP BY capture, client_id, client_ip, api, group_id, transactional_id, topic, partition
  )
), successes AS (
  -- Only of the same things, for there are few of them: of each the last, and those between its failures. What went well
  -- before the first failure says nothing of it.
  SELECT t.thing, if(t.several AND s.time <= t.last_failure, s.time, NULL) AS amid, max(s.time) AS time
  FROM (
    SELECT x.capture, x.client_id, x.client_ip, x.api, x.group_id, x.transactional_id, t.topic, t.partition,
      x.response_time AS time
    FROM partitions AS p LEFT JOIN named_topics AS n ON n.topic_id = p.topic_id
      JOIN (SELECT DISTINCT capture, topic, partition FROM things WHERE partition IS NOT NULL) AS t
        ON t.capture = p.capture AND t.partition = p.partition AND t.topic = coalesce(p.topic, n.topic, p.topic_id)
      JOIN exchanges AS x ON x.capture = p.capture AND x.connection = p.connection AND x.exchange = p.exchange
    WHERE p.error_code = 0
  ) AS s JOIN things AS t
    ON t.capture = s.capture AND t.client_id <=> s.client_id AND t.client_ip = s.client_ip AND t.api = s.api
      AND t.group_id <=> s.group_id AND t.transactional_id <=> s.transactional_id AND t.topic <=> s.topic
      AND t.partition <=> s.partition
  WHERE s.time >= t.first_failure
  GROUP BY ALL
), heard AS (
  -- The same where nothing says it by partition.
  SELECT t.thing, if(t.several AND x.response_time <= t.last_failure, x.response_time, NULL) AS amid,
    max(x.response_time) AS time
  FROM exchanges AS x JOIN things AS t
    ON t.capture = x.capture AND t.client_id <=> x.client_id AND t.client_ip = x.client_ip AND t.api = x.api
      AND t.group_id <=> x.group_id AND t.transactional_id <=> x.transactional_id
      AND t.topic <=> nullif(get(x.topics, 0), '')
  WHERE t.partition IS NULL AND x.error_code = 0 AND x.response_time >= t.first_failure
  GROUP BY ALL
), passed AS (
  SELECT thing, amid, time FROM successes
  UNION ALL
  SELECT thing, amid, time FROM heard
), failed AS (
  SELECT t.thing, t.several, f.time, f.error_code, f.error
  FROM failures AS f JOIN things AS t
    ON t.capture = f.capture AND t.client_id <=> f.client_id AND t.client_ip = f.client_ip AND t.api = f.api
      AND t.group_id <=> f.group_id AND t.transactional_id <=> f.transactional_id AND t.topic <=> f.topic
      AND t.partition <=> f.partition
), numbered AS (
  SELECT thing, time, error_code, error, sum(if(error_code = 0, 1, 0)) OVER (
    PARTITION BY thing ORDER BY time, error_code ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS run
  FROM (
    SELECT thing, time, error_code, error FROM failed WHERE several
    UNION ALL
    SELECT thing, amid AS time, CAST(0 AS SMALLINT) AS error_code, CAST(NULL AS STRING) AS error
    FROM passed WHERE amid IS NOT NULL
  )
  UNION ALL
  -- What failed once has one run: nothing to sort.
  SELECT thing, time, error_code, error, CAST(0 AS BIGINT) AS run FROM failed WHERE NOT several
), good AS (
  SELECT thing, max(time) AS time FROM passed GROUP BY thing
), counted AS (
  SELECT thing, error_code, error, count(*) AS answers, min(time) AS first_time, max(time) AS last_time
  FROM numbered
  WHERE error_code <> 0
  GROUP BY thing, error_code, error, run
), runs AS (
  SELECT t.capture, t.client_id, t.client_ip, t.api, t.group_id, t.transactional_id, t.topic, t.partition, c.error_code,
    c.error, c.answers, c.first_time, c.last_time, coalesce(g.time > c.last_time, false) AS cleared
  FROM counted AS c JOIN things AS t ON t.thing = c.thing LEFT JOIN good AS g ON g.thing = c.thing
), judged AS (
  SELECT r.*, coalesce(own.judgement, usual.judgement, 'bad') AS judgement,
    if(own.error_code IS NULL, usual.grace_us, own.grace_us) AS grace_us, coalesce(usual.why, 'Kafka has no such error.') AS why,
    unix_micros(r.last_time) - unix_micros(r.first_time) AS lasted_us
  FROM runs AS r
    LEFT JOIN error_judgements AS own ON own.error_code = r.error_code AND own.api = r.api
    LEFT JOIN error_judgements AS usual ON usual.error_code = r.error_code AND usual.api IS NULL
)
SELECT capture, client_id, client_ip, api, group_id, transactional_id, topic, partition, error_code, error, judgement,
  CASE
    WHEN judgement = 'bad' THEN true
    WHEN grace_us IS NULL OR cleared THEN false
    -- Clients back off 0.1 to 1 s, so that ten answers in a second or more are seconds of trying.
    ELSE answers >= 3 AND lasted_us >= grace_us OR answers >= 10 AND lasted_us >= 1000000 AND grace_us <= 5000000
  END AS fault,
  answers, first_time, last_time, cleared, why
FROM judged
ORDER BY fault DESC, answers DESC, first_time, client_id, client_ip, api, group_id, transactional_id, topic, partition,
  error_code, capture
