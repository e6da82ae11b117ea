"""Live capture: packets of an interface as the bytes of a pcap file, as they come.

In: the name of an interface, a filter in tcpdump's language. Out: a `Tap`, and a `CaptureQueue` between it and the
thread that writes or decodes its chunks. Rules: capturing never waits for decoding; losses are counted; no packet
becomes a Python object.
"""
