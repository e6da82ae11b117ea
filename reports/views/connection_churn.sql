-- How many connections open and close from minute to minute?
-- time: beginning of the minute.
-- opened: connections whose SYN was seen then.
-- closed: connections that ended then, with FIN or RST.
-- resets: those that ended with RST.
WITH events AS (
  SELECT date_trunc('minute', first_time) AS time, 1 AS opened, 0 AS closed, 0 AS resets
  FROM connections WHERE opened
  UNION ALL
  SELECT date_trunc('minute', last_time), 0, 1, if(closed = 'rst', 1, 0)
  FROM connections WHERE closed <> 'open'
)
SELECT time, sum(opened) AS opened, sum(closed) AS closed, sum(resets) AS resets
FROM events
GROUP BY time
ORDER BY time
