"""Define and decode Kafka's messages: definitions, the program made of them, and the walks over it. Knows no capture."""
