"""What Kafka's messages look like: definitions, the program made of them, and the walks over it. Knows no capture."""
