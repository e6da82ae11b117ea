-- Who are the clients: software, addresses, what they use?
-- client_id: client id of the request header; null where it says none.
-- software_name: the client library, as it said in ApiVersions v3 and newer (KIP-511).
-- software_version: its version.
-- addresses: addresses it came from, at most 20 of them.
-- connections: how many connections.
-- requests: how many requests.
-- errors: exchanges whose response holds an error.
-- request_bytes: sizes of its requests together.
-- response_bytes: sizes of the responses together.
-- first_time: its first request.
-- last_time: its last request.
-- apis: the APIs it uses, each with its versions.
WITH told AS (
  SELECT s.*, c.software_name, c.software_version
  FROM connection_apis AS s LEFT JOIN connections AS c ON c.capture = s.capture AND c.connection = s.connection
  WHERE s.asked
), versions AS (
  SELECT client_id, software_name, software_version, api,
    concat(api, ' v', array_join(array_sort(collect_set(api_version)), ', v')) AS used
  FROM told WHERE api IS NOT NULL
  GROUP BY ALL
), uses AS (
  SELECT client_id, software_name, software_version, array_join(array_sort(collect_list(used)), '; ') AS apis
  FROM versions GROUP BY ALL
), sums AS (
  SELECT client_id, software_name, software_version,
    array_join(slice(array_sort(collect_set(client_ip)), 1, 20), ', ') AS addresses,
    count(DISTINCT capture, connection) AS connections, sum(exchanges) AS requests, sum(errors) AS errors,
    sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes,
    min(first_time) AS first_time, max(last_time) AS last_time
  FROM told GROUP BY ALL
)
SELECT s.client_id, s.software_name, s.software_version, s.addresses, s.connections, s.requests, s.errors,
  s.request_bytes, s.response_bytes, s.first_time, s.last_time, u.apis
FROM sums AS s LEFT JOIN uses AS u ON u.client_id <=> s.client_id AND u.software_name <=> s.software_name
  AND u.software_version <=> s.software_version
ORDER BY s.requests DESC, s.client_id, s.software_name, s.software_version
