"""A program that captures by scapy and writes a pcap file to standard output: for `--via scapy`.

In: arguments INTERFACE FILTER SNAPLEN. Out: records in nanoseconds, each written at once. Rule: scapy is
GPL-2.0-only, and imported here alone, in a process of its own. It loses packets at rates that libpcap does not notice.
"""

from __future__ import annotations

import os
import sys


def capture(interface: str, expression: str, snaplen: int) -> None:
    """Capture until killed."""
    import struct
    import time

    from kwire.captures.extras import install
    from kwire.captures.live.taps import file_header

    try:
        from scapy.all import conf
    except ImportError:
        sys.exit(f"scapy is not installed\nhint: {install('live')}")
    try:
        listening = conf.L2listen(iface=interface, filter=expression or None)
    except Exception as failure:  # scapy raises what it likes
        sys.exit(f"scapy: {failure}")
    os.write(1, file_header(1, snaplen))
    while True:
        _, data, when = listening.recv_raw()
        if data:
            time_ns = time.time_ns() if when is None else int(when * 1_000_000) * 1000
            stored = data[:snaplen]
            os.write(1, struct.pack("<IIII", *divmod(time_ns, 10**9), len(stored), len(data)) + stored)


if __name__ == "__main__":
    capture(sys.argv[1], sys.argv[2], int(sys.argv[3]))
