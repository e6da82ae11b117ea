-- Which client uses which version of which API?
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- software_name: the client library, as it said in ApiVersions v3 and newer (KIP-511).
-- software_version: its version.
-- api_key: Kafka's number of the API.
-- api: Kafka's name of the API.
-- api_version: the version.
-- exchanges: how many requests of it.
WITH spoken AS (
  SELECT capture, connection, client_id, client_ip, api_key, api, api_version, count(*) AS exchanges
  FROM exchanges
  WHERE exchange IS NOT NULL AND api_version IS NOT NULL
  GROUP BY ALL
)
SELECT s.client_id, s.client_ip, c.software_name, c.software_version, s.api_key, s.api, s.api_version,
  sum(s.exchanges) AS exchanges
FROM spoken AS s LEFT JOIN connections AS c ON c.capture = s.capture AND c.connection = s.connection
GROUP BY ALL
ORDER BY s.client_id, s.client_ip, c.software_name, c.software_version, s.api_key, s.api_version
