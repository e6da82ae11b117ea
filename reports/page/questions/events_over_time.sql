-- When does what happen?
-- interval: number of the interval, each {width_us:,} us long, from the first packet on.
-- kind: `join`, `leave`, `leader`, `error`, `transaction`, `login`, `reset`.
-- events: how many.
-- who: one of the clients.
-- what: one of the things that it is about.
-- detail: more of one.
SELECT (unix_micros(time) - {begin}) DIV {width_us} AS interval, kind, count(*) AS events, min(client_id) AS who,
  min(what) AS what, min(detail) AS detail
FROM events
GROUP BY ALL
ORDER BY interval, kind
