"""Below Kafka: capture files, links, IP and TCP. Capture bytes come in, columns of packets and streams go out.

Importing this package is free; its modules load NumPy and Numba, so a command imports them where it needs them.
"""
