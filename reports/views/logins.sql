-- Who logs in by SASL, how, and who is refused?
-- Before a login there is no client id to tell programs of one address apart, unless they send one.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- broker: `ip:port` of the broker.
-- mechanism: the mechanism asked for.
-- accepted: connections on which a login succeeded.
-- refused: answers that refuse one.
-- error: an error in them.
-- first_refused: the first of them.
-- last_refused: the last of them.
-- good_after: a login succeeded after the last refusal.
WITH few AS (
  SELECT capture, connection, client_id, client_ip, broker_ip, broker_port, api_key, error_code, error, response_time
  FROM exchanges
  -- SaslHandshake, SaslAuthenticate
  WHERE api_key IN (17, 36) AND status = 'answered'
), tried AS (
  SELECT x.capture, x.connection, x.client_id, x.client_ip,
    concat(if(contains(x.broker_ip, ':'), concat('[', x.broker_ip, ']'), x.broker_ip), ':', x.broker_port) AS broker,
    c.sasl_mechanism AS mechanism, x.api_key, x.error_code, x.error, x.response_time AS time
  FROM few AS x LEFT JOIN connections AS c ON c.capture = x.capture AND c.connection = x.connection
), last AS (
  SELECT capture, connection, max(time) AS time, max(if(error_code <> 0, 1, 0)) AS failed
  FROM tried
  WHERE api_key = 36
  GROUP BY capture, connection
), summed AS (
  SELECT t.client_id, t.client_ip, t.broker, t.mechanism,
    count(DISTINCT if(l.failed = 0, t.connection, NULL)) AS accepted, count_if(t.error_code <> 0) AS refused,
    max(t.error) AS error, min(if(t.error_code <> 0, t.time, NULL)) AS first_refused,
    max(if(t.error_code <> 0, t.time, NULL)) AS last_refused, max(if(l.failed = 0, l.time, NULL)) AS last_accepted
  FROM tried AS t LEFT JOIN last AS l ON l.capture = t.capture AND l.connection = t.connection
  GROUP BY t.client_id, t.client_ip, t.broker, t.mechanism
)
SELECT client_id, client_ip, broker, mechanism, accepted, refused, error, first_refused, last_refused,
  coalesce(last_accepted > last_refused, false) AS good_after
FROM summed
ORDER BY refused DESC, accepted DESC, client_id, client_ip, broker, mechanism
