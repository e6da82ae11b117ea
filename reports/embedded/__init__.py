"""The embedded engine: the same SQL on DuckDB, inside this process, for datasets that a machine holds easily.

Spark is the reference. What is not known to mean the same here is not taken (`engine_protocol.UnsupportedSqlError`).
"""
