"""Real Apache Kafka brokers for tests: see README.md."""
