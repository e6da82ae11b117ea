"""From ordered bytes to rows of integers: finding messages, pairing them, the tables of a shard. Kernels live here."""
