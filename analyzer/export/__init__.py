"""Packets of chosen exchanges as a capture file of their own, for Wireshark."""
