"""Kafka: frames, exchanges, decoded messages and tables, from the streams that `captures` gives."""
