"""Sends a plan: each step when it is due, to the broker that serves it, repeated where a rule says so."""
