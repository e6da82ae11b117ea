-- When do which errors come?
-- interval: number of the interval, each {width_us:,} us long, from the first packet on.
-- error: the first error of a response.
-- exchanges: responses with it that came in the interval.
SELECT (unix_micros(response_time) - {begin}) DIV {width_us} AS interval, error, count(*) AS exchanges
FROM failed_exchanges
GROUP BY ALL
ORDER BY interval, error
