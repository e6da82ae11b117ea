-- How large are requests and responses of each API?
-- api: Kafka's name of the API.
-- requests: requests seen.
-- request_p50_bytes: half of the requests are at most this large.
-- request_p99_bytes: 99 of 100 are at most this large.
-- request_max_bytes: the largest.
-- request_bytes: all together.
-- responses: responses seen.
-- response_p50_bytes: half of the responses are at most this large.
-- response_p99_bytes: 99 of 100 are at most this large.
-- response_max_bytes: the largest.
-- response_bytes: all together.
WITH sizes AS (
  SELECT api_key, api, request_bytes, response_bytes, bucketed(request_bytes) AS request_bucket,
    bucketed(response_bytes) AS response_bucket
  FROM exchanges
), measured AS (
  SELECT api_key, api, count(request_bytes) AS requests, percentile(request_bucket, array(0.5, 0.99)) AS asked,
    max(request_bytes) AS request_max_bytes, sum(request_bytes) AS request_bytes, count(response_bytes) AS responses,
    percentile(response_bucket, array(0.5, 0.99)) AS answered, max(response_bytes) AS response_max_bytes,
    sum(response_bytes) AS response_bytes
  FROM sizes
  GROUP BY api_key, api
)
SELECT api, requests, CAST(asked[0] AS BIGINT) AS request_p50_bytes, CAST(asked[1] AS BIGINT) AS request_p99_bytes,
  request_max_bytes, request_bytes, responses, CAST(answered[0] AS BIGINT) AS response_p50_bytes,
  CAST(answered[1] AS BIGINT) AS response_p99_bytes, response_max_bytes, response_bytes
FROM measured
ORDER BY coalesce(request_bytes, 0) + coalesce(response_bytes, 0) DESC, api
