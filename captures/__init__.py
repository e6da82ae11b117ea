"""Below Kafka: capture files, links, IP and TCP, up to ordered bytes with times. Imports no other package of ours."""
