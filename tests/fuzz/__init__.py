"""Captures broken on purpose: seeded mutations of real and forged ones, and what must hold for each (`checking`)."""
