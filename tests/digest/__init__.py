"""A digest of all that kwire makes of real captures, to prove that a change of the code's layout changed none of it."""
