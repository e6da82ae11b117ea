-- Which API versions do the brokers offer?
-- From answers to ApiVersions; brokers of one software offer the same.
-- broker: `ip:port` of the broker.
-- api_key: Kafka's number of the API.
-- api: Kafka's name of the API; null for one that this kwire does not know.
-- min: lowest version that it offers.
-- max: highest version that it offers.
-- changed: the broker's answers differ, as after an upgrade: the widest range is shown.
WITH names AS (SELECT DISTINCT api_key, api FROM kafka_releases)
SELECT v.broker, v.api_key, n.api, min(v.min) AS min, max(v.max) AS max,
  count(DISTINCT v.min, v.max) > 1 AS changed
FROM api_versions AS v LEFT JOIN names AS n ON n.api_key = v.api_key
GROUP BY v.broker, v.api_key, n.api
ORDER BY v.broker, v.api_key
