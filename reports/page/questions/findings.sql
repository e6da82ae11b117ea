-- What is wrong or worth knowing, worst first?
-- capture: name of the capture point.
-- severity: `error`, `warning` or `note`.
-- code: the rule; `kwire findings --explain CODE` has its threshold and reason.
-- family: family of rules that it belongs to.
-- text: one sentence.
-- cause: why, where that is known.
-- proven: the cause is proven; no: probable.
-- advice: what to do.
-- named: whom or what it is about, in a word: a client id, a group, a topic, a broker.
-- count: how many exchanges, batches or events.
-- since: first of them.
-- until: last of them.
-- first_connection: connection of the first exchange that shows it.
-- first_exchange: its number there, as `kwire show --follow CONNECTION` has it.
-- worst_connection: connection of the worst.
-- worst_exchange: its number there.
-- last_connection: connection of the last.
-- last_exchange: its number there.
SELECT capture, severity, code, family, text, cause, proven, advice,
  coalesce(nullif(who['client_id'], ''), what['group_id'], what['topic'], who['broker'], who['client_ip']) AS named,
  `count`, since, until,
  `first`.connection AS first_connection, `first`.exchange AS first_exchange,
  worst.connection AS worst_connection, worst.exchange AS worst_exchange,
  `last`.connection AS last_connection, `last`.exchange AS last_exchange
FROM findings
ORDER BY if(severity = 'error', 0, if(severity = 'warning', 1, 2)), if(family = 'quality', 0, 1), since, code, text,
  capture
