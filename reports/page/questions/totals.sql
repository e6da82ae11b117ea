-- What happened, in numbers?
-- exchanges: rows of the table `exchanges`.
-- requests: requests seen.
-- answered: requests with their response.
-- no_response_expected: Produce with acks 0.
-- unanswered: the connection closed, or later responses came.
-- in_flight: the capture ended before the response.
-- orphans: responses whose request was not seen.
-- errors: exchanges whose response holds an error.
-- undecoded: exchanges of which a message was not decoded.
-- unread: answered exchanges of which nobody knows whether the answer holds an error.
-- prompt: answered exchanges of APIs that do not wait on purpose, which the next three are about: what broker and network
--   took, without what a request waited behind earlier ones of its connection.
-- p50_us: the smallest of these times that at least half of them do not exceed.
-- p99_us: the smallest that at least 99 of 100 do not exceed.
-- max_us: the longest.
-- throttled: exchanges that were throttled.
-- request_bytes: sizes of the requests together.
-- response_bytes: sizes of the responses together.
-- untold: answered exchanges of such APIs of which nobody knows how long they waited for replicas (Produce with acks=all,
--   commits), which the next two are about: their latency without what they waited behind earlier ones.
-- untold_p99_us: the smallest of these that at least 99 of 100 do not exceed.
-- untold_max_us: the longest.
-- slow: exchanges of such APIs that took a second or more, without the time that the broker held them on purpose.
WITH counted AS (
  SELECT served_us IS NOT NULL AS told, bucketed(coalesce(served_us, taken_us)) AS bucket, count(*) AS exchanges,
    max(coalesce(served_us, taken_us)) AS max_us, count_if(latency_us - coalesce(held_us, 0) >= 1000000) AS slow
  FROM timed_exchanges
  WHERE api_key NOT IN ({waiting})
  GROUP BY ALL
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY told ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, exchanges)) OVER (PARTITION BY told) AS timed
  FROM counted
), prompt AS (
  SELECT coalesce(max(if(told, timed, 0)), 0) AS prompt, min(if(told AND 100 * upto >= 50 * timed, bucket, NULL)) AS p50_us,
    min(if(told AND 100 * upto >= 99 * timed, bucket, NULL)) AS p99_us, max(if(told, max_us, NULL)) AS max_us,
    coalesce(max(if(told, 0, timed)), 0) AS untold,
    min(if(NOT told AND 100 * upto >= 99 * timed, bucket, NULL)) AS untold_p99_us,
    max(if(told, NULL, max_us)) AS untold_max_us, coalesce(sum(slow), 0) AS slow
  FROM placed
), summed AS (
  -- Of nothing a sum is null, a count 0.
  SELECT coalesce(sum(exchanges), 0) AS exchanges, coalesce(sum(if(asked, exchanges, 0)), 0) AS requests,
    coalesce(sum(if(status = 'answered', exchanges, 0)), 0) AS answered,
    coalesce(sum(if(status = 'no_response_expected', exchanges, 0)), 0) AS no_response_expected,
    coalesce(sum(if(status = 'unanswered', exchanges, 0)), 0) AS unanswered,
    coalesce(sum(if(status = 'in_flight', exchanges, 0)), 0) AS in_flight,
    coalesce(sum(if(status = 'orphan_response', exchanges, 0)), 0) AS orphans,
    coalesce(sum(errors), 0) AS errors, coalesce(sum(undecoded), 0) AS undecoded, coalesce(sum(unread), 0) AS unread,
    coalesce(sum(delayed), 0) AS throttled, sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes
  FROM connection_apis
)
SELECT exchanges, requests, answered, no_response_expected, unanswered, in_flight, orphans, errors,
  undecoded, unread, prompt, p50_us, p99_us, max_us, throttled, request_bytes, response_bytes,
  untold, untold_p99_us, untold_max_us, slow
FROM summed CROSS JOIN prompt
