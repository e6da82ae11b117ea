-- Which errors are faults, and whose?
-- Runs of `error_runs` that are faults, of one client, API, error and group, transactional id or topic together.
-- client_id: client id of the request headers.
-- client_ip: address of the client.
-- api: Kafka's name of the API.
-- group_id: the group that it is about.
-- transactional_id: the transactional id that it is about.
-- topic: the topic that it is about.
-- partitions: different partitions of the topic.
-- error_code: Kafka's number of the error.
-- error: its name.
-- answers: answers with it.
-- first_time: the first of them.
-- last_time: the last of them.
-- cleared: good answers about the same came after each.
-- why: what the error means.
SELECT client_id, client_ip, api, group_id, transactional_id, topic, count(DISTINCT partition) AS partitions, error_code,
  error, sum(answers) AS answers, min(first_time) AS first_time, max(last_time) AS last_time,
  count_if(NOT cleared) = 0 AS cleared, why
FROM error_runs
WHERE fault
GROUP BY client_id, client_ip, api, group_id, transactional_id, topic, error_code, error, why
ORDER BY cleared, answers DESC, first_time, client_id, client_ip, api
