-- How large are requests and responses of each API?
-- api: Kafka's name of the API.
-- requests: requests seen.
-- request_p50_bytes: the smallest size that at least half of the requests do not exceed.
-- request_p99_bytes: the smallest that at least 99 of 100 do not exceed.
-- request_max_bytes: the largest.
-- request_bytes: all together.
-- responses: responses seen.
-- response_p50_bytes: the smallest size that at least half of the responses do not exceed.
-- response_p99_bytes: the smallest that at least 99 of 100 do not exceed.
-- response_max_bytes: the largest.
-- response_bytes: all together.
WITH counted AS (
  SELECT api_key, api, 'request' AS side, bucketed(request_bytes) AS bucket, count(*) AS messages,
    max(request_bytes) AS largest, sum(request_bytes) AS bytes
  FROM exchanges
  WHERE request_bytes IS NOT NULL
  GROUP BY ALL
  UNION ALL
  SELECT api_key, api, 'response' AS side, bucketed(response_bytes) AS bucket, count(*) AS messages,
    max(response_bytes) AS largest, sum(response_bytes) AS bytes
  FROM exchanges
  WHERE response_bytes IS NOT NULL
  GROUP BY ALL
), placed AS (
  SELECT *, sum(messages) OVER (PARTITION BY api_key, api, side ORDER BY bucket) AS upto,
    sum(messages) OVER (PARTITION BY api_key, api, side) AS total
  FROM counted
)
SELECT api, coalesce(max(if(side = 'request', total, NULL)), 0) AS requests,
  min(if(side = 'request' AND 100 * upto >= 50 * total, bucket, NULL)) AS request_p50_bytes,
  min(if(side = 'request' AND 100 * upto >= 99 * total, bucket, NULL)) AS request_p99_bytes,
  max(if(side = 'request', largest, NULL)) AS request_max_bytes, sum(if(side = 'request', bytes, NULL)) AS request_bytes,
  coalesce(max(if(side = 'response', total, NULL)), 0) AS responses,
  min(if(side = 'response' AND 100 * upto >= 50 * total, bucket, NULL)) AS response_p50_bytes,
  min(if(side = 'response' AND 100 * upto >= 99 * total, bucket, NULL)) AS response_p99_bytes,
  max(if(side = 'response', largest, NULL)) AS response_max_bytes, sum(if(side = 'response', bytes, NULL)) AS response_bytes
FROM placed
GROUP BY api_key, api
ORDER BY coalesce(request_bytes, 0) + coalesce(response_bytes, 0) DESC, api
