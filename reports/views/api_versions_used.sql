-- Which client uses which version of which API?
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- software_name: the client library, as it said in ApiVersions v3 and newer (KIP-511).
-- software_version: its version.
-- api_key: Kafka's number of the API.
-- api: Kafka's name of the API.
-- api_version: the version.
-- exchanges: how many requests of it.
SELECT s.client_id, s.client_ip, c.software_name, c.software_version, s.api_key, s.api, s.api_version,
  sum(s.exchanges) AS exchanges
FROM connection_apis AS s LEFT JOIN connections AS c ON c.capture = s.capture AND c.connection = s.connection
WHERE s.asked AND s.api_version IS NOT NULL
GROUP BY ALL
ORDER BY s.client_id, s.client_ip, c.software_name, c.software_version, s.api_key, s.api_version
