"""`kwire view`: a page in a browser for looking into Kafka traffic, and the HTTP API behind it (README.md, API.md)."""
