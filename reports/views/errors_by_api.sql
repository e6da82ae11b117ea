-- Which errors does each API answer with?
-- A response that holds several errors counts for each.
-- api: Kafka's name of the API.
-- error_code: Kafka's number of the error.
-- error: its name.
-- retriable: Kafka's clients send the same request again after this error, and may succeed.
-- exchanges: exchanges whose response holds it.
-- occurrences: how often it stands in those responses.
WITH held AS (
  SELECT *, explode(errors) AS held FROM failed_exchanges
)
SELECT api, held.code AS error_code, held.error, coalesce(known.retriable, false) AS retriable,
  count(*) AS exchanges, sum(held.count) AS occurrences
FROM held LEFT JOIN kafka_errors AS known ON known.error_code = held.held.code
GROUP BY ALL
ORDER BY exchanges DESC, api, error_code
