"""Record batches and Kafka's own files: batches, checksums, codecs, records, and their tables."""
