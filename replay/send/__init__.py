"""Sending a plan: when each step is due, to whoever serves it, again where a rule says so."""
