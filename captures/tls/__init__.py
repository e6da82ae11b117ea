"""TLS between streams and framing: with the keys that a key log holds, payload becomes what was said.

In: `Segments` of TCP connections, and key logs. Out: `Segments` in which the bytes of TLS connections are plaintext.
"""
