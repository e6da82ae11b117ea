"""Live capture: packets of an interface as the bytes of a pcap file, as they come.

In: the name of an interface, a filter in tcpdump's language. Out: a `Tap`, and a `Belt` that carries what it gives to
whoever writes or decodes it. Rules: who captures never waits for who decodes; what is lost on the way is counted; no
packet becomes a Python object.
"""
