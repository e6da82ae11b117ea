"""Open an interface with the best method that this machine has, and set the filter.

In: `CaptureOptions`. Out: a `Tap`; rights that sudo had given are dropped. Rule: libpcap first; Linux's own ring if it
is not installed; another tool if the options name it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from kwire.captures.errors import CaptureError
from kwire.captures.live import interfaces, libpcap, pcap_library
from kwire.captures.live.ring import Ring
from kwire.captures.live.taps import SNAPLEN, Tap
from kwire.captures.live.tools import TOOLS, Tool

WAYS: Final = ("libpcap", "ring", *TOOLS)


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Options of a live capture.

    interface    its name; `any` is all of them on Linux
    expression   tcpdump's filter language; "" is everything, None TCP without one's own ssh session
    snaplen      bytes kept of a packet
    via          one of WAYS, None: what there is
    one_of       N: one of N connections alone
    """

    interface: str
    expression: str | None = None
    snaplen: int = SNAPLEN
    via: str | None = None
    one_of: int = 1


def opened(options: CaptureOptions) -> Tap:
    """Listen. Raises CaptureError."""
    if sys.byteorder != "little":
        raise CaptureError("-i: not on this machine: its byte order is another", "tcpdump -w - | kwire ... -")
    session = interfaces.own_session() if options.expression is None else None
    expression = interfaces.default_filter(session) if options.expression is None else options.expression
    if options.via in TOOLS:
        return Tool(options.via, options.interface, expression, options.snaplen, options.one_of)
    library = pcap_library.library() if options.via != "ring" else None
    if library is not None:
        device = None
        if sys.platform == "win32":  # \\Device\\NPF_{...}, which nobody knows by heart
            device = pcap_library.chosen(pcap_library.devices(library), options.interface).name
        return libpcap.Libpcap(library, options.interface, expression, options.snaplen, device, options.one_of)
    if sys.platform == "win32":
        raise CaptureError("Npcap is not installed", "it comes with Wireshark; https://npcap.com has it too")
    if options.via == "libpcap" or sys.platform != "linux":
        raise CaptureError(
            "libpcap is not installed", "it comes with tcpdump and Wireshark; or: tcpdump -U -w - | kwire ... -"
        )
    if options.expression:
        raise CaptureError(
            f"-f {options.expression!r}: a filter needs libpcap" + ("" if options.via else ", which is not installed"),
            "it comes with tcpdump (apt-get install libpcap0.8); or leave out -f: TCP is captured",
        )
    return Ring(options.interface, expression, session, options.snaplen, options.one_of)
