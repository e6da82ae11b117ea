"""Spark: sessions, captures as a data source, and `analyze --engine spark`.

Tasks decode with `analyzer`; nothing is decoded here.
"""
