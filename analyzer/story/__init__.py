"""`kwire story`: what happened in a capture, in order, one line an event."""
