-- How many clients use what Kafka {target} does not have, and could do without it?
-- A client is a client id and an address.
-- problem: `gone`: the release has removed an API or a version that they use; `newest`: the same, but all those
--   are the newest that their brokers offer, and they asked for versions as clients since Kafka 2.4 do (ApiVersions 3), so
--   that they may have newer ones; `not there yet`: it is older than what they use.
-- clients: how many.
-- named: the first three of their client ids.
-- unnamed: there is one without an id.
WITH lacking AS (
  SELECT DISTINCT client_id, software_name, software_version, api, api_version, problem <> 'not there yet' AS gone
  FROM upgrade_check
  WHERE release = '{target}' AND sender = 'client'
), offered AS (
  SELECT capture, connection, api_key, max(max) AS newest
  FROM api_versions
  GROUP BY capture, connection, api_key
), late AS (
  SELECT DISTINCT capture, connection
  FROM connection_apis
  WHERE api_key = 18 AND api_version >= 3 AND asked
), used AS (
  SELECT s.client_id, s.client_ip, l.gone,
    a.connection IS NOT NULL AND coalesce(s.api_version = o.newest, false) AS newest
  FROM connection_apis AS s
    LEFT JOIN connections AS c ON c.capture = s.capture AND c.connection = s.connection
    JOIN lacking AS l ON l.client_id <=> s.client_id AND l.software_name <=> c.software_name
      AND l.software_version <=> c.software_version AND l.api <=> s.api AND l.api_version = s.api_version
    LEFT JOIN offered AS o ON o.capture = s.capture AND o.connection = s.connection AND o.api_key = s.api_key
    LEFT JOIN late AS a ON a.capture = s.capture AND a.connection = s.connection
  WHERE s.asked
), clients AS (
  SELECT client_id, client_ip,
    CASE WHEN count_if(gone AND NOT newest) > 0 THEN 'gone' WHEN count_if(gone) > 0 THEN 'newest' ELSE 'not there yet'
    END AS problem
  FROM used
  GROUP BY client_id, client_ip
)
SELECT problem, count(*) AS clients, slice(array_sort(collect_set(client_id)), 1, 3) AS named,
  count_if(client_id IS NULL) > 0 AS unnamed
FROM clients
GROUP BY problem
ORDER BY problem
