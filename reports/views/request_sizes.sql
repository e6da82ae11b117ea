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
WITH counted_requests AS (
  SELECT api_key, api, bucketed(request_bytes) AS bucket, count(*) AS messages, max(request_bytes) AS largest,
    sum(request_bytes) AS bytes
  FROM exchanges
  GROUP BY ALL
), placed_requests AS (
  -- How many sizes are at most the one of each row, and how many there are.
  SELECT *, sum(if(bucket IS NULL, 0, messages)) OVER (PARTITION BY api_key, api ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, messages)) OVER (PARTITION BY api_key, api) AS sized
  FROM counted_requests
), asked AS (
  SELECT api_key, api, max(sized) AS messages, min(if(100 * upto >= 50 * sized, bucket, NULL)) AS p50_bytes,
    min(if(100 * upto >= 99 * sized, bucket, NULL)) AS p99_bytes, max(largest) AS max_bytes, sum(bytes) AS bytes
  FROM placed_requests
  GROUP BY api_key, api
), counted_responses AS (
  SELECT api_key, api, bucketed(response_bytes) AS bucket, count(*) AS messages, max(response_bytes) AS largest,
    sum(response_bytes) AS bytes
  FROM exchanges
  GROUP BY ALL
), placed_responses AS (
  SELECT *, sum(if(bucket IS NULL, 0, messages)) OVER (PARTITION BY api_key, api ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, messages)) OVER (PARTITION BY api_key, api) AS sized
  FROM counted_responses
), answered AS (
  SELECT api_key, api, max(sized) AS messages, min(if(100 * upto >= 50 * sized, bucket, NULL)) AS p50_bytes,
    min(if(100 * upto >= 99 * sized, bucket, NULL)) AS p99_bytes, max(largest) AS max_bytes, sum(bytes) AS bytes
  FROM placed_responses
  GROUP BY api_key, api
)
SELECT a.api, coalesce(a.messages, 0) AS requests, a.p50_bytes AS request_p50_bytes, a.p99_bytes AS request_p99_bytes,
  a.max_bytes AS request_max_bytes, a.bytes AS request_bytes, coalesce(r.messages, 0) AS responses,
  r.p50_bytes AS response_p50_bytes, r.p99_bytes AS response_p99_bytes, r.max_bytes AS response_max_bytes,
  r.bytes AS response_bytes
FROM asked AS a JOIN answered AS r ON r.api_key <=> a.api_key AND r.api <=> a.api
WHERE a.messages > 0 OR r.messages > 0
ORDER BY coalesce(a.bytes, 0) + coalesce(r.bytes, 0) DESC, a.api
