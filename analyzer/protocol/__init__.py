"""Define and decode Kafka's messages: definitions, the program made of them, walks over it. Knows no capture."""
