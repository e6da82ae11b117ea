-- What do the errors come to?
-- judgement: `fault`, or what else they are: `normal`, `transient`, `admin`.
-- runs: rows of `error_runs`.
-- answers: answers with the error.
-- lasting: of the runs, those that went on for longer than five seconds and passed.
SELECT if(fault, 'fault', judgement) AS judgement, count(*) AS runs, sum(answers) AS answers,
  count_if(NOT fault AND judgement = 'transient' AND cleared
    AND unix_micros(last_time) - unix_micros(first_time) > 5000000) AS lasting
FROM error_runs
GROUP BY ALL
ORDER BY judgement
