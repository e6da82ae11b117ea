"""Compare two sides of the same exchanges. Takes nothing from the replayer, which it is there to check."""
