-- Which exchanges failed?
-- The groundwork of the questions about errors: those whose response holds an error.
-- capture: name of the capture point.
-- connection: the exchange's connection.
-- exchange: ordinal of its request in the connection.
-- api: Kafka's name of the API.
-- client_id: client id of the request header.
-- client_ip: address of the client.
-- request_time: first byte of the request.
-- response_time: first byte of the response.
-- group_id: first group that the request names.
-- transactional_id: first transactional id that the request names.
-- topics: topics that it names, ids among them.
-- error_code: first error of the response.
-- error: its name.
-- errors: every different error of the response, with how often it is in it.
SELECT capture, connection, exchange, api, client_id, client_ip, request_time, response_time, group_id,
  transactional_id, topics, error_code, error, errors
FROM exchanges
WHERE error_code <> 0
