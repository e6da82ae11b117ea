-- What are the keys and values of each topic, and which schemas do they name?
-- Needs `--records full` with an option about payloads (`--schemas`, `--registry`, `--payloads`). A record counts each time
-- that it was sent or fetched; Kafka's own topics, null keys and tombstones do not count.
-- topic: name of the topic, or its id where no message said the name.
-- side: `key` or `value`.
-- format: `avro`, `protobuf`, `json_schema`, `json`, `text`, `messagepack`; null: not known.
-- schema_id: schema that they name; null: none.
-- records: how many.
-- share: of the keys or values of the topic, from 0 to 1.
-- undecoded: of them, those that are not decoded; `undecodable` in `records` says why.
-- first_time: smallest timestamp of them.
-- last_time: largest timestamp.
WITH sides AS (
  SELECT topic, 'key' AS side, key_format AS format, key_schema_id AS schema_id, key_json AS json, timestamp
  FROM named_records
  WHERE key_bytes IS NOT NULL AND (key_format IS NOT NULL OR undecodable IS NOT NULL)
  UNION ALL
  SELECT topic, 'value' AS side, value_format AS format, value_schema_id AS schema_id, value_json AS json, timestamp
  FROM named_records
  WHERE value_bytes IS NOT NULL AND (value_format IS NOT NULL OR undecodable IS NOT NULL)
), counted AS (
  SELECT topic, side, format, schema_id, count(*) AS records, count_if(json IS NULL) AS undecoded,
    min(timestamp) AS first_time, max(timestamp) AS last_time
  FROM sides
  GROUP BY topic, side, format, schema_id
)
SELECT topic, side, format, schema_id, records, records / sum(records) OVER (PARTITION BY topic, side) AS share,
  undecoded, first_time, last_time
FROM counted
ORDER BY topic, side, records DESC, format, schema_id
