-- Which clients ask most?
-- Requests whose client id was captured.
-- client_id: the client id.
-- requests: requests with it.
-- bytes: bytes of these requests.
SELECT client_id, count(*) AS requests, sum(request_bytes) AS bytes
FROM exchanges
WHERE client_id IS NOT NULL
GROUP BY client_id
ORDER BY requests DESC, client_id
