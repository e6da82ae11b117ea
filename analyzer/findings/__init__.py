"""Find what is wrong in a capture, or worth knowing: rules over the stored tables, and the table `findings`.

In: tables of a dataset, in memory or as files (`frame.parquet`), by capture point (`capture`). Out: rows of
`tables.FINDINGS` (`evaluate`). Rules:
- a rule reads chosen columns of stored tables, never messages: the same dataset gives the same findings, whoever wrote
  it, and again with other thresholds;
- what comes and goes by itself is judged as a run (`runs`), never as an event;
- a client is its address and client id, not its connection;
- what is missing from the capture is not missing from Kafka: rules that argue from absence leave out connections with
  gaps, and the family of capture quality says so first.
"""
